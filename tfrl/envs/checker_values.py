"""Checks the values of host environments against their specs, for `check_env`."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, specs, struct
from tfrl.envs.action_masks import real_choices
from tfrl.errors import UserError
from tfrl.types import Nest

MAX_STARTS = 32  # with two starts only, a correct task fails once in 2^32
MANY_STARTS = 3  # this many coincidences are no chance
MAX_LISTED = 100  # limit of values in a message; a wrong image has thousands


@dataclasses.dataclass
class Answer:
    """The result of a reset or step, in copied arrays.

    Attributes:
      obs: The observation.
      reward: A scalar, or `[B]`.
      termination: A scalar, or `[B]`.
      truncation: A scalar, or `[B]`.
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
        """All fields, by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}


def note(thing: str, *, expected: str, got: str, remedy: str) -> None:
    """Logs a probable mistake, which is allowed, in the form of a UserError."""
    text = UserError(thing, expected=expected, got=got, remedy=remedy)
    logging.getLogger(__name__).warning("%s", text)


def check_values(
    thing: str, values: Nest, spec: Nest, batch: tuple[int, ...] = (), exact: bool = False
) -> None:
    """Checks keys, types, shapes, dtypes, finiteness and bounds of every leaf.

    Args:
      thing: Name of the values in messages; the path of the leaf is appended.
      values: A nest of arrays.
      spec: The nest of specs of one value.
      batch: Leading axes.
      exact: Whether to require the spec's dtype; else dtypes that cast safely to it are accepted,
        as in Gymnasium's spaces.

    Raises:
      UserError: For the first invalid leaf, with all of its invalid values.
    """
    if isinstance(spec, Mapping):
        checks.same_keys(thing, values, spec)
        for key, part in spec.items():
            check_values(f"{thing}/{key}", values[key], part, batch, exact)
    elif isinstance(spec, tuple):
        if not isinstance(values, tuple) or len(values) != len(spec):
            raise UserError(
                thing,
                expected=f"a tuple of {len(spec)}, as in the space",
                got=described(values),
            )
        for i, part in enumerate(spec):
            check_values(f"{thing}/{i}", values[i], part, batch, exact)
    else:
        _check_form(thing, values, spec, batch, exact)
        check_finite(thing, np.asarray(values))
        check_bounds(thing, np.asarray(values), spec)


def _check_form(
    thing: str, value: Any, spec: tf.TensorSpec, batch: tuple[int, ...], exact: bool
) -> None:
    """Checks type, shape and dtype of a leaf."""
    dtype, shape = np.dtype(spec.dtype.as_numpy_dtype), [*batch, *spec.shape.as_list()]
    if isinstance(spec, specs.DiscreteSpec) and not batch:
        number = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not number and not (_is_array(value) and value.shape == () and value.dtype.kind in "iu"):
            raise UserError(thing, expected="an integer for a Discrete space", got=described(value))
        return
    wanted = f"a NumPy array {dtype.name} {shape}"
    if not _is_array(value):
        raise UserError(thing, expected=wanted, got=described(value))
    if list(value.shape) != shape:
        raise UserError(thing, expected=wanted, got=described(value))
    if value.dtype != dtype and (exact or not np.can_cast(value.dtype, dtype)):
        raise UserError(
            thing,
            expected=wanted,
            got=described(value),
            remedy=f"Cast it with .astype(np.{dtype.name}), or change the dtype of the space.",
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def check_finite(thing: str, value: np.ndarray) -> None:
    """Raises a UserError that lists all NaN and infinite values."""
    if value.dtype.kind != "f" or np.isfinite(value).all():
        return
    raise UserError(thing, expected="finite values", got=listed(value, ~np.isfinite(value)))


def check_bounds(thing: str, value: np.ndarray, spec: tf.TensorSpec) -> None:
    """Raises a UserError that lists all values out of the bounds of a spec."""
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
        bounds += f": at least {low.tolist()} and at most {high.tolist()}"
    raise UserError(thing, expected=f"values within {bounds}", got=listed(value, bad))


def listed(value: np.ndarray, bad: np.ndarray) -> str:
    """All bad values with their indices; only the first `MAX_LISTED`."""
    places = np.argwhere(bad)
    shown = places[:MAX_LISTED]
    text = ", ".join(
        f"{value[tuple(i)]}" + (f" at {i.tolist()}" if value.ndim else "") for i in shown
    )
    more = len(places) - len(shown)
    return f"{text} and {more} more" if more else text


def described(value: Any) -> str:
    """A short description of a value."""
    if _is_array(value):
        return f"{value.dtype.name} {list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)} ({', '.join(type(x).__name__ for x in value)})"
    if isinstance(value, bool | int | float | str) or value is None:
        return f"{value!r} of type {type(value).__name__}"
    return f"a {type(value).__name__}"


def copied(values: Nest) -> Nest:
    """Returns a nest with copied arrays."""
    return tf.nest.map_structure(np.array, values)


def difference(a: Nest, b: Nest, exact: bool = False) -> tuple[str, str] | None:
    """Finds the first leaf in which two nests of arrays differ.

    Args:
      a: A nest.
      b: One of the same structure.
      exact: Whether to compare floats bit by bit.

    Returns:
      Its path and all differing values of `b`, or None.
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


def first_difference(
    a: Mapping[str, Any], b: Mapping[str, Any], exact: bool = False
) -> tuple[str, str] | None:
    """Like `difference`, for two records, in the order of the first one's fields."""
    differences = (difference({name: a[name]}, {name: b[name]}, exact) for name in a)
    return next((f for f in differences if f is not None), None)


def check_same(where: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Raises a UserError if two plays with equal seeds and actions differ."""
    differs = first_difference(a, b)
    if differs is not None:
        raise UserError(
            f"{where}: {differs[0]}",
            expected="the same value from the same seed and actions",
            got=differs[1],
            remedy="Draw random numbers only from generators that reset(seed=seed) seeds, such as "
            "self.np_random after super().reset(seed=seed), and keep no state of earlier episodes.",
        )


def check_starts(
    thing: str, size: int, start: Nest, draw: Callable[[int], Nest], seed_remedy: str
) -> None:
    """Checks that starts differ between seeds and between the environments of a batch.

    Args:
      thing: The reset, for messages.
      size: Environments in the batch (B).
      start: The first observations `[B, ...]`.
      draw: Returns the first observations of the i-th other seed, i from 1.
      seed_remedy: How to use the seed.
    """
    seeds_differ, rows_differ = False, size == 1 or _rows_differ(start, size)
    for i in range(1, MAX_STARTS + 1):
        if seeds_differ and rows_differ:
            return
        other = draw(i)
        seeds_differ = seeds_differ or difference(start, other, exact=True) is not None
        rows_differ = rows_differ or _rows_differ(other, size)
    if not seeds_differ:
        raise UserError(
            thing,
            expected="different starts from different seeds",
            got=f"the same start from {MAX_STARTS + 1} seeds",
            remedy=f"{seed_remedy}; for a task with a single start, call check_env(env, "
            "stochastic=False).",
        )
    if not rows_differ:
        raise UserError(
            thing,
            expected="different starts in the environments of a batch",
            got=f"the same row {size} times, from {MAX_STARTS + 1} seeds",
            remedy="Give each environment its own seed, or draw rows from one generator.",
        )


def _rows_differ(nest: Nest, size: int) -> bool:
    """Whether a leaf with one row per environment has two different rows."""
    leaves = [np.asarray(x) for x in tf.nest.flatten(nest)]
    return any(np.any(x[:1] != x) for x in leaves if x.ndim and len(x) == size)


class LastObs:
    """Detects last observations of episodes that are really the first of the next.

    Add the rows with ended episodes, then call `check`.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._starts: set[bytes] = set()  # first observations that equal the reported last ones
        self._right = False  # whether any last observation differed

    def add(self, last: Nest, first: Nest) -> None:
        """Takes the last observation of an episode and the first of the next, in one row."""
        a, b = (
            b"".join(np.asarray(x).tobytes() for x in tf.nest.flatten(o)) for o in (last, first)
        )
        self._right = self._right or a != b
        self._starts.add(b)

    def check(self, thing: str) -> None:
        """Raises a UserError if several different last observations all equal the next start."""
        if not self._right and len(self._starts) >= MANY_STARTS:
            raise UserError(
                thing,
                expected="the last observation of the ended episode",
                got=f"the first observation of the next episode ({len(self._starts)} different "
                "starts)",
                remedy="Copy it before the row is reset.",
            )


def sample_actions(spec: Nest, rng: np.random.Generator, size: int, mask: Nest = None) -> Nest:
    """Draws valid actions: uniform if bounded, else near the bound or 0.

    Args:
      spec: The nest of specs of one action.
      rng: The random generator.
      size: Number of actions (B).
      mask: A nest of masks like the action's, bool `[B, ...]`, or None.

    Returns:
      A nest of arrays `[B, ...]`.
    """
    if isinstance(spec, Mapping):
        part = {} if mask is None else mask
        return {k: sample_actions(s, rng, size, part.get(k)) for k, s in spec.items()}
    if isinstance(spec, tuple):
        each = [None] * len(spec) if mask is None else mask
        return tuple(sample_actions(s, rng, size, m) for s, m in zip(spec, each, strict=True))
    shape, dtype = (size, *spec.shape.as_list()), spec.dtype.as_numpy_dtype
    low, high = specs.bounds(spec)
    if mask is not None:
        drawn = rng.random(np.shape(mask))
        if isinstance(spec, specs.BinarySpec):
            return ((drawn < 0.5) & mask).reshape(shape).astype(dtype)
        mask = real_choices(spec, mask)
        return np.argmax(np.where(mask, drawn, -1.0), -1).reshape(shape).astype(dtype) + low
    if spec.dtype.is_bool:
        return rng.random(shape) < 0.5
    if spec.dtype.is_integer:
        return rng.integers(low, high, shape, dtype, endpoint=True)
    # Bounds of 1e30 mean none, and their difference would overflow.
    has_low, has_high = low > -1e30, high < 1e30
    near, far = (np.where(has_low, low, 0.0), np.where(has_high, high, 0.0))
    step, normal = rng.exponential(size=shape), rng.normal(size=shape)
    value = np.where(has_low, near + step, np.where(has_high, far - step, normal))
    value = np.where(has_low & has_high, near + (far - near) * rng.random(shape), value)
    return np.clip(value.astype(dtype), low, high)


def check_mask(thing: str, spec: Nest, mask: Nest, rows: Any = True) -> None:
    """Raises a UserError for a mask without a valid action.

    Args:
      thing: Name of the mask in messages.
      spec: The nest of specs of one action.
      mask: A nest of masks like the action's, bool `[B, ...]`.
      rows: Bool `[B]`: rows that continue.
    """
    if isinstance(spec, Mapping):
        for key, part in spec.items():
            check_mask(f"{thing}/{key}", part, mask[key], rows)
    elif isinstance(spec, tuple):
        for i, part in enumerate(spec):
            check_mask(f"{thing}/{i}", part, mask[i], rows)
    elif not isinstance(spec, specs.BinarySpec):
        none = ~np.any(real_choices(spec, mask), -1)
        none &= np.reshape(rows, np.shape(rows) + (1,) * (none.ndim - np.ndim(rows)))
        if none.any():
            raise UserError(
                thing,
                expected="at least one valid action",
                got="no valid action" + (f" at {np.argwhere(none).tolist()}" if none.ndim else ""),
                remedy="Allow an action that does nothing, or end the episode.",
            )


def note_unbounded(thing: str, spec: Nest) -> None:
    """Logs the elements of float actions that lack a bound."""
    for path, leaf in struct.paths(spec).items():
        if not leaf.dtype.is_floating:
            continue
        low, high = specs.bounds(leaf)
        bad = ~(np.isfinite(low) & np.isfinite(high))
        if bad.any():
            bounds = [f"[{a}, {b}]" for a, b in zip(low[bad], high[bad], strict=True)]
            places = np.argwhere(bad)
            shown = [f"{b} at {i.tolist()}" for b, i in zip(bounds, places, strict=True)]
            note(
                thing if path == "." else f"{thing} {path}",
                expected="finite bounds",
                got=", ".join(shown[:MAX_LISTED]),
                remedy="Set the useful range with gymnasium.wrappers.RescaleAction or ClipAction: "
                "initial policies act near 0 with a standard deviation of about 1.",
            )
