"""Losses of policies: the clipped surrogate of PPO, and entropy."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows, reduce

# exp(40) = 2e17 leaves room in float32 for later products; larger ratios are meaningless.
_LARGEST_LOG_RATIO = 40.0


def log_ratio(*, log_prob: Any, old_log_prob: Any, mask: Any = None) -> tf.Tensor:
    """The logarithm of new(a) / old(a), clipped so that its exponential is a usable float32.

      log r = clip(log new(a) - log old(a), -40, 40)

    Args:
      log_prob: float32 [T, B], log new(a).
      old_log_prob: float32 [T, B], log old(a), of the policy that sampled.
      mask: bool [T, B], True for valid rows, or None.

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
      mask: bool [T, B], True for valid rows, or None.

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
      mask: bool [T, B], True for valid rows, or None.

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
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      float32 [T, B], 0 in masked rows.
    """
    log_r = log_ratio(log_prob=log_prob, old_log_prob=old_log_prob, mask=mask)
    # expm1 - log r cancels for small log r; rounding must not make it negative.
    return tf.maximum(tf.math.expm1(log_r) - log_r, 0.0)


class PPOClipExtra(NamedTuple):
    """Extra results of `ppo_clip_loss`, without gradients.

    Attributes:
      ratio: float32 [T, B], new(a_t) / old(a_t); 1 in masked rows.
      clip_fraction: float32 scalar, share of rows with a ratio outside 1 +- clip.
      approx_kl: float32 scalar, mean k3 estimate of KL[old || new].
    """

    ratio: tf.Tensor
    clip_fraction: tf.Tensor
    approx_kl: tf.Tensor


def ppo_clip_loss(
    *,
    log_prob: Any,
    old_log_prob: Any,
    advantage: Any,
    clip: Any,
    mask: Any = None,
    denominator: Any = None,
) -> tuple[tf.Tensor, PPOClipExtra]:
    """The clipped surrogate objective of PPO, negated.

      loss = -mean_t min(r_t A_t, clip(r_t, 1 - clip, 1 + clip) A_t),  r_t = new(a_t) / old(a_t)

    Source: Schulman et al. 2017, equation 7, https://arxiv.org/abs/1707.06347.

    Args:
      log_prob: float32 [T, B], log-probability of a_t under the current policy.
      old_log_prob: float32 [T, B], under the behaviour policy.
      advantage: float32 [T, B]; no gradient flows through it.
      clip: Half width of the interval, a float or a float32 scalar.
      mask: bool [T, B], True for valid rows, or None.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      (loss, extra), the loss a float32 scalar. With a `denominator`, the means in `extra` are also
      shares of the global means.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    old_log_prob = tf.stop_gradient(_rows.floats("old_log_prob", old_log_prob))
    advantage = tf.stop_gradient(_rows.floats("advantage", advantage))
    log_r = log_ratio(log_prob=log_prob, old_log_prob=old_log_prob, mask=mask)
    checks.same_shape(("log_prob", "advantage"), (log_r, advantage))
    if mask is not None:
        advantage = _rows.select(_rows.flag("mask", mask), advantage)
    ratio = tf.exp(log_r)
    clipped = tf.clip_by_value(ratio, 1.0 - clip, 1.0 + clip)
    surrogate = tf.minimum(ratio * advantage, clipped * advantage)
    loss = -reduce.masked_mean(surrogate, mask, denominator=denominator)

    ratio, log_r = tf.stop_gradient(ratio), tf.stop_gradient(log_r)
    outside = tf.cast(tf.abs(ratio - 1.0) > clip, tf.float32)
    kl = kl_k3(log_prob=log_r, old_log_prob=tf.zeros_like(log_r))
    extra = PPOClipExtra(
        ratio=ratio,
        clip_fraction=reduce.masked_mean(outside, mask, denominator=denominator),
        approx_kl=reduce.masked_mean(kl, mask, denominator=denominator),
    )
    return loss, extra


def policy_gradient_loss(
    *, log_prob: Any, advantage: Any, mask: Any = None, denominator: Any = None
) -> tf.Tensor:
    """The loss whose gradient is the policy gradient.

      loss = -mean_t A_t log pi(a_t | o_t)

    Source: Williams 1992, https://doi.org/10.1007/BF00992696; with advantages: Mnih et al. 2016,
    section 4, https://arxiv.org/abs/1602.01783.

    Args:
      log_prob: float32 [T, B], log pi(a_t | o_t).
      advantage: float32 [T, B], A_t; no gradient flows through it.
      mask: bool [T, B], True for valid rows, or None.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    log_prob = _rows.floats("log_prob", log_prob)
    advantage = tf.stop_gradient(_rows.floats("advantage", advantage))
    checks.same_shape(("log_prob", "advantage"), (log_prob, advantage))
    if mask is not None:
        mask = _rows.flag("mask", mask)
        log_prob, advantage = _rows.select(mask, log_prob), _rows.select(mask, advantage)
    return -reduce.masked_mean(advantage * log_prob, mask, denominator=denominator)


def entropy_loss(*, entropy: Any, mask: Any = None, denominator: Any = None) -> tf.Tensor:
    """The negative mean entropy; weighted by a coefficient it rewards exploration.

      loss = -mean_t H[pi(. | o_t)]

    Source: Mnih et al. 2016, section 4, https://arxiv.org/abs/1602.01783.

    Args:
      entropy: float32 [T, B], nats.
      mask: bool [T, B], True for valid rows, or None.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      float32 scalar.
    """
    return -reduce.masked_mean(entropy, mask, denominator=denominator)
