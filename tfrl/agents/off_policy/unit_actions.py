"""Bounded continuous actions as one vector in [-1, 1]."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.errors import UserError
from tfrl.types import Nest

# Larger bounds mean unbounded, and their difference would overflow.
_UNBOUNDED = 1e30


@struct.logic_dataclass
class UnitActions(struct.Struct):
    """The map between the Boxes of an action spec and one vector `u` in [-1, 1].

      a = mid + half u,  low = mid - half,  high = mid + half

    All leaves of a Dict or Tuple of Boxes form one vector, in `tf.nest` order.

    Attributes:
      action_spec: A float spec with finite bounds, or a nest of them.
      owner: The name of the caller, for messages.
      size: The length of the vector.
    """

    action_spec: Nest
    owner: str = "UnitActions"
    size: int = struct.derived()

    def __post_init__(self) -> None:
        """Checks every leaf."""
        leaves = struct.paths(self.action_spec)
        for path, leaf in leaves.items():
            self._check(path, leaf)
        self.size = specs.flat_dim(self.action_spec)
        if not self.size:
            raise UserError(
                f"{self.owner}.action_spec",
                expected="at least one element",
                got=repr(self.action_spec),
            )

    def _check(self, path: str, leaf: Any) -> None:
        if not specs.is_spec(leaf) or not leaf.dtype.is_floating:
            raise UserError(
                f"{self.owner}: action spec {path}",
                expected="a Box of floats",
                got=repr(leaf),
                remedy="Choose DQN for one Discrete action, or PPO, which takes actions of any "
                "kind and nests of them.",
            )
        low, high = (b.astype(np.float64) for b in specs.bounds(leaf))
        finite = np.all(low > -_UNBOUNDED) and np.all(high < _UNBOUNDED)
        if not (finite and np.all(low < high)):
            raise UserError(
                f"{self.owner}: action spec {path}",
                expected="finite bounds with low < high",
                got=repr(leaf),
                remedy="Set bounds in the environment's action space and leave out ActionClip, "
                "which removes them; or use PPO, which needs no bounds.",
            )

    @property
    def spec(self) -> specs.BoundedTensorSpec:
        """The spec of the vector, float32 `[size]`."""
        return specs.BoundedTensorSpec([self.size], tf.float32, -1.0, 1.0)

    def to_unit(self, action: Nest) -> tf.Tensor:
        """Returns `u`, float32 `[..., size]`, of actions `[..., *spec shape]`."""
        parts = []
        leaves = tf.nest.flatten(self.action_spec)
        for x, leaf in zip(tf.nest.flatten(action), leaves, strict=True):
            x = tf.convert_to_tensor(x)
            mid, half = _middle(leaf)
            unit = tf.cast((x - tf.constant(mid, x.dtype)) / tf.constant(half, x.dtype), tf.float32)
            lead = x.shape[: x.shape.rank - leaf.shape.rank]
            width = leaf.shape.num_elements()
            if leaf.shape.rank != 1:
                shape = tf.concat([tf.shape(x)[: lead.rank], [width]], 0)
                unit = tf.ensure_shape(tf.reshape(unit, shape), [*lead, width])
            parts.append(unit)
        return parts[0] if len(parts) == 1 else tf.concat(parts, -1)

    def from_unit(self, unit: tf.Tensor) -> Nest:
        """Returns actions `[..., *spec shape]` of the spec's dtypes and within its bounds."""
        leaves = tf.nest.flatten(self.action_spec)
        sizes = [leaf.shape.num_elements() for leaf in leaves]
        parts = [unit] if len(leaves) == 1 else tf.split(unit, sizes, axis=-1)
        actions = []
        for u, leaf in zip(parts, leaves, strict=True):
            mid, half = _middle(leaf)
            if leaf.shape.rank != 1:
                shape = tf.concat([tf.shape(u)[:-1], leaf.shape.as_list()], 0)
                u = tf.ensure_shape(tf.reshape(u, shape), [*u.shape[:-1], *leaf.shape])
            action = tf.constant(mid, leaf.dtype) + tf.constant(half, leaf.dtype) * tf.cast(
                u, leaf.dtype
            )
            # Rounding may exceed a bound.
            low, high = (tf.constant(b, leaf.dtype) for b in specs.bounds(leaf))
            actions.append(tf.clip_by_value(action, low, high))
        return tf.nest.pack_sequence_as(self.action_spec, actions)


def _middle(leaf: Any) -> tuple[np.ndarray, np.ndarray]:
    """The middle of each element's bounds and half their distance, float64."""
    low, high = (b.astype(np.float64) for b in specs.bounds(leaf))
    return (low + high) / 2, (high - low) / 2
