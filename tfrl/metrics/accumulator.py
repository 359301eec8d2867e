"""Sums up the metrics of several iterations, or of several updates, into one row."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrl.ops._rows import where

# Means over the episodes that ended. In a row they are those of the last that did.
EPISODE_METRICS = ("episode_return", "episode_length")

# Values that running statistics took as others than they are.
OBS_OUTLIERS, REWARD_OUTLIERS = OUTLIERS = "obs_outliers", "reward_outliers"

_COUNTS = ("gradient_steps", "skipped_steps", *OUTLIERS)


class MetricAccumulator:
    """How rows of metrics become one: counts are summed, episodes' figures are the last ones.

    All others are means over the rows in which they are not NaN: a row without an update has none
    of its metrics. What changes is a tensor, `start`ed, `add`ed to, and read by `result`.
    """

    def __init__(self, names: Sequence[str], size: int | None = None):
        """Takes the names of the metrics, in the order of the rows' numbers.

        Args:
          names: The names.
          size: Numbers of a row, if there are more than names.
        """
        kinds = [reduction(name) for name in names]
        kinds += ["mean"] * ((size or len(kinds)) - len(kinds))
        self._last = np.array([kind == "last" for kind in kinds], bool)
        self._sum = np.array([kind == "sum" for kind in kinds], bool)
        self._size = len(kinds)

    def start(self) -> tf.Tensor:
        """Returns the sums of no row: float32 [2, n]."""
        return tf.zeros([2, self._size])

    def add(self, sums: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        """Returns the sums with a row, float32 [n], in them."""
        known = ~tf.math.is_nan(row)
        fresh = tf.stack([where(known, row, 0.0), tf.cast(known, tf.float32)])
        last = np.broadcast_to(self._last, sums.shape)
        return where(~last, sums, 0.0) + fresh

    def result(self, sums: tf.Tensor) -> tf.Tensor:
        """Returns the row, float32 [n]; NaN where there was no number."""
        total, count = tf.unstack(sums)
        return tf.where(self._sum, total, total / count)


def reduction(name: str) -> str:
    """Returns how values of a metric become one: "sum", "last" or "mean"."""
    if name in EPISODE_METRICS:
        return "last"
    parts = name.split("/")
    return "sum" if parts[-1] in _COUNTS or "nonfinite" in parts[:-1] else "mean"
