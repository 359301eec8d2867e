"""Replay buffers in variables, and their factory."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.distribute.replicas import Replicas
from tfrl.errors import UserError
from tfrl.nest_packing import RowPacker
from tfrl.replay import ring
from tfrl.replay.core import (
    EXTRAS,
    ReplayBuffer,
    check_given,
    check_items,
    check_made_with,
    check_specs,
    replace_folder,
)
from tfrl.replay.items import ConsecutiveItems, Items, Make, TreeItems
from tfrl.replay.ring import Counts, columns
from tfrl.replay.ring_reader import FrameStacker, Reader
from tfrl.storage import checkpoint_format
from tfrl.types import Nest, Sequences, Trajectory, Transition

if TYPE_CHECKING:
    from tfrl.replay.reverb import ReverbReplay


def assign_all(variables: Mapping[str, tf.Variable], values: Mapping[str, Any]) -> None:
    """Assigns values by path, or changes nothing.

    Raises:
      UserError: Lists missing and unknown values, and wrong shapes or dtypes.
    """
    checkpoint_format.check_fits(
        "the values of a replay buffer",
        variables,
        values,
        expected="the values of a buffer from the same factory",
        remedy="Create the buffer with the specs, the capacity and the num_envs of the saved one.",
    )
    for path, variable in variables.items():
        variable.assign(values[path])


# Arguments, besides shapes, that determine the meaning of stored values.
_MADE_WITH = (
    "capacity",
    "num_envs",
    "n_step",
    "kind",
    "sequence_length",
    "sequence_period",
    "frame_stack",
    "frames_per_step",
    "frame_stack_axis",
    "frame_stack_paths",
)
_SPECS = ("obs_spec", "action_spec", "policy_extras_spec", "env_extras_spec")


def _made_with(replay: InGraphReplay) -> dict[str, Any]:
    """The arguments of a factory in a manifest; specs as `{path: "dtype shape"}`."""
    result = {name: getattr(replay, name) for name in _MADE_WITH}
    if replay.kind == "prioritized":
        result["alpha"] = replay.alpha  # priorities are stored as powers
    if replay.frame_stack_paths is not None:
        result["frame_stack_paths"] = list(replay.frame_stack_paths)  # as in JSON
    for name in _SPECS:
        leaves = struct.paths(getattr(replay, name)).items()
        result[name] = {path: f"{x.dtype.name} {x.shape.as_list()}" for path, x in leaves}
    return result


def save_values(folder: str, replay: InGraphReplay, values: Mapping[str, Any]) -> None:
    """Writes the values of a buffer; replaces an existing folder when complete."""
    content = {"replay": _made_with(replay)}
    replace_folder(folder, lambda path: checkpoint_format.write(path, 0, values, content, None))


def read_values(folder: str, replay: InGraphReplay) -> Mapping[str, Any]:
    """Reads the values of a buffer with equal arguments.

    Raises:
      UserError: For a damaged folder, or one of a buffer with other arguments.
    """
    try:
        values, content = checkpoint_format.read(pathlib.Path(folder))
    except checkpoint_format.DamagedCheckpointError as error:
        raise UserError(
            f"replay buffer {folder}",
            expected="a folder that ReplayBuffer.save wrote",
            got=str(error),
        ) from error
    saved_with, settings = content["manifest"].get("replay", {}), _made_with(replay)
    # Only arguments that both versions write can be compared.
    both = saved_with.keys() & settings.keys()
    saved, own = ({name: x[name] for name in x if name in both} for x in (saved_with, settings))
    check_made_with("InGraphReplay.", folder, saved, own)
    return values


KINDS = ("uniform", "prioritized")
_SMALL_FRAME = 256  # bytes
_FRAME_ROOM = 1.125  # frames per step, for larger frames


class InGraphBuffer(ReplayBuffer):
    """The buffer made by `InGraphReplay.init`.

    Attributes:
      replay: Its factory.
    """

    def __init__(
        self,
        replay: InGraphReplay,
        make: Make | None = None,
        variables: Mapping[str, tf.Variable] | None = None,
    ):
        """Makes the variables, empty.

        Args:
          replay: The factory.
          make: Makes a zero variable from name, shape and dtype; by default a plain one.
          variables: The `variables` of another buffer, to share them; None for new ones.
        """
        make = make or _zeros
        if variables is not None:
            make = lambda name, *_: variables[name]  # noqa: E731
        self.replay = replay
        num_envs, steps, frames = replay.num_envs, replay.steps_per_env, replay.frames_per_env
        self._trash = (steps * num_envs, frames * num_envs)  # rows for masked writes
        step_rows, frame_rows = replay.step_packer, replay.frame_packer
        self._steps = make("steps", [self._trash[0] + 1, step_rows.width], step_rows.dtype)
        self._frames = make("frames", [self._trash[1] + 1, frame_rows.width], frame_rows.dtype)
        self._frame_of = make("frame_of", [self._trash[0] + 1], tf.int64)
        self._counts = make("counts", [len(_COUNTS), num_envs], tf.int64)
        self._items: Items
        self._items = TreeItems(replay, make) if replay.has_tree else ConsecutiveItems(replay)
        if variables is None:
            self._items.begin()
        self._reader = Reader(replay, self._steps, self._frames, self._frame_of)
        # More rows at once would write slots twice.
        self._most = min(steps, frames // (1 + replay.frame_stack))

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the state, `{path: variable}`."""
        return {
            "steps": self._steps,
            "frames": self._frames,
            "frame_of": self._frame_of,
            "counts": self._counts,
            **self._items.variables(),
        }

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]`, which continue the previous ones.

        Args:
          trajectory: T is static. Invalid rows are skipped. With stacked frames, each later
            observation of an episode must be its predecessor plus one frame.

        Raises:
          UserError: For a missing leaf, or a wrong shape or dtype, with the leaf's path.
        """
        rows = columns(self.replay, trajectory)
        length = rows["valid"].shape[0]
        if length <= self._most:
            self._write(rows)
            return
        for start in range(0, length, self._most):
            stop = min(start + self._most, length)
            self._write(tf.nest.map_structure(lambda x, a=start, b=stop: x[a:b], rows))

    def _write(self, rows: dict[str, Nest]) -> None:
        """Adds at most as many rows as fit into the rings."""
        replay, counts = self.replay, self._read_counts()
        valid = rows["valid"]
        ends = valid & (rows["termination"] | rows["truncation"])
        places, after = ring.place(counts, valid, ends, replay.frame_stack)
        envs = tf.range(replay.num_envs, dtype=tf.int64)
        slot = ring.slots(places.step, envs, replay.steps_per_env, replay.num_envs)
        kept = ring.if_some_are_not(valid)
        slot = tf.reshape(ring.chosen(kept, slot, self._trash[0]), [-1])
        frame_of = ring.chosen(kept, places.frame, 0)
        ring.scatter(self._frame_of, slot, tf.reshape(frame_of, [-1]))
        ring.scatter(self._steps, slot, ring.step_rows(replay, rows))
        at, frames = ring.frame_rows(replay, rows, places, self._trash[1])
        ring.scatter(self._frames, at, frames)
        # After the writes: a read before one makes XLA copy the variable.
        oldest = ring.oldest_step(replay, self._frame_of, after, valid.shape[0])
        after = after.replace(first=oldest)
        self._assign_counts(after)
        self._items.added(counts, after, places, valid, ends)

    def cut(self) -> None:
        """Declares that the environments were restarted: the next steps are new episodes.

        Unfinished episodes are truncated at their last step.
        """
        counts = self._read_counts()
        after = counts.replace(age=tf.zeros_like(counts.age))
        self._assign_counts(after)
        self._items.cut(counts, after)

    def _read_counts(self) -> Counts:
        return Counts(**dict(zip(_COUNTS, tf.unstack(self._counts.read_value()), strict=True)))

    def _assign_counts(self, counts: Counts) -> None:
        self._counts.assign(tf.stack([getattr(counts, name) for name in _COUNTS]))

    def size(self) -> tf.Tensor:
        """Returns the number of items; an int64 scalar."""
        return self._items.size(self._read_counts())

    def can_sample(self, batch_size: int = 1) -> tf.Tensor:
        """Returns whether the buffer has `batch_size` items; a bool scalar."""
        return self.size() >= batch_size

    def sample(
        self, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor = 1.0
    ) -> Transition | Sequences:
        """Draws items with replacement: uniform, or by priority as in Schaul et al. 2016.

          P(i) = p_i^alpha / sum_j p_j^alpha,  w_i = (N P(i))^-beta / max_j w_j

        With priorities, one item is drawn from each of N equal parts of the sum; the maximum weight
        is over the batch. Source: https://arxiv.org/abs/1511.05952, section 3.

        Args:
          key: int32 [2].
          batch_size: N, static. Compiled code does not check the number of items: guard it with
            `can_sample`.
          beta: Exponent of the importance weights, 0 (none) to 1 (full correction); uniform
            sampling has no weights.

        Returns:
          A `Transition`, or `Sequences` if the factory has a `sequence_length`.

        Raises:
          UserError: For a batch size below 1 and, outside compiled code, above the number of items.
        """
        self._check_batch_size(batch_size)
        batch_size = int(batch_size)
        counts = self._read_counts()
        step, env, weight = self._items.draw(counts, key, batch_size, beta)
        index = step * self.replay.num_envs + env
        return self._reader.read(counts, step, env).replace(weight=weight, index=index)

    def _check_batch_size(self, batch_size: int) -> None:
        checks.at_least("batch_size", batch_size, 1)
        if tf.executing_eagerly() and not bool(self.can_sample(batch_size)):
            raise UserError(
                "batch_size",
                expected=f"at most the {int(self.size())} items that can be sampled",
                got=batch_size,
                remedy="Add more steps first (ask can_sample), or draw a smaller batch.",
            )

    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets priorities of sampled items.

        Args:
          index: int64 [N], as sampled; overwritten items are skipped.
          priorities: float [N], not negative, such as absolute TD errors. For repeated items the
            highest is used; non-finite values are ignored. Priority^alpha is stored in steps of
            2^-24, from one step up to the largest power of two below 2^38 / capacity.

        Raises:
          UserError: For a uniform buffer, for different shapes and, outside compiled code, for a
            negative priority.
        """
        check_given(index=index, priorities=priorities)
        index, priorities = tf.convert_to_tensor(index), tf.convert_to_tensor(priorities)
        one_axis = index.shape.is_compatible_with([None])
        if not (one_axis and index.shape.is_compatible_with(priorities.shape)):
            raise UserError(
                "priorities",
                expected="the sampled index [N], and one priority for each of its N items",
                got=f"index of shape {index.shape}, priorities of shape {priorities.shape}",
                remedy="Pass the index of the batch and one priority for each of its items.",
            )
        if tf.executing_eagerly() and bool(tf.reduce_any(priorities < 0.0)):
            raise UserError(
                "priorities",
                expected="non-negative numbers",
                got=f"{float(tf.reduce_min(priorities)):g}",
                remedy="Pass absolute TD errors.",
            )
        self._items.update(self._read_counts(), index, priorities)

    def state_paths(self) -> set[str]:
        """Returns the paths of `state_values`."""
        return set(self.variables())

    def state_values(self) -> dict[str, Any]:
        """Returns a copy of the state, `{path: tensor}`."""
        return {path: v.read_value() for path, v in self.variables().items()}

    def load_values(self, values: Mapping[str, Any]) -> None:
        """Restores the result of `state_values`, to the bit.

        Raises:
          UserError: For values of another buffer; nothing changes.
        """
        assign_all(self.variables(), values)

    def save(self, folder: str) -> None:
        """Writes the buffer into a folder; replaces an existing one when complete."""
        save_values(folder, self.replay, self.variables())

    def restore(self, folder: str) -> None:
        """Reads what `save` wrote.

        Raises:
          UserError: For a folder of a buffer with other arguments, or without a buffer.
        """
        self.load_values(read_values(folder, self.replay))


_COUNTS = tuple(struct.paths(Counts(steps=0, frames=0, first=0, age=0)))


def _zeros(name: str, shape: list[int], dtype: tf.DType) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, dtype), trainable=False, name=f"replay/{name}")


@struct.logic_dataclass
class InGraphReplay(struct.Struct):
    """Makes ring buffers of single steps in variables, sampled as n-step items or as sequences.

    Items never cross the end of an episode: there an item has fewer steps, and it bootstraps from
    the true successor with gamma^k, or with 0 after a termination. Items with fewer than n steps so
    far, or with an overwritten step or frame, are excluded.

    Attributes:
      obs_spec: Nest of specs of one observation.
      action_spec: Nest of specs of one action.
      capacity: Total steps of all environments, in equal shares.
      num_envs: B of the added trajectories.
      n_step: Maximum steps of an item; fewer only at the end of an episode.
      discount: gamma, from 0 to 1.
      kind: "uniform", or "prioritized" (in proportion to priority^alpha).
      alpha: The exponent of priorities, from 0 to 1.
      sequence_length: L, for items that are sequences; None for n-step items.
      sequence_period: Steps between the starts of sequences of an episode, from 1 to L (L - period
        steps overlap); None for L.
      policy_extras_spec: Dict of specs of the stored `policy_extras`, or None.
      env_extras_spec: Dict of specs of the stored `env_extras`, or None.
      frame_stack: Stacked frames in an observation (K), each stored once.
      frame_stack_axis: The axis of the stack, 0 or -1, the newest last.
      frame_stack_paths: The observation's stacked leaves; None for all.
      frames_per_step: Frames per step of capacity. An episode of L steps takes L + K frames, so the
        full capacity is usable if episodes have on average more than K / (frames_per_step - 1)
        steps; with shorter ones the buffer holds fewer steps. None for K + 1, which always
        suffices, for frames of at most 256 bytes, and for 1.125 for larger ones.
    """

    obs_spec: Nest
    action_spec: Nest
    capacity: int
    num_envs: int
    n_step: int = 1
    discount: float = 0.99
    kind: str = "uniform"
    alpha: float = 0.6
    sequence_length: int | None = None
    sequence_period: int | None = None
    policy_extras_spec: Nest = None
    env_extras_spec: Nest = None
    frame_stack: int = 1
    frame_stack_axis: int = -1
    frame_stack_paths: tuple[str, ...] | None = None
    frames_per_step: float | None = None
    frames: Any = struct.derived()
    frame_packer: Any = struct.derived()
    step_packer: Any = struct.derived()

    def __post_init__(self) -> None:
        """Checks every argument, and derives the layout of rows."""
        check_specs(self)
        _check_numbers(self)
        _check_capacity(self)
        self.frames = FrameStacker(
            self.obs_spec, self.frame_stack, self.frame_stack_axis, self.frame_stack_paths
        )
        self.frame_packer = RowPacker(self.frames.spec)
        self.step_packer = RowPacker(self.step_spec())

    @property
    def period(self) -> int:
        """Steps between the starts of sequences."""
        return self.sequence_period or self.sequence_length or 1

    @property
    def steps_per_env(self) -> int:
        """Length of the ring of steps of each environment."""
        return self.capacity // self.num_envs

    @property
    def frames_per_env(self) -> int:
        """Length of the ring of frames of each environment."""
        room = self.frames_per_step
        if room is None:
            room = self._most_frames if self.frame_packer.row_bytes <= _SMALL_FRAME else _FRAME_ROOM
        return math.ceil(self.steps_per_env * room) + self.frame_stack

    @property
    def _most_frames(self) -> int:
        """The maximum number of frames per step, in an episode of one step."""
        return self.frame_stack + 1

    @property
    def loses_frames(self) -> bool:
        """Whether a step may lose a frame before it is overwritten itself."""
        return self.frames_per_env < self.steps_per_env * self._most_frames

    def step_spec(self) -> dict[str, Nest]:
        """Returns the spec of a stored step without its frames."""
        scalar = tf.TensorSpec([], tf.float32)
        spec = {"action": self.action_spec, "reward": scalar, "flags": scalar}
        extras = {name: getattr(self, f"{name}_spec") for name in EXTRAS}
        return {**spec, **{name: nest for name, nest in extras.items() if nest is not None}}

    def num_bytes(self) -> dict[str, int]:
        """Returns the bytes of the buffer's large variables, without creating them."""
        steps, frames = (
            rows * self.num_envs + 1 for rows in (self.steps_per_env, self.frames_per_env)
        )
        result = {
            "steps": steps * self.step_packer.row_bytes,
            "frame_of": steps * 8,
            "frames": frames * self.frame_packer.row_bytes,
        }
        if self.has_tree:
            result["priorities"] = math.ceil(steps * 8 * 16 / 15)
        return result

    @property
    def has_tree(self) -> bool:
        """Whether items are found by a priority tree; sequences always are."""
        return self.kind == "prioritized" or self.sequence_length is not None

    def on_reverb(self) -> ReverbReplay:
        """Returns the `ReverbReplay` with the same items; it stores full frame stacks."""
        from tfrl.replay.reverb import ReverbReplay

        shared = {f.name for f in dataclasses.fields(ReverbReplay)} - {"table_configs"}
        own = {f.name for f in dataclasses.fields(self)}
        return ReverbReplay(**{name: getattr(self, name) for name in sorted(shared & own)})

    def init(self) -> Any:
        """Makes an empty buffer in new variables.

        Returns:
          An `InGraphBuffer`; under a strategy of several replicas a `ReplicatedBuffer`.
        """
        from tfrl.replay.replicated import ReplicatedBuffer

        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return ReplicatedBuffer(self)
        return InGraphBuffer(self)

    def over(self, variables: Mapping[str, tf.Variable], replicas: Replicas) -> Any:
        """Returns the buffer over existing variables of `init` under these replicas.

        Args:
          variables: The `variables()` of a buffer.
          replicas: The replicas of its strategy.
        """
        from tfrl.replay.in_graph import InGraphBuffer
        from tfrl.replay.replicated import ReplicatedBuffer

        if replicas.several:
            return ReplicatedBuffer(self, replicas, variables)
        return InGraphBuffer(self, variables=variables)


def _check_numbers(replay: InGraphReplay) -> None:
    def name(argument: str) -> str:
        return f"InGraphReplay.{argument}"

    for argument in ("capacity", "num_envs", "n_step", "frame_stack"):
        checks.at_least(name(argument), getattr(replay, argument), 1)
    for argument in ("sequence_length", "sequence_period"):
        checks.at_least(name(argument), getattr(replay, argument), 1, optional=True)
    checks.probability(name("discount"), replay.discount)
    checks.probability(name("alpha"), replay.alpha)
    checks.one_of(name("kind"), replay.kind, KINDS)
    checks.one_of(name("frame_stack_axis"), replay.frame_stack_axis, (0, -1))
    checks.number(name("frames_per_step"), replay.frames_per_step, 1, optional=True)
    check_items(name, replay)


def _check_capacity(replay: InGraphReplay) -> None:
    capacity, num_envs = replay.capacity, replay.num_envs
    if capacity % num_envs:
        below = capacity // num_envs * num_envs
        near = [n for n in (below, below + num_envs) if n]
        raise UserError(
            "InGraphReplay.capacity",
            expected=f"a multiple of num_envs={num_envs}, which share it evenly",
            got=capacity,
            remedy=f"The nearest are {' and '.join(map(str, near))}.",
        )
    least = max(replay.n_step, replay.sequence_length or 1)
    if replay.steps_per_env < least:
        raise UserError(
            "InGraphReplay.capacity",
            expected=f"at least {least * num_envs}, so that each of {num_envs} environments has "
            f"the {least} steps of one item",
            got=capacity,
            remedy="Raise capacity, or lower n_step or sequence_length.",
        )
