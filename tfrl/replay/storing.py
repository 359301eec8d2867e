"""What an addition writes into a buffer's variables, and what it overwrites."""

from typing import Any

import tensorflow as tf

from tfrl.ops.select import where
from tfrl.replay import ring
from tfrl.replay.in_graph import InGraphReplay
from tfrl.types import Nest
from tfrl.xla import may_be_xla


def scatter(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Writes rows, int64 [M], of a variable whose last one is of no use to anybody."""
    if rows.shape[0] == 1 and may_be_xla():
        # XLA takes the write of one row for cheap enough to be done again by whoever reads the
        # variable, and copies all of it for that. Of two rows it does not.
        rows = tf.pad(rows, [[0, 1]], constant_values=variable.shape[0] - 1)
        values = tf.pad(values, [[0, 1], *[[0, 0]] * (values.shape.rank - 1)])
    variable.scatter_update(tf.IndexedSlices(values, rows))


def oldest_step(
    replay: InGraphReplay, frame_of: tf.Variable, after: ring.Counts, length: int
) -> tf.Tensor:
    """Returns the oldest step of which an addition has overwritten nothing, int64 [B].

    Args:
      replay: The buffer's maker.
      frame_of: Frames of the steps, those added too.
      after: The counts after the addition, but for `first`.
      length: Rows that were added (T).
    """
    stack, num_envs = replay.frame_stack, replay.num_envs
    first = tf.maximum(after.first, after.steps - replay.steps_per_env)
    if not replay.loses_frames:
        return first
    # Every step has one frame at least of its own, so no more can have lost theirs.
    ahead = tf.range(length * (1 + stack), dtype=tf.int64)[:, tf.newaxis]
    envs = tf.range(num_envs, dtype=tf.int64)
    slot = ring.slots(first + ahead, envs, replay.steps_per_env, num_envs)
    oldest_frame = tf.gather(frame_of, slot) - stack + 1
    lost = oldest_frame < after.frames - replay.frames_per_env
    lost = tf.logical_and(lost, first + ahead < after.steps)
    return first + tf.math.count_nonzero(lost, axis=0)


def step_rows(replay: InGraphReplay, rows: dict[str, Nest]) -> tf.Tensor:
    """Returns the packed rows `[T * B, width]` of steps; zeros where they are not valid."""
    flags = tf.cast(rows["termination"], tf.float32) + 2.0 * tf.cast(rows["truncation"], tf.float32)
    stored = {
        name: rows[name]
        for name in ("action", "reward", "policy_extras", "env_extras")
        if name in rows
    }
    packed = replay.step_packer.pack({**stored, "flags": flags})
    return chosen(_flat_mask(rows), packed, 0)


def frame_rows(
    replay: InGraphReplay, rows: dict[str, Nest], places: ring.Placement, trash: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where frames go, int64 [M], and the packed frames `[M, width]`.

    All frames of the first observations of episodes, and the newest one of every successor.
    """
    stack, num_envs, frames = replay.frame_stack, replay.num_envs, replay.frames
    lead = [-1] if stack == 1 else [-1, 1]
    valid, starts = _flat_mask(rows), tf.reshape(places.starts, [-1])
    number = tf.reshape(places.frame, lead)
    envs = tf.range(num_envs, dtype=tf.int64)
    env = tf.reshape(tf.broadcast_to(envs, places.frame.shape), lead)

    def to(numbers: tf.Tensor, wanted: tf.Tensor | None) -> tf.Tensor:
        slot = ring.slots(numbers, env, replay.frames_per_env, num_envs)
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
    """Returns `x` where it is kept, a number elsewhere.

    Args:
      keep: bool, aligned at the leading axes of `x`; None for everywhere.
      x: Numbers.
      other: The number.
    """
    return x if keep is None else where(keep, x, other)


def if_some_are_not(valid: tf.Tensor) -> tf.Tensor | None:
    """Returns the mask, or None where it is known while tracing that it holds everywhere."""
    return None if ring.holds_everywhere(valid) else valid


def _flat_mask(rows: dict[str, Nest]) -> tf.Tensor | None:
    """Which of `[T * B]` rows are valid; None where all are. Others are zeros in the buffer."""
    valid = if_some_are_not(rows["valid"])
    return None if valid is None else tf.reshape(valid, [-1])


def _merged(x: tf.Tensor) -> tf.Tensor:
    """`[T, B, ...]` as `[T * B, ...]`, the first two axes as one."""
    return tf.reshape(x, [-1, *x.shape[2:]])
