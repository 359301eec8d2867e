"""CompileModeTuner between tensors by the kernel that is the fastest for their shapes."""

from typing import Any

import tensorflow as tf

# Elements up to which a number is spread over the shape of what it stands beside.
_SMALL = 4096


def where(condition: Any, x: tf.Tensor, y: Any) -> tf.Tensor:
    """Returns x where a condition holds and y elsewhere, the condition aligned at leading axes.

    The kernel of `tf.where` is made to broadcast. On a CPU it takes some 4 microseconds for a
    number, and several times the time of one that does not where it does; the older kernel, which
    takes equal shapes, numbers and rows, takes 2.

    Args:
      condition: bool [...], a scalar too; an array or a tensor. Of an unknown number of axes it
        stands as in `tf.where`.
      x: [..., *more].
      y: Of the shape and dtype of `x`, or a number.
    """
    condition, shape = tf.convert_to_tensor(condition), x.shape
    if shape.rank is None or condition.shape.rank is None:
        return tf.where(condition, x, y)
    size = shape.num_elements()
    if not tf.is_tensor(y):
        small = size is not None and size <= _SMALL
        y = tf.fill(shape, tf.constant(y, x.dtype)) if small else tf.constant(y, x.dtype)
    known = size is not None and y.shape == shape
    if known and condition.shape.as_list() in ([], shape.as_list(), shape.as_list()[:1]):
        return tf.raw_ops.Select(condition=condition, x=x, y=y)
    return tf.where(expand(condition, shape.rank), x, y)


def expand(x: tf.Tensor, rank: int) -> tf.Tensor:
    """Appends axes of size 1 until `x` has `rank` axes."""
    for _ in range(rank - x.shape.rank):
        x = x[..., tf.newaxis]
    return x
