"""A learner's view of its collectors: what they have played, and what they are told."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.remote_env import RemoteEnv
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.replay.reverb.connection import Connection, await_tables
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.roles import parameters
from tfrl.roles.replay import distributed_replay
from tfrl.types import Nest
from tfrl.workflows import OffPolicyWorkflow, State
from tfrl.workflows.collectors import Collected

EPISODES, STATISTICS = "episodes", "statistics"
# Reports that were not read yet, at most; collectors wait then.
_MOST_REPORTS = 100_000
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 0.01
# Collectors read that a run has ended within so many readings.
_LAST_READINGS = 5


def episodes_signature() -> dict[str, tf.TensorSpec]:
    """Returns the signature of an episode that a collector reports."""
    return {
        "episode_length": tf.TensorSpec([], tf.float32),
        "episode_return": tf.TensorSpec([], tf.float32),
        "task_id": tf.TensorSpec([], tf.int32),
    }


class RemoteCollectors:
    """Serves the agent's state to collectors, and counts what they have written.

    Attributes:
      address: "host:port" of the parameters; None before the first iteration.
    """

    def __init__(
        self,
        workflow: OffPolicyWorkflow,
        replay_server: str,
        *,
        port: int | None = None,
        bind: str = "127.0.0.1",
        publish_seconds: float = 0.1,
        pull_seconds: float = 0.2,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
    ):
        """Waits for the replay server, and gives it and itself to a workflow.

        Args:
          workflow: What the learner trains; it does not play any more.
          replay_server: "host:port" of `bin/reverb_server.py --distributed`.
          port: Where the parameters are served; None for a free port.
          bind: Who may read and write them: "127.0.0.1" for this machine alone, "0.0.0.0" for
            whoever reaches the port.
          publish_seconds: Between two publications of parameters, at least.
          pull_seconds: Of the collectors; the learner stays so long that they see the end.
          wait_seconds: How long to wait for the replay server and for experience.
          log: Takes lines for the user.

        Raises:
          UserError: For a workflow that cannot learn so, or a server that is not there in time.
        """
        replay = distributed_replay(workflow).replace(
            address=replay_server, timeout=wait_seconds, reconnect_seconds=wait_seconds
        )
        await_tables(replay, log)
        self._table = replay.table().name
        self._connection = Connection(
            replay_server, timeout=wait_seconds, reconnect_seconds=wait_seconds
        )
        self._port, self._bind, self._log = port, bind, log
        self._publish_seconds, self._pull_seconds = publish_seconds, pull_seconds
        self._wait_seconds = wait_seconds
        self._server: Any = None
        self._client: Any = None
        self._normalizes = bool(getattr(workflow.agent, "normalize_obs", False))
        self._none: Nest = None  # the statistics of no observation
        self._told = 0  # env steps
        self._looked = self._published = -np.inf
        self._inserted = 0
        self._steps: Any = None  # the variable of the learner steps
        self.address: str | None = None
        name = repr(workflow.env.unwrapped)
        workflow.replay = replay
        workflow.use_collectors(self, RemoteEnv.of(workflow.env, name))

    # What a workflow asks.

    def begin(self, state: State) -> None:
        """Serves the agent's state, and goes on at the env steps of a run."""
        self._told = int(state.metrics.env_steps)
        self._steps = state.metrics.learner["learner_steps"]
        if self._server is None:
            self._serve(state.agent_state)
        if self._is_due():
            self._publish(state.agent_state)

    def play(
        self, agent_state: Any, env_state: Nest, carry: Nest, key: tf.Tensor, *, waits: bool
    ) -> tuple[Collected, Nest, Nest]:
        """Returns what was played since the last call; see `Collectors.play`."""
        if self._is_due():
            self._publish(agent_state)
        deadline = time.monotonic() + self._wait_seconds
        while True:
            self._look()
            if self._inserted > self._told or not waits:
                break
            if time.monotonic() > deadline:
                raise UserError(
                    f"The replay table {self._table!r} at {self._connection.address}",
                    expected=f"new experience within {self._wait_seconds:g} s",
                    got="none",
                    remedy="Start bin/collect.py with the same gin file and "
                    f"--variable_server={self.address}.",
                )
            time.sleep(_WAIT_SECONDS)
        steps = max(self._inserted - self._told, 0)
        self._told += steps
        ended = self._reports(EPISODES) if steps else []
        played = Collected(
            env_steps=np.asarray(steps, np.int64),
            episodes=np.asarray(len(ended), np.int64),
            episode_return=_mean([total for _, total, _ in ended]),
            episode_length=_mean([length for length, *_ in ended]),
            seen=None if self._none is None else self._seen(steps),
        )
        return played, env_state, carry

    def finish(self, state: State) -> None:
        """Tells the collectors that the run has ended, and waits until they may have read it."""
        if self._server is not None:
            self._publish(state.agent_state, finished=True)
            time.sleep(_LAST_READINGS * self._pull_seconds)

    def close(self) -> None:
        """Ends the server of parameters."""
        self._connection.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _serve(self, agent_state: Any) -> None:
        library = reverb()
        signatures: dict[str, Any] = {EPISODES: episodes_signature()}
        if self._normalizes:
            normalizer = struct.values(agent_state.normalizer)
            self._none = tf.nest.map_structure(tf.zeros_like, normalizer)
            specs = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), normalizer)
            signatures[STATISTICS] = tf.nest.flatten(specs)
        tables = [
            parameters.make_table(agent_state),
            *(library.Table.queue(n, _MOST_REPORTS, signature=x) for n, x in signatures.items()),
        ]
        self._server = ReverbServer(tables, port=self._port, bind=self._bind, log=self._log)
        self.address = self._server.address
        self._client = library.Client(self.address)
        self._log(f"Serving parameters at {self.address}.")

    def _is_due(self) -> bool:
        return time.monotonic() - self._published >= self._publish_seconds

    def _publish(self, agent_state: Any, finished: bool = False) -> None:
        published = parameters.Published(agent_state, int(self._steps), self._told, finished)
        parameters.publish(self._client, published)
        self._published = time.monotonic()

    def _look(self) -> None:
        """Counts the items that were ever put into the table."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        info = self._connection.server_info()[self._table]
        self._inserted = int(info.rate_limiter_info.insert_stats.completed)
        self._looked = time.monotonic()

    def _reports(self, table: str) -> list[list[np.ndarray]]:
        """What collectors have put into a table since the last call, each once."""
        size = self._client.server_info()[table].current_size
        return [s[0].data for s in self._client.sample(table, size)] if size else []

    def _seen(self, steps: int) -> Nest:
        """The statistics of observations since the last call."""
        seen = self._none
        for leaves in self._reports(STATISTICS) if steps else ():
            seen = statistics.merge(seen, tf.nest.pack_sequence_as(seen, leaves))
        return tf.nest.map_structure(np.asarray, seen)


def _mean(values: Sequence[float]) -> np.ndarray:
    return np.asarray(np.mean(values) if len(values) else 0.0, np.float32)

