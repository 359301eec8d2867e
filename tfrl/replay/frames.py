"""Observations as frames: of stacked ones only the newest is new at each step.

The first observation of an episode is stored as all of its frames, every further one as its newest
frame. So whatever stands before an episode's first frame (copies of it, zeros) comes back exactly,
and no stack crosses the start of an episode.
"""

from collections.abc import Sequence

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError, did_you_mean
from tfrl.types import Nest


class Frames:
    """Takes observations apart into frames and stacks them again.

    Attributes:
      stack: Frames of one observation.
      spec: Nest of `tf.TensorSpec` of one frame.
    """

    def __init__(self, obs_spec: Nest, stack: int, axis: int, paths: Sequence[str] | None):
        """Takes the observations' spec, and which leaves are stacked along which axis.

        Args:
          obs_spec: Nest of specs of one observation.
          stack: Frames of one observation; 1 where nothing is stacked.
          axis: 0 or -1, the axis of the spec along which frames are joined, the newest last.
          paths: The stacked leaves; None for all.

        Raises:
          UserError: For a leaf that does not exist, or whose axis the stack does not divide.
        """
        self.stack, self._axis = stack, axis
        leaves = struct.paths(obs_spec)
        for path in paths or ():
            if path not in leaves:
                raise UserError(
                    "InGraphReplay.frame_stack_paths",
                    expected=f"leaves of the observation ({', '.join(leaves)})",
                    got=repr(path),
                    remedy=did_you_mean(path, leaves),
                )
        stacked = set(leaves if paths is None else paths) if stack > 1 else set()
        self._stacked = [path in stacked for path in leaves]
        self._obs_spec = obs_spec
        frames = [self._frame(path, s) if path in stacked else s for path, s in leaves.items()]
        plain = [tf.TensorSpec(s.shape, s.dtype) for s in frames]
        self.spec = tf.nest.pack_sequence_as(obs_spec, plain)

    def _frame(self, path: str, spec: tf.TensorSpec) -> tf.TensorSpec:
        """The spec of one frame of a stacked leaf."""
        shape = spec.shape.as_list()
        if not shape or shape[self._axis] % self.stack:
            raise UserError(
                f"InGraphReplay.frame_stack={self.stack}",
                expected=f"a number that divides axis {self._axis} of every stacked leaf",
                got=f"{path} of shape {shape}",
                remedy="Give the number of frames that the environment stacks, and leaves that are "
                "not stacked by leaving them out of frame_stack_paths.",
            )
        shape[self._axis] //= self.stack
        return tf.TensorSpec(shape, spec.dtype)

    def newest(self, obs: Nest) -> Nest:
        """Returns the newest frame of observations `[M, ...]`, leaves `[M, *spec.shape]`."""

        def one(x: tf.Tensor, stacked: bool, frame: tf.TensorSpec) -> tf.Tensor:
            if not stacked:
                return x
            size = frame.shape[self._axis]
            return x[..., -size:] if self._axis == -1 else x[:, -size:]

        return self._map(one, obs)

    def split(self, obs: Nest) -> Nest:
        """Returns all frames of observations `[M, ...]`, leaves `[M, stack, *spec.shape]`."""

        def one(x: tf.Tensor, stacked: bool, frame: tf.TensorSpec) -> tf.Tensor:
            if not stacked:
                x = x[:, tf.newaxis]
                return x if self.stack == 1 else tf.repeat(x, self.stack, axis=1)
            at = len(frame.shape) - 1 if self._axis == -1 else 0
            shape = frame.shape.as_list()
            parts = tf.reshape(x, [-1, *shape[:at], self.stack, *shape[at:]])
            rest = [i for i in range(len(shape) + 2) if i not in (0, at + 1)]
            return tf.transpose(parts, [0, at + 1, *rest])

        return self._map(one, obs)

    def join(self, frames: Nest) -> Nest:
        """Returns observations `[M, ...]` of their frames `[M, stack, *spec.shape]`."""

        def one(x: tf.Tensor, stacked: bool, frame: tf.TensorSpec) -> tf.Tensor:
            if not stacked:
                return x[:, -1]
            at = len(frame.shape) - 1 if self._axis == -1 else 0
            shape = frame.shape.as_list()
            order = list(range(2, len(shape) + 2))
            parts = tf.transpose(x, [0, *order[:at], 1, *order[at:]])
            joined = [*shape[:at], self.stack * shape[at], *shape[at + 1 :]]
            return tf.reshape(parts, [-1, *joined])

        return self._map(one, frames)

    def _map(self, fn: object, nest: Nest) -> Nest:
        leaves = tf.nest.flatten(nest)
        specs = tf.nest.flatten(self.spec)
        found = [fn(*x) for x in zip(leaves, self._stacked, specs, strict=True)]  # type: ignore
        return tf.nest.pack_sequence_as(self._obs_spec, found)
