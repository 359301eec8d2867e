"""Estimators of a Kullback-Leibler divergence from log-probabilities of samples.

Each estimates KL[old || new] row by row from actions that the old policy sampled, with
r = new(a) / old(a). Source: Schulman 2020, http://joschu.net/blog/kl-approx.html.
"""

from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows

# exp(40) = 2e17 leaves room in float32 for the products behind it; a ratio beyond it is none.
_LARGEST_LOG_RATIO = 40.0


def log_ratio(*, log_prob: Any, old_log_prob: Any, mask: Any = None) -> tf.Tensor:
    """The logarithm of new(a) / old(a), kept where its exponential is a usable float32.

      log r = clip(log new(a) - log old(a), -40, 40)

    Args:
      log_prob: float32 [T, B], log new(a).
      old_log_prob: float32 [T, B], log old(a), of the policy that sampled.
      mask: bool [T, B], True where a row counts, or None.

    Returns:
      float32 [T, B], 0 (a ratio of 1) in masked rows; the gradient is 0 beyond the bounds.
    """
    log_prob = _rows.floats("log_prob", log_prob)
    old_log_prob = _rows.floats("old_log_prob", old_log_prob)
    checks.same_shape(("log_prob", "old_log_prob"), (log_prob, old_log_prob))
    if mask is not None:
        mask = _rows.flag("mask", mask)
        checks.leading_shape("log_prob", log_prob, mask.shape, "mask")
        log_prob, old_log_prob = _rows.select(mask, log_prob), _rows.select(mask, old_log_prob)
    return tf.clip_by_value(log_prob - old_log_prob, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def kl_k1(*, log_prob: Any, old_log_prob: Any, mask: Any = None) -> tf.Tensor:
    """The unbiased estimator of high variance; single rows may be negative.

      k1 = -log r

    Source: http://joschu.net/blog/kl-approx.html.

    Args:
      log_prob: float32 [T, B], log new(a).
      old_log_prob: float32 [T, B], log old(a), of the policy that sampled.
      mask: bool [T, B], True where a row counts, or None.

    Returns:
      float32 [T, B], 0 in masked rows.
    """
    return -log_ratio(log_prob=log_prob, old_log_prob=old_log_prob, mask=mask)


def kl_k2(*, log_prob: Any, old_log_prob: Any, mask: Any = None) -> tf.Tensor:
    """The biased estimator of low variance, never negative.

      k2 = (log r)^2 / 2

    Source: http://joschu.net/blog/kl-approx.html.

    Args:
      log_prob: float32 [T, B], log new(a).
      old_log_prob: float32 [T, B], log old(a), of the policy that sampled.
      mask: bool [T, B], True where a row counts, or None.

    Returns:
      float32 [T, B], 0 in masked rows.
    """
    return 0.5 * tf.square(log_ratio(log_prob=log_prob, old_log_prob=old_log_prob, mask=mask))


def kl_k3(*, log_prob: Any, old_log_prob: Any, mask: Any = None) -> tf.Tensor:
    """The unbiased estimator of low variance, never negative.

      k3 = (r - 1) - log r

    Source: http://joschu.net/blog/kl-approx.html.

    Args:
      log_prob: float32 [T, B], log new(a).
      old_log_prob: float32 [T, B], log old(a), of the policy that sampled.
      mask: bool [T, B], True where a row counts, or None.

    Returns:
      float32 [T, B], 0 in masked rows.
    """
    log_r = log_ratio(log_prob=log_prob, old_log_prob=old_log_prob, mask=mask)
    # expm1 - log r cancels for small log r; rounding must not make it negative.
    return tf.maximum(tf.math.expm1(log_r) - log_r, 0.0)
