"""Replay buffers over tensors: values with the methods of variables."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class TensorVariable:
    """A tensor with the methods of a tf.Variable that an `InGraphBuffer` calls.

    A write replaces the tensor within the trace of one iteration, so it may not be in a branch or a
    loop. The buffers of a population are such values: stacked and carried by a loop.

    Attributes:
      value: The newest tensor.
    """

    def __init__(self, value: tf.Tensor):
        """Takes the first tensor."""
        self.value = value

    @property
    def shape(self) -> tf.TensorShape:
        """The static shape."""
        return self.value.shape

    @property
    def dtype(self) -> tf.DType:
        """The dtype."""
        return self.value.dtype

    def read_value(self) -> tf.Tensor:
        """Returns the newest tensor."""
        return self.value

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Returns the newest tensor, for conversion by TensorFlow."""
        return self.value

    def assign(self, value: tf.Tensor) -> None:
        """Replaces the tensor."""
        self.value = tf.convert_to_tensor(value, self.dtype)

    def scatter_update(self, rows: tf.IndexedSlices) -> None:
        """Writes rows."""
        places = rows.indices[:, tf.newaxis]
        self.value = tf.tensor_scatter_nd_update(self.value, places, rows.values)


def as_variables(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves of a buffer by path as writable objects; variables unchanged."""
    return {path: TensorVariable(x) if isinstance(x, tf.Tensor) else x for path, x in state.items()}


def as_leaves(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the newest leaves of `as_variables`' result."""
    return {path: x.value if isinstance(x, TensorVariable) else x for path, x in variables.items()}
