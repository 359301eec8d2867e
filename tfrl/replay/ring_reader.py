"""Reads items from the rings: n-step transitions and sequences, with restacked frames.

An episode's first observation is stored with all its frames, every later one with its newest frame.
So padding before the first frame (copies, zeros) is reproduced exactly, and no stack crosses the
start of an episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError, did_you_mean
from tfrl.replay import ring
from tfrl.replay.core import EXTRAS, STATE_IN
from tfrl.replay.ring import Counts
from tfrl.types import Nest, Sequences, Trajectory, Transition

if TYPE_CHECKING:
    from tfrl.replay.in_graph import InGraphReplay


class FrameStacker:
    """Splits observations into frames and stacks them again.

    Attributes:
      stack: Frames of one observation.
      spec: Nest of `tf.TensorSpec` of one frame.
    """

    def __init__(self, obs_spec: Nest, stack: int, axis: int, paths: Sequence[str] | None):
        """Takes the observation spec, the stacked leaves and their axis.

        Args:
          obs_spec: Nest of specs of one observation.
          stack: Frames of one observation; 1 without stacking.
          axis: 0 or -1, the axis of the spec along which frames are joined, the newest last.
          paths: The stacked leaves; None for all.

        Raises:
          UserError: For an unknown leaf, or one whose axis the stack does not divide.
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
                remedy="Set it to the environment's number of stacked frames, and leave unstacked "
                "leaves out of frame_stack_paths.",
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
        result = [fn(*x) for x in zip(leaves, self._stacked, specs, strict=True)]  # type: ignore
        return tf.nest.pack_sequence_as(self._obs_spec, result)


class Reader:
    """Reads the items that begin at given steps."""

    def __init__(
        self,
        replay: InGraphReplay,
        steps: tf.Variable,
        frames: tf.Variable,
        frame_of: tf.Variable,
    ):
        """Takes the variables of a buffer."""
        self._replay = replay
        self._steps, self._frames, self._frame_of = steps, frames, frame_of

    def read(self, counts: Counts, step: tf.Tensor, env: tf.Tensor) -> Transition | Sequences:
        """Returns the items that begin at steps, without index and weight.

        Args:
          counts: The buffer's current counts.
          step: int64 [N], their numbers.
          env: int64 [N].
        """
        if self._replay.sequence_length is None:
            return self._transitions(counts, step, env)
        return self._sequences(counts, step, env)

    def _window(
        self, counts: Counts, step: tf.Tensor, env: tf.Tensor, length: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Slots [N, length] from steps on, which are in the same episode, which end it, frames."""
        numbers = step[:, tf.newaxis] + tf.range(length + 1, dtype=tf.int64)
        slot = ring.slots(
            numbers, env[:, tf.newaxis], self._replay.steps_per_env, self._replay.num_envs
        )
        frame = tf.gather(self._frame_of, slot)
        written = tf.gather(counts.steps, env)[:, tf.newaxis]
        there = numbers < written
        # Frames of one episode are adjacent.
        goes_on = there[:, 1:] & tf.equal(frame[:, 1:], frame[:, :-1] + 1)
        same = tf.concat([tf.ones_like(there[:, :1]), goes_on[:, :-1]], axis=1)
        inside = tf.cast(tf.math.cumprod(tf.cast(same, tf.int32), axis=1), tf.bool)
        is_open = tf.gather(counts.age, env)[:, tf.newaxis] > 0
        newest = tf.equal(numbers[:, :-1], written - 1)
        is_last = tf.where(newest, ~is_open, ~goes_on)
        return slot[:, :-1], inside, inside & is_last, frame[:, 0]

    def _step_rows(self, slot: tf.Tensor) -> dict[str, Nest]:
        """The stored steps in slots without frames, leaves [*slot.shape, ...]."""
        return self._replay.step_packer.unpack(tf.gather(self._steps, slot))

    def _observations(self, numbers: tf.Tensor, env: tf.Tensor) -> Nest:
        """Frames `[N, F, ...]` of numbers [N, F]."""
        slot = ring.slots(
            numbers, env[:, tf.newaxis], self._replay.frames_per_env, self._replay.num_envs
        )
        return self._replay.frame_packer.unpack(tf.gather(self._frames, slot))

    def _stacks(self, frames: Nest, starts: list[int]) -> Nest:
        """Observations `[N * len(starts), ...]` with oldest frames at `starts`."""
        stack = self._replay.frame_stack

        if stack == 1 and len(starts) == 1:
            return tf.nest.map_structure(lambda x: x[:, starts[0]], frames)

        def windows(x: tf.Tensor) -> tf.Tensor:
            parts = tf.gather(x, [[s + i for i in range(stack)] for s in starts], axis=1)
            return tf.reshape(parts, [-1, stack, *x.shape[2:]])

        return self._replay.frames.join(tf.nest.map_structure(windows, frames))

    def _transitions(self, counts: Counts, step: tf.Tensor, env: tf.Tensor) -> Transition:
        n, stack = self._replay.n_step, self._replay.frame_stack
        powers = [self._replay.discount**j for j in range(n + 1)]
        if n == 1:  # a step that begins an item is all of it
            slot = ring.slots(step, env, self._replay.steps_per_env, self._replay.num_envs)
            first, frame = self._step_rows(slot), tf.gather(self._frame_of, slot)
            reward = first["reward"]
            # By flags: 0 after a termination.
            kept = tf.constant([powers[1], 0.0, powers[1], 0.0], tf.float32)
            discount = tf.gather(kept, tf.cast(first["flags"], tf.int32))
            ages, last = tf.range(1 - stack, 2, dtype=tf.int64), 1
            numbers = frame[:, tf.newaxis] + ages
        else:
            slot, inside, _, frame = self._window(counts, step, env, n)
            rows = self._step_rows(slot)
            taken = tf.reduce_sum(tf.cast(inside, tf.int64), axis=1)  # k
            rewards = tf.where(inside, rows["reward"], 0.0) * tf.constant(powers[:-1], tf.float32)
            terminated = tf.reduce_any(inside & _has(rows["flags"], 1), axis=1)
            first, reward = _first(rows), tf.reduce_sum(rewards, axis=1)
            discount = tf.gather(tf.constant(powers, tf.float32), taken)
            discount = tf.where(terminated, 0.0, discount)
            ages, last = tf.range(1 - stack, 1, dtype=tf.int64), stack
            ends = (frame, frame + taken)
            numbers = tf.concat([x[:, tf.newaxis] + ages for x in ends], axis=1)
        frames = self._observations(numbers, env)
        extras = {name: first[name] for name in EXTRAS if name in first}
        return Transition(
            obs=self._stacks(frames, [0]),
            action=first["action"],
            reward=reward,
            next_obs=self._stacks(frames, [last]),
            discount=discount,
            extras=extras or None,
        )

    def _sequences(self, counts: Counts, step: tf.Tensor, env: tf.Tensor) -> Sequences:
        length, stack = self._replay.sequence_length or 1, self._replay.frame_stack
        slot, valid, last, frame = self._window(counts, step, env, length)
        rows = self._step_rows(slot)
        rows = tf.nest.map_structure(lambda x: _masked(valid, x), rows)
        taken = tf.reduce_sum(tf.cast(valid, tf.int64), axis=1, keepdims=True)
        ahead = tf.range(1 - stack, length + 1, dtype=tf.int64)  # K - 1 + L + 1 frames
        numbers = frame[:, tf.newaxis] + tf.minimum(ahead, taken)
        frames = self._observations(numbers, env)
        obs, next_obs = (
            tf.nest.map_structure(
                lambda x: tf.reshape(x, [-1, length, *x.shape[1:]]),
                self._stacks(frames, [first + j for j in range(length)]),
            )
            for first in (0, 1)
        )
        termination = _has(rows["flags"], 1)
        policy_extras = rows.get("policy_extras")
        state_in = None
        if policy_extras is not None and STATE_IN in policy_extras:
            state_in = _first(policy_extras[STATE_IN])
        steps = Trajectory(
            obs=obs,
            action=rows["action"],
            reward=rows["reward"],
            next_obs=next_obs,
            termination=termination,
            truncation=_has(rows["flags"], 2) | (last & ~termination),
            valid=valid,
            policy_extras=policy_extras,
            env_extras=rows.get("env_extras"),
        )
        return Sequences(steps=steps, state_in=state_in)


def _has(flags: tf.Tensor, bit: int) -> tf.Tensor:
    """Whether flags (1 terminated, 2 truncated, 3 both) have a bit."""
    return tf.logical_or(tf.equal(flags, float(bit)), tf.equal(flags, 3.0))


def _first(nest: Nest) -> Nest:
    """`[N, L, ...]` at the first step."""
    return tf.nest.map_structure(lambda x: x[:, 0], nest)


def _masked(valid: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    keep = tf.reshape(valid, [*valid.shape, *([1] * (x.shape.rank - 2))])
    return tf.where(keep, x, tf.zeros([], x.dtype))
