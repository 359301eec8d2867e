"""Keys of items that a table of kind fifo or lifo gave a second time."""

import collections
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfrl.types import Sequences, Transition

# A writer sends an item again with the same key. It does so at once when its connection is there
# again; so many items of others may lie between.
_WINDOW = 2**16


class Duplicates:
    """Counts keys that come a second time; any thread may call it.

    Attributes:
      count: Items that were given again, since this was made.
    """

    def __init__(self, window: int = _WINDOW) -> None:
        """Begins with 0.

        Args:
          window: How many keys it remembers, the newest.
        """
        self.count = 0
        self._window = window
        self._lock = threading.Lock()
        self._datasets: weakref.WeakSet[Any] = weakref.WeakSet()
        self.forget()

    def forget(self) -> None:
        """Takes no key for known: what comes now may rightly have come before."""
        with self._lock:
            self._known: set[int] = set()
            self._order: collections.deque[int] = collections.deque()

    def note(self, index: Any) -> None:
        """Takes the keys of a batch, int64 `[N]`."""
        with self._lock:
            for key in index.numpy().tolist():
                if key in self._known:
                    self.count += 1
                    continue
                self._known.add(key)
                self._order.append(key)
                if len(self._order) > self._window:
                    self._known.remove(self._order.popleft())

    def add_dataset(self, dataset: Any) -> None:
        """Says that a dataset, distributed or not, gives each item once."""
        self._datasets.add(dataset)

    def counts(self, dataset: Any) -> bool:
        """Returns whether a dataset is one of those, or made of one, by `take` for example."""
        left = [dataset]
        while left:
            one = left.pop()
            if one in self._datasets:
                return True
            left += one._inputs() if isinstance(one, tf.data.Dataset) else []
        return False

    def note_batch(self, batch: Any) -> None:
        """Takes the keys of what a dataset gave; what is no batch of items has none."""
        for items in _local(batch):
            if isinstance(items, Transition | Sequences):
                for index in _local(items.index):
                    self.note(index)


def _local(value: Any) -> Iterator[Any]:
    """The parts of a value of several replicas, or the value."""
    yield from value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
