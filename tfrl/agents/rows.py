"""Checks the rows that agents learn from, while their losses are traced."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.types import Nest

# The spec of a column with one value per row.
_ONE = tf.TensorSpec([], tf.float32)


def check_rows(
    owner: str,
    batch: Any,
    *,
    numbers: Iterable[str] = (),
    flags: Iterable[str] = (),
    leading_axes: int = 1,
    **specs: Nest,
) -> None:
    """Raises a UserError for columns whose rows do not match an agent's specs.

    Rows of another shape could broadcast to a wrong loss.

    Args:
      owner: What learns from them, for messages.
      batch: An object with the columns as attributes; missing ones and None are not checked.
      numbers: Columns of one number per row.
      flags: Columns of one bool per row.
      leading_axes: 1 for rows `[N, ...]`, 2 for sequences `[S, T, ...]`.
      **specs: The nest of specs of a row, by column. Only integers fit an `action` of integers.
    """
    kinds = {**dict.fromkeys(numbers, "numbers"), **dict.fromkeys(flags, "bools")}
    columns = {**specs, **dict.fromkeys(kinds, _ONE)}
    kinds["action"] = "integers"
    for name, spec in columns.items():
        rows = getattr(batch, name, None)
        if rows is None:
            continue
        want, have = struct.paths(spec), struct.paths(rows)
        for path in sorted(want.keys() | have.keys()):
            fault = _fault(want.get(path), have.get(path), leading_axes, kinds.get(name, ""))
            if fault is not None:
                column = name if path == "." else f"{name}/{path}"
                raise UserError(f"the batch of {owner}, {column}", expected=fault[0], got=fault[1])


def _fault(spec: Any, x: Any, leading_axes: int, kind: str) -> tuple[str, str] | None:
    """What is expected of a leaf and what it is; None if it fits."""
    want = None if spec is None else tf.TensorShape(spec.shape)
    have = None if x is None else tf.TensorShape(x.shape)[leading_axes:]
    if want is None or have is None or not have.is_compatible_with(want):
        return _rows_of(want), _rows_of(have)
    if tf.TensorShape(x.shape).rank is not None and len(x.shape) < leading_axes:
        return f"{leading_axes} leading axes", f"an array of shape {list(x.shape)}"
    dtype = tf.as_dtype(x.dtype)
    fits = {
        "bools": dtype.is_bool,
        "numbers": not dtype.is_bool,
        "integers": dtype.is_integer or not spec.dtype.is_integer,
    }
    return None if fits.get(kind, True) else (kind, dtype.name)


def _rows_of(shape: tf.TensorShape | None) -> str:
    return "nothing of this name" if shape is None else f"rows of shape {list(shape)}"
