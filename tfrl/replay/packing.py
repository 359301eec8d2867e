"""A nest of step data as one row of one dtype, so that a ring buffer is one variable.

One gather and one scatter then serve all leaves: in graph mode an operation costs more than the
bytes that it moves. Leaves of one dtype are joined as they are; mixed ones become bytes, padded to
int64 words (which have kernels for gathers and scatters on CPUs and GPUs; int32 has none on GPUs).
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from tfrl import struct
from tfrl.types import Nest

_WORD = tf.int64
# Of these, rows are gathered and scattered as they are.
_PLAIN = (tf.uint8, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64)


class Packer:
    """Puts the leaves of a nest next to each other, and takes them apart.

    Attributes:
      spec: Nest of `tf.TensorSpec` of one row.
      dtype: Of the packed row.
      width: Elements of the packed row.
    """

    def __init__(self, spec: Nest):
        """Chooses the dtype."""
        self.spec = spec
        self._leaves: list[tf.TensorSpec] = tf.nest.flatten(spec)
        dtypes = {leaf.dtype for leaf in self._leaves}
        self._plain = len(dtypes) == 1 and next(iter(dtypes)) in _PLAIN
        if self._plain:
            self.dtype = self._leaves[0].dtype
            self._sizes = [_elements(leaf) for leaf in self._leaves]
            self.width = sum(self._sizes)
        else:
            self.dtype = _WORD
            self._sizes = [_elements(leaf) * leaf.dtype.size for leaf in self._leaves]
            self.width = -(-sum(self._sizes) // _WORD.size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.dtype.size

    def pack(self, nest: Nest) -> tf.Tensor:
        """Returns the rows of a nest.

        Args:
          nest: Leaves `[M, *spec.shape]`.

        Returns:
          `[M, width]` of `dtype`.
        """
        leaves = tf.nest.flatten(nest)
        if self._plain:
            flat = [tf.reshape(x, [-1, n]) for x, n in zip(leaves, self._sizes, strict=True)]
            return flat[0] if len(flat) == 1 else tf.concat(flat, axis=1)
        parts = [_to_bytes(x, n) for x, n in zip(leaves, self._sizes, strict=True)]
        padding = self.width * _WORD.size - sum(self._sizes)
        if padding:
            parts.append(tf.zeros([tf.shape(parts[0])[0], padding], tf.uint8))
        words = tf.reshape(tf.concat(parts, axis=1), [-1, self.width, _WORD.size])
        return tf.bitcast(words, _WORD)

    def unpack(self, rows: tf.Tensor) -> Nest:
        """Returns the nest of rows `[..., width]`, leaves `[..., *spec.shape]`, shapes static."""
        lead = rows.shape[:-1].as_list()
        if not self._plain:
            rows = tf.reshape(tf.bitcast(rows, tf.uint8), [*lead, self.width * _WORD.size])
            rows = rows[..., : sum(self._sizes)]
        parts = tf.split(rows, self._sizes, axis=-1) if len(self._sizes) > 1 else [rows]
        leaves = [
            tf.reshape(part, [*lead, *spec.shape]) if self._plain else from_bytes(part, lead, spec)
            for part, spec in zip(parts, self._leaves, strict=True)
        ]
        return tf.nest.pack_sequence_as(self.spec, leaves)

    def __repr__(self) -> str:
        """The paths and what they become."""
        return f"Packer({', '.join(struct.paths(self.spec))}: {self.dtype.name} [{self.width}])"


def _elements(spec: tf.TensorSpec) -> int:
    return math.prod(spec.shape.as_list())


def _to_bytes(x: tf.Tensor, size: int) -> tf.Tensor:
    """uint8 `[M, size]`."""
    x = tf.cast(x, tf.uint8) if x.dtype == tf.bool else x
    return tf.reshape(x if x.dtype == tf.uint8 else tf.bitcast(x, tf.uint8), [-1, size])


def from_bytes(part: tf.Tensor, lead: Sequence[int], spec: tf.TensorSpec) -> tf.Tensor:
    """Returns the leaf `[*lead, *spec.shape]` of bytes, uint8 `[*lead, size]`."""
    shape = [*lead, *spec.shape]
    if spec.dtype == tf.bool:
        return tf.cast(tf.reshape(part, shape), tf.bool)
    if spec.dtype == tf.uint8:
        return tf.reshape(part, shape)
    wide = [spec.dtype.size] if spec.dtype.size > 1 else []
    return tf.bitcast(tf.reshape(part, shape + wide), spec.dtype)
