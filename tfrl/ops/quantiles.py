"""Losses of values that are distributions, given by quantiles."""

from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.ops.reduce import masked_mean


def quantile_huber_loss(
    quantiles: tf.Tensor, targets: tf.Tensor, mask: Any = None, weights: Any = None
) -> tf.Tensor:
    """Quantile regression with the Huber loss.

      tau_i = (i + 1/2) / M
      loss = mean_{n, j} sum_i |tau_i - 1{delta < 0}| huber(delta),  delta = targets_j - quantiles_i

    Source: Dabney et al. 2018, equation 10, https://arxiv.org/abs/1710.10044, with kappa = 1.

    Args:
      quantiles: float32 [N, M], which learn.
      targets: float32 [N, K], samples or quantiles of the target; no gradient.
      mask: bool [N], True where a row counts, or None.
      weights: float32 [N], importance weights, or None.

    Returns:
      float32 scalar.

    Raises:
      UserError: For other ranks, and numbers of rows that differ.
    """
    checks.rank("quantiles", quantiles, 2)
    checks.rank("targets", targets, 2)
    checks.leading_shape("targets", targets, quantiles.shape[:1], "quantiles")
    number = quantiles.shape[1]
    tau = (tf.range(number, dtype=tf.float32) + 0.5) / float(number)
    delta = tf.stop_gradient(targets)[:, tf.newaxis, :] - quantiles[:, :, tf.newaxis]
    size = tf.abs(delta)
    huber = tf.where(size <= 1.0, 0.5 * tf.square(delta), size - 0.5)
    below = tf.cast(tf.stop_gradient(delta) < 0.0, tf.float32)
    pinball = tf.abs(tau[:, tf.newaxis] - below) * huber
    rows = tf.reduce_mean(tf.reduce_sum(pinball, axis=1), axis=1)
    return masked_mean(rows if weights is None else rows * weights, mask)
