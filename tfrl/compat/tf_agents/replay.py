"""Writes and reads experience in Reverb tables of TF-Agents' layout.

TF-Agents stores frames: one per step, and after the last step of an episode a boundary frame with
the terminal observation (LAST, followed by FIRST). T steps of an episode are T + 1 frames. An item
is a window of L consecutive frames, with L - 1 steps. At a termination the discount is 0; at a
truncation the next step type is LAST and the discount is not 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import trajectory as trajectory_lib

from tfrl import struct
from tfrl.compat.tf_agents import specs
from tfrl.compat.tf_agents.trajectories import FIRST, LAST, MID, steps_of
from tfrl.errors import UserError
from tfrl.replay.reverb.cancellable_call import within
from tfrl.replay.reverb.factory import ReverbReplay
from tfrl.replay.reverb.items import Columns
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.stream import MOST_PENDING
from tfrl.types import Nest, Sequences, Trajectory, Transition


def trajectory_spec(obs_spec: Nest, action_spec: Nest, length: int | None = None) -> Any:
    """Returns the spec of a TF-Agents frame, without policy info.

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
    """Converts windows of TF-Agents' frames to sequences of this library.

    Args:
      windows: A TF-Agents Trajectory `[N, L, ...]`. Steps after a boundary are invalid.
      index: int64 [N], or None.

    Returns:
      Sequences of L - 1 steps.
    """
    valid = _valid(windows)
    taken = tf.reduce_sum(tf.cast(valid, tf.int32), axis=1, keepdims=True)
    still = tf.minimum(tf.range(windows.step_type.shape[1]), taken)
    obs = tf.nest.map_structure(lambda x: tf.gather(x, still, batch_dims=1), windows.observation)
    steps = steps_of(windows._replace(observation=obs))
    result = {name: getattr(steps, name) for name in ("action", "reward", "policy_extras")}
    masked = {name: _masked(valid, x) for name, x in result.items() if x is not None}
    ends = {name: valid & getattr(steps, name) for name in ("termination", "truncation")}
    return Sequences(steps=steps.replace(valid=valid, **masked, **ends), index=index)


def transitions(windows: Any, discount: float, index: tf.Tensor | None = None) -> Transition:
    """Converts windows of TF-Agents' frames to items of n = L - 1 steps, or fewer at an end.

    Args:
      windows: A TF-Agents Trajectory `[N, L, ...]` of windows that do not begin with a boundary.
      discount: gamma; nonzero discounts of TF-Agents' environments count as 1.
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
        # The last observation is repeated after the end.
        next_obs=tf.nest.map_structure(lambda x: x[:, -1], steps.next_obs),
        discount=tf.where(ended, 0.0, tf.gather(powers, taken)),
        extras=extras,
        index=index,
    )


def _valid(windows: Any) -> tf.Tensor:
    """Returns which of the first L - 1 frames are steps of the first episode, bool [N, L - 1]."""
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
    """Reads experience from TF-Agents' observers.

    `ReverbAddTrajectoryObserver` and `ReverbTrajectorySequenceObserver` write windows of L frames.
    Windows of the latter may cross ends of episodes; steps after the first end are invalid.
    `ReverbAddEpisodeObserver` writes whole episodes of at most L frames.

    Args:
      address: "host:port" of the server.
      table: The table's name.
      data_spec: The spec of one frame, for example an agent's `collect_data_spec`.
      length: L, frames of an item; for whole episodes the most frames, including the boundary.
      batch_size: N.
      discount: gamma, for batches of `Transition`; None for `Sequences`.
      whole_episodes: Whether items have any length. They are `Sequences`, padded to L - 1 steps;
        steps after the end are invalid, and repeat the last observation.
      timeout: Seconds to wait for items; then the dataset ends.
      prefetch: Batches to prepare ahead.

    Returns:
      Batches of items; windows that begin with a boundary are left out.

    Raises:
      UserError: For whole episodes with a discount. For a longer episode the iterator raises
        `tf.errors.InvalidArgumentError`.
    """
    if whole_episodes and discount is not None:
        raise UserError(
            "window_dataset, discount",
            expected="None for full episodes, which are Sequences",
            got=discount,
            remedy="Leave it out, or use a table of windows.",
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
    """Pads frames [k, ...] of an episode with boundary frames to length L.

    The last frame only shows a successor, also if the episode was written before its end.
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


class TrajectoryWriter:
    """Writes trajectories of this library as windows of TF-Agents' frames.

    A step is written one step later, when it is known whether the episode continues.
    """

    def __init__(
        self,
        client: Any,
        table: str,
        obs_spec: Nest,
        action_spec: Nest,
        num_envs: int,
        *,
        length: int = 2,
        stride: int = 1,
        timeout: float = 60.0,
    ):
        """Opens a writer for each environment.

        Args:
          client: A `reverb.Client`.
          table: The name of a table whose signature, if any, is `trajectory_spec(..., length)`.
          obs_spec: Nest of specs of one observation.
          action_spec: Nest of specs of one action.
          num_envs: B.
          length: L, frames of an item.
          stride: Frames from the start of an item to the start of the next of the same episode.
          timeout: Seconds to wait for the server.
        """
        replay = ReverbReplay(
            obs_spec=obs_spec, action_spec=action_spec, capacity=1, num_envs=num_envs
        )
        self._columns = Columns(replay)
        self._envs = [
            _Frames(client, table, obs_spec, action_spec, length, stride, timeout)
            for _ in range(num_envs)
        ]
        self._nests = {"obs": obs_spec, "next_obs": obs_spec, "action": action_spec}

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]` that continue the last ones.

        Args:
          trajectory: NumPy arrays or eager tensors; invalid rows are left out.

        Raises:
          UserError: For a leaf that does not match the specs, and if the server times out.
        """
        rows = self._columns.of(trajectory)
        leaves = {name: list(struct.paths(spec, name)) for name, spec in self._nests.items()}
        for t, b in np.argwhere(rows["valid"]).tolist():
            obs, after, action = (
                _plain(self._nests[name], [rows[path][t, b] for path in leaves[name]])
                for name in ("obs", "next_obs", "action")
            )
            flags = (bool(rows["termination"][t, b]), bool(rows["truncation"][t, b]))
            self._envs[b].step(obs, action, rows["reward"][t, b], after, *flags)

    def cut(self) -> None:
        """Truncates the unfinished episodes, and sends the pending items."""
        for env in self._envs:
            env.cut()
        self.flush()

    def flush(self) -> None:
        """Waits until all items are in the table.

        Raises:
          UserError: If it times out.
        """
        for env in self._envs:
            env.flush(0)

    def close(self) -> None:
        """Sends pending items and closes the writers; drops the last step of open episodes."""
        try:
            self.flush()
        finally:
            for env in self._envs:
                env.close()


def _plain(spec: Nest, leaves: list[Any]) -> Nest:
    """Packs leaves into a nest of dicts and tuples, as in TF-Agents."""
    return tf.nest.pack_sequence_as(specs.plain(spec), leaves)


class _Frames:
    """The frames of one environment."""

    def __init__(
        self,
        client: Any,
        table: str,
        obs_spec: Nest,
        action_spec: Nest,
        length: int,
        stride: int,
        timeout: float,
    ):
        self._table, self._length, self._stride = table, length, stride
        self._timeout = timeout
        self.writer = self._within(
            lambda: client.trajectory_writer(num_keep_alive_refs=length + 1), "opening a writer"
        )
        self._no_action = _plain(
            action_spec,
            [np.zeros(s.shape, s.dtype.as_numpy_dtype) for s in tf.nest.flatten(action_spec)],
        )
        self._held: Any = None  # the newest step and its successor, while the episode is open
        self._count = self._pending = 0

    def step(
        self, obs: Nest, action: Nest, reward: Any, after: Nest, terminated: bool, truncated: bool
    ) -> None:
        if self._held is not None:
            self._append(self._held[0])
        kind = FIRST if self._held is None else MID
        discount = np.float32(0.0 if terminated else 1.0)
        frame = trajectory_lib.Trajectory(kind, obs, action, (), MID, reward, discount)
        self._held = frame, after
        if terminated or truncated:
            self.cut()

    def cut(self) -> None:
        """Truncates an unfinished episode."""
        if self._held is None:
            return
        frame, after = self._held
        self._append(frame._replace(next_step_type=LAST))
        zero, one = np.float32(0.0), np.float32(1.0)
        self._append(trajectory_lib.Trajectory(LAST, after, self._no_action, (), FIRST, zero, one))
        self._held, self._count = None, 0

    def _append(self, frame: Any) -> None:
        self.writer.append(frame)
        self._count += 1
        start = self._count - self._length
        if start >= 0 and start % self._stride == 0:
            if self._pending >= MOST_PENDING:
                self.flush(MOST_PENDING // 2)
            window = tf.nest.map_structure(lambda h: h[-self._length :], self.writer.history)
            self.writer.create_item(self._table, 1.0, window)
            self._pending += 1

    def _within(self, fn: Callable[[], Any], what: str) -> Any:
        return within(self._timeout, fn, f"Reverb table {self._table!r}", what)

    def close(self) -> None:
        """Closes the writer."""
        self._within(self.writer.close, "closing a writer")

    def flush(self, left: int) -> None:
        try:
            self.writer.flush(left, timeout_ms=int(1000 * self._timeout))
        except reverb().errors.DeadlineExceededError as error:
            raise UserError(
                f"Reverb table {self._table!r}, writing",
                expected=f"all items inserted within timeout={self._timeout:g} s",
                got="pending items",
                remedy="Check that the server runs and that the table's rate limiter allows "
                "inserts.",
            ) from error
        self._pending = min(self._pending, left)
