"""Static checks of rank, shape, dtype and specs whose messages name path, expected, got.

They look at static shapes and dtypes only, so they add no operation to a graph and run once a
trace. A dimension that is unknown while tracing matches every size.
"""

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError

Nest = Any


def _shape(x: Any) -> tf.TensorShape:
    """The static shape of a tensor, an array, a spec, or anything that converts to a tensor."""
    if hasattr(x, "shape"):
        return tf.TensorShape(x.shape)
    return tf.convert_to_tensor(x).shape


def _dtype(x: Any) -> tf.DType:
    """The dtype of a tensor, an array, a spec, or anything that converts to a tensor."""
    if hasattr(x, "dtype"):
        return tf.as_dtype(x.dtype)
    return tf.convert_to_tensor(x).dtype


def _text(shape: tf.TensorShape) -> str:
    """A shape as `[128, ?, 4]`."""
    if shape.rank is None:
        return "[...]"
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def rank(name: str, x: Any, ranks: int | Collection[int]) -> None:
    """Checks the number of axes.

    Args:
      name: What the message calls `x`.
      x: A tensor or an array.
      ranks: The rank, or the ranks that are allowed.

    Raises:
      UserError: When the rank is known and not among `ranks`.
    """
    allowed = {ranks} if isinstance(ranks, int) else set(ranks)
    shape = _shape(x)
    if shape.rank is None or shape.rank in allowed:
        return
    raise UserError(
        name,
        expected=f"rank {' or '.join(map(str, sorted(allowed)))}",
        got=f"rank {shape.rank} (shape {_text(shape)})",
        remedy="Add or remove axes.",
    )


def same_shape(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Checks that all tensors have the shape of the first one.

    Args:
      names: What the message calls each tensor.
      tensors: Tensors or arrays, as many as names.

    Raises:
      UserError: For the first tensor whose static shape cannot be that of the first.
    """
    first = _shape(tensors[0])
    for name, x in zip(names[1:], tensors[1:], strict=True):
        shape = _shape(x)
        if not shape.is_compatible_with(first):
            raise UserError(
                name,
                expected=f"the shape {_text(first)} of {names[0]}",
                got=_text(shape),
                remedy="Give tensors of one shape.",
            )


def leading_shape(name: str, x: Any, shape: Sequence[int | None], like: str) -> None:
    """Checks that the shape of `x` begins with `shape`.

    Args:
      name: What the message calls `x`.
      x: A tensor or an array.
      shape: The leading axes; None matches every size.
      like: What the message says that the leading axes come from.

    Raises:
      UserError: When `x` has fewer axes, or other sizes.
    """
    got, wanted = _shape(x), tf.TensorShape(shape)
    if got.rank is None or wanted.rank is None:
        return
    if got.rank >= wanted.rank and got[: wanted.rank].is_compatible_with(wanted):
        return
    raise UserError(
        name,
        expected=f"the leading axes {_text(wanted)} of {like}",
        got=_text(got),
        remedy="Give time-major tensors with the same rows.",
    )


def dtype(name: str, x: Any, dtype: Any) -> None:
    """Checks the dtype.

    Args:
      name: What the message calls `x`.
      x: A tensor or an array.
      dtype: The dtype that is expected, as TensorFlow or NumPy type or name.

    Raises:
      UserError: When the dtype is another one.
    """
    wanted, got = tf.as_dtype(dtype), _dtype(x)
    if got != wanted:
        raise UserError(
            name, expected=f"dtype {wanted.name}", got=got.name, remedy=f"Cast it to {wanted.name}."
        )


def matches_spec(
    name: str, value: Nest, spec: Nest, batch_shape: Sequence[int | None] = ()
) -> None:
    """Checks that a nest of tensors is what a nest of specs says, behind batch axes.

    Args:
      name: What the message calls the nest; the path of the leaf follows it.
      value: Nest of tensors or arrays, each `[*batch_shape, *spec.shape]`.
      spec: Nest of `tf.TensorSpec` (bounds are not looked at).
      batch_shape: Leading axes of every leaf; None matches every size.

    Raises:
      UserError: About the first leaf that is missing, unexpected, of another shape or dtype.
    """
    values, specs = struct.paths(value), struct.paths(spec)
    for path in [*specs, *values]:
        leaf = name if path == "." else f"{name}/{path}"
        if path not in values:
            raise UserError(
                leaf,
                expected=f"a tensor {specs[path].dtype.name} "
                f"{_text(tf.TensorShape([*batch_shape, *specs[path].shape]))}",
                got=f"nothing there (the leaves are {', '.join(values) or 'none'})",
                remedy="Give every leaf of the spec.",
            )
        if path not in specs:
            raise UserError(
                leaf,
                expected=f"only the leaves of the spec ({', '.join(specs) or 'none'})",
                got="a leaf that the spec does not have",
                remedy="Remove the leaf or add it to the spec.",
            )
        _leaf_matches(leaf, values[path], specs[path], batch_shape)


def _leaf_matches(name: str, x: Any, spec: Any, batch_shape: Sequence[int | None]) -> None:
    dtype(name, x, spec.dtype)
    wanted, got = tf.TensorShape([*batch_shape, *spec.shape]), _shape(x)
    if not got.is_compatible_with(wanted):
        raise UserError(
            name,
            expected=f"shape {_text(wanted)} (batch axes {_text(tf.TensorShape(batch_shape))}, "
            f"then {_text(tf.TensorShape(spec.shape))} of the spec)",
            got=_text(got),
            remedy="Give the leaf with the batch axes in front.",
        )


def at_least(
    name: str, value: Any, minimum: int, *, maximum: int | None = None, remedy: str = ""
) -> int:
    """Returns a whole number; a bool and a NumPy integer are none.

    Args:
      name: What the message calls it.
      value: What was given.
      minimum: The smallest that is allowed.
      maximum: The largest, or None.
      remedy: What the message advises.

    Raises:
      UserError: For anything else.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and value >= minimum and (maximum is None or value <= maximum):
        return int(value)
    most = "" if maximum is None else f" and at most {maximum}"
    raise UserError(
        name,
        expected=f"a whole number of at least {minimum}{most}",
        got=repr(value),
        remedy=remedy or f"Give {minimum} or more.",
    )
