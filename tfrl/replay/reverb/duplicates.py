"""Counts items that a table of kind fifo or lifo returned a second time."""

import collections
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfrl.types import Sequences, Transition

# A writer resends an item with the same key as soon as it has reconnected. This is the most items
# of other writers in between.
_WINDOW = 2**16


class Duplicates:
    """Counts repeated keys; thread-safe.

    Attributes:
      count: The number of repeated keys so far.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        """Starts at 0.

        Args:
          window: The number of newest keys to remember.
        """
        self.count = 0
        self._window = window
        self._lock = threading.Lock()
        self._datasets: weakref.WeakSet[Any] = weakref.WeakSet()
        self.forget()

    def forget(self) -> None:
        """Forgets all keys: the next items may rightly repeat earlier ones."""
        with self._lock:
            self._known: set[int] = set()
            self._order: collections.deque[int] = collections.deque()

    def note(self, index: Any) -> None:
        """Counts the repeated keys of a batch, int64 `[N]`."""
        with self._lock:
            for key in index.numpy().tolist():
                self._note(key)

    def is_new(self, key: int) -> bool:
        """Returns whether a key is not repeated; counts it otherwise."""
        with self._lock:
            return self._note(key)

    def _note(self, key: int) -> bool:
        if key in self._known:
            self.count += 1
            return False
        self._known.add(key)
        self._order.append(key)
        if len(self._order) > self._window:
            self._known.remove(self._order.popleft())
        return True

    def add_dataset(self, dataset: Any) -> None:
        """Registers a dataset, distributed or not, of a table that returns each item once."""
        self._datasets.add(dataset)

    def counts(self, dataset: Any) -> bool:
        """Returns whether a dataset is registered, or derived from one, for example by `take`."""
        left = [dataset]
        while left:
            one = left.pop()
            if one in self._datasets:
                return True
            left += one._inputs() if isinstance(one, tf.data.Dataset) else []
        return False

    def note_batch(self, batch: Any) -> None:
        """Counts the repeated keys of a dataset's element; ignores elements without items."""
        for items in _local(batch):
            if isinstance(items, Transition | Sequences):
                for index in _local(items.index):
                    self.note(index)


def _local(value: Any) -> Iterator[Any]:
    """Yields the parts of a per-replica value, or the value itself."""
    yield from value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
