"""Learner steps on fresh samples of a replay buffer, as many as a tensor says."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfrl import seeding
from tfrl.metrics.accumulator import MetricAccumulator

Row = dict[str, tf.Tensor]


class LearnerSteps:
    """Takes learner steps in a loop; traced.

    Attributes:
      names: The names of a step's metrics.
    """

    def __init__(self, step: Callable[[tf.Tensor], Row], names: Sequence[str]):
        """Takes a step.

        Args:
          step: `step(key)` takes one learner step and returns `{name: scalar}`.
          names: The names of these.
        """
        self._step, self.names = step, names

    def take(self, number: tf.Tensor, key: tf.Tensor) -> Row:
        """Takes steps; returns the means of their metrics, NaN without any.

        Args:
          number: int32 scalar, how many.
          key: int32 [2]; step j has `fold_in(key, j)`.
        """
        tally = MetricAccumulator(self.names)

        def body(j: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return j + 1, tally.add(sums, as_row(self._step(seeding.fold_in(key, j)), self.names))

        _, sums = tf.while_loop(
            lambda j, _: j < number,
            body,
            (tf.constant(0), tally.start()),
            parallel_iterations=1,
            name="updates",
        )
        return of_row(tally.result(sums), self.names)


def as_row(metrics: Mapping[str, tf.Tensor], names: Sequence[str]) -> tf.Tensor:
    """Returns metrics as a row, float32 [n]."""
    return tf.stack([tf.cast(metrics[name], tf.float32) for name in names])


def of_row(row: tf.Tensor, names: Sequence[str]) -> Row:
    """Undoes `as_row`."""
    return dict(zip(names, tf.unstack(row), strict=True))
