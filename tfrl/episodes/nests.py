"""Nests of NumPy arrays: one item of an episode, and items stacked along time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError

Nest = Any


def as_arrays(value: Nest, name: str) -> Nest:
    """Copies one item (an observation, an action, ...) into a nest of arrays.

    A copy, since environments write the next observation into the same memory. Mappings become
    dicts, tuples stay; a list is an array. Python floats become float32, ints int32.

    Args:
      value: The item; a None inside it is an error.
      name: What a message calls it.

    Returns:
      The nest of arrays.

    Raises:
      UserError: For a leaf that is no array of numbers, bools or strings.
    """
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.copy()
    if isinstance(value, Mapping):
        return {k: as_arrays(v, f"{name}/{k}") for k, v in value.items()}
    if isinstance(value, tuple):
        items = [as_arrays(v, f"{name}/{i}") for i, v in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if hasattr(type(value), "__tf_flatten__"):
        return tf.nest.map_structure(lambda x: as_arrays(x, name), value)
    kind: Any = {float: np.float32, int: np.int32}.get(type(value))
    if kind is np.int32 and not -(2**31) <= value < 2**31:
        kind = np.int64
    try:
        array = np.array(value, kind)
    except ValueError:  # a ragged list
        array = np.array(None)
    if array.dtype == object:
        raise UserError(
            name,
            expected="an array, or a dict or tuple of arrays",
            got=type(value).__name__,
            remedy="Give every step a value of the same structure, None nowhere.",
        )
    return array


def as_reward(reward: Nest) -> Nest:
    """A copy of a reward, of any number type, in float32."""
    return map_leaves(lambda x: x.astype(np.float32), as_arrays(reward, "reward"))


def signature(nest: Nest) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Returns `{path: (shape, dtype)}`, to compare items by."""
    return {path: (x.shape, x.dtype) for path, x in struct.paths(nest).items()}


def map_leaves(fn: Callable[..., Any], *nests: Nest) -> Nest:
    """Applies `fn` to every leaf; as `tf.nest.map_structure`, quicker for a single array."""
    if isinstance(nests[0], np.ndarray):
        return fn(*nests)
    return tf.nest.map_structure(fn, *nests)


def stack(items: Sequence[Nest]) -> Nest:
    """Stacks equal nests along a new leading axis."""
    return map_leaves(lambda *xs: np.stack(xs), *items)


def concat(nests: Sequence[Nest]) -> Nest:
    """Concatenates equal nests along their leading axis; one nest is returned as it is."""
    if len(nests) == 1:
        return nests[0]
    return map_leaves(lambda *xs: np.concatenate(xs), *nests)


def take(nest: Nest, index: Any) -> Nest:
    """Returns `leaf[index]` of every leaf; a slice gives views."""
    return map_leaves(lambda x: x[index], nest)


def num_items(stacked: Nest, name: str) -> int:
    """Returns the leading axis that all leaves share.

    Raises:
      UserError: When they differ or a leaf has no axis.
    """
    sizes = {p: x.shape[0] if x.ndim else None for p, x in struct.paths(stacked).items()}
    if len(set(sizes.values())) == 1 and None not in sizes.values():
        return next(size for size in sizes.values() if size is not None)
    raise UserError(
        name,
        expected="leaves with the same leading axis, time",
        got=str(sizes),
        remedy="Stack the items of all steps, or give a list of items.",
    )


def equal(a: Nest, b: Nest) -> bool:
    """Whether two nests of arrays hold the same, NaN equal to NaN."""
    ours, others = struct.paths(a), struct.paths(b)
    if ours.keys() != others.keys():
        return False
    return all(_same(ours[path], others[path]) for path in ours)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    nan = a.dtype.kind in "fc" and b.dtype.kind in "fc"
    return bool(np.array_equal(a, b, equal_nan=nan))
