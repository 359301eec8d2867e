"""Converts specs and observations of TF-Agents to tfrl's specs and plain nests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.action_masks import join_mask
from tfrl.envs.adapters import host_spaces
from tfrl.errors import UserError
from tfrl.types import Nest

_MOST_CHOICES = 2**31  # integers with wider bounds are no choices

Splitter = Callable[[Nest], tuple[Nest, Nest]]


def plain(nest: Nest) -> Nest:
    """Returns a nest of dicts and tuples: lists and namedtuples become tuples."""
    if isinstance(nest, Mapping):
        return {k: plain(v) for k, v in nest.items()}
    if isinstance(nest, tuple | list):
        return tuple(plain(v) for v in nest)
    return nest


def from_tf_agents_spec(name: str, kind: str, spec: Nest) -> Nest:
    """Converts a nest of TF-Agents' array or tensor specs to tfrl's specs.

    Float bounds at the limits of the dtype become infinite, as TF-Agents means them; a bounded
    integer scalar is a `DiscreteSpec`; a bounded integer array is, as an action, a
    `MultiDiscreteSpec`, or a `BinarySpec` where it is int8 of 0 and 1.

    Args:
      name: The environment's id, for messages.
      kind: `observation` or `action`.
      spec: ArraySpecs, BoundedArraySpecs, TensorSpecs, in dicts, tuples and lists.

    Raises:
      UserError: For a leaf of another type, with unknown dimensions or without numbers; with its
        path.
    """
    # `struct.paths` yields the same leaves in the same order as `tf.nest`.
    result = struct.paths(plain(spec))
    leaves = [_leaf(f"{kind} spec {path} of {name}", kind, leaf) for path, leaf in result.items()]
    return tf.nest.pack_sequence_as(plain(spec), leaves)


def _leaf(thing: str, kind: str, spec: Any) -> tf.TensorSpec:
    known = hasattr(spec, "shape") and hasattr(spec, "dtype")
    shape = tf.TensorShape(spec.shape) if known else tf.TensorShape(None)
    dtype = tf.as_dtype(spec.dtype) if known else tf.string
    number = dtype.is_floating or dtype.is_integer or dtype.is_bool
    if not number or not shape.is_fully_defined():
        raise UserError(
            thing,
            expected="a numeric ArraySpec or TensorSpec with a static shape",
            got=repr(spec),
        )
    if dtype.is_bool:
        return tf.TensorSpec(shape, dtype)
    if not hasattr(spec, "minimum"):
        # Bounds distinguish frames from other arrays.
        return _frame(shape) if dtype == tf.uint8 else tf.TensorSpec(shape, dtype)
    low, high = np.asarray(spec.minimum), np.asarray(spec.maximum)
    if dtype.is_floating:
        low = np.where(low <= dtype.min, -np.inf, low)
        high = np.where(high >= dtype.max, np.inf, high)
        if np.all(np.isneginf(low)) and np.all(np.isposinf(high)):
            return tf.TensorSpec(shape, dtype)
        return specs.BoundedTensorSpec(shape, dtype, low, high)
    return _integer(kind, shape, dtype, low, high)


def _frame(shape: tf.TensorShape) -> tf.TensorSpec:
    return specs.BoundedTensorSpec(shape, tf.uint8, 0, 255)


def _integer(
    kind: str, shape: tf.TensorShape, dtype: tf.DType, low: np.ndarray, high: np.ndarray
) -> tf.TensorSpec:
    if not np.any(low > dtype.min) and not np.any(high < dtype.max):
        return _frame(shape) if dtype == tf.uint8 else tf.TensorSpec(shape, dtype)
    if int(high.max()) - int(low.min()) > _MOST_CHOICES:
        return specs.BoundedTensorSpec(shape, dtype, low, high)
    if shape.rank == 0:
        return specs.DiscreteSpec(int(high) - int(low) + 1, int(low), dtype)
    low, high = (np.broadcast_to(b, shape.as_list()).astype(np.int64) for b in (low, high))
    if dtype == tf.int8 and np.all(low == 0) and np.all(high == 1):
        return specs.BinarySpec(shape.as_list()[0] if shape.rank == 1 else shape, dtype)
    if kind == "action":
        return specs.MultiDiscreteSpec(high - low + 1, low, dtype)
    return specs.BoundedTensorSpec(shape, dtype, low, high)


def check_reward_spec(name: str, spec: Nest) -> None:
    """Raises a UserError unless the reward is one number."""
    leaf = spec if hasattr(spec, "shape") else None
    if leaf is None or tf.TensorShape(leaf.shape).rank != 0:
        raise UserError(
            f"reward spec of {name}",
            expected="one number per step, a spec of shape ()",
            got=repr(spec),
            remedy="Wrap the environment to return a scalar reward, for example the sum.",
        )


class MaskReader:
    """Moves the action mask in observations to tfrl's place for it.

    Attributes:
      obs_spec: The nest of specs of the result of `read`.
    """

    def __init__(
        self, name: str, action_mask: str | Splitter, raw_obs_spec: Nest, action_spec: Nest
    ):
        """Tries the mask on the specs.

        Args:
          name: The environment's id, for messages.
          action_mask: The path of the mask in the observation, parts joined by "/"; or TF-Agents'
            `observation_and_action_constraint_splitter`.
          raw_obs_spec: The nest of specs of one observation.
          action_spec: The nest of specs of one action.

        Raises:
          UserError: For a path missing in the observation, and a mask whose shape does not match
            the actions.
        """
        self._thing = f"action_mask of {name}"
        if isinstance(action_mask, str):
            self._split = self._by_path(action_mask, raw_obs_spec)
        else:
            self._split = action_mask
        rest, mask = self._split(raw_obs_spec)
        self._spec = host_spaces.mask_spec(name, action_spec)
        want, got = struct.paths(self._spec), struct.paths(plain(mask))
        if [s.shape for s in want.values()] != [tf.TensorShape(s.shape) for s in got.values()]:
            raise UserError(
                self._thing,
                expected=f"shape {[s.shape.as_list() for s in want.values()]}, as in the action "
                "spec",
                got=str([tf.TensorShape(s.shape).as_list() for s in got.values()]),
                remedy="Select the part of the observation with one number per action.",
            )
        self.obs_spec = join_mask(plain(rest), self._spec)

    def read(self, obs: Nest) -> Nest:
        """Returns observations `[B, ...]` with their masks, bool, as the item `action_mask`."""
        rest, mask = self._split(obs)
        masks = [np.asarray(m).astype(bool) for m in tf.nest.flatten(mask)]
        return join_mask(plain(rest), tf.nest.pack_sequence_as(self._spec, masks))

    def _by_path(self, path: str, obs_spec: Nest) -> Splitter:
        parts = path.split("/")
        part = obs_spec
        for key in parts:
            part = _items(part).get(key)
            if part is None:
                raise UserError(
                    self._thing,
                    expected=f"a path in the observation ({', '.join(struct.paths(obs_spec))})",
                    got=repr(path),
                    remedy="Pass the path of the mask, or a function obs -> (rest, mask).",
                )
        return lambda obs: _part(obs, parts)


def _items(nest: Nest) -> Mapping[str, Nest]:
    if isinstance(nest, Mapping):
        return {str(k): v for k, v in nest.items()}
    return {str(i): v for i, v in enumerate(nest)} if isinstance(nest, tuple) else {}


def _part(nest: Nest, path: Sequence[str]) -> tuple[Nest, Nest]:
    """Removes the part at a path; a level with one remaining item becomes that item."""
    items = dict(_items(nest))
    part = items.pop(path[0])
    if len(path) > 1:
        rest, part = _part(part, path[1:])
        items[path[0]] = rest
    if len(items) == 1:
        return next(iter(items.values())), part
    return items if isinstance(nest, Mapping) else tuple(items.values()), part
