"""Specs of observations and actions, and gymnasium spaces to specs and back without loss.

A spec is a nest (dict, tuple) of `tf.TensorSpec` (unbounded) and `BoundedTensorSpec`. Discrete,
multi-discrete and binary spaces have their own subclasses of `BoundedTensorSpec`, so that the kind
of a space survives. Specs are compared by value and hashable: they serve as static fields.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct, tf_private
from tfrl.errors import UserError

Nest = Any
TensorSpec = tf.TensorSpec


class BoundedTensorSpec(tf_private.BoundedTensorSpec):
    """TensorFlow's BoundedTensorSpec, with exact equality that includes the kind of space.

    Bounds are inclusive, of the spec's dtype, and broadcast to its shape; for floats they may be
    infinite.
    """

    def __eq__(self, other: object) -> bool:
        """Equal kind, shape, dtype, name and, exactly, bounds."""
        if self is other:
            return True
        if not isinstance(other, tf_private.BoundedTensorSpec) or _kind(self) != _kind(other):
            return False
        return (
            (self.shape, self.dtype, self.name) == (other.shape, other.dtype, other.name)
            and _same(self.minimum, other.minimum)
            and _same(self.maximum, other.maximum)
        )

    def __hash__(self) -> int:
        """Agrees with `__eq__`."""
        return hash((self.shape, self.dtype))

    def __reduce__(self) -> Any:
        """How copies are made."""
        return type(self)._rebuild, self._arguments()

    def _arguments(self) -> tuple[Any, ...]:
        return (self.shape, self.dtype, self.minimum, self.maximum, self.name)

    @classmethod
    def _rebuild(cls, *args: Any) -> Any:
        return cls(*args)


class DiscreteSpec(BoundedTensorSpec):
    """A scalar: one of `num_values` integers from `start` on."""

    def __init__(
        self, num_values: Any, start: Any = 0, dtype: Any = tf.int64, name: str | None = None
    ):
        """Makes the spec.

        Args:
          num_values: How many values there are.
          start: The smallest value.
          dtype: An integer dtype.
          name: A name, or None.
        """
        start = int(start)
        super().__init__((), dtype, start, start + int(num_values) - 1, name)

    @property
    def num_values(self) -> int:
        """How many values there are."""
        return int(self.maximum) - int(self.minimum) + 1

    @property
    def start(self) -> int:
        """The smallest value."""
        return int(self.minimum)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.num_values, self.start, self.dtype, self.name)

    def __repr__(self) -> str:
        """The arguments that make it."""
        return f"DiscreteSpec({self.num_values}, start={self.start}, dtype={self.dtype.name})"


class MultiDiscreteSpec(BoundedTensorSpec):
    """An array of integers; element i is one of `nvec[i]` values from `start[i]` on."""

    def __init__(
        self, nvec: Any, start: Any = None, dtype: Any = tf.int64, name: str | None = None
    ):
        """Makes the spec.

        Args:
          nvec: Numbers of values, with the shape of the spec.
          start: The smallest values, of the same shape; None for zeros.
          dtype: An integer dtype.
          name: A name, or None.
        """
        nvec = np.asarray(nvec, np.int64)
        low = np.zeros_like(nvec) if start is None else np.asarray(start, np.int64)
        super().__init__(nvec.shape, dtype, low, low + nvec - 1, name)

    @property
    def nvec(self) -> np.ndarray:
        """Counts of values, int64."""
        return self.maximum.astype(np.int64) - self.minimum.astype(np.int64) + 1

    @property
    def start(self) -> np.ndarray:
        """The smallest values, int64."""
        return self.minimum.astype(np.int64)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.nvec, self.start, self.dtype, self.name)


class BinarySpec(BoundedTensorSpec):
    """An array of bits, like gymnasium's MultiBinary space."""

    def __init__(self, shape: Any, dtype: Any = tf.int8, name: str | None = None):
        """Makes the spec.

        Args:
          shape: Its shape; an int for one axis. Like gymnasium, specs distinguish `MultiBinary(4)`
            from `MultiBinary((4,))`.
          dtype: An integer dtype.
          name: A name, or None.
        """
        flat = isinstance(shape, int | np.integer)
        super().__init__([int(shape)] if flat else shape, dtype, 0, 1, name)
        self._flat = flat

    @property
    def n(self) -> int | tuple[int, ...]:
        """The shape in gymnasium's form: an int if it was given as one."""
        shape = tuple(self.shape.as_list())
        return shape[0] if self._flat else shape

    def __eq__(self, other: object) -> bool:
        """Equal kind, shape and its form, dtype and name."""
        return super().__eq__(other) and self._flat == getattr(other, "_flat", None)

    __hash__ = BoundedTensorSpec.__hash__

    def _arguments(self) -> tuple[Any, ...]:
        return (self.n, self.dtype, self.name)


@struct.logic_dataclass
class EnvSpec(struct.Struct):
    """The properties of an environment that an agent needs.

    Attributes:
      observation: Nest of specs of one observation.
      action: Nest of specs of one action.
      reward: Spec of one reward, or a dict of them.
      max_episode_steps: Steps after which an episode is truncated, or None.
    """

    observation: Nest
    action: Nest
    reward: Nest = tf.TensorSpec([], tf.float32)
    max_episode_steps: int | None = None


def _kind(spec: Any) -> type:
    return type(spec) if isinstance(spec, BoundedTensorSpec) else BoundedTensorSpec


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    try:
        return bool(np.all(a == b))
    except ValueError:  # bounds that do not broadcast to each other
        return False


def is_spec(value: Any) -> bool:
    """Tells whether a value is a leaf of a nest of specs."""
    return isinstance(value, tf.TensorSpec)


def is_discrete(spec: Any) -> bool:
    """Tells whether a leaf is discrete: an integer (or bool) spec with bounds."""
    finite = spec.dtype.is_integer or spec.dtype.is_bool
    return finite and isinstance(spec, tf_private.BoundedTensorSpec)


def num_actions(spec: Any) -> int:
    """Returns the number of values of a scalar discrete action spec.

    Raises:
      UserError: If the spec is not one scalar discrete leaf.
    """
    if not (is_spec(spec) and is_discrete(spec) and spec.shape.rank == 0):
        raise UserError(
            "action spec",
            expected="one scalar discrete spec",
            got=repr(spec),
            remedy="Use an algorithm for continuous or composite actions, or wrap the environment.",
        )
    return int(spec.maximum) - int(spec.minimum) + 1


def bounds(spec: tf.TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bounds of a leaf as arrays of its shape; infinite where there are none."""
    shape = spec.shape.as_list()
    if isinstance(spec, tf_private.BoundedTensorSpec):
        low, high = spec.minimum, spec.maximum
    elif spec.dtype.is_floating:
        low, high = -np.inf, np.inf
    elif spec.dtype.is_bool:
        low, high = False, True
    else:
        low, high = spec.dtype.min, spec.dtype.max
    dtype = spec.dtype.as_numpy_dtype
    return tuple(np.broadcast_to(np.asarray(b, dtype), shape) for b in (low, high))  # type: ignore


def clip(x: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns floats clipped to the bounds of their spec; other values are returned unchanged.

    Args:
      x: Values `[..., *spec.shape]`.
      spec: One leaf.
    """
    if not spec.dtype.is_floating:
        return x
    low, high = bounds(spec)
    unbounded = np.all(np.isinf(low)) and np.all(np.isinf(high))
    return x if unbounded else tf.clip_by_value(x, low, high)


def shown(bound: np.ndarray) -> str:
    """Returns a bound as text, one number if all elements have it."""
    return str(np.unique(bound)[0]) if np.unique(bound).size == 1 else str(bound.tolist())


def flat_dim(spec: Nest) -> int:
    """Returns the number of elements of all leaves together."""
    return sum(math.prod(s.shape.as_list()) for s in tf.nest.flatten(spec))


def zeros(spec: Nest, batch_shape: Any = ()) -> Nest:
    """Returns zeros for every leaf, with leading axes `batch_shape`."""
    batch_shape = list(batch_shape)
    return tf.nest.map_structure(lambda s: tf.zeros(batch_shape + s.shape.as_list(), s.dtype), spec)


def add_batch(spec: Nest, n: int | None) -> Nest:
    """Returns the nest with a leading axis of size `n` at every leaf; bounds and kind are kept.

    Discrete kinds become plain bounded specs, whose bounds broadcast to the new shape.
    """

    def batch(s: tf.TensorSpec) -> tf.TensorSpec:
        shape = [n, *s.shape.as_list()]
        if isinstance(s, tf_private.BoundedTensorSpec):
            return BoundedTensorSpec(shape, s.dtype, s.minimum, s.maximum, s.name)
        return tf.TensorSpec(shape, s.dtype, s.name)

    return tf.nest.map_structure(batch, spec)


def sample(spec: Nest, key: tf.Tensor, batch_shape: Any = ()) -> Nest:
    """Draws values that lie within a spec.

    Bounded elements are uniform; half-bounded ones lie an exponential step inside their bound;
    unbounded ones are standard normal.

    Args:
      spec: A nest of specs.
      key: int32 [2].
      batch_shape: Leading axes.

    Returns:
      A nest of tensors `[*batch_shape, ...]`.
    """
    leaves = tf.nest.flatten(spec)
    shape = list(batch_shape)
    drawn = [_sample_leaf(s, seeding.fold_in(key, i), shape) for i, s in enumerate(leaves)]
    return tf.nest.pack_sequence_as(spec, drawn)


def _sample_leaf(spec: tf.TensorSpec, key: tf.Tensor, batch_shape: list[int]) -> tf.Tensor:
    shape = batch_shape + spec.shape.as_list()
    low, high = bounds(spec)
    if not spec.dtype.is_floating:
        return _sample_integer(key, shape, low, high, spec.dtype)
    low64, high64 = low.astype(np.float64), high.astype(np.float64)
    has_low, has_high = np.isfinite(low64), np.isfinite(high64)
    # Bounds of 1e30 mean unbounded, and their difference would overflow.
    has_low, has_high = has_low & (low64 > -1e30), has_high & (high64 < 1e30)
    keys = tf.unstack(seeding.split(key, 2))
    # In float64, so that rounding does not depend on how a compiler fuses multiply and add.
    u = tf.cast(seeding.uniform(keys[0], shape), tf.float64)
    z = tf.cast(seeding.normal(keys[1], shape), tf.float64)
    low64, high64 = np.where(has_low, low64, 0.0), np.where(has_high, high64, 0.0)
    step = -tf.math.log1p(-u)  # exponential
    value = tf.where(has_low, low64 + step, tf.where(has_high, high64 - step, z))
    value = tf.where(has_low & has_high, low64 + (high64 - low64) * u, value)
    return tf.clip_by_value(tf.cast(value, spec.dtype), tf.constant(low), tf.constant(high))


def _sample_integer(
    key: tf.Tensor, shape: list[int], low: np.ndarray, high: np.ndarray, dtype: tf.DType
) -> tf.Tensor:
    # The modulo of 64 random bits is uniform to within range / 2^64.
    bits = seeding.uniform_bits(key, shape, tf.uint64)
    count = high.astype(object) - low.astype(object) + 1
    count = np.array([int(c) % 2**64 for c in np.ravel(count)], np.uint64).reshape(low.shape)
    offset = tf.where(
        tf.constant(count == 0),
        bits,
        tf.math.floormod(bits, tf.constant(np.maximum(count, np.uint64(1)))),
    )
    # Two's complement addition wraps to the right value for signed and unsigned dtypes.
    start = tf.constant(low.astype(np.int64).astype(np.uint64))
    value = tf.bitcast(start + offset, tf.int64)
    return tf.cast(value, dtype)


def to_spec(space: Any) -> Nest:
    """Turns a gymnasium space into a nest of specs.

    Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple, in any nesting; `to_space` gives an
    equal space back. A float Box without any bound becomes a plain TensorSpec.

    Args:
      space: A gymnasium space.

    Returns:
      Dicts and tuples of specs.

    Raises:
      UserError: For a space of another kind; the message has its path.
    """
    return _to_spec(space, "")


def _join(path: str, name: Any) -> str:
    return f"{path}/{name}" if path else str(name)


def _to_spec(space: Any, path: str) -> Nest:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return {k: _to_spec(s, _join(path, k)) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_to_spec(s, _join(path, i)) for i, s in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return DiscreteSpec(space.n, space.start, tf.as_dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiDiscreteSpec(space.nvec, space.start, tf.as_dtype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return BinarySpec(space.n, tf.as_dtype(space.dtype))
    if isinstance(space, spaces.Box):
        dtype = tf.as_dtype(space.dtype)
        if dtype.is_floating and np.all(np.isneginf(space.low)) and np.all(np.isposinf(space.high)):
            return tf.TensorSpec(space.shape, dtype)
        return BoundedTensorSpec(space.shape, dtype, space.low, space.high)
    raise UserError(
        f"space {path or '.'}",
        expected="a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space",
        got=repr(space),
    )


def to_space(spec: Nest) -> Any:
    """Turns a nest of specs into a gymnasium space; the inverse of `to_spec`.

    Args:
      spec: Dicts, tuples and lists of specs.

    Returns:
      A gymnasium space.

    Raises:
      UserError: For a leaf that is not a spec or has no gymnasium dtype, with its path.
    """
    return _to_space(spec, "")


def _to_space(spec: Nest, path: str) -> Any:
    from gymnasium import spaces

    if isinstance(spec, Mapping):
        # gymnasium would sort the keys of a plain dict.
        return spaces.Dict(OrderedDict((k, _to_space(s, _join(path, k))) for k, s in spec.items()))
    if isinstance(spec, tuple | list):
        return spaces.Tuple([_to_space(s, _join(path, i)) for i, s in enumerate(spec)])
    if not is_spec(spec) or not (
        spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool
    ):
        raise UserError(
            f"spec {path or '.'}",
            expected="a TensorSpec of a float, integer or bool dtype",
            got=repr(spec),
        )
    dtype = spec.dtype.as_numpy_dtype
    if isinstance(spec, DiscreteSpec):
        return spaces.Discrete(spec.num_values, start=spec.start, dtype=dtype)
    if isinstance(spec, MultiDiscreteSpec):
        return spaces.MultiDiscrete(spec.nvec, dtype=dtype, start=spec.start)
    if isinstance(spec, BinarySpec) and dtype == np.int8:
        return spaces.MultiBinary(spec.n)
    low, high = bounds(spec)
    return spaces.Box(low, high, tuple(spec.shape.as_list()), dtype)
