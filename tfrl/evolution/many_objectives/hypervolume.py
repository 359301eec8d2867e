"""The hypervolume of a set of points."""

from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.errors import UserError


def hypervolume(points: Any, reference: Any) -> tf.Tensor:
    """Returns the volume that points dominate above a reference point; objectives are maximised.

    Exact: O(P log P) for two objectives, O(P^2 log P) time and O(P^2) memory for three. Non-finite
    points, and points not above the reference in every objective, add nothing.

    Source: Zitzler & Thiele 1999, https://doi.org/10.1109/4235.797969.

    Args:
      points: float [P, M], M 2 or 3; they need not be a front.
      reference: float [M], for example the worst relevant fitness.

    Returns:
      float64 scalar.

    Raises:
      UserError: For another number of objectives.
    """
    points = tf.cast(tf.convert_to_tensor(points), tf.float64)
    checks.rank("points of hypervolume", points, 2)
    objectives = points.shape[1]
    if objectives not in (2, 3):
        raise UserError(
            "points of hypervolume",
            expected="2 or 3 objectives",
            got=str(objectives),
            remedy="Remove objectives, or use a different library's estimate.",
        )
    reference = tf.cast(tf.convert_to_tensor(reference), tf.float64)
    checks.leading_shape("reference of hypervolume", reference, [objectives], "the objectives")
    known = tf.reduce_all(tf.math.is_finite(points), axis=1, keepdims=True)
    above = tf.where(known, tf.maximum(points - reference, 0.0), 0.0)
    above = tf.gather(above, tf.argsort(-above[:, 0], stable=True))
    steps = _steps(above[:, 0])
    if objectives == 2:
        return _area(steps, above[:, 1])
    order = tf.argsort(-above[:, 2], stable=True)
    z = tf.gather(above[:, 2], order)
    # Row k: the heights of the k + 1 points of greatest z, ordered by the first objective.
    place = tf.argsort(order)
    heights = tf.where(place <= tf.range(z.shape[0])[:, None], above[:, 1], 0.0)
    return tf.reduce_sum(_steps(z) * _area(steps, heights))


def _steps(x: tf.Tensor) -> tf.Tensor:
    """Returns each of the descending numbers [P] minus the next; the last minus 0."""
    return x - tf.concat([x[1:], [0.0]], axis=0)


def _area(steps: tf.Tensor, heights: tf.Tensor) -> tf.Tensor:
    """Returns the area under the staircase of points, descending in the first objective.

    Args:
      steps: float64 [P], the widths.
      heights: float64 [..., P], the second objective.
    """
    size, shift = heights.shape[-1], 1
    while shift < size:  # the cumulative maximum, by doubling
        before = tf.concat([heights[..., :shift], heights[..., :-shift]], axis=-1)
        heights = tf.maximum(heights, before)
        shift *= 2
    return tf.reduce_sum(steps * heights, axis=-1)
