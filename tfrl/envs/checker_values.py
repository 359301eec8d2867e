"""What environments on the host give, against what their specs promise; for `check_env`."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.errors import UserError
from tfrl.types import Nest

MANY_STARTS = 3  # as many different coincidences are none
MAX_LISTED = 100  # values that one message shows; a wrong picture has thousands


@dataclasses.dataclass
class Answer:
    """What a reset or a step has given, in arrays of its own.

    Attributes:
      obs: The observation.
      reward: Of one environment, or `[B]`.
      termination: Likewise.
      truncation: Likewise.
      mask: The mask of the next action, a nest of bools like the action, or None.
    """

    obs: Nest
    reward: Any = 0.0
    termination: Any = False
    truncation: Any = False
    mask: Nest = None

    @property
    def ended(self) -> Any:
        """Whether the episode is over."""
        return self.termination | self.truncation

    def parts(self) -> dict[str, Any]:
        """All of it, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def note(thing: str, *, expected: str, got: str, remedy: str) -> None:
    """Logs, in the form of a UserError, what is allowed but seldom meant."""
    text = UserError(thing, expected=expected, got=got, remedy=remedy)
    logging.getLogger(__name__).warning("%s", text)


def check_values(
    thing: str, values: Nest, spec: Nest, batch: tuple[int, ...] = (), exact: bool = False
) -> None:
    """Checks keys, types, shapes, dtypes, finiteness and bounds of every leaf.

    Args:
      thing: What the values are, for messages; the path of the leaf is added.
      values: A nest of arrays.
      spec: The nest of specs of one value.
      batch: Leading axes.
      exact: Whether the dtype must be the spec's own; else it may be one that casts safely to it,
        as Gymnasium's spaces allow.

    Raises:
      UserError: For the first leaf that is wrong, with all of its wrong values.
    """
    if isinstance(spec, Mapping):
        _check_keys(thing, values, spec)
        for key, part in spec.items():
            check_values(f"{thing}/{key}", values[key], part, batch, exact)
    elif isinstance(spec, tuple):
        if not isinstance(values, tuple) or len(values) != len(spec):
            raise UserError(
                thing,
                expected=f"a tuple of {len(spec)}, as the space says",
                got=described(values),
                remedy="Give one value for each space of the Tuple.",
            )
        for i, part in enumerate(spec):
            check_values(f"{thing}/{i}", values[i], part, batch, exact)
    else:
        _check_form(thing, values, spec, batch, exact)
        check_finite(thing, np.asarray(values))
        _check_bounds(thing, np.asarray(values), spec)


def _check_keys(thing: str, values: Any, spec: Mapping[Any, Any]) -> None:
    names = ", ".join(map(str, spec))
    if not isinstance(values, Mapping):
        raise UserError(
            thing,
            expected=f"a dict with the keys {names}",
            got=described(values),
            remedy="Give a dict for a Dict space.",
        )
    missing = ", ".join(str(k) for k in spec if k not in values)
    extra = ", ".join(str(k) for k in values if k not in spec)
    if missing or extra:
        found = [f"no {missing}"] * bool(missing) + [f"the unknown {extra}"] * bool(extra)
        raise UserError(
            thing,
            expected=f"the keys {names}",
            got=" and ".join(found),
            remedy="Give the observation and its Dict space the same keys.",
        )


def _check_form(
    thing: str, value: Any, spec: tf.TensorSpec, batch: tuple[int, ...], exact: bool
) -> None:
    """Checks type, shape and dtype of a leaf."""
    dtype, shape = np.dtype(spec.dtype.as_numpy_dtype), [*batch, *spec.shape.as_list()]
    if isinstance(spec, specs.DiscreteSpec) and not batch:
        number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not number and not (_is_array(value) and value.shape == () and value.dtype.kind in "iu"):
            raise UserError(
                thing,
                expected="an integer, for a Discrete space",
                got=described(value),
                remedy="Return int(value).",
            )
        return
    wanted = f"a NumPy array {dtype.name} {shape}"
    if not _is_array(value):
        raise UserError(
            thing,
            expected=wanted,
            got=described(value),
            remedy=f"Return np.asarray(value, np.{dtype.name}).",
        )
    if list(value.shape) != shape:
        raise UserError(
            thing,
            expected=wanted,
            got=described(value),
            remedy="Reshape it, or give the space its shape.",
        )
    if value.dtype != dtype and (exact or not np.can_cast(value.dtype, dtype)):
        raise UserError(
            thing,
            expected=wanted,
            got=described(value),
            remedy=f"Cast it by .astype(np.{dtype.name}), or give the space its dtype.",
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def check_finite(thing: str, value: np.ndarray) -> None:
    """Raises a UserError that lists all values which are NaN or infinite."""
    if value.dtype.kind != "f" or np.isfinite(value).all():
        return
    raise UserError(
        thing,
        expected="finite values",
        got=listed(value, ~np.isfinite(value)),
        remedy="Look for a division by 0, a logarithm of 0 or an overflow.",
    )


def _check_bounds(thing: str, value: np.ndarray, spec: tf.TensorSpec) -> None:
    if spec.dtype.is_bool or not spec.dtype.is_floating and not spec.dtype.is_integer:
        return
    low, high = (np.broadcast_to(b, value.shape) for b in specs.bounds(spec))
    bad = (value < low) | (value > high)
    if not bad.any():
        return
    low, high = np.unique(low[bad]), np.unique(high[bad])
    bounds = "the bounds of the space"
    if low.size == high.size == 1:
        bounds += f", [{low[0]}, {high[0]}]"
    else:
        bounds += f": at least {low.tolist()} and at most {high.tolist()} there"
    raise UserError(
        thing,
        expected=f"values within {bounds}",
        got=listed(value, bad),
        remedy="Correct the value, or widen the bounds of the space.",
    )


def listed(value: np.ndarray, bad: np.ndarray) -> str:
    """All bad values with their indices; of more than `MAX_LISTED` the first ones."""
    places = np.argwhere(bad)
    shown = places[:MAX_LISTED]
    text = ", ".join(
        f"{value[tuple(i)]}" + (f" at {i.tolist()}" if value.ndim else "") for i in shown
    )
    more = len(places) - len(shown)
    return f"{text} and {more} more" if more else text


def described(value: Any) -> str:
    """What a value is, in a few words."""
    if _is_array(value):
        return f"{value.dtype.name} {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(x).__name__ for x in value)})"
    if isinstance(value, bool | int | float | str) or value is None:
        return f"{value!r} of type {type(value).__name__}"
    return f"a {type(value).__name__}"


def copied(values: Nest) -> Nest:
    """Returns a nest with arrays of its own."""
    return tf.nest.map_structure(np.array, values)


def difference(a: Nest, b: Nest, exact: bool = False) -> tuple[str, str] | None:
    """Finds the first leaf in which two nests of arrays differ.

    Args:
      a: A nest.
      b: One of the same structure.
      exact: Whether the last bits of floats count.

    Returns:
      Its path, and all values of `b` there that are not those of `a`; None if there is none.
    """
    others = struct.paths(b)
    for path, x in struct.paths(a).items():
        x, y = np.asarray(x), np.asarray(others.get(path))
        if x.shape != y.shape:
            return path, f"{described(y)} instead of {described(x)}"
        bad = x != y
        if x.dtype.kind == y.dtype.kind == "f":
            bad &= ~(np.isnan(x) & np.isnan(y))
            if not exact:
                bad &= ~np.isclose(x, y, rtol=1e-5, atol=1e-8)
        if np.any(bad):
            return path, f"{listed(y, bad)} instead of {listed(x, bad)}"
    return None


class LastObs:
    """Finds observations said to be the last of an episode that are the first of the next.

    Add the rows in which episodes have ended, then call `check`.
    """

    def __init__(self) -> None:
        """Begins with none."""
        self._starts: set[bytes] = set()  # that were given as last observations too
        self._right = False  # whether one differed

    def add(self, last: Nest, first: Nest) -> None:
        """Takes the last observation of an episode and the first of the next, of one row."""
        a, b = (
            b"".join(np.asarray(x).tobytes() for x in tf.nest.flatten(o)) for o in (last, first)
        )
        self._right = self._right or a != b
        self._starts.add(b)

    def check(self, thing: str) -> None:
        """Raises a UserError if several different ones were all the same as the next start."""
        if not self._right and len(self._starts) >= MANY_STARTS:
            raise UserError(
                thing,
                expected="the last observation of the episode that has ended",
                got=f"the first one of the next episode, {len(self._starts)} different ones",
                remedy="Keep it, as a copy, before the row is reset.",
            )
