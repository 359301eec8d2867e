"""Items along time of which the first few are lookback: known, but not part of the chunk."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfrl.episodes import nests
from tfrl.errors import UserError

Nest = Any
Indices = int | slice | Sequence[int] | None


class LookbackBuffer:
    """A growing column of an episode.

    Item 0 is the first of the chunk; the lookback's items have the positions -lookback to -1.
    Items are appended one by one; `to_numpy` stacks them, and what is appended afterwards is
    stacked by the next `to_numpy`. Stacked arrays are read-only, since slices share them.
    """

    def __init__(self, name: str, *, stacked: Nest = None, size: int = 0, lookback: int = 0):
        """Makes a buffer.

        Args:
          name: What a message calls it.
          stacked: Items stacked along time, a nest of arrays `[size, ...]`, or None.
          size: How many they are, the lookback included.
          lookback: How many of them are lookback.
        """
        self.name = name
        self.lookback = lookback
        self._stacked = None if stacked is None else nests.map_leaves(_read_only, stacked)
        self._size = size if stacked is not None else 0  # items in _stacked
        self._tail: list[Nest] = []
        self._example: Nest = None  # an item, for the shapes of an empty buffer

    @classmethod
    def of(cls, name: str, data: Nest, lookback: int = 0) -> "LookbackBuffer":
        """Makes a buffer of a list of items, or of items stacked along time.

        Args:
          name: What a message calls it.
          data: A list of items, a nest of arrays `[T, ...]`, or None for no items.
          lookback: How many of them are lookback.
        """
        if data is None or isinstance(data, list):
            buffer = cls(name, lookback=lookback)
            for item in data or []:
                buffer.append(nests.as_arrays(item, name))
            return buffer
        stacked = nests.as_arrays(data, name)
        size = nests.num_items(stacked, name)
        return cls(name, stacked=stacked, size=size, lookback=lookback)

    @property
    def size(self) -> int:
        """The number of items, the lookback included."""
        return self._size + len(self._tail)

    def __len__(self) -> int:
        """The number of items without the lookback."""
        return self.size - self.lookback

    @property
    def is_numpy(self) -> bool:
        """Whether all items are stacked."""
        return not self._tail

    def append(self, item: Nest) -> None:
        """Adds an item, a nest of arrays as `nests.as_arrays` makes it.

        Raises:
          UserError: When its structure, a shape or a dtype differs from the items before.
        """
        self.check(item)
        self._tail.append(item)

    def check(self, item: Nest) -> None:
        """Raises a UserError when an item differs in kind from the items before."""
        if not self.size and self._example is None:
            return
        got, expected = nests.signature(item), nests.signature(self._like())
        if got != expected:
            wrong = [p for p in {**expected, **got} if expected.get(p) != got.get(p)]
            raise UserError(
                self.name,
                expected=_described(expected, wrong),
                got=_described(got, wrong),
                remedy="Give every step the same structure, shapes and dtypes.",
            )

    def replace_last(self, item: Nest) -> None:
        """Puts another item in the place of the last; earlier slices keep the old one."""
        self.check(item)
        if self._tail:
            self._tail[-1] = item
            return
        self._size -= 1
        self._stacked = nests.take(self._stacked, slice(0, self._size))
        self._tail = [item]

    def to_numpy(self) -> None:
        """Stacks all items."""
        if not self._tail:
            return
        parts = [self._stacked] if self._size else []
        stacked = nests.concat([*parts, nests.stack(self._tail)])
        self._stacked = nests.map_leaves(_read_only, stacked)
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
          neg_index_as_lookback: Whether -1 is the item just before item 0; otherwise it is the
            last item, and what lies further back reaches into the lookback.
          fill: What every leaf holds at positions that do not exist; None refuses a position,
            and shortens a slice.

        Returns:
          A nest `[...]` for one position, else `[n, ...]`.

        Raises:
          UserError: For positions that do not exist, or a fill without any item to be shaped like.
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
            if not self.size and self._example is None:  # nothing is known of the items
                return np.empty([0], np.float32)
            return nests.map_leaves(lambda x: np.empty((0, *x.shape), x.dtype), self._like())
        return nests.stack([self._item(p, fill) for p in positions])

    def cut(self, start: int, stop: int, lookback: int) -> "LookbackBuffer":
        """Returns items start to stop with `lookback` items before them; they share memory."""
        first, last = self.lookback + start - lookback, self.lookback + stop
        part = LookbackBuffer(self.name, lookback=lookback)
        if first < self._size:
            part._stacked = nests.take(self._stacked, slice(first, min(last, self._size)))
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
        """The item at an index from the left end, the lookback included."""
        if index < self._size:
            return nests.take(self._stacked, (index, ...))
        return self._tail[index - self._size]

    def _item(self, position: int, fill: Any) -> Nest:
        if -self.lookback <= position < len(self):
            return self._at(self.lookback + position)
        return nests.map_leaves(lambda x: np.full_like(x, fill), self._like())

    def _like(self) -> Nest:
        """Any item, for its shapes."""
        if self.size:
            return self._at(0)
        if self._example is not None:
            return self._example
        raise UserError(
            self.name,
            expected="at least one item, whose shape a filled result has",
            got="none",
            remedy="Add a step first.",
        )

    def _view(self, positions: range) -> Nest:
        """A view of the stacked arrays, or None where that needs a copy."""
        first = self.lookback + positions.start
        inside = first >= 0 and (first + len(positions)) <= self._size
        if positions.step != 1 or not inside or not len(positions):
            return None
        return nests.take(self._stacked, slice(first, first + len(positions)))


def resolve(
    name: str,
    indices: Indices,
    length: int,
    lookback: int,
    neg_index_as_lookback: bool,
    filled: bool,
) -> int | range | list[int]:
    """Turns indices into positions, of which -lookback .. length - 1 exist.

    Args:
      name: What a message calls the items.
      indices: As in `LookbackBuffer.get`.
      length: The number of items without the lookback.
      lookback: The number of items before item 0.
      neg_index_as_lookback: As in `LookbackBuffer.get`.
      filled: Whether positions outside are allowed.

    Returns:
      One position for an int, a range for a slice or None, else a list.

    Raises:
      UserError: For positions outside that are not allowed.
    """

    def position(index: int) -> int:
        return index + length if index < 0 and not neg_index_as_lookback else index

    if indices is None:
        return range(0, length)
    if isinstance(indices, slice):
        step = 1 if indices.step is None else indices.step
        if step == 0:
            raise UserError(
                name,
                expected="a slice with a step other than 0",
                got=str(indices),
                remedy="Leave the step out.",
            )
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
            remedy="Ask for items that exist, or give fill= for the others.",
        )
    return positions[0] if single else positions


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _described(signature: dict[str, Any], paths: list[str]) -> str:
    """The leaves that differ, in words."""
    found = [
        f"{'' if p == '.' else p + ': '}{signature[p][1]} {list(signature[p][0])}"
        for p in paths
        if p in signature
    ]
    return ", ".join(found) if found else f"no {', '.join(paths)}"
