"""Blocks of logged values: each kind stores only what its reduction needs; blocks can be joined.

NaN means no value (e.g. a mean return without an ended episode): it is ignored, also in counts,
element by element in arrays. A block of only NaN reduces to NaN.
"""

import abc
import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from typing_extensions import Self

from tfrl.metrics import values
from tfrl.metrics.values import Value


class Block(abc.ABC):
    """Values in the order in which they were logged.

    Attributes:
      logged: Number of logged values, NaNs included.
    """

    # The attributes of its state, besides `logged`.
    _FIELDS: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.logged = 0

    @abc.abstractmethod
    def empty(self) -> Self:
        """Returns a block of the same kind without values."""

    @abc.abstractmethod
    def add(self, value: Value) -> None:
        """Adds a value."""

    @abc.abstractmethod
    def append(self, later: Self) -> None:
        """Appends the values of a later block."""

    @abc.abstractmethod
    def result(self) -> Value:
        """Returns the reduction; without values 0 for a sum, else NaN."""

    def joined(self, others: Sequence[Self]) -> Self:
        """Joins this block with others whose values were logged at the same time."""
        result = self.empty()
        for block in (self, *others):
            result.append(block)
        return result

    def to_json(self) -> dict[str, Any]:
        """Returns the content out of plain JSON types."""
        content = {name: values.to_json(getattr(self, name)) for name in self._FIELDS}
        return {"logged": self.logged, **content}

    def load_json(self, content: dict[str, Any]) -> Self:
        """Loads the result of `to_json`, and returns the block."""
        self.logged = int(content["logged"])
        for name in self._FIELDS:
            setattr(self, name, values.from_json(content[name]))
        return self


class Sum(Block):
    """A sum and a count, for sums and means."""

    _FIELDS = ("total", "count")

    def __init__(self, mean: bool = False):
        """Starts at zero.

        Args:
          mean: Whether the result is the mean.
        """
        super().__init__()
        self.mean = mean
        self.total: Any = 0
        self.count: Any = 0

    def empty(self) -> "Sum":
        """Returns an empty block."""
        return Sum(self.mean)

    def add(self, value: Value) -> None:
        """Adds a value."""
        self.logged += 1
        if isinstance(value, np.ndarray):
            valid = ~np.isnan(value)
            self.total = self.total + np.where(valid, value, 0).astype(value.dtype)
            self.count = self.count + valid
        elif not values.is_nan(value):
            self.total += value
            self.count += 1

    def append(self, later: "Sum") -> None:
        """Adds the sum and the number of another block."""
        self.logged += later.logged
        self.total = self.total + later.total
        self.count = self.count + later.count

    def result(self) -> Value:
        """Returns the mean or the sum."""
        if self.mean:
            return values.divide(self.total, self.count)
        if not self.logged or np.all(np.asarray(self.count) > 0):
            return self.total
        blank = np.where(np.asarray(self.count) > 0, self.total, np.nan)
        return blank if blank.ndim else blank.item()


class Extreme(Block):
    """The minimum or maximum."""

    _FIELDS = ("value",)

    def __init__(self, greatest: bool):
        """Starts without a value.

        Args:
          greatest: Whether it is the maximum.
        """
        super().__init__()
        self.greatest = greatest
        self.value: Any = float("nan")

    def empty(self) -> "Extreme":
        """Returns an empty block."""
        return Extreme(self.greatest)

    def add(self, value: Value) -> None:
        """Compares with one more value."""
        self.logged += 1
        if isinstance(value, np.ndarray):
            pair: Any = (self.value, value)
            self.value = np.fmax(*pair) if self.greatest else np.fmin(*pair)
        elif values.is_nan(self.value):
            self.value = value
        elif not values.is_nan(value):
            pair = (self.value, value)
            self.value = max(pair) if self.greatest else min(pair)

    def append(self, later: "Extreme") -> None:
        """Compares with another block's extreme."""
        if later.logged:
            logged = self.logged + later.logged
            self.add(later.value)
            self.logged = logged

    def result(self) -> Value:
        """Returns the extreme."""
        return self.value


class Window(Block):
    """The last values, of any age."""

    def __init__(self, size: int, reducer: Block):
        """Starts without values.

        Args:
          size: Number of last values.
          reducer: An empty block that reduces them.
        """
        super().__init__()
        self.reducer = reducer
        self.values: collections.deque[Value] = collections.deque(maxlen=size)

    @property
    def size(self) -> int:
        """Number of last values that count."""
        return self.values.maxlen or 0

    def empty(self) -> "Window":
        """Returns an empty block."""
        return Window(self.size, self.reducer)

    def add(self, value: Value) -> None:
        """Adds a value; a full window drops the oldest."""
        self.logged += 1
        self.values.append(value)

    def append(self, later: "Window") -> None:
        """Takes another window's values."""
        self.logged += later.logged
        self.values.extend(later.values)

    def joined(self, others: Sequence["Window"]) -> "Window":
        """Interleaves values, the newest of each first, until the window is full."""
        newest = [list(reversed(w.values)) for w in reversed([self, *others])]
        turns = itertools.zip_longest(*newest, fillvalue=None)
        in_turn = [value for turn in turns for value in turn if value is not None]
        result = self.empty()
        result.values.extend(reversed(in_turn[: self.size]))
        result.logged = self.logged + sum(w.logged for w in others)
        return result

    def result(self) -> Value:
        """Returns the reduction of the values in the window."""
        block = self.reducer.empty()
        for value in self.values:
            block.add(value)
        return block.result()

    def to_json(self) -> dict[str, Any]:
        """Returns the values out of plain JSON types."""
        return {"logged": self.logged, "values": [values.to_json(v) for v in self.values]}

    def load_json(self, content: dict[str, Any]) -> "Window":
        """Takes what `to_json` returned."""
        self.logged = int(content["logged"])
        self.values.clear()
        self.values.extend(values.from_json(v) for v in content["values"])
        return self


class AllValues(Block):
    """All values, as a list."""

    def __init__(self) -> None:
        """Starts without values."""
        super().__init__()
        self.values: Any = []

    def empty(self) -> "AllValues":
        """Returns an empty block."""
        return AllValues()

    def add(self, value: Value) -> None:
        """Takes a value."""
        self.logged += 1
        self.values.append(value)

    def append(self, later: "AllValues") -> None:
        """Takes another block's values."""
        self.logged += later.logged
        self.values.extend(later.values)

    def result(self) -> Any:
        """Returns the values, in the order in which they were logged."""
        return list(self.values)

    def to_json(self) -> dict[str, Any]:
        """Returns the values out of plain JSON types."""
        return {"logged": self.logged, "values": [values.to_json(v) for v in self.values]}

    def load_json(self, content: dict[str, Any]) -> "AllValues":
        """Takes what `to_json` returned."""
        self.logged = int(content["logged"])
        self.values = [values.from_json(v) for v in content["values"]]
        return self


class Ema(Block):
    """An exponential moving average with bias correction: weights sum to 1.

      sum_i c (1 - c)^(n - i) x_i / (1 - (1 - c)^n)

    Source: the bias correction of Kingma and Ba 2015, section 3, https://arxiv.org/abs/1412.6980.
    """

    _FIELDS: tuple[str, ...] = ("total", "count")

    def __init__(self, coeff: float):
        """Starts without values.

        Args:
          coeff: c, the weight of a new value, in (0, 1].
        """
        super().__init__()
        self.coeff = coeff
        self.total: Any = 0.0  # the sum above the fraction line
        self.count: Any = 0  # n

    def empty(self) -> "Ema":
        """Returns an empty block."""
        return Ema(self.coeff)

    def add(self, value: Value) -> None:
        """Takes a value with weight c."""
        self.logged += 1
        moved = (1.0 - self.coeff) * self.total + self.coeff * value
        if isinstance(value, np.ndarray):
            valid = ~np.isnan(value)
            self.total = np.where(valid, moved, self.total)
            self.count = self.count + valid
        elif not values.is_nan(value):
            self.total = moved
            self.count += 1

    def append(self, later: "Ema") -> None:
        """Appends another block's values; its own weights are multiplied by (1 - c)^n."""
        self.logged += later.logged
        self.total = (1.0 - self.coeff) ** later.count * self.total + later.total
        self.count = self.count + later.count

    def joined(self, others: Sequence["Ema"]) -> "Ema":
        """Averages, weighted by the numbers of values, and adds the counts."""
        blocks = [self, *others]
        result: Any = self.empty()
        result.logged = sum(b.logged for b in blocks)
        result.count = _added(b.count for b in blocks)
        weighted = [np.where(np.asarray(b.count) > 0, b.result() * b.count, 0.0) for b in blocks]
        mean = np.nan_to_num(values.divide(_added(weighted), result.count))
        total = np.asarray(mean * result._weight())
        result.total = total if total.ndim else total.item()
        return result

    def _weight(self) -> Any:
        return 1.0 - (1.0 - self.coeff) ** self.count

    def result(self) -> Value:
        """Returns the average."""
        return values.divide(self.total, self._weight())


class EmaFromFirst(Ema):
    """An exponential moving average that starts at the first value.

    y_1 = x_1, y_i = (1 - c) y_{i-1} + c x_i
    """

    _FIELDS = ("total", "count", "first")

    def __init__(self, coeff: float):
        """Starts without values; see `Ema`."""
        super().__init__(coeff)
        self.first: Any = 0.0

    def empty(self) -> "EmaFromFirst":
        """Returns an empty block."""
        return EmaFromFirst(self.coeff)

    def add(self, value: Value) -> None:
        """Adds a value with weight c; the first one with weight 1."""
        fresh = (np.asarray(self.count) == 0) & np.logical_not(values.is_nan(value))
        super().add(value)
        if np.any(fresh):
            self.first = _number(np.where(fresh, value, self.first))
            self.total = _number(np.where(fresh, value, self.total))

    def append(self, later: "EmaFromFirst") -> None:  # type: ignore[override]
        """Appends another block's values; its first value gets weight c."""
        self.logged += later.logged
        own = np.asarray(self.count) > 0
        faded = (1.0 - self.coeff) ** later.count * (self.total - later.first)
        self.total = _number(later.total + np.where(own, faded, 0.0))
        self.first = _number(np.where(own, self.first, later.first))
        self.count = self.count + later.count

    def joined(self, others: Sequence["Ema"]) -> "EmaFromFirst":
        """Averages, weighted by the numbers of values."""
        result: Any = super().joined(others)
        result.first = result.total  # they began at the same time
        return result

    def _weight(self) -> Any:
        return _number(np.where(np.asarray(self.count) > 0, 1.0, 0.0))


def _number(value: np.ndarray) -> Any:
    return value if value.ndim else value.item()


def _added(items: Iterable[Any]) -> Any:
    """The sum, element by element."""
    total: Any = 0
    for item in items:
        total = total + item
    return total
