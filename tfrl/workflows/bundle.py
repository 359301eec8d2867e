"""Nests of arrays handed to TensorFlow as few tensors."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrl.replay.packing import from_bytes
from tfrl.types import Nest

# Each small tensor that Python makes takes some ten microseconds; larger ones are not worth a copy.
_SMALL_BYTES = 2**14


class Bundle:
    """The form of a nest of arrays of fixed shapes, whose small leaves travel together as bytes."""

    def __init__(self, nest: Nest):
        """Takes the form.

        Args:
          nest: Arrays or tensors.
        """
        leaves = tf.nest.flatten(nest)
        self._form = nest
        self._specs = [tf.TensorSpec(x.shape, x.dtype) for x in leaves]
        self._sizes = [math.prod(s.shape) * s.dtype.size for s in self._specs]
        self._together = [i for i, x in enumerate(leaves) if self._is_small(i, x)]
        self._alone = [i for i in range(len(leaves)) if i not in self._together]

    def _is_small(self, i: int, leaf: object) -> bool:
        plain = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
        return plain and 0 < self._sizes[i] <= _SMALL_BYTES

    def tensors(self, nest: Nest) -> list[tf.Tensor]:
        """Returns a nest of the form as tensors, for `nest`."""
        leaves = tf.nest.flatten(nest)
        found = [tf.convert_to_tensor(leaves[i]) for i in self._alone]
        if self._together:
            parts = [leaves[i].reshape(-1).view(np.uint8) for i in self._together]
            found.append(tf.constant(np.concatenate(parts)))
        return found

    def nest(self, tensors: Sequence[tf.Tensor]) -> Nest:
        """Returns the nest of what `tensors` gave; traced."""
        leaves = dict(zip(self._alone, tensors, strict=False))
        if self._together:
            parts = tf.split(tensors[-1], [self._sizes[i] for i in self._together])
            for i, part in zip(self._together, parts, strict=True):
                leaves[i] = from_bytes(part, [], self._specs[i])
        return tf.nest.pack_sequence_as(self._form, [leaves[i] for i in range(len(self._specs))])
