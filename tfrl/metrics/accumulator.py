"""Reduces the metrics of several iterations or updates to one row."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.ops._rows import where

# Means over ended episodes; a row has the latest.
EPISODE_METRICS = ("episode_return", "episode_length")

# Numbers of values clipped by running statistics.
OBS_OUTLIERS, REWARD_OUTLIERS = OUTLIERS = "obs_outliers", "reward_outliers"

_COUNTS = ("gradient_steps", "skipped_steps", *OUTLIERS)


class MetricAccumulator:
    """Reduces rows of metrics to one: sums of counts, last values of episode metrics.

    All others are means over the rows in which they are not NaN, since a row without an update has
    NaN metrics. The state is a tensor for `start`, `add` and `result`.
    """

    def __init__(self, names: Sequence[str], size: int | None = None):
        """Takes the names of the metrics, in the order of the rows.

        Args:
          names: The names.
          size: Length of a row, if longer than `names`.
        """
        kinds = [reduction(name) for name in names]
        kinds += ["mean"] * ((size or len(kinds)) - len(kinds))
        self._last = np.array([kind == "last" for kind in kinds], bool)
        self._sum = np.array([kind == "sum" for kind in kinds], bool)
        self._size = len(kinds)

    def start(self) -> tf.Tensor:
        """Returns the initial sums: float32 [2, n]."""
        return tf.zeros([2, self._size])

    def add(self, sums: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        """Returns the sums after adding a row, float32 [n]."""
        known = ~tf.math.is_nan(row)
        fresh = tf.stack([where(known, row, 0.0), tf.cast(known, tf.float32)])
        last = np.broadcast_to(self._last, sums.shape)
        return where(~last, sums, 0.0) + fresh

    def result(self, sums: tf.Tensor) -> tf.Tensor:
        """Returns the reduced row, float32 [n]; NaN without a value."""
        total, count = tf.unstack(sums)
        return tf.where(self._sum, total, total / count)

    def result_of(self, sums: np.ndarray) -> np.ndarray:
        """`result` in NumPy: three eager operations take a quarter of a millisecond."""
        total, count = sums
        with np.errstate(invalid="ignore"):
            return np.where(self._sum, total, total / count)


class MoreMetricsError(Exception):
    """A loop was traced with too few slots for metrics."""

    def __init__(self, number: int):
        """Takes the number of metrics."""
        super().__init__(number)
        self.number = number


def row_of(metrics: Mapping[str, tf.Tensor], names: Sequence[str], size: int) -> tf.Tensor:
    """Returns metrics as a row, float32 [size], padded with zeros.

    Raises:
      MoreMetricsError: If there are more metrics than `size`.
    """
    if len(names) > size:
        raise MoreMetricsError(len(names))
    zeros = [tf.constant(0.0)] * (size - len(names))
    return tf.stack([tf.cast(metrics[name], tf.float32) for name in names] + zeros)


def mean_of_steps(
    number: int | tf.Tensor,
    step: Callable[[tf.Tensor, Any], tuple[Any, Mapping[str, tf.Tensor]]],
    carried: Any = (),
    size: int = 64,
) -> tuple[Any, dict[str, tf.Tensor]]:
    """Runs steps in a loop; the first trace of a step gives the metrics' names.

    Args:
      number: Number of steps, int32.
      step: `step(i, carried)` returns the next `carried`, and `{name: scalar}`.
      carried: The initial nest of tensors.
      size: Length of a row in the loop; with more metrics the loop is traced again.

    Returns:
      The final `carried`, and one row of all metrics, see `MetricAccumulator`, with the same names
      for zero steps.
    """
    names: list[str] = []

    def body(i: tf.Tensor, carried: Any, sums: tf.Tensor) -> tuple[tf.Tensor, Any, tf.Tensor]:
        carried, metrics = step(i, carried)
        names[:] = sorted(metrics)
        row = row_of(metrics, names, size)
        return i + 1, carried, MetricAccumulator(names, size).add(sums, row)

    start = (tf.constant(0), carried, tf.zeros([2, size]))
    known = number if isinstance(number, int) else None
    try:
        _, carried, sums = tf.while_loop(
            lambda i, *_: i < number,
            body,
            start,
            parallel_iterations=1,
            maximum_iterations=known,
            name="steps",
        )
    except MoreMetricsError as error:
        return mean_of_steps(number, step, carried, error.number)
    if not names:  # from Python, without a step: it is traced and never run
        tf.function(lambda: body(*start), autograph=False).get_concrete_function()
    row = MetricAccumulator(names, size).result(sums)[: len(names)]
    return carried, dict(zip(names, tf.unstack(row, len(names)), strict=True))


def reduction(name: str) -> str:
    """Returns the reduction of a metric: "sum", "last" or "mean"."""
    if name in EPISODE_METRICS:
        return "last"
    parts = name.split("/")
    return "sum" if parts[-1] in _COUNTS or "nonfinite" in parts[:-1] else "mean"
