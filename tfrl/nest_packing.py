"""Packs nests into few arrays and back: rows of a variable, bytes, lists of leaves.

An operation costs more than the bytes of a small leaf. So a ring buffer stores all leaves of a step
in one row, a Reverb item is one column, and the host sends a rollout to the device in one tensor.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.types import Nest

# Mixed dtypes are padded to words. Gathers and scatters have int64 kernels on CPUs and GPUs, int32
# kernels on CPUs only.
_WORD = tf.int64
# Dtypes whose rows are gathered and scattered without conversion.
_PLAIN = (tf.uint8, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int64)
# Creating a small tensor in Python takes some ten microseconds; larger ones are not worth a copy.
_SMALL_BYTES = 2**14


def num_bytes(spec: tf.TensorSpec) -> int:
    """Returns the bytes of one leaf."""
    return math.prod(spec.shape) * spec.dtype.size


def bytes_to_leaves(packed: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Splits concatenated bytes into leaves.

    Args:
      packed: uint8 `[..., n]`, n the bytes of all leaves; the other axes are static.
      specs: The spec of each leaf.

    Returns:
      Leaves `[..., *spec.shape]`.
    """
    sizes, lead = [num_bytes(spec) for spec in specs], packed.shape[:-1]
    parts = tf.split(packed, sizes, axis=-1) if len(sizes) > 1 else [packed]
    return [_from_bytes(part, lead, spec) for part, spec in zip(parts, specs, strict=True)]


def _from_bytes(part: tf.Tensor, lead: Sequence[int], spec: tf.TensorSpec) -> tf.Tensor:
    shape = [*lead, *spec.shape]
    if spec.dtype == tf.bool:
        return tf.cast(tf.reshape(part, shape), tf.bool)
    if spec.dtype == tf.uint8:
        return tf.reshape(part, shape)
    wide = [spec.dtype.size] if spec.dtype.size > 1 else []
    return tf.bitcast(tf.reshape(part, shape + wide), spec.dtype)


def _to_bytes(x: tf.Tensor, size: int) -> tf.Tensor:
    """Returns the bytes of M rows, uint8 `[M, size]`."""
    x = tf.cast(x, tf.uint8) if x.dtype == tf.bool else x
    return tf.reshape(x if x.dtype == tf.uint8 else tf.bitcast(x, tf.uint8), [-1, size])


class RowPacker:
    """Packs nests of tensors into rows of one dtype; leaves of mixed dtypes become words.

    Attributes:
      spec: Nest of `tf.TensorSpec` of one row.
      dtype: The dtype of the packed row.
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
            self._sizes = [math.prod(leaf.shape) for leaf in self._leaves]
            self.width = sum(self._sizes)
        else:
            self.dtype = _WORD
            self._sizes = [num_bytes(leaf) for leaf in self._leaves]
            self.width = -(-sum(self._sizes) // _WORD.size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.dtype.size

    def pack(self, nest: Nest) -> tf.Tensor:
        """Returns the rows `[M, width]` of a nest with leaves `[M, *spec.shape]`."""
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
        """Returns the nest of rows `[..., width]`, leaves `[..., *spec.shape]` of static shape."""
        lead = rows.shape[:-1].as_list()
        if self._plain:
            parts = tf.split(rows, self._sizes, axis=-1) if len(self._sizes) > 1 else [rows]
            shapes = [[*lead, *spec.shape] for spec in self._leaves]
            leaves = [tf.reshape(x, shape) for x, shape in zip(parts, shapes, strict=True)]
        else:
            rows = tf.reshape(tf.bitcast(rows, tf.uint8), [*lead, self.width * _WORD.size])
            leaves = bytes_to_leaves(rows[..., : sum(self._sizes)], self._leaves)
        return tf.nest.pack_sequence_as(self.spec, leaves)

    def __repr__(self) -> str:
        """Names the paths and the packed form."""
        return f"RowPacker({', '.join(struct.paths(self.spec))}: {self.dtype.name} [{self.width}])"


class HostPacker:
    """Packs nests of NumPy arrays into few tensors: joins the bytes of small leaves."""

    def __init__(self, nest: Nest):
        """Takes an example nest; later nests must have its shapes and dtypes."""
        leaves = tf.nest.flatten(nest)
        self._form = nest
        self._specs = [tf.TensorSpec(x.shape, x.dtype) for x in leaves]
        self._packed = [i for i, x in enumerate(leaves) if self._is_small(i, x)]
        self._single = [i for i in range(len(leaves)) if i not in self._packed]

    def _is_small(self, i: int, leaf: object) -> bool:
        plain = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biuf"
        return plain and 0 < num_bytes(self._specs[i]) <= _SMALL_BYTES

    def tensors(self, nest: Nest) -> list[tf.Tensor]:
        """Packs a nest into tensors, for `nest`."""
        leaves = leaves_of(nest)
        tensors = [tf.convert_to_tensor(leaves[i]) for i in self._single]
        if self._packed:
            joined = b"".join([leaves[i].tobytes() for i in self._packed])
            tensors.append(tf.constant(np.frombuffer(joined, np.uint8)))
        return tensors

    def nest(self, tensors: Sequence[tf.Tensor]) -> Nest:
        """Returns the nest of the tensors of `tensors`; traced."""
        leaves = dict(zip(self._single, tensors, strict=False))
        if self._packed:
            parts = bytes_to_leaves(tensors[-1], [self._specs[i] for i in self._packed])
            leaves.update(zip(self._packed, parts, strict=True))
        return tf.nest.pack_sequence_as(self._form, [leaves[i] for i in range(len(self._specs))])


def array_of(leaf: Any) -> np.ndarray:
    """Returns a leaf in NumPy.

    A variable is read by its kernel, in a third of the time of `numpy()` and with one eager tensor
    in place of two.
    """
    if type(leaf) is np.ndarray:
        return leaf
    if isinstance(leaf, tf.Variable) and not isinstance(leaf, tf.distribute.DistributedValues):
        leaf = tf.raw_ops.ReadVariableOp(resource=leaf.handle, dtype=leaf.dtype)
    return np.asarray(leaf)


# Functions for plain nests in Python: `tf.nest` takes 10 to 20 microseconds.


def builder(form: Nest) -> Callable[[Sequence[Any]], Nest]:
    """Returns a function that packs leaves, in the order of `tf.nest.flatten`, like `form`."""
    if not _plain(form):
        return lambda leaves: tf.nest.pack_sequence_as(form, leaves)
    build = _builder(form)
    return lambda leaves: build(iter(leaves))


def leaves_of(nest: Nest) -> list[Any]:
    """Returns the leaves of a nest like `tf.nest.flatten`, in a tenth of the time."""
    leaves: list[Any] = []
    _collect(nest, leaves)
    return leaves


def _collect(nest: Nest, leaves: list[Any]) -> None:
    kind = type(nest)
    if kind is np.ndarray:
        leaves.append(nest)
    elif kind is dict:
        for name in sorted(nest):
            _collect(nest[name], leaves)
    elif kind is tuple or kind is list:
        for part in nest:
            _collect(part, leaves)
    elif hasattr(kind, "_tfrl_layout"):
        for name in kind._tfrl_layout.dynamic:
            part = getattr(nest, name)
            if part is not None:
                _collect(part, leaves)
    else:
        leaves.extend(tf.nest.flatten(nest))


def collector(spec: Nest, name: str) -> Callable[[Nest, list[Any]], None]:
    """Returns a function that appends the leaves of a user's nest in the order of its spec.

    A leaf may be a list or a tuple. The function raises a UserError for another structure.

    Args:
      spec: A nest of specs.
      name: The name of the nest in messages.
    """
    if isinstance(spec, dict):
        known = spec.keys()
        parts = [(key, collector(spec[key], f"{name}/{key}")) for key in sorted(spec)]

        def collect_dict(nest: Nest, leaves: list[Any]) -> None:
            if not isinstance(nest, dict) or nest.keys() != known:
                got = ", ".join(map(str, nest)) if isinstance(nest, dict) else type(nest).__name__
                raise UserError(
                    name, expected=f"a dict of {', '.join(map(str, spec))}", got=got or "{}"
                )
            for key, collect in parts:
                collect(nest[key], leaves)

        return collect_dict
    if isinstance(spec, (list, tuple)):
        items = [collector(part, f"{name}/{i}") for i, part in enumerate(spec)]

        def collect_tuple(nest: Nest, leaves: list[Any]) -> None:
            if not isinstance(nest, (list, tuple)) or len(nest) != len(items):
                length = f" of {len(nest)} parts" if isinstance(nest, (list, tuple)) else ""
                raise UserError(
                    name,
                    expected=f"a tuple of {len(items)} parts",
                    got=f"{type(nest).__name__}{length}",
                )
            for collect, value in zip(items, nest, strict=True):
                collect(value, leaves)

        return collect_tuple
    if tf.nest.is_nested(spec):

        def collect_nest(nest: Nest, leaves: list[Any]) -> None:
            try:
                tf.nest.assert_same_structure(spec, nest)
            except (TypeError, ValueError) as error:
                raise UserError(
                    name, expected=f"a {type(spec).__name__}", got=type(nest).__name__
                ) from error
            leaves.extend(tf.nest.flatten(nest))

        return collect_nest
    return lambda nest, leaves: leaves.append(nest)


def _plain(form: Nest) -> bool:
    """Whether a nest has only dicts, tuples and lists."""
    if type(form) is dict:
        return all(_plain(x) for x in form.values())
    if type(form) in (tuple, list):
        return all(_plain(x) for x in form)
    return not tf.nest.is_nested(form)


def _builder(form: Nest) -> Callable[[Iterator[Any]], Nest]:
    if type(form) is dict:
        parts = {name: _builder(form[name]) for name in sorted(form)}
        if list(form) == list(parts):
            return lambda leaves: {name: build(leaves) for name, build in parts.items()}

        def build_in_order(leaves: Iterator[Any]) -> dict[Any, Nest]:
            built = {name: build(leaves) for name, build in parts.items()}
            return {name: built[name] for name in form}

        return build_in_order
    if type(form) in (tuple, list):
        kind, builders = type(form), [_builder(x) for x in form]
        return lambda leaves: kind([build(leaves) for build in builders])
    return next
