"""Items along time; the first few are lookback, which is readable but not part of the chunk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError

Nest = Any


def as_arrays(value: Nest, name: str) -> Nest:
    """Copies one item (an observation, an action, ...) to a nest of arrays.

    It copies, since environments may write the next observation to the same memory. Mappings become
    dicts, tuples stay tuples, and lists become arrays. Python floats become float32, ints int32.

    Args:
      value: The item; a None inside it is an error.
      name: The name of the item in messages.

    Returns:
      The nest of arrays.

    Raises:
      UserError: For a leaf other than an array of numbers, bools or strings.
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
            name, expected="an array, or a dict or tuple of arrays", got=type(value).__name__
        )
    return array


def as_reward(reward: Nest) -> Nest:
    """Copies a reward of any number type to float32."""
    return map_leaves(lambda x: x.astype(np.float32), as_arrays(reward, "reward"))


def signature(nest: Nest) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Returns `{path: (shape, dtype)}`, to compare items."""
    return {path: (x.shape, x.dtype) for path, x in struct.paths(nest).items()}


def map_leaves(fn: Callable[..., Any], *nests: Nest) -> Nest:
    """Applies `fn` to every leaf like `tf.nest.map_structure`, but faster for a single array."""
    if isinstance(nests[0], np.ndarray):
        return fn(*nests)
    return tf.nest.map_structure(fn, *nests)


def stack(items: Sequence[Nest]) -> Nest:
    """Stacks equal nests along a new leading axis."""
    return map_leaves(lambda *xs: np.stack(xs), *items)


def concat(nests: Sequence[Nest]) -> Nest:
    """Concatenates equal nests along their leading axis; returns a single nest unchanged."""
    if len(nests) == 1:
        return nests[0]
    return map_leaves(lambda *xs: np.concatenate(xs), *nests)


def take(nest: Nest, index: Any) -> Nest:
    """Returns `leaf[index]` of every leaf; a slice gives views."""
    return map_leaves(lambda x: x[index], nest)


def num_items(stacked: Nest, name: str) -> int:
    """Returns the leading axis that all leaves share.

    Raises:
      UserError: If they differ or a leaf has no axis.
    """
    sizes = {p: x.shape[0] if x.ndim else None for p, x in struct.paths(stacked).items()}
    if len(set(sizes.values())) == 1 and None not in sizes.values():
        return next(size for size in sizes.values() if size is not None)
    raise UserError(
        name,
        expected="leaves with the same leading time axis",
        got=str(sizes),
        remedy="Stack the items of all steps, or pass a list of items.",
    )


def equal(a: Nest, b: Nest) -> bool:
    """Whether two nests of arrays are equal, with NaN equal to NaN."""
    ours, others = struct.paths(a), struct.paths(b)
    if ours.keys() != others.keys():
        return False
    return all(_same(ours[path], others[path]) for path in ours)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    nan = a.dtype.kind in "fc" and b.dtype.kind in "fc"
    return bool(np.array_equal(a, b, equal_nan=nan))


Indices = int | slice | Sequence[int] | None


class LookbackBuffer:
    """A growing column of an episode.

    Item 0 is the first of the chunk; the lookback's items have the positions -lookback to -1.
    Items are appended one by one, and `to_numpy` stacks all items so far. Stacked arrays are
    read-only, since slices share them.
    """

    def __init__(self, name: str, *, stacked: Nest = None, size: int = 0, lookback: int = 0):
        """Makes a buffer.

        Args:
          name: The name of the column in messages.
          stacked: Items stacked along time, a nest of arrays `[size, ...]`, or None.
          size: The number of items, with the lookback.
          lookback: The number of lookback items.
        """
        self.name = name
        self.lookback = lookback
        self._stacked = None if stacked is None else map_leaves(_read_only, stacked)
        self._size = size if stacked is not None else 0  # items in _stacked
        self._tail: list[Nest] = []
        self._example: Nest = None  # an item, for the shapes of an empty buffer

    @classmethod
    def of(cls, name: str, data: Nest, lookback: int = 0) -> "LookbackBuffer":
        """Makes a buffer from a list of items, or from items stacked along time.

        Args:
          name: The name of the column in messages.
          data: A list of items, a nest of arrays `[T, ...]`, or None for no items.
          lookback: The number of lookback items.
        """
        if data is None or isinstance(data, list):
            buffer = cls(name, lookback=lookback)
            for item in data or []:
                buffer.append(as_arrays(item, name))
            return buffer
        stacked = as_arrays(data, name)
        size = num_items(stacked, name)
        return cls(name, stacked=stacked, size=size, lookback=lookback)

    @property
    def size(self) -> int:
        """The number of items, with the lookback."""
        return self._size + len(self._tail)

    def __len__(self) -> int:
        """The number of items without the lookback."""
        return self.size - self.lookback

    @property
    def is_numpy(self) -> bool:
        """Whether all items are stacked."""
        return not self._tail

    def append(self, item: Nest) -> None:
        """Adds an item, a nest of arrays from `as_arrays`.

        Raises:
          UserError: If its structure, a shape or a dtype differs from earlier items.
        """
        self.check(item)
        self._tail.append(item)

    def check(self, item: Nest) -> None:
        """Raises a UserError if an item's structure, shapes or dtypes differ from earlier items."""
        if not self.size and self._example is None:
            return
        got, expected = signature(item), signature(self._like())
        if got != expected:
            wrong = [p for p in {**expected, **got} if expected.get(p) != got.get(p)]
            raise UserError(
                self.name, expected=_described(expected, wrong), got=_described(got, wrong)
            )

    def replace_last(self, item: Nest) -> None:
        """Replaces the last item; earlier slices keep the old one."""
        self.check(item)
        if self._tail:
            self._tail[-1] = item
            return
        self._size -= 1
        self._stacked = take(self._stacked, slice(0, self._size))
        self._tail = [item]

    def to_numpy(self) -> None:
        """Stacks all items."""
        if not self._tail:
            return
        parts = [self._stacked] if self._size else []
        stacked = concat([*parts, stack(self._tail)])
        self._stacked = map_leaves(_read_only, stacked)
        self._size, self._tail = self.size, []

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns one item, or several stacked along a leading axis.

        Args:
          indices: A position, a slice, a list of positions, or None for all without the lookback.
          neg_index_as_lookback: Whether -1 is the item just before item 0. Otherwise -1 is the last
            item, and positions further back reach into the lookback.
          fill: The value of every leaf at missing positions. If None, a missing position is an
            error, and a slice is shortened.

        Returns:
          A nest `[...]` for one position, else `[n, ...]`.

        Raises:
          UserError: For missing positions, or a fill without any item to give the shapes.
        """
        positions = resolve(
            self.name, indices, len(self), self.lookback, neg_index_as_lookback, fill is not None
        )
        if isinstance(positions, int):
            return self._item(positions, fill)
        if isinstance(positions, range):
            view = self._view(positions)
            if view is not None:
                return view
        if not len(positions):
            if not self.size and self._example is None:  # the shapes of items are unknown
                return np.empty([0], np.float32)
            return map_leaves(lambda x: np.empty((0, *x.shape), x.dtype), self._like())
        return stack([self._item(p, fill) for p in positions])

    def cut(self, start: int, stop: int, lookback: int) -> "LookbackBuffer":
        """Returns items start to stop with `lookback` items before them, sharing memory."""
        first, last = self.lookback + start - lookback, self.lookback + stop
        part = LookbackBuffer(self.name, lookback=lookback)
        if first < self._size:
            part._stacked = take(self._stacked, slice(first, min(last, self._size)))
            part._size = min(last, self._size) - first
        part._tail = self._tail[max(first - self._size, 0) : max(last - self._size, 0)]
        part._example = self._at(0) if self.size else self._example
        return part

    def extend(self, other: "LookbackBuffer", start: int = 0) -> None:
        """Appends the items of another buffer from `start` on, without its lookback."""
        for position in range(start, len(other)):
            self.append(other._at(other.lookback + position))

    def all(self) -> Nest:
        """Returns all items stacked, the lookback first; None without any."""
        if not self.size:
            return None
        return self.get(slice(-self.lookback, None), neg_index_as_lookback=True)

    def _at(self, index: int) -> Nest:
        """Returns the item at an index that counts from the start of the lookback."""
        if index < self._size:
            return take(self._stacked, (index, ...))
        return self._tail[index - self._size]

    def _item(self, position: int, fill: Any) -> Nest:
        if -self.lookback <= position < len(self):
            return self._at(self.lookback + position)
        return map_leaves(lambda x: np.full_like(x, fill), self._like())

    def _like(self) -> Nest:
        """Returns any item, for its shapes."""
        if self.size:
            return self._at(0)
        if self._example is not None:
            return self._example
        raise UserError(
            self.name, expected="at least one item, for the shape of filled values", got="no item"
        )

    def _view(self, positions: range) -> Nest:
        """Returns a view of the stacked arrays, or None if that needs a copy."""
        first = self.lookback + positions.start
        inside = first >= 0 and (first + len(positions)) <= self._size
        if positions.step != 1 or not inside or not len(positions):
            return None
        return take(self._stacked, slice(first, first + len(positions)))


def resolve(
    name: str,
    indices: Indices,
    length: int,
    lookback: int,
    neg_index_as_lookback: bool,
    filled: bool,
) -> int | range | list[int]:
    """Converts indices to positions; positions -lookback .. length - 1 exist.

    Args:
      name: The name of the items in messages.
      indices: See `LookbackBuffer.get`.
      length: The number of items without the lookback.
      lookback: The number of items before item 0.
      neg_index_as_lookback: See `LookbackBuffer.get`.
      filled: Whether missing positions are allowed.

    Returns:
      One position for an int, a range for a slice or None, else a list.

    Raises:
      UserError: For missing positions, unless `filled`.
    """

    def position(index: int) -> int:
        return index + length if index < 0 and not neg_index_as_lookback else index

    if indices is None:
        return range(0, length)
    if isinstance(indices, slice):
        step = 1 if indices.step is None else indices.step
        low, high = (0, length) if step > 0 else (length - 1, -1)
        start = low if indices.start is None else position(int(indices.start))
        stop = high if indices.stop is None else position(int(indices.stop))
        if not filled:
            first, last = (-lookback, length) if step > 0 else (-lookback - 1, length - 1)
            start, stop = (min(max(x, first), last) for x in (start, stop))
        return range(start, stop, step)
    single = isinstance(indices, int | np.integer)
    wanted = [int(indices)] if single else [int(i) for i in indices]  # type: ignore[union-attr,arg-type]
    positions = [position(i) for i in wanted]
    outside = [i for i, p in zip(wanted, positions, strict=True) if not -lookback <= p < length]
    if outside and not filled:
        raise UserError(
            name,
            expected=f"indices of {length} items with a lookback of {lookback}",
            got=", ".join(map(str, outside)),
        )
    return positions[0] if single else positions


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _described(signature: dict[str, Any], paths: list[str]) -> str:
    """Describes the leaves that differ."""
    parts = [
        f"{'' if p == '.' else p + ': '}{signature[p][1]} {list(signature[p][0])}"
        for p in paths
        if p in signature
    ]
    return ", ".join(parts) if parts else f"no {', '.join(paths)}"
