"""Runs several iterations in one call: in a loop of the graph, or in Python's.

It knows no agent, no learner and no buffer: an iteration is a function of what it is handed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.workflows.metric_accumulator import MetricAccumulator

# Rows of metrics that one call can return.
MAX_ROWS = 1024

COUNTERS = ("iterations", "env_steps", "episodes", "learner_steps")


class Runner:
    """Runs an iteration again and again, and collects rows of metrics."""

    def __init__(
        self,
        iterate: Callable[[Any], tuple[Any, tf.Tensor, tf.Tensor, tf.Tensor]],
        counters: Callable[[Any], tf.Tensor],
        env_steps: Callable[[Any], tf.Tensor],
        names: Callable[[], list[str]],
        *,
        per_row: int = 1,
        steps: int | None = None,
        timed: bool = False,
    ):
        """Takes what there is to run.

        Args:
          iterate: `iterate(state)` returns the state after an iteration, its metrics float32 [n],
            counters int64 [4] and seconds float64 [2] by part.
          counters: `counters(state)` returns the `COUNTERS`, int64 [4].
          env_steps: `env_steps(state)` returns an int64 scalar.
          names: Returns the names of the metrics, in their order; known when `loop` is traced, and
            after the first iteration that is run eagerly.
          per_row: Iterations that share a row of metrics.
          steps: Env steps of an iteration, where it is always that.
          timed: Whether seconds are measured.
        """
        self._iterate, self._counters, self._env_steps = iterate, counters, env_steps
        self._names, self._per_row, self._steps, self._timed = names, per_row, steps, timed

    def loop(self, state: Any, iterations: tf.Tensor, limit: tf.Tensor) -> Any:
        """Runs iterations until there are so many, or so many env steps; traced.

        Returns:
          The state, the number of rows, their floats and counters, and seconds by part.
        """
        n = len(self._names())
        floats = tf.TensorArray(tf.float32, MAX_ROWS, element_shape=[n])
        counters = tf.TensorArray(tf.int64, MAX_ROWS, element_shape=[len(COUNTERS)])

        def body(
            i: Any, done: Any, state: Any, floats: Any, counters: Any, seconds: Any
        ) -> tuple[Any, ...]:
            state, done, f, c, s = self._row(state, done, iterations, limit)
            return i + 1, done, state, floats.write(i, f), counters.write(i, c), seconds + s

        rows, _, state, floats, counters, seconds = tf.while_loop(
            lambda i, done, state, *_: (done < iterations) & (self._env_steps(state) < limit),
            body,
            (0, tf.constant(0), state, floats, counters, tf.zeros([2], tf.float64)),
            parallel_iterations=1,
            name="rows",
        )
        return state, rows, floats.stack(), counters.stack(), tf.unstack(seconds)

    def _row(self, state: Any, done: Any, iterations: Any, limit: Any) -> Any:
        """The iterations of one row of metrics: the state, how many are done, and the row."""
        if self._per_row == 1:
            state, *row = self._iterate(state)
            return state, done + 1, *row
        tally = MetricAccumulator(self._names())
        # What a loop carries costs a graph several operations in each iteration.
        timed = self._timed
        zero = tf.zeros([2], tf.float64)
        most = tf.minimum(done + self._per_row, iterations)

        def once(state: Any, sums: Any, seconds: Any) -> Any:
            state, f, _, s = self._iterate(state)
            return state, tally.add(sums, f), [t + s for t in seconds]

        start = (state, tally.start(), [zero] if timed else [])
        if self._steps is not None:  # it is known now where the limit is reached
            left = (limit - self._env_steps(state) - 1) // self._steps + 1
            # At least 1: whoever calls this has seen that neither end is reached.
            number = tf.cast(tf.minimum(tf.cast(most - done, tf.int64), left), tf.int32)
            state, sums, seconds = tf.while_loop(
                lambda *_: tf.constant(True),
                once,
                start,
                parallel_iterations=1,
                maximum_iterations=number,
                name="iterations",
            )
            done += number
        else:
            done, (state, sums, seconds) = tf.while_loop(
                lambda done, carried: (done < most) & (self._env_steps(carried[0]) < limit),
                lambda done, carried: (done + 1, once(*carried)),
                (done, start),
                parallel_iterations=1,
                name="iterations",
            )
        counters = self._counters(state)
        return state, done, tally.result(sums), counters, seconds[0] if timed else zero

    def run(self, state: Any, iterations: int, limit: int) -> Any:
        """As `loop`, from Python."""
        floats: list[Any] = []
        counters: list[Any] = []
        seconds = np.zeros(2)
        done, env_steps, tally, sums = 0, int(self._env_steps(state)), None, None
        while done < iterations and env_steps < limit:
            state, f, c, s = self._iterate(state)
            done += 1
            seconds += s.numpy()
            c = c.numpy()
            env_steps = int(c[COUNTERS.index("env_steps")])
            if self._per_row > 1:
                tally = tally or MetricAccumulator(self._names())
                sums = tally.add(tally.start() if sums is None else sums, f)
                if done % self._per_row and done < iterations and env_steps < limit:
                    continue
                f, sums = tally.result(sums), None
            floats.append(f.numpy())
            counters.append(c)
        return state, len(floats), floats, counters, seconds


def as_rows(done: int, names: list[str], floats: Any, counters: Any) -> list[dict[str, Any]]:
    """Returns the rows of metrics of a call, `{name: number}`, with the counters."""
    floats, counters = np.asarray(floats)[:done], np.asarray(counters)[:done]
    return [
        {**dict(zip(COUNTERS, c, strict=True)), **dict(zip(names, f, strict=True))}
        for f, c in zip(floats.tolist(), counters.tolist(), strict=True)
    ]
