"""Ranks of fitnesses, scaled for evolution strategies."""

from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows


def centered_ranks(fitness: Any, *, axis: int = -1, mask: Any = None) -> tf.Tensor:
    """Ranks along one axis, scaled to [-0.5, 0.5].

      rank_i / (P - 1) - 1/2,  rank 0 the lowest

    Ties are ranked by position; NaN ranks as minus infinity. A single member gets 0.

    Source: Salimans et al. 2017, section 2.1, https://arxiv.org/abs/1703.03864 (fitness shaping
    after Wierstra et al. 2014, http://jmlr.org/papers/v15/wierstra14a.html).

    Args:
      fitness: float32 [P], or with more axes, ranked independently at the other positions.
      axis: The axis of the population.
      mask: bool of the shape of fitness, True for valid members, or None. Invalid members get 0 and
        are ignored in the ranking.

    Returns:
      float32 of the shape of fitness.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    fitness = _rows.floats("fitness", fitness)
    axis = axis % fitness.shape.rank
    x = _axis_last(fitness, axis)
    x = tf.where(tf.math.is_nan(x), tf.constant(-float("inf"), x.dtype), x)
    order = tf.argsort(x, axis=-1, stable=True)
    rank_of = tf.argsort(order, axis=-1)  # The inverse permutation.
    if mask is None:
        size = tf.cast(tf.shape(x)[-1], tf.float32)
        return _axis_last(_centred(tf.cast(rank_of, tf.float32), size), axis)
    mask = _rows.flag("mask", mask)
    checks.same_shape(("fitness", "mask"), (fitness, mask))
    valid = tf.cast(_axis_last(mask, axis), tf.float32)
    batch_dims = x.shape.rank - 1
    # The rank among valid members is the number of earlier valid members in the order.
    before = tf.cumsum(tf.gather(valid, order, batch_dims=batch_dims), axis=-1, exclusive=True)
    ranks = tf.gather(before, rank_of, batch_dims=batch_dims)
    centred = _centred(ranks, tf.reduce_sum(valid, axis=-1, keepdims=True))
    return _rows.select(mask, _axis_last(centred, axis))


def _centred(ranks: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Scales ranks 0..size-1 to [-0.5, 0.5]; 0 for one member."""
    return tf.where(size > 1.0, ranks / tf.maximum(size - 1.0, 1.0) - 0.5, tf.zeros_like(ranks))


def _axis_last(x: tf.Tensor, axis: int) -> tf.Tensor:
    """Swaps an axis with the last one; its own inverse."""
    order = list(range(x.shape.rank))
    order[axis], order[-1] = order[-1], order[axis]
    return x if axis == x.shape.rank - 1 else tf.transpose(x, order)
