"""Clipping of gradients."""

from typing import Any, Literal

import tensorflow as tf

from tfrl.errors import UserError

ClipBy = Literal["global_norm", "norm", "value"]


def clip_gradients_dict(
    gradients_dict: dict[Any, tf.Tensor], *, grad_clip: float | None, grad_clip_by: ClipBy
) -> tf.Tensor:
    """Clips the gradients of a dict in place, see `clip_gradients`.

    Args:
      gradients_dict: `{param ref: gradient}`.
      grad_clip: The maximum value or norm, or None for no clipping.
      grad_clip_by: "value", "norm" or "global_norm".

    Returns:
      Their global norm before clipping, a scalar.
    """
    clipped, norm = clip_gradients(list(gradients_dict.values()), grad_clip, grad_clip_by)
    gradients_dict.update(zip(gradients_dict, clipped, strict=True))
    return norm


def clip_gradients(
    gradients: list[tf.Tensor],
    limit: float | None,
    by: ClipBy = "global_norm",
    norm: tf.Tensor | None = None,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Clips a list of gradients.

    Args:
      gradients: Tensors of any shape.
      limit: The maximum value or norm, or None for no clipping.
      by: "value" (each element), "norm" (each tensor's L2 norm), "global_norm" (of all together).
      norm: Their global norm, if already known.

    Returns:
      The clipped gradients and the global L2 norm before clipping, a scalar.
    """
    if norm is None:
        norm = tf.linalg.global_norm(gradients)
    if limit is None:
        return gradients, norm
    if by == "value":
        return [tf.clip_by_value(g, -limit, limit) for g in gradients], norm
    if by == "norm":
        return [tf.clip_by_norm(g, limit) for g in gradients], norm
    if by == "global_norm":
        factor = limit / tf.maximum(norm, limit)
        return [g * factor for g in gradients], norm
    raise UserError(
        "grad_clip_by",
        expected="one of global_norm, norm, value",
        got=repr(by),
        remedy="The usual choice is 'global_norm'.",
    )
