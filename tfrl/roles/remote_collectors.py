"""A learner's view of its collectors: what they have played, and what they are told."""

import threading
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
from tfrl.roles import parameters
from tfrl.roles.tables import EPISODES, HEARTBEATS, STATISTICS, distributed_replay, normalizes
from tfrl.types import Nest
from tfrl.workflows import OffPolicyWorkflow, State
from tfrl.workflows.collectors import Collected

# Between two looks at what collectors have written.
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 0.01
# Without progress for so long, a line says who is waited for.
_PATIENCE_SECONDS = 30.0
# A collector that was not heard of for so long does not count as one that plays.
_SILENT_SECONDS = 10.0


class RemoteCollectors:
    """Hands the agent's state to collectors, and counts what they have written."""

    def __init__(
        self,
        workflow: OffPolicyWorkflow,
        replay_server: str,
        variable_server: str | None = None,
        *,
        publish_seconds: float = 0.2,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
    ):
        """Waits for the servers, and gives them and itself to a workflow.

        Args:
          workflow: What the learner trains; it does not play any more.
          replay_server: "host:port" of `bin/reverb_server.py --distributed`.
          variable_server: Likewise, for parameters and reports; None for the same.
          publish_seconds: Between two publications of parameters, at least.
          wait_seconds: How long to wait for the servers and for experience.
          log: Takes lines for the user.

        Raises:
          UserError: For a workflow that cannot learn so, for a server that is not there in time,
            and for one that was started from another gin file.
        """
        replay = distributed_replay(workflow).replace(
            address=replay_server, timeout=wait_seconds, reconnect_seconds=wait_seconds
        )
        await_tables(replay, log)
        self._table = replay.table().name
        self._replay = Connection(
            replay_server, timeout=wait_seconds, reconnect_seconds=wait_seconds
        )
        self._variables = self._replay
        if variable_server not in (None, replay_server):
            self._variables = parameters.connect(str(variable_server), wait_seconds, log)
        self._publish_seconds, self._wait_seconds, self._log = publish_seconds, wait_seconds, log
        self._none: Nest = None  # the statistics of no observation
        self._normalizes = normalizes(workflow)
        self._counted = 0  # env steps, as the run counts them
        self._before = 0  # of those, what is not among the table's inserts
        self._looked = self._published = -np.inf
        self._inserted = 0
        self._heard: dict[int, float] = {}  # when each collector was heard of last
        self._steps: Any = None  # the variable of the learner steps
        name = repr(workflow.env.unwrapped)
        workflow.replay = replay
        workflow.use_collectors(self, RemoteEnv.of(workflow.env, name))
        self._progress = (0, 0)
        self._ending = threading.Event()
        threading.Thread(target=self._watch, name="progress", daemon=True).start()

    # What a workflow asks.

    def begin(self, state: State) -> None:
        """Publishes the agent's state, and goes on at the env steps of a run."""
        self._counted = int(state.metrics.env_steps)
        self._steps = state.metrics.learner["learner_steps"]
        if self._normalizes and self._none is None:
            normalizer = struct.values(state.agent_state.normalizer)
            self._none = tf.nest.map_structure(tf.zeros_like, normalizer)
        if self._is_due():
            self._publish(state.agent_state)

    def play(
        self, agent_state: Any, env_state: Nest, carry: Nest, key: tf.Tensor, *, waits: bool
    ) -> tuple[Collected, Nest, Nest]:
        """Returns what was played since the last call; see `Collectors.play`."""
        if self._is_due():
            self._publish(agent_state)
        deadline = time.monotonic() + self._wait_seconds
        while not (steps := self._new_steps()) and waits:
            if time.monotonic() > deadline:
                raise UserError(
                    f"The replay table {self._table!r} at {self._replay.address}",
                    expected=f"new experience within {self._wait_seconds:g} s",
                    got="none",
                    remedy="Start bin/collect.py with the same gin file and "
                    f"--replay_server={self._replay.address}.",
                )
            time.sleep(_WAIT_SECONDS)
        self._counted += steps
        ended = self._reports(EPISODES) if steps else []
        metrics = self._heartbeats() if steps else self._ages()
        played = Collected(
            env_steps=np.asarray(steps, np.int64),
            episodes=np.asarray(len(ended), np.int64),
            episode_return=_mean([total for _, total, _ in ended]),
            episode_length=_mean([length for length, *_ in ended]),
            metrics=metrics,
            seen=None if self._none is None else self._seen(steps),
        )
        return played, env_state, carry

    def finish(self, state: State) -> None:
        """Tells the collectors that the run has ended."""
        self._steps = state.metrics.learner["learner_steps"]
        self._publish(state.agent_state, finished=True)

    def close(self) -> None:
        """Ends the connections."""
        self._ending.set()
        self._replay.close()
        if self._variables is not self._replay:
            self._variables.close()

    # Parameters.

    def _is_due(self) -> bool:
        return time.monotonic() - self._published >= self._publish_seconds

    def _publish(self, agent_state: Any, finished: bool = False) -> None:
        now = parameters.Published(agent_state, int(self._steps), self._counted, finished)
        self._variables.guard(
            lambda: parameters.publish(self._variables.client, now), "publishing parameters"
        )
        self._published = time.monotonic()

    # What was played.

    def _new_steps(self) -> int:
        """Env steps that were written and not counted yet.

        A server that began from its last checkpoint has fewer inserts than were counted before:
        those stay counted.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            info = self._replay.server_info()[self._table]
            self._inserted = int(info.rate_limiter_info.insert_stats.completed)
            self._looked = time.monotonic()
            self._before = max(self._before, self._counted - self._inserted)
        return self._before + self._inserted - self._counted

    def _reports(self, table: str) -> list[list[np.ndarray]]:
        """What collectors have put into a table since the last call, each once."""
        client = self._variables.client

        def read() -> list[list[np.ndarray]]:
            size = client.server_info(timeout=10)[table].current_size
            return [s[0].data for s in client.sample(table, size)] if size else []

        return self._variables.guard(read, f"reading {table}")

    def _heartbeats(self) -> dict[str, np.ndarray]:
        """Notes who was heard of."""
        for _, task_id in self._reports(HEARTBEATS):
            self._heard[int(task_id)] = time.monotonic()
        return self._ages()

    def _ages(self) -> dict[str, np.ndarray]:
        """How many collectors play, and how long ago the most silent of them was heard of."""
        ages = [time.monotonic() - heard for heard in self._heard.values()]
        return {
            "collectors": np.float32(sum(age < _SILENT_SECONDS for age in ages)),
            "heartbeat_age": np.float32(max(ages, default=0.0)),
        }

    def _seen(self, steps: int) -> Nest:
        """The statistics of observations since the last call."""
        seen = self._none
        for leaves in self._reports(STATISTICS) if steps else ():
            seen = statistics.merge(seen, tf.nest.pack_sequence_as(seen, leaves))
        return tf.nest.map_structure(np.asarray, seen)

    # Who is waited for.

    def _watch(self) -> None:
        """Says so where neither env steps nor learner steps go on."""
        since, told = time.monotonic(), False
        while not self._ending.wait(_PATIENCE_SECONDS / 10):
            now = (self._counted, 0 if self._steps is None else int(self._steps))
            if now != self._progress:
                self._progress, since, told = now, time.monotonic(), False
            elif not told and self._steps is not None:
                seconds = time.monotonic() - since
                if seconds > _PATIENCE_SECONDS:
                    told = True
                    self._log(f"No progress for {seconds:.0f} s. {self._who()}")

    def _who(self) -> str:
        if self._replay.lost or self._variables.lost:
            return "A server does not answer."
        try:
            info = self._replay.client.server_info(timeout=10)[self._table]
        except Exception:  # noqa: BLE001  (Reverb's errors have no common base)
            return f"The replay server at {self._replay.address} does not answer."
        limiter, now = info.rate_limiter_info, time.monotonic()
        heard = [f"{i} {now - at:.0f} s ago" for i, at in sorted(self._heard.items())]
        said = f"Collectors were heard of: {', '.join(heard) or 'none'}. "
        return said + (
            f"Table {self._table!r}: {info.current_size:,} items, "
            f"{limiter.insert_stats.completed:,} inserted, {limiter.sample_stats.completed:,} "
            f"sampled, {limiter.samples_per_insert:g} samples per insert."
        )


def _mean(values: Sequence[float]) -> np.ndarray:
    return np.asarray(np.mean(values) if len(values) else 0.0, np.float32)
