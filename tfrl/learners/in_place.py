"""Assignments to variables of what is made of their own values."""

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfrl.xla import may_be_xla


def assign(variable: Any, old: tf.Tensor, new: tf.Tensor) -> None:
    """Assigns `new` to a variable; in place where it is `old` and something besides.

    In a graph of which it is known that XLA does not get it, `old + share * change` becomes one
    operation on the variable, as for a target network that follows another: it is read and written
    once, where an assignment takes a product, a sum and a copy's memory. The bits are the same.

    Args:
      variable: A variable, of a strategy too.
      old: Its value, which nothing changes between its reading and this.
      new: Of the same shape and dtype.
    """
    known = isinstance(variable, resource_variable_ops.ResourceVariable) and not may_be_xla()
    parts = _share_and_change(old, new) if known else None
    if parts is None:
        variable.assign(new)
        return
    share, change = parts
    number = tf.get_static_value(share)
    back = -share if number is None else tf.constant(-number, share.dtype)
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=back, delta=change)


def _share_and_change(old: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
    """The scalar and the other factor where `new` is `old + scalar * factor`."""
    if not tf.is_symbolic_tensor(new) or not new.dtype.is_floating:
        return None
    if not old.shape.is_fully_defined():
        return None
    if new.op.type != "AddV2" or new.op.inputs[0] is not old:
        return None
    product = new.op.inputs[1]
    if product.op.type != "Mul" or product.shape != old.shape:
        return None
    share, change = product.op.inputs
    return (share, change) if share.shape.rank == 0 and change.shape == old.shape else None
