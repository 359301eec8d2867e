"""Checks in one line: each raises the UserError of its kind, with thing, expected, got and remedy.

Those of plain values return what they were given. Those of tensors look at static shapes and dtypes
only, so they add no operation to a graph and run once a trace; a dimension that is unknown while
tracing matches every size.
"""

import math
import numbers
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tfrl.errors import UserError, did_you_mean

if TYPE_CHECKING:  # processes of environment workers check arguments without TensorFlow
    import tensorflow as tf

Nest = Any


# Plain values.


def at_least(
    name: str,
    value: Any,
    minimum: int,
    *,
    maximum: int | None = None,
    optional: bool = False,
    remedy: str = "",
) -> Any:
    """Returns a whole number, Python's or NumPy's, as an int; a bool is none.

    Args:
      name: What the message calls it.
      value: What was given.
      minimum: The smallest that is allowed.
      maximum: The largest, or None.
      optional: Whether it may be None.
      remedy: What the message advises.

    Raises:
      UserError: For anything else.
    """
    if optional and value is None:
        return None
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_int and value >= minimum and (maximum is None or value <= maximum):
        return int(value)
    most = "" if maximum is None else f" and at most {maximum}"
    usual = f"Give {minimum} or more." if maximum is None else f"Give {minimum} to {maximum}."
    raise UserError(
        name,
        expected=f"a whole number of at least {minimum}{most}{' or None' if optional else ''}",
        got=repr(value),
        remedy=remedy or usual,
    )


class Bound(NamedTuple):
    """The values that a number may have, for tables: `number(name, value, *bound)`.

    Attributes:
      low: The least.
      high: The greatest.
      closed: Whether it may be the least itself.
      optional: Whether it may be None.
    """

    low: float = -math.inf
    high: float = math.inf
    closed: bool = True
    optional: bool = False


def number(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    closed: bool = True,
    optional: bool = False,
    *,
    below: bool = False,
    remedy: str = "",
) -> Any:
    """Returns a finite number from `low` (without it, unless `closed`) to `high`.

    Args:
      name: What the message calls it.
      value: What was given; a bool is no number.
      low: The least.
      high: The greatest.
      closed: Whether it may be the least itself.
      optional: Whether it may be None.
      below: Whether it must be below the greatest.
      remedy: What the message advises.

    Raises:
      UserError: For anything else.
    """
    if optional and value is None:
        return None
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    inside = real and math.isfinite(value) and low <= value <= high
    if inside and (closed or value > low) and not (below and value == high):
        return value
    above = "a number of at least" if closed else "a number above"
    limits = [f"{above} {low:g}"] if math.isfinite(low) else ["a finite number"]
    limits += [f"{'below' if below else 'at most'} {high:g}"] if math.isfinite(high) else []
    raise UserError(
        name,
        expected=" and ".join(limits) + (" or None" if optional else ""),
        got=repr(value),
        remedy=remedy or "Pass a finite number.",
    )


def positive(name: str, value: Any, *, remedy: str = "") -> Any:
    """Returns a finite number above 0; see `number`."""
    return number(name, value, 0, closed=False, remedy=remedy)


def probability(name: str, value: Any, *, remedy: str = "") -> Any:
    """Returns a number from 0 to 1; see `number`."""
    return number(name, value, 0, 1, remedy=remedy)


def even(name: str, value: int, why: str, *, alternative: str = "") -> int:
    """Returns an even number; `why` it must be one, `alternative` what else the user may do."""
    if value % 2:
        remedy = f"Use {value + 1}{alternative}."
        raise UserError(name, expected=f"an even number, since {why}", got=value, remedy=remedy)
    return value


def boolean(name: str, value: Any, *, remedy: str = "") -> Any:
    """Returns a bool, Python's or NumPy's."""
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return value
    remedy = remedy or "Pass True or False, without quotes."
    raise UserError(name, expected="True or False", got=repr(value), remedy=remedy)


def one_of(name: str, value: Any, choices: Iterable[Any], *, remedy: str = "") -> Any:
    """Returns one of several choices; the message suggests the nearest."""
    choices = list(choices)
    if value in choices:
        return value
    names = [str(c) for c in choices]
    raise UserError(
        name,
        expected=f"one of {', '.join(names)}",
        got=repr(value),
        remedy=remedy or did_you_mean(str(value), names),
    )


def instance(name: str, value: Any, kinds: Any, expected: str, *, remedy: str = "") -> Any:
    """Returns an instance of a class, or of one of a tuple or union of them.

    Args:
      name: What the message calls it.
      value: What was given.
      kinds: As of `isinstance`.
      expected: What the message calls the classes.
      remedy: What the message advises.

    Raises:
      UserError: For anything else.
    """
    if isinstance(value, kinds):
        return value
    got = type(value).__name__
    if isinstance(value, type):
        got, remedy = f"the class {value.__name__}", remedy or "Pass an object of it."
    raise UserError(name, expected=expected, got=got, remedy=remedy)


def function(
    name: str, value: Any, expected: str, *, classes: bool = True, remedy: str = ""
) -> Any:
    """Returns what can be called.

    Args:
      name: What the message calls it.
      value: What was given.
      expected: What the message calls it.
      classes: Whether a class is such a function; False where its objects are.
      remedy: What the message advises.

    Raises:
      UserError: For anything else.
    """
    is_class = isinstance(value, type)
    if callable(value) and (classes or not is_class):
        return value
    if is_class:
        remedy = remedy or f"Pass an object of it: {value.__name__}()."
    raise UserError(name, expected=expected, got=repr(value), remedy=remedy)


def path(name: str, value: Any) -> str:
    """Returns a path as text; a UserError for anything but text or an `os.PathLike`."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise UserError(name, expected="a path", got=repr(value), remedy="Pass text or a pathlib.Path.")


# Environment variables with the proxy of gRPC's connections, in its order.
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def address(value: Any, name: str = "The address of a Reverb server") -> str:
    """Returns an address `host:port`; raises a UserError for any other form."""
    host, colon, port = str(value).rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not (host and colon and is_port) or {",", "/"} & set(host):
        raise UserError(
            name,
            expected="host:port, for example localhost:8000",
            got=repr(value),
            remedy="tfrl-reverb-server prints it when it serves.",
        )
    return str(value)


def strings(name: str, value: Any, *, remedy: str = "") -> tuple[str, ...]:
    """Returns a tuple of strings; a single string is none."""
    several = isinstance(value, Iterable) and not isinstance(value, str)
    if several and all(isinstance(x, str) for x in value):
        return tuple(value)
    remedy = remedy or "Pass a tuple, even for a single name: ('lives',)."
    raise UserError(name, expected="a sequence of names", got=repr(value), remedy=remedy)


def sizes(name: str, value: Any, *, optional: bool = False, remedy: str = "") -> Any:
    """Returns a tuple of whole numbers of at least 1, such as the units of layers."""
    if optional and value is None:
        return None
    if isinstance(value, tuple | list) and all(
        isinstance(x, numbers.Integral) and not isinstance(x, bool) and int(x) >= 1 for x in value
    ):
        return tuple(int(x) for x in value)
    raise UserError(
        name,
        expected=f"{'None or ' if optional else ''}a tuple of sizes, each an int of at least 1",
        got=repr(value),
        remedy=remedy or "Pass (64, 64) for two layers or (64,) for one.",
    )


def known(name: str, values: Iterable[str], names: Iterable[str], *, remedy: str = "") -> None:
    """Raises a UserError for names that are not among the known ones, with the nearest."""
    names = sorted(names)
    unknown = [n for n in values if n not in names]
    if unknown:
        raise UserError(
            name,
            expected=f"some of {', '.join(names) or 'none'}",
            got=", ".join(unknown),
            remedy=remedy or did_you_mean(unknown[0], names),
        )


def same_keys(name: str, value: Any, wanted: Iterable[Any], *, more: bool = False) -> None:
    """Raises a UserError unless a value is a dict with the wanted keys, and `more` at most."""
    keys = list(wanted)
    if isinstance(value, Mapping):
        missing = [str(k) for k in keys if k not in value]
        extra = [] if more else [str(k) for k in value if k not in keys]
        got = [f"no {', '.join(missing)}"] * bool(missing)
        got += [f"unknown {', '.join(extra)}"] * bool(extra)
    else:
        got = [type(value).__name__]
    if got:
        expected = f"a dict with the keys {', '.join(map(str, keys))}"
        raise UserError(name, expected=expected, got=" and ".join(got))


# Tensors.


def _shape(x: Any) -> "tf.TensorShape":
    """The static shape of a tensor, an array, a spec, or anything that converts to a tensor."""
    import tensorflow as tf

    if hasattr(x, "shape"):
        return tf.TensorShape(x.shape)
    return tf.convert_to_tensor(x).shape


def _dtype(x: Any) -> "tf.DType":
    """The dtype of a tensor, an array, a spec, or anything that converts to a tensor."""
    import tensorflow as tf

    if hasattr(x, "dtype"):
        return tf.as_dtype(x.dtype)
    return tf.convert_to_tensor(x).dtype


def _text(shape: Any) -> str:
    """A shape as `[128, ?, 4]`."""
    if getattr(shape, "rank", 0) is None:
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
                name, expected=f"the shape {_text(first)} of {names[0]}", got=_text(shape)
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
    import tensorflow as tf

    got, wanted = _shape(x), tf.TensorShape(shape)
    if got.rank is None or wanted.rank is None:
        return
    if got.rank >= wanted.rank and got[: wanted.rank].is_compatible_with(wanted):
        return
    raise UserError(name, expected=f"the leading axes {_text(wanted)} of {like}", got=_text(got))


def dtype(name: str, x: Any, dtype: Any, *, remedy: str = "") -> None:
    """Checks the dtype.

    Args:
      name: What the message calls `x`.
      x: A tensor or an array.
      dtype: The dtype that is expected, as TensorFlow or NumPy type or name.
      remedy: What the message advises.

    Raises:
      UserError: When the dtype is another one.
    """
    import tensorflow as tf

    wanted, got = tf.as_dtype(dtype), _dtype(x)
    if got != wanted:
        raise UserError(name, expected=f"dtype {wanted.name}", got=got.name, remedy=remedy)


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
    from tfrl import struct

    values, specs = struct.paths(value), struct.paths(spec)
    for path in [*specs, *values]:
        leaf = name if path == "." else f"{name}/{path}"
        if path not in values:
            raise UserError(
                leaf,
                expected=f"a tensor {specs[path].dtype.name} "
                f"{_text([*batch_shape, *specs[path].shape])}",
                got=f"no such leaf (the leaves are {', '.join(values) or 'none'})",
            )
        if path not in specs:
            raise UserError(
                leaf,
                expected=f"only the leaves of the spec ({', '.join(specs) or 'none'})",
                got="a leaf that is not in the spec",
            )
        _leaf_matches(leaf, values[path], specs[path], batch_shape)


def _leaf_matches(name: str, x: Any, spec: Any, batch_shape: Sequence[int | None]) -> None:
    dtype(name, x, spec.dtype)
    wanted, got = [*batch_shape, *spec.shape], _shape(x)
    if not got.is_compatible_with(wanted):
        raise UserError(
            name,
            expected=f"shape {_text(wanted)} (batch axes {_text(batch_shape)}, "
            f"then {_text(spec.shape)} of the spec)",
            got=_text(got),
        )
