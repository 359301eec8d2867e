"""What an addition writes into a buffer's variables, and what it overwrites."""

import tensorflow as tf

from tfrl.replay import ring
from tfrl.replay.in_graph import InGraphReplay
from tfrl.types import Nest


def scatter(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    """Writes rows, int64 [M], of a variable whose last one is of no use to anybody."""
    if rows.shape[0] == 1:
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
    merged = tf.nest.map_structure(_merged, {**stored, "flags": flags})
    return masked(tf.reshape(rows["valid"], [-1]), replay.step_packer.pack(merged))


def frame_rows(
    replay: InGraphReplay, rows: dict[str, Nest], places: ring.Placement, trash: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where frames go, int64 [M], and the packed frames `[M, width]`.

    All frames of the first observations of episodes, and the newest one of every successor.
    """
    stack, num_envs, frames = replay.frame_stack, replay.num_envs, replay.frames
    envs = tf.range(num_envs, dtype=tf.int64)
    valid, starts = (tf.reshape(x, [-1]) for x in (rows["valid"], places.starts))
    number = tf.reshape(places.frame, [-1, 1])  # [M, 1]
    env = tf.reshape(tf.broadcast_to(envs, places.frame.shape), [-1, 1])
    own = number + tf.range(1 - stack, 1, dtype=tf.int64)  # [M, K]
    at = [
        (own, starts[:, tf.newaxis]),
        (number + 1, valid[:, tf.newaxis]),
    ]
    where = []
    for numbers, wanted in at:
        slot = ring.slots(numbers, env, replay.frames_per_env, num_envs)
        where.append(tf.reshape(tf.where(wanted, slot, trash), [-1]))
    first = tf.nest.map_structure(
        lambda x: tf.reshape(x, [-1, *x.shape[2:]]),
        frames.split(tf.nest.map_structure(_merged, rows["obs"])),
    )
    newest = frames.newest(tf.nest.map_structure(_merged, rows["next_obs"]))
    pack = replay.frame_packer.pack
    packed = [
        masked(starts if stack == 1 else tf.repeat(starts, stack), pack(first)),
        masked(valid, pack(newest)),
    ]
    return tf.concat(where, 0), tf.concat(packed, 0)


def masked(keep: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Rows `[M, width]`, zeros where they are not kept, so that a buffer's bits are repeatable."""
    return tf.where(keep[:, tf.newaxis], rows, tf.zeros([], rows.dtype))


def _merged(x: tf.Tensor) -> tf.Tensor:
    """`[T, B, ...]` as `[T * B, ...]`."""
    return tf.reshape(x, [-1, *x.shape[2:]])
