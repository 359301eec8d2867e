"""Conversion of logged values to numbers or arrays.

A value is converted only when needed, since converting a tensor waits for the device. Converted
values are Python ints and floats, or int64 and float64 arrays, so that counts stay exact.
"""

import math
import sys
from typing import Any

import numpy as np

from tfrl.errors import UserError

Number = int | float
Value = Number | np.ndarray

# JSON representation of non-finite floats.
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def hold(name: str, value: Any) -> Any:
    """Returns `value` in a form that later changes of the caller's object do not affect.

    Args:
      name: The metric, for the message.
      value: A number, an array, a list of numbers, an eager tensor or a variable.

    Raises:
      UserError: For other values, including symbolic tensors.
    """
    if isinstance(value, bool | int | float):
        return value
    if hasattr(value, "read_value"):  # A variable may change later.
        value = value.read_value()
    if hasattr(value, "numpy"):
        dtype = getattr(value.dtype, "name", str(value.dtype))
        if not dtype.startswith(("string", "complex", "variant", "resource")):
            return value
        raise _refused(name, f"a tensor of dtype {dtype}")
    if hasattr(value, "graph"):
        raise UserError(
            f"metric {name}",
            expected="a value",
            got="a symbolic tensor of a function that is being traced",
            remedy="Return it from the compiled function and log the returned value.",
        )
    if isinstance(value, np.ndarray | np.generic | list | tuple):
        array = np.array(value) if _regular(value) else np.array(None)
        if array.dtype.kind in "biuf" or array.dtype.name == "bfloat16":
            return array
    raise _refused(name, f"{type(value).__name__} {value!r}")


def as_scalar(name: str, value: Any) -> Any:
    """Returns a value as a float32 scalar, symbolic while a graph is built.

    Raises:
      UserError: For anything but one number.
    """
    tf = sys.modules["tensorflow"]
    try:
        scalar = tf.cast(tf.convert_to_tensor(value), tf.float32)
    except (TypeError, ValueError) as error:
        raise _refused(name, f"{type(value).__name__} {value!r}") from error
    if scalar.shape.rank != 0:
        raise UserError(
            f"metric {name}",
            expected="one number, within an update",
            got=f"a tensor of shape {scalar.shape}",
            remedy="Reduce it, for example with tf.reduce_mean.",
        )
    return scalar


def _regular(value: Any) -> bool:
    """Whether a list consists of numbers, or of lists of equal length."""
    try:
        np.array(value)
    except ValueError:
        return False
    return True


def _refused(name: str, got: str) -> UserError:
    return UserError(
        f"metric {name}",
        expected="a number, an array of numbers or an eager tensor",
        got=got,
        remedy="Log one value, or use log_dict for a dict of values.",
    )


def shape_of(held: Any) -> tuple[int, ...]:
    """Returns the shape of a value from `hold`, without waiting for the device."""
    return tuple(int(size) for size in getattr(held, "shape", ()))


def convert(held: Any) -> Value:
    """Returns a value from `hold` as an int or float, or as an int64 or float64 array."""
    if isinstance(held, bool):
        return int(held)
    if isinstance(held, int | float):
        return held
    array = np.asarray(held.numpy() if hasattr(held, "numpy") else held)
    if array.dtype == np.uint64 and array.ndim == 0:
        return int(array)  # Too large for int64.
    array = array.astype(np.int64 if array.dtype.kind in "biu" else np.float64)
    return array if array.ndim else array.item()


def is_nan(value: Value) -> Any:
    """Tells, element by element, whether a value is NaN."""
    if isinstance(value, int):
        return False
    return value != value


def divide(total: Value, by: Any) -> Value:
    """Returns total / by as floats, NaN if `by` is 0."""
    if np.ndim(total) == 0 and np.ndim(by) == 0:
        return total / by if by else math.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(by) == 0, np.nan, np.true_divide(total, by))


def to_json(value: Value) -> Any:
    """Returns a value in plain JSON types, the inverse of `from_json`."""
    if isinstance(value, np.ndarray):
        flat = [to_json(x) for x in value.reshape(-1).tolist()]
        return {"dtype": value.dtype.name, "shape": list(value.shape), "values": flat}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(content: Any) -> Value:
    """Returns the value of a `to_json` result."""
    if isinstance(content, dict):
        flat = [from_json(x) for x in content["values"]]
        return np.array(flat, content["dtype"]).reshape(content["shape"])
    return _WORDS[content] if isinstance(content, str) else content
