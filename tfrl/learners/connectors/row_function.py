"""Functions of many rows, compiled for few numbers of rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.distribute.tracing import counted_apart
from tfrl.episodes import nests

Nest = Any
_LEAST = 8


class RowFunction:
    """A pure function `fn(state, rows) -> rows`, traced once a power of two of rows.

    Rows are filled up with zeros, False in a mask, and the result is cut again: the number of
    steps changes from call to call, and every new one would retrace.
    """

    def __init__(self, fn: Callable[[Any, Nest], Nest]):
        """Compiles nothing yet.

        Args:
          fn: Takes a state and a nest `[N, ...]`; returns a nest `[N, ...]` in which a row does not
            depend on the rows after it.
        """
        self._fn = fn
        self._compiled: dict[tuple[int, ...], Any] = {}

    def __call__(self, state: Any, rows: Nest, *, axes: int = 1) -> Nest:
        """Returns the result for arrays `[N, ...]`, as arrays.

        Args:
          state: Values or variables, handed on.
          rows: A nest of arrays `[N, ...]`.
          axes: How many leading axes are filled up to a power of two, all the same in all leaves.
        """
        sizes = next(iter(struct.paths(rows).values())).shape[:axes]
        padded = nests.map_leaves(lambda x: tf.constant(_padded(x, sizes)), rows)
        longest = tuple(map(padded_size, sizes))
        if longest not in self._compiled:
            # One for each size: the few traces of a single one look to TensorFlow like a mistake.
            self._compiled[longest] = tf.function(counted_apart(self._fn))
        result = self._compiled[longest](struct.values(state), padded)
        return tf.nest.map_structure(lambda x: x.numpy()[tuple(map(slice, sizes))], result)

    @property
    def traces(self) -> int:
        """How often the function has been traced."""
        return sum(fn.experimental_get_tracing_count() for fn in self._compiled.values())


def padded_size(size: int) -> int:
    """The least power of two, at least 8, that is not smaller."""
    return max(_LEAST, 1 << (size - 1).bit_length())


def _padded(x: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """An array with zeros after the leading `sizes`, up to powers of two."""
    missing = [(0, padded_size(n) - n) for n in sizes]
    return np.pad(x, missing + [(0, 0)] * (x.ndim - len(sizes)))
