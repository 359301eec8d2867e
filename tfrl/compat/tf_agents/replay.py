"""Experience in Reverb tables of TF-Agents' layout: written for it, and read from it.

TF-Agents stores frames: a step, and behind the last step of an episode a boundary frame that shows
the terminal observation (LAST, followed by FIRST). T steps of an episode are T + 1 frames. An item
is a window of L consecutive frames, that is of L - 1 steps. At a termination the discount is 0; at
a truncation the next step type is LAST and the discount is not 0.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import StepType
from tf_agents.trajectories import trajectory as trajectory_lib

from tfrl.compat.tf_agents import specs
from tfrl.replay.reverb.library import reverb
from tfrl.types import Nest, Sequences, Trajectory, Transition

LAST = np.int32(StepType.LAST)


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
    ends = valid & tf.equal(windows.next_step_type[:, :-1], LAST)
    terminal = tf.equal(windows.discount[:, :-1], 0.0)
    info = windows.policy_info
    steps = Trajectory(
        obs=tf.nest.map_structure(lambda x: x[:, :-1], obs),
        action=_masked(valid, windows.action),
        reward=_masked(valid, windows.reward),
        next_obs=tf.nest.map_structure(lambda x: x[:, 1:], obs),
        termination=ends & terminal,
        truncation=ends & ~terminal,
        valid=valid,
        policy_extras=_masked(valid, info) if tf.nest.flatten(info) else None,
    )
    return Sequences(steps=steps, index=index)


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
        x = x[:, :-1]
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
    timeout: float = 60.0,
    prefetch: int = 1,
) -> tf.data.Dataset:
    """Reads what TF-Agents' observers wrote.

    Args:
      address: "host:port" of the server.
      table: The table's name.
      data_spec: The spec of one frame, such as an agent's `collect_data_spec`.
      length: L, frames of an item.
      batch_size: N.
      discount: gamma, for batches of `Transition`; None for `Sequences`.
      timeout: Seconds to wait for something to sample; then the dataset ends.
      prefetch: Batches that are made ahead.

    Returns:
      Batches of items; windows that begin with a boundary are left out.
    """
    items = reverb().TrajectoryDataset(
        server_address=address,
        table=table,
        dtypes=tf.nest.map_structure(lambda s: s.dtype, data_spec),
        shapes=tf.nest.map_structure(lambda s: tf.TensorShape([length, *s.shape]), data_spec),
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
    return begins.batch(batch_size, drop_remainder=True).map(record).prefetch(prefetch)
