"""Experience in Reverb tables of TF-Agents' layout: written for it, and read from it.

TF-Agents stores frames: a step, and behind the last step of an episode a boundary frame that shows
the terminal observation (LAST, followed by FIRST). T steps of an episode are T + 1 frames. An item
is a window of L consecutive frames, that is of L - 1 steps. At a termination the discount is 0; at
a truncation the next step type is LAST and the discount is not 0.
"""

from typing import Any

import tensorflow as tf
from tf_agents.trajectories import trajectory as trajectory_lib

from tfrl.compat.tf_agents import specs
from tfrl.compat.tf_agents.trajectories import LAST, steps_of
from tfrl.errors import UserError
from tfrl.replay.reverb.library import reverb
from tfrl.types import Nest, Sequences, Transition


def trajectory_spec(obs_spec: Nest, action_spec: Nest, length: int | None = None) -> Any:
    """Returns the spec of a frame as TF-Agents has it, without policy info.

    Args:
      obs_spec: Nest of specs of one observation.
      action_spec: Nest of specs of one action.
      length: L, for the spec of windows `[L, ...]`: the signature of a table. None for one frame:
        the `data_spec` of TF-Agents' `ReverbReplayBuffer`.
    """
    scalar, kind = tf.TensorSpec([], tf.float32), tf.TensorSpec([], tf.int32)
    frame = trajectory_lib.Trajectory(
        step_type=kind,
        observation=specs.tensor_spec(obs_spec, "observation"),
        action=specs.tensor_spec(action_spec, "action"),
        policy_info=(),
        next_step_type=kind,
        reward=scalar,
        discount=scalar,
    )
    outer = [] if length is None else [length]
    return tf.nest.map_structure(lambda s: tf.TensorSpec([*outer, *s.shape], s.dtype), frame)


def sequences(windows: Any, index: tf.Tensor | None = None) -> Sequences:
    """Turns windows of TF-Agents' frames into sequences of this library.

    Args:
      windows: A TF-Agents Trajectory `[N, L, ...]`. What comes behind a boundary is not valid.
      index: int64 [N], or None.

    Returns:
      Sequences of L - 1 steps.
    """
    valid = _valid(windows)
    taken = tf.reduce_sum(tf.cast(valid, tf.int32), axis=1, keepdims=True)
    still = tf.minimum(tf.range(windows.step_type.shape[1]), taken)
    obs = tf.nest.map_structure(lambda x: tf.gather(x, still, batch_dims=1), windows.observation)
    steps = steps_of(windows._replace(observation=obs))
    found = {name: getattr(steps, name) for name in ("action", "reward", "policy_extras")}
    masked = {name: _masked(valid, x) for name, x in found.items() if x is not None}
    ends = {name: valid & getattr(steps, name) for name in ("termination", "truncation")}
    return Sequences(steps=steps.replace(valid=valid, **masked, **ends), index=index)


def transitions(windows: Any, discount: float, index: tf.Tensor | None = None) -> Transition:
    """Turns windows of TF-Agents' frames into items of n = L - 1 steps, or fewer at an end.

    Args:
      windows: A TF-Agents Trajectory `[N, L, ...]` of windows that do not begin with a boundary.
      discount: gamma; discounts of TF-Agents' environments other than 0 are taken for 1.
      index: int64 [N], or None.
    """
    steps = sequences(windows).steps
    taken = tf.reduce_sum(tf.cast(steps.valid, tf.int32), axis=1)
    length = steps.valid.shape[1]
    powers = tf.constant([discount**j for j in range(length + 1)], tf.float32)
    ended = tf.reduce_any(steps.termination, axis=1)
    extras = None
    if steps.policy_extras is not None:
        info = tf.nest.map_structure(lambda x: x[:, 0], steps.policy_extras)
        extras = {"policy_extras": info}
    return Transition(
        obs=tf.nest.map_structure(lambda x: x[:, 0], steps.obs),
        action=tf.nest.map_structure(lambda x: x[:, 0], steps.action),
        reward=tf.reduce_sum(steps.reward * powers[:-1], axis=1),
        # Behind the end the last observation stands still.
        next_obs=tf.nest.map_structure(lambda x: x[:, -1], steps.next_obs),
        discount=tf.where(ended, 0.0, tf.gather(powers, taken)),
        extras=extras,
        index=index,
    )


def _valid(windows: Any) -> tf.Tensor:
    """Whether the first L - 1 frames are steps of the window's first episode, bool [N, L - 1]."""
    is_step = tf.not_equal(windows.step_type[:, :-1], LAST)
    return tf.cast(tf.math.cumprod(tf.cast(is_step, tf.int32), axis=1), tf.bool)


def _masked(valid: tf.Tensor, nest: Nest) -> Nest:
    def one(x: tf.Tensor) -> tf.Tensor:
        keep = tf.reshape(valid, [-1, valid.shape[1], *[1] * (x.shape.rank - 2)])
        return tf.where(keep, x, tf.zeros([], x.dtype))

    return tf.nest.map_structure(one, nest)


def window_dataset(
    address: str,
    table: str,
    data_spec: Any,
    length: int,
    batch_size: int,
    *,
    discount: float | None = None,
    whole_episodes: bool = False,
    timeout: float = 60.0,
    prefetch: int = 1,
) -> tf.data.Dataset:
    """Reads what TF-Agents' observers wrote.

    `ReverbAddTrajectoryObserver` and `ReverbTrajectorySequenceObserver` write windows of L frames;
    of the second kind, which may go over the ends of episodes, the steps behind the first end are
    not valid. `ReverbAddEpisodeObserver` writes whole episodes of up to so many frames.

    Args:
      address: "host:port" of the server.
      table: The table's name.
      data_spec: The spec of one frame, such as an agent's `collect_data_spec`.
      length: L, frames of an item; of whole episodes the most, its boundary frame included.
      batch_size: N.
      discount: gamma, for batches of `Transition`; None for `Sequences`.
      whole_episodes: Whether items are of any length. They are padded to L - 1 steps; behind the
        end steps are not valid, and the last observation stands still. They are `Sequences`.
      timeout: Seconds to wait for something to sample; then the dataset ends.
      prefetch: Batches that are made ahead.

    Returns:
      Batches of items; windows that begin with a boundary are left out.

    Raises:
      UserError: For whole episodes with a discount. A longer episode is a
        `tf.errors.InvalidArgumentError` of the iterator.
    """
    if whole_episodes and discount is not None:
        raise UserError(
            "window_dataset, discount",
            expected="None for whole episodes, which are Sequences",
            got=discount,
            remedy="Leave it out, or read a table of windows.",
        )
    steps = None if whole_episodes else length
    items = reverb().TrajectoryDataset(
        server_address=address,
        table=table,
        dtypes=tf.nest.map_structure(lambda s: s.dtype, data_spec),
        shapes=tf.nest.map_structure(lambda s: tf.TensorShape([steps, *s.shape]), data_spec),
        max_in_flight_samples_per_worker=2 * batch_size,
        rate_limiter_timeout_ms=int(1000 * timeout),
    )

    @tf.autograph.experimental.do_not_convert
    def record(sample: Any) -> Any:
        index = tf.bitcast(sample.info.key, tf.int64)
        if discount is None:
            return sequences(sample.data, index)
        return transitions(sample.data, discount, index)

    begins = items.filter(lambda sample: tf.not_equal(sample.data.step_type[0], LAST))
    if whole_episodes:
        begins = begins.filter(lambda sample: tf.shape(sample.data.step_type)[0] > 1)
        begins = begins.map(lambda sample: sample._replace(data=_padded(sample.data, length)))
    return begins.batch(batch_size, drop_remainder=True).map(record).prefetch(prefetch)


def _padded(frames: Any, length: int) -> Any:
    """Frames [k, ...] of an episode with boundary frames behind them, L in all.

    The last frame shows a successor alone, of an episode that was written before its end too.
    """
    taken = tf.shape(frames.step_type)[0]
    message = f"an episode has more frames than length={length} of window_dataset:"
    with tf.control_dependencies([tf.debugging.Assert(taken <= length, [message, taken])]):
        missing = tf.identity(length - taken)

    def pad(x: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1))
        return tf.ensure_shape(padded, [length, *x.shape[1:]])

    padded = tf.nest.map_structure(pad, frames)
    is_step = tf.range(length) < taken - 1
    return padded._replace(step_type=tf.where(is_step, padded.step_type, LAST))
