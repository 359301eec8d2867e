"""Positions of steps and frames in each environment's ring buffers, as tensor operations.

Steps and frames have consecutive numbers from 0 in each environment; number x is in slot x mod the
ring's length. An episode of L steps takes L + K frames: the K frames of its first observation, and
the newest frame of every successor. So each frame is stored once, the terminal observation has its
own slot, and two consecutive steps belong to one episode if and only if the frames of their
observations are adjacent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.ops._rows import where
from tfrl.replay.core import EXTRAS, stored_extras, trajectory_specs
from tfrl.types import Nest, Trajectory
from tfrl.xla import may_be_xla

if TYPE_CHECKING:
    from tfrl.replay.in_graph import InGraphReplay


def scatter(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Writes rows, int64 [M], of a variable whose last row is unused."""
    if rows.shape[0] == 1 and may_be_xla():
        # XLA duplicates the cheap write of one row in every reader, and copies the whole variable
        # for that. It does not do so for two rows.
        rows = tf.pad(rows, [[0, 1]], constant_values=variable.shape[0] - 1)
        values = tf.pad(values, [[0, 1], *[[0, 0]] * (values.shape.rank - 1)])
    variable.scatter_update(tf.IndexedSlices(values, rows))


def oldest_step(
    replay: InGraphReplay, frame_of: tf.Variable, after: Counts, length: int
) -> tf.Tensor:
    """Returns the oldest step without overwritten data after an addition, int64 [B].

    Args:
      replay: The buffer's factory.
      frame_of: Frames of the steps, including the added ones.
      after: The counts after the addition, except `first`.
      length: Number of added rows (T).
    """
    stack, num_envs = replay.frame_stack, replay.num_envs
    first = tf.maximum(after.first, after.steps - replay.steps_per_env)
    if not replay.loses_frames:
        return first
    # Every step has at least one own frame, so no more steps can have lost frames.
    ahead = tf.range(length * (1 + stack), dtype=tf.int64)[:, tf.newaxis]
    envs = tf.range(num_envs, dtype=tf.int64)
    slot = slots(first + ahead, envs, replay.steps_per_env, num_envs)
    oldest_frame = tf.gather(frame_of, slot) - stack + 1
    lost = oldest_frame < after.frames - replay.frames_per_env
    lost = tf.logical_and(lost, first + ahead < after.steps)
    return first + tf.math.count_nonzero(lost, axis=0)


def step_rows(replay: InGraphReplay, rows: dict[str, Nest]) -> tf.Tensor:
    """Returns the packed rows `[T * B, width]` of steps; zeros for invalid rows."""
    flags = tf.cast(rows["termination"], tf.float32) + 2.0 * tf.cast(rows["truncation"], tf.float32)
    stored = {name: rows[name] for name in ("action", "reward", *EXTRAS) if name in rows}
    packed = replay.step_packer.pack({**stored, "flags": flags})
    return chosen(_flat_mask(rows), packed, 0)


def frame_rows(
    replay: InGraphReplay, rows: dict[str, Nest], places: Placement, trash: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the rows of frames, int64 [M], and the packed frames `[M, width]`.

    These are all frames of first observations of episodes, and the newest frame of every successor.
    """
    stack, num_envs, frames = replay.frame_stack, replay.num_envs, replay.frames
    lead = [-1] if stack == 1 else [-1, 1]
    valid, starts = _flat_mask(rows), tf.reshape(places.starts, [-1])
    number = tf.reshape(places.frame, lead)
    envs = tf.range(num_envs, dtype=tf.int64)
    env = tf.reshape(tf.broadcast_to(envs, places.frame.shape), lead)

    def to(numbers: tf.Tensor, wanted: tf.Tensor | None) -> tf.Tensor:
        slot = slots(numbers, env, replay.frames_per_env, num_envs)
        return tf.reshape(chosen(wanted, slot, trash), [-1])

    if stack == 1:
        own, kept, first, newest = number, starts, rows["obs"], rows["next_obs"]
    else:
        own, kept = number + tf.range(1 - stack, 1, dtype=tf.int64), tf.repeat(starts, stack)
        first = frames.split(tf.nest.map_structure(_merged, rows["obs"]))
        first = tf.nest.map_structure(_merged, first)
        newest = frames.newest(tf.nest.map_structure(_merged, rows["next_obs"]))
    targets = [to(own, starts), to(number + 1, valid)]
    pack = replay.frame_packer.pack
    packed = [chosen(kept, pack(first), 0), chosen(valid, pack(newest), 0)]
    return tf.concat(targets, 0), tf.concat(packed, 0)


def chosen(keep: tf.Tensor | None, x: tf.Tensor, other: Any) -> tf.Tensor:
    """Returns `x` where `keep` is True, else a number.

    Args:
      keep: bool, aligned at the leading axes of `x`; None for everywhere.
      x: Numbers.
      other: The number.
    """
    return x if keep is None else where(keep, x, other)


def if_some_are_not(valid: tf.Tensor) -> tf.Tensor | None:
    """Returns the mask, or None if it is statically all True."""
    return None if holds_everywhere(valid) else valid


def _flat_mask(rows: dict[str, Nest]) -> tf.Tensor | None:
    """The valid rows of `[T * B]`; None if all are. Invalid rows are zeros in the buffer."""
    valid = if_some_are_not(rows["valid"])
    return None if valid is None else tf.reshape(valid, [-1])


def _merged(x: tf.Tensor) -> tf.Tensor:
    """Reshapes `[T, B, ...]` to `[T * B, ...]`."""
    return tf.reshape(x, [-1, *x.shape[2:]])


def columns(replay: InGraphReplay, trajectory: Trajectory) -> dict[str, Nest]:
    """Returns the stored fields of a trajectory as tensors, leaves `[T, B, ...]`.

    Raises:
      UserError: For a missing leaf or a wrong shape or dtype, with its path; for a dynamic T.
    """
    wanted, result = trajectory_specs(replay), {}
    for name in wanted:
        nest = getattr(trajectory, name)
        result[name] = stored_extras(replay, name, nest) if name in EXTRAS else nest
    if result["valid"] is None and trajectory.termination is not None:  # all rows are
        result["valid"] = tf.ones(tf.convert_to_tensor(trajectory.termination).shape, tf.bool)
    rows = tf.nest.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), result)
    for name, nest in rows.items():
        checks.matches_spec(f"trajectory.{name}", nest, wanted[name], (None, replay.num_envs))
    length = rows["valid"].shape[0]
    if length is None:
        raise UserError(
            "trajectory",
            expected="a number of steps T that is known while tracing",
            got="an unknown number",
            remedy="Pass an input of static shape to the tf.function.",
        )
    for path, x in struct.paths(rows).items():
        checks.leading_shape(f"trajectory.{path}", x, (length, replay.num_envs), "valid")
    return rows


@struct.dataclass
class Counts(struct.Struct):
    """Counts of each environment, int64 [B].

    Attributes:
      steps: Steps written so far; the number of the next step.
      frames: Frames written so far.
      first: The oldest step with complete data.
      age: Steps of the current episode; 0 if the next step begins one.
    """

    steps: tf.Tensor
    frames: tf.Tensor
    first: tf.Tensor
    age: tf.Tensor


@struct.dataclass
class Placement(struct.Struct):
    """Positions of the steps of a trajectory, all [T, B].

    Attributes:
      step: int64, the step's number.
      frame: int64, the number of the newest frame of its observation; the next number is its
        successor's.
      age: int64, the number of earlier steps in its episode.
      starts: bool, valid and first of an episode.
    """

    step: tf.Tensor
    frame: tf.Tensor
    age: tf.Tensor
    starts: tf.Tensor


def place(
    counts: Counts, valid: tf.Tensor, ends: tf.Tensor, stack: int
) -> tuple[Placement, Counts]:
    """Numbers the valid steps of a trajectory.

    Args:
      counts: The counts before them.
      valid: bool [T, B], T static.
      ends: bool [T, B], the last steps of episodes; valid ones.
      stack: Frames of one observation (K).

    Returns:
      Their positions, and the counts after them, with `first` unchanged.
    """
    if valid.shape[0] == 1:
        return _place_one(counts, valid, ends, stack)
    is_step = tf.cast(valid, tf.int64)
    before = tf.cumsum(is_step, axis=0, exclusive=True)
    through = before + is_step
    # Steps of this trajectory up to the last end before each row; -1 if there is none.
    ended_at = _running_max(tf.where(ends, through, -tf.ones_like(through)))
    none = tf.fill([1, *through.shape[1:].as_list()], tf.constant(-1, tf.int64))
    last_end = tf.concat([none, ended_at[:-1]], axis=0)
    age = tf.where(last_end < 0, counts.age + before, before - last_end)
    starts = tf.logical_and(valid, tf.equal(age, 0))
    opened = tf.cumsum(tf.cast(starts, tf.int64), axis=0)
    frame = counts.frames + before + stack * opened - 1
    after = Counts(
        steps=counts.steps + through[-1],
        frames=counts.frames + through[-1] + stack * opened[-1],
        first=counts.first,
        age=tf.where(ended_at[-1] < 0, counts.age + through[-1], through[-1] - ended_at[-1]),
    )
    places = Placement(step=counts.steps + before, frame=frame, age=age, starts=starts)
    return places, after


def _place_one(
    counts: Counts, valid: tf.Tensor, ends: tf.Tensor, stack: int
) -> tuple[Placement, Counts]:
    """`place` for a single step, in a third of the operations."""
    shape = counts.age.shape
    starts, ends = tf.equal(counts.age, 0), tf.reshape(ends, shape)
    is_step = tf.constant(1, tf.int64)
    if not holds_everywhere(valid):
        valid = tf.reshape(valid, shape)
        starts, is_step = tf.logical_and(valid, starts), tf.cast(valid, tf.int64)
    opened = tf.cast(starts, tf.int64)
    newest = counts.frames + (opened if stack == 1 else stack * opened)
    after = Counts(
        steps=counts.steps + is_step,
        frames=newest + is_step,
        first=counts.first,
        age=where(~ends, counts.age + is_step, 0),
    )
    places = Placement(step=counts.steps, frame=newest - 1, age=counts.age, starts=starts)
    return tf.nest.map_structure(lambda x: tf.reshape(x, [1, *shape]), places), after


def holds_everywhere(mask: tf.Tensor) -> bool:
    """Whether a mask is statically all True."""
    known = tf.get_static_value(mask)
    return known is not None and bool(known.all())


def _running_max(x: tf.Tensor) -> tf.Tensor:
    """Running maxima over the rows of x [T, B], T static; log2(T) operations."""
    length, shift = x.shape[0], 1
    while shift < length:
        x = tf.concat([x[:shift], tf.maximum(x[shift:], x[:-shift])], axis=0)
        shift *= 2
    return x


def slots(number: tf.Tensor, env: tf.Tensor, length: int, num_envs: int) -> tf.Tensor:
    """Returns the row indices of numbers in a time-major buffer `[length * num_envs, ...]`."""
    row = tf.math.floormod(number, length)
    return row if num_envs == 1 else row * num_envs + env


def number_in_slot(slot: tf.Tensor, oldest: tf.Tensor, length: int) -> tf.Tensor:
    """Returns the number, from `oldest` on, in a slot of one environment's ring."""
    return oldest + tf.math.floormod(slot - oldest, length)


def complete(counts: Counts, n_step: int) -> tf.Tensor:
    """Returns int64 [B]: steps before this number have n steps, or all up to an episode end."""
    return counts.steps - tf.minimum(counts.age, n_step - 1)


def ready_sequences(
    places: Placement, valid: tf.Tensor, ends: tf.Tensor, length: int, period: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the sequence that each step completes, at most one.

    Sequences begin every `period` steps of an episode. The last one of an episode may be shorter;
    one without new steps is excluded.

    Args:
      places: Positions of the steps, [T, B].
      valid: bool [T, B].
      ends: bool [T, B].
      length: L.
      period: From 1 to L.

    Returns:
      bool [T, B], whether a sequence is complete; int64 [T, B], the number of its first step.
    """
    full, shorter, begin = _sequence_after(places.age + 1, length, period)
    ready = tf.logical_and(valid, tf.logical_or(full, tf.logical_and(ends, shorter)))
    return ready, places.step - places.age + begin


def unfinished_sequences(counts: Counts, length: int, period: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the sequences that would be complete if the episodes ended now.

    Returns:
      bool [B], whether there is another; int64 [B], the number of its first step.
    """
    _, shorter, begin = _sequence_after(counts.age, length, period)
    return tf.logical_and(counts.age > 0, shorter), counts.steps - counts.age + begin


def _sequence_after(
    ends: tf.Tensor, length: int, period: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Whether a full sequence ends here, whether an end gives a shorter one, its start.

    In an episode of e steps the shorter one starts at the multiple of the period in (e - L, e - L +
    period), or at 0 if e < L.
    """
    start = ends - length
    over = tf.math.floormod(start, period)
    full = tf.logical_and(start >= 0, tf.equal(over, 0))
    shorter = tf.logical_or(start < 0, over > 0)
    later = tf.maximum(period * (tf.math.floordiv(start, period) + 1), 0)
    return full, shorter, tf.where(full, start, later)
