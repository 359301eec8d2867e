"""Reductions over the valid rows, safe against garbage in the others.

A mask has the leading axes of its tensor; all elements of the trailing axes (several critics, the
entries of an action) share their row's mask. Neither values nor gradients pass where a mask is
False, NaN included; without valid rows every result is 0. Without a mask every element is a row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows

AllReduce = Callable[[tf.Tensor], tf.Tensor]


class MeanStd(NamedTuple):
    """Mean and population standard deviation, float32 scalars."""

    mean: tf.Tensor
    std: tf.Tensor


def _masked(x: Any, mask: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Converts x and the mask, and puts 0 where the mask is False."""
    x = _rows.floats("x", x)
    if mask is None:
        return x, None
    mask = _rows.flag("mask", mask)
    checks.leading_shape("x", x, mask.shape, "mask")
    return _rows.select(mask, x), mask


def _elements_per_row(x: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Number of elements of x per entry of the mask, float32."""
    if mask is None:
        return tf.constant(1.0)
    return tf.cast(tf.reduce_prod(tf.shape(x)[mask.shape.rank :]), tf.float32)


def valid_count(x: Any, mask: Any = None) -> tf.Tensor:
    """Counts the valid rows of x.

    Args:
      x: [...] tensor whose elements are rows; used only without a mask.
      mask: bool, True for valid rows, or None.

    Returns:
      float32 scalar.
    """
    if mask is None:
        return tf.cast(tf.size(x), tf.float32)
    return tf.reduce_sum(tf.cast(_rows.flag("mask", mask), tf.float32))


def masked_sum(x: Any, mask: Any = None) -> tf.Tensor:
    """Sum of the elements in valid rows.

      sum_{i valid} x_i

    Args:
      x: float32 [T, B, ...].
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      float32 scalar.
    """
    return tf.reduce_sum(_masked(x, mask)[0])


def masked_mean(x: Any, mask: Any = None, *, denominator: Any = None) -> tf.Tensor:
    """Mean of the elements in valid rows.

      sum_{i valid} x_i / max(1, number of valid elements)

    Args:
      x: float32 [T, B, ...].
      mask: bool [T, B], True for valid rows, or None.
      denominator: Number of valid rows to divide by; None counts them in the mask. With the global
        number, the sum over data-parallel replicas is the global mean.

    Returns:
      float32 scalar, 0 without valid rows.
    """
    x, mask = _masked(x, mask)
    if mask is None and denominator is None and x.shape.num_elements():
        return tf.reduce_mean(x)
    rows = valid_count(x, mask) if denominator is None else tf.cast(denominator, tf.float32)
    # The floor only affects a count of 0.
    count = tf.maximum(rows, 1.0) * tf.maximum(_elements_per_row(x, mask), 1.0)
    return tf.reduce_sum(x) / count


def masked_mean_std(x: Any, mask: Any = None, *, all_reduce: AllReduce | None = None) -> MeanStd:
    """Mean and population standard deviation of the elements in valid rows.

      mean = sum_{i valid} x_i / n,  std = sqrt(sum_{i valid} (x_i - mean)^2 / n)

    Args:
      x: float32 [T, B, ...].
      mask: bool [T, B], True for valid rows, or None.
      all_reduce: Sums a float32 tensor over the replicas, so that the result is global; or None.

    Returns:
      Mean and standard deviation, 0 without valid rows. The gradient of the standard deviation is
      0 where it is 0.
    """
    reduce_sum = (lambda s: s) if all_reduce is None else all_reduce
    x, mask = _masked(x, mask)
    elements = valid_count(x, mask) * _elements_per_row(x, mask)
    total, count = tf.unstack(reduce_sum(tf.stack([tf.reduce_sum(x), elements])))
    count = tf.maximum(count, 1.0)
    mean = total / count
    squares = _rows.select(mask, tf.square(x - mean))
    variance = reduce_sum(tf.reduce_sum(squares)) / count
    positive = variance > 0.0
    # The inner select keeps the infinite slope of the root at 0 out of the gradient.
    root = tf.sqrt(tf.where(positive, variance, tf.ones_like(variance)))
    return MeanStd(mean=mean, std=tf.where(positive, root, tf.zeros_like(root)))


def normalize_advantage(
    advantage: Any, mask: Any = None, epsilon: float = 1e-8, *, all_reduce: AllReduce | None = None
) -> tf.Tensor:
    """Advantages with mean 0 and standard deviation 1 over the valid rows.

      (A_i - mean(A)) / (std(A) + epsilon)

    Source: Andrychowicz et al. 2020 (advantage normalisation), https://arxiv.org/abs/2006.05990.

    Args:
      advantage: float32 [T, B].
      mask: bool [T, B], True for valid rows, or None.
      epsilon: Added to the standard deviation; equal advantages give 0.
      all_reduce: Sums a float32 tensor over the replicas, for global statistics; or None.

    Returns:
      float32 [T, B], 0 in masked rows.
    """
    advantage, mask = _masked(advantage, mask)
    mean, std = masked_mean_std(advantage, mask, all_reduce=all_reduce)
    return _rows.select(mask, (advantage - mean) / (std + epsilon))


def explained_variance(value: Any, target: Any, mask: Any = None) -> tf.Tensor:
    """The fraction of the targets' variance explained by the values.

      1 - Var[target - value] / Var[target]

    1 is perfect, 0 as good as a constant, negative is worse.

    Source: https://en.wikipedia.org/wiki/Explained_variation.

    Args:
      value: float32 [T, B], V(o_t).
      target: float32 [T, B].
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      float32 scalar; 0 when the targets do not vary, or without valid rows.
    """
    value, mask = _masked(value, mask)
    target, _ = _masked(target, mask)
    residual = tf.square(masked_mean_std(target - value, mask).std)
    variance = tf.square(masked_mean_std(target, mask).std)
    varies = variance > 0.0
    share = 1.0 - residual / tf.where(varies, variance, tf.ones_like(variance))
    return tf.where(varies, share, tf.zeros_like(share))
