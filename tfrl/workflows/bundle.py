"""Nests of arrays handed to TensorFlow as few tensors."""

import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrl.types import Nest

# Each small tensor that Python makes takes some ten microseconds; larger ones are not worth a copy.
_SMALL_BYTES = 2**14


class Bundle:
    """The form of a nest of arrays of fixed shapes, whose small leaves travel together by dtype."""

    def __init__(self, nest: Nest):
        """Takes the form.

        Args:
          nest: Arrays or tensors.
        """
        leaves = tf.nest.flatten(nest)
        self._form = nest
        self._shapes = [tuple(x.shape) for x in leaves]
        together: dict[str, list[int]] = {}
        self._alone: list[int] = []
        for i, leaf in enumerate(leaves):
            kind = tf.as_dtype(leaf.dtype)
            size = math.prod(self._shapes[i]) * kind.size
            if size > _SMALL_BYTES or not isinstance(leaf, np.ndarray):
                self._alone.append(i)
            else:
                together.setdefault(kind.name, []).append(i)
        self._together = list(together.values())

    def tensors(self, nest: Nest) -> list[tf.Tensor]:
        """Returns a nest of the form as tensors, for `nest`."""
        leaves = tf.nest.flatten(nest)
        found = [np.concatenate([leaves[i].ravel() for i in own]) for own in self._together]
        return [tf.convert_to_tensor(x) for x in (*found, *(leaves[i] for i in self._alone))]

    def nest(self, tensors: Sequence[tf.Tensor]) -> Nest:
        """Returns the nest of what `tensors` gave; traced."""
        leaves: list[tf.Tensor | None] = [None] * len(self._shapes)
        for own, packed in zip(self._together, tensors, strict=False):
            sizes = [math.prod(self._shapes[i]) for i in own]
            for i, part in zip(own, tf.split(packed, sizes), strict=True):
                leaves[i] = tf.reshape(part, self._shapes[i])
        for i, tensor in zip(self._alone, tensors[len(self._together) :], strict=True):
            leaves[i] = tensor
        return tf.nest.pack_sequence_as(self._form, leaves)
