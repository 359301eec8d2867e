"""Writes trajectories of this library as TF-Agents' frames; see `replay`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.trajectories import StepType
from tf_agents.trajectories import trajectory as trajectory_lib

from tfrl import struct
from tfrl.compat.tf_agents import specs
from tfrl.errors import UserError
from tfrl.replay.reverb.cancellable_call import within
from tfrl.replay.reverb.factory import ReverbReplay
from tfrl.replay.reverb.items import Columns
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.stream import LEFT_PENDING, MOST_PENDING
from tfrl.types import Nest, Trajectory

FIRST, MID, LAST = (np.int32(kind) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))


class TrajectoryWriter:
    """Writes trajectories of this library as windows of TF-Agents' frames.

    A step is written when it is known whether the episode goes on: one step later.
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
          stride: Frames from the start of an item to that of the next of the same episode.
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
        """Adds steps `[T, B, ...]`, which go on where the last ones stopped.

        Args:
          trajectory: NumPy arrays or eager tensors; rows that are not valid are left out.

        Raises:
          UserError: For a leaf that does not match the specs; if the server takes too long.
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
        """Truncates the episodes that go on, and sends what there is."""
        for env in self._envs:
            env.cut()
        self.flush()

    def flush(self) -> None:
        """Waits until all items are in the table.

        Raises:
          UserError: If they are not in time.
        """
        for env in self._envs:
            env.flush(0)

    def close(self) -> None:
        """Sends what there is and ends the writers; the last step of open episodes is left out."""
        try:
            self.flush()
        finally:
            for env in self._envs:
                env.close()


def _plain(spec: Nest, leaves: list[Any]) -> Nest:
    """Returns leaves as a nest of dicts and tuples, as TF-Agents has them."""
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
        self._held: Any = None  # the newest step and its successor, while the episode goes on
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
        """Ends the episode that goes on, if one does."""
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
        behind = self._count - self._length
        if behind >= 0 and behind % self._stride == 0:
            if self._pending >= MOST_PENDING:
                self.flush(LEFT_PENDING)
            window = tf.nest.map_structure(lambda h: h[-self._length :], self.writer.history)
            self.writer.create_item(self._table, 1.0, window)
            self._pending += 1

    def _within(self, fn: Callable[[], Any], what: str) -> Any:
        return within(self._timeout, fn, f"Reverb table {self._table!r}", what)

    def close(self) -> None:
        """Ends the writer."""
        self._within(self.writer.close, "closing a writer")

    def flush(self, left: int) -> None:
        try:
            self.writer.flush(left, timeout_ms=int(1000 * self._timeout))
        except reverb().errors.DeadlineExceededError as error:
            raise UserError(
                f"Reverb table {self._table!r}, writing",
                expected=f"items to be taken within timeout={self._timeout:g} s",
                got="some that are still waiting",
                remedy="See whether the server is there and the table's limiter lets items in.",
            ) from error
        self._pending = min(self._pending, left)
