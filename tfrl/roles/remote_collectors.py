"""A learner's view of its collectors: what they have played, and what they are told."""

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.distribute.worker_group import WorkerGroup
from tfrl.envs.remote_env import RemoteEnv
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.replay.reverb.cancellable_call import ServerSilentError
from tfrl.replay.reverb.connection import Connection, await_tables
from tfrl.roles import parameters
from tfrl.roles.tables import (
    EPISODES,
    HEARTBEATS,
    REQUEST,
    ROLLOUTS,
    STATISTICS,
    TASK_ID,
    check_rollouts,
    collectors_of,
    normalizes,
    replay_at,
    rollout_form,
    rollout_signature,
)
from tfrl.types import Nest, Trajectory
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow, State
from tfrl.workflows.collectors import POLICY_VERSION, Collected, CollectedRollouts, Collectors
from tfrl.workflows.learner_workflow import LearnerWorkflow

# Between two looks at what collectors have written.
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 0.01
_ANSWER_SECONDS = 10
# Without progress for so long, a line says who is waited for.
_PATIENCE_SECONDS = 30.0
# A collector that was not heard of for so long does not count as one that plays.
_SILENT_SECONDS = 10.0


class RemoteCollectors(Collectors):
    """Hands the agent's state to collectors, and counts what they have written.

    Of several workers of a learner the chief does so, and tells the others.
    """

    def __init__(
        self,
        workflow: LearnerWorkflow,
        connection: Connection,
        *,
        publish_seconds: float,
        wait_seconds: float,
        log: Callable[[str], None],
    ):
        """Gives itself to a workflow.

        Args:
          workflow: What the learner trains; it does not play any more.
          connection: To the server of parameters and reports.
          publish_seconds: Between two publications of parameters, at least.
          wait_seconds: How long to wait for experience.
          log: Takes lines for the user.
        """
        self._workflow, self._variables = workflow, connection
        self._publish_seconds, self.wait_seconds, self._log = publish_seconds, wait_seconds, log
        self._env_steps = 0
        self._published = -np.inf
        self._request = 0
        self._heard: dict[int, float] = {}  # when each collector was heard of last
        self._lags: dict[int, int] = {}  # of each collector, when it was heard of last
        self._steps: Any = None  # the variable of the learner steps
        workflow.use_collectors(self, RemoteEnv.of(workflow.env, repr(workflow.env.unwrapped)))
        self._ending = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._watching.start()

    @property
    def _group(self) -> WorkerGroup | None:
        return self._workflow.worker_group

    @property
    def _leads(self) -> bool:
        """Whether this process publishes, and reads reports."""
        return self._group is None or self._group.is_chief

    @property
    def _learner_steps(self) -> int:
        return int(tf.convert_to_tensor(self._steps))

    def begin(self, state: State) -> None:
        """Publishes the agent's state, and goes on at the env steps of a run."""
        self._env_steps = int(state.metrics.env_steps)
        self._steps = state.metrics.learner["learner_steps"]
        if self._is_due():
            self._publish(state.agent_state)

    def finish(self, state: State) -> None:
        """Tells the collectors that the run has ended; nobody is waited for any more."""
        self._ending.set()
        self._steps = state.metrics.learner["learner_steps"]
        self._publish(state.agent_state, finished=True)

    def close(self) -> None:
        """Ends the connections."""
        self._ending.set()
        self._watching.join(timeout=_ANSWER_SECONDS)
        self._variables.close()

    # Parameters.

    def _is_due(self) -> bool:
        return time.monotonic() - self._published >= self._publish_seconds

    def _publish(self, agent_state: Any, finished: bool = False) -> None:
        if not self._leads:
            return
        now = parameters.Published(
            agent_state,
            self._learner_steps,
            self._env_steps,
            finished,
            self._request,
            self._new_priority(),
        )
        self._variables.guard(
            lambda: parameters.publish(self._variables.client, now), "publishing parameters"
        )
        self._published = time.monotonic()

    def _new_priority(self) -> float:
        """Of new items of a prioritised replay."""
        return 1.0

    # Reports.

    def _reports(self, table: str) -> list[list[np.ndarray]]:
        """What collectors have put into a table since the last call, each once."""
        client = self._variables.client

        def read() -> list[list[np.ndarray]]:
            size = client.server_info(timeout=_ANSWER_SECONDS)[table].current_size
            items = client.sample(table, size, emit_timesteps=False) if size else []
            return [item.data for item in items]

        return self._variables.guard(read, f"reading {table}")

    def _heartbeats(self) -> dict[str, np.float32]:
        """How many collectors play, by how old parameters, and how silent they are at most.

        Zeros where another worker is the chief, whose records count.
        """
        if not self._leads:
            names = ("collectors", "heartbeat_age", "policy_lag")
            return dict.fromkeys(names, np.float32(0))
        for _, learner_steps, task_id in self._reports(HEARTBEATS):
            self._heard[int(task_id)] = time.monotonic()
            self._lags[int(task_id)] = max(self._learner_steps - int(learner_steps), 0)
        ages = [time.monotonic() - heard for heard in self._heard.values()]
        return {
            "collectors": np.float32(sum(age < _SILENT_SECONDS for age in ages)),
            "heartbeat_age": np.float32(max(ages, default=0.0)),
            "policy_lag": np.float32(np.mean(list(self._lags.values()) or [0])),
        }

    # Who is waited for.

    def _watch(self) -> None:
        """Says so where neither env steps nor learner steps go on."""
        before, since, told = (0, 0), time.monotonic(), False
        while not self._ending.wait(_PATIENCE_SECONDS / 10):
            if self._steps is None or not self._leads:
                continue
            now = (self._env_steps, self._learner_steps)
            if now != before:
                before, since, told = now, time.monotonic(), False
            elif not told and time.monotonic() - since > _PATIENCE_SECONDS:
                told = True
                self._log(f"No progress for {time.monotonic() - since:.0f} s. {self._who()}")

    def _who(self) -> str:
        """Who is waited for, for the user."""
        now = time.monotonic()
        heard = [f"{i} {now - at:.0f} s ago" for i, at in sorted(self._heard.items())]
        said = f"Collectors were heard of: {', '.join(heard) or 'none'}."
        return f"{said} {self._of_table()}"

    def _of_table(self) -> str:
        """The state of the table of experience, for the user."""
        connection, name = self._source
        try:
            info = connection.client.server_info(timeout=_ANSWER_SECONDS)[name]
        except Exception:  # noqa: BLE001  (Reverb's errors have no common base)
            return f"The server at {connection.address} does not answer."
        limiter = info.rate_limiter_info
        return (
            f"Table {name!r}: {info.current_size:,} items, {limiter.insert_stats.completed:,} "
            f"inserted, {limiter.sample_stats.completed:,} sampled, "
            f"{limiter.samples_per_insert:g} samples per insert."
        )

    @property
    def _source(self) -> tuple[Connection, str]:
        """Where the experience is: the connection and the name of the table."""
        raise NotImplementedError

    def _refuse_wait(self, missing: str) -> NoReturn:
        connection, name = self._source
        raise UserError(
            f"The table {name!r} at {connection.address}",
            expected=f"new experience within {self.wait_seconds:g} s",
            got=missing,
            remedy="Start bin/collect.py with the same gin file and servers.",
        )


class ReplayCollectors(RemoteCollectors):
    """Collectors of an off-policy workflow: experience is in a replay server."""

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
          replay_server: "host:port" of `bin/reverb_server.py --num_collectors=...`; of several
            servers with commas between them.
          variable_server: That of parameters and reports; None for the first of these.
          publish_seconds: Between two publications of parameters, at least.
          wait_seconds: How long to wait for the servers and for experience.
          log: Takes lines for the user.

        Raises:
          UserError: For a workflow that cannot learn so, for a server that is not there in time,
            and for one that was started from another gin file.
        """
        replay = replay_at(workflow, replay_server, wait_seconds)
        await_tables(replay, log)
        first = replay.addresses[0]
        connection = parameters.connect(variable_server or first, wait_seconds, log)
        self._servers = [
            Connection(address, timeout=wait_seconds, reconnect_seconds=wait_seconds)
            for address in replay.addresses
        ]
        self._table, self._block_size = replay.table().name, replay.block
        self._normalizes = normalizes(workflow)
        self._buffer: Any = None
        self._none: Nest = None  # the statistics of no observation
        self._inserted = self._before = 0  # `_before`: env steps that no insert stands for
        self._looked = -np.inf
        workflow.replay = replay
        super().__init__(
            workflow,
            connection,
            publish_seconds=publish_seconds,
            wait_seconds=wait_seconds,
            log=log,
        )

    def begin(self, state: State) -> None:
        """Publishes the agent's state, and goes on at the env steps of a run."""
        buffer: Any = cast(OffPolicyWorkflow, self._workflow).replay_buffer(state)
        if self._group is not None:  # each worker sets the priorities of its own items
            buffer.new_priority = max(self._group.all_gather(float(buffer.new_priority)))
        self._buffer = buffer
        super().begin(state)
        if self._normalizes and self._none is None:
            normalizer = struct.values(state.agent_state.normalizer)
            self._none = tf.nest.map_structure(tf.zeros_like, normalizer)

    def play(
        self, agent_state: Any, env_state: Nest, carry: Nest, key: tf.Tensor, *, waits: bool
    ) -> tuple[Collected, Nest, Nest]:
        """Returns what was played since the last call; see `Collectors.play`."""
        if self._is_due():
            self._publish(agent_state)
        played = self._played(waits)
        if self._group is not None:
            told = self._group.broadcast_arrays(tf.nest.flatten(played))
            played = tf.nest.pack_sequence_as(played, told)
        self._env_steps += int(played.env_steps)
        return played, env_state, carry

    def _new_priority(self) -> float:
        return 1.0 if self._buffer is None else float(self._buffer.new_priority)

    def _played(self, waits: bool) -> Collected:
        """What was played since the last call; nothing where another worker is the chief."""
        deadline, steps = time.monotonic() + self.wait_seconds, 0
        while self._leads and not (steps := self._new_steps()) and waits:
            if time.monotonic() > deadline:
                self._refuse_wait("none")
            time.sleep(_WAIT_SECONDS)
        episodes, total_length, total_return = self._ended() if steps else (0, 0.0, 0.0)
        return Collected(
            env_steps=np.asarray(steps, np.int64),
            episodes=np.asarray(episodes, np.int64),
            episode_return=np.asarray(total_return / max(episodes, 1), np.float32),
            episode_length=np.asarray(total_length / max(episodes, 1), np.float32),
            metrics=self._heartbeats(),
            seen=None if self._none is None else self._seen(steps),
        )

    def close(self) -> None:
        """Ends the connections."""
        super().close()
        for server in self._servers:
            server.close()

    def _new_steps(self) -> int:
        """Env steps that were written and not counted yet.

        A server that began from its last checkpoint has fewer inserts than were counted before:
        those stay counted.
        """
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            infos = [server.server_info()[self._table] for server in self._servers]
            inserted = sum(x.rate_limiter_info.insert_stats.completed for x in infos)
            self._inserted = inserted * self._block_size
            self._looked = time.monotonic()
            self._before = max(self._before, self._env_steps - self._inserted)
        return self._before + self._inserted - self._env_steps

    def _ended(self) -> tuple[int, float, float]:
        """How many episodes have ended since the last call, and their steps and rewards."""
        told = [
            (int(e), float(steps), float(sums)) for e, _, steps, sums in self._reports(EPISODES)
        ]
        episodes, steps, rewards = np.sum([(0, 0.0, 0.0), *told], axis=0)
        return int(episodes), float(steps), float(rewards)

    def _seen(self, steps: int) -> Nest:
        """The statistics of observations since the last call."""
        seen = self._none
        for leaves in self._reports(STATISTICS) if steps else ():
            by_path = dict(zip(sorted(struct.paths(seen)), leaves, strict=True))
            leaves = [by_path[path] for path in struct.paths(seen)]
            seen = statistics.merge(seen, tf.nest.pack_sequence_as(seen, leaves))
        return tf.nest.map_structure(np.asarray, seen)

    @property
    def _source(self) -> tuple[Connection, str]:
        return self._servers[0], self._table


class RolloutCollectors(RemoteCollectors):
    """Collectors of an on-policy workflow: whole rollouts wait in a queue, each is learnt once.

    A learner batch is one rollout of each collector where they are synchronous, and as many
    rollouts of whoever was first where they are not.
    """

    def __init__(
        self,
        workflow: OnPolicyWorkflow,
        server: str,
        *,
        synchronous: bool | None = None,
        max_policy_lag: int | None = None,
        publish_seconds: float = 0.0,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
    ):
        """Waits for the server, and gives it and itself to a workflow.

        Args:
          workflow: What the learner trains; it does not play any more.
          server: "host:port" of `bin/reverb_server.py --num_collectors=...`.
          synchronous: Whether collectors play one rollout for each publication of parameters, so
            that the policy lag is 0. None for whether the agent does not correct for a lag.
          max_policy_lag: Learner steps between acting and learning, at most; older rollouts are
            left out and counted. None for no bound.
          publish_seconds: Between two publications of parameters, at least; synchronous ones are
            published for every batch.
          wait_seconds: How long to wait for the server and for experience.
          log: Takes lines for the user.

        Raises:
          UserError: For environments that do not divide, for a server that is not there in time,
            and for one that was started from another gin file.
        """
        if synchronous is None:
            synchronous = not getattr(workflow.agent, "corrects_policy_lag", False)
        self._synchronous, self._max_policy_lag = synchronous, max_policy_lag
        connection = parameters.connect(server, wait_seconds, log)
        info = connection.server_info()
        self._num_collectors = collectors_of(info)
        self._form = rollout_form(workflow, self._num_collectors)
        self._paths = sorted(rollout_signature(self._form, self._num_collectors))
        self._leaves = list(struct.paths(self._form))
        check_rollouts(server, info, self._form, self._num_collectors)
        self._dropped = 0
        super().__init__(
            workflow,
            connection,
            publish_seconds=publish_seconds,
            wait_seconds=wait_seconds,
            log=log,
        )

    def begin(self, state: State) -> None:
        """As of `RemoteCollectors`; a synchronous run's requests are none of an earlier run's."""
        if self._synchronous and not self._request:
            now = time.time_ns()
            self._request = now if self._group is None else int(self._group.broadcast(now))
        super().begin(state)

    @property
    def _share(self) -> int:
        """Rollouts of a batch in this process.

        Raises:
          UserError: The workers do not divide the collectors.
        """
        workers = 1 if self._group is None else self._group.num_workers
        if self._num_collectors % workers:
            raise UserError(
                f"{self._num_collectors} collectors",
                expected=f"a multiple of the {workers} workers of the learner, which share them",
                got=str(self._num_collectors),
                remedy="Start other numbers of them.",
            )
        return self._num_collectors // workers

    def play(
        self, agent_state: Any, env_state: Nest, carry: Nest, key: tf.Tensor, *, waits: bool
    ) -> tuple[CollectedRollouts, Nest, Nest]:
        """Returns one rollout of each collector side by side, `[T, B, ...]`.

        Of several workers each has its share of them.
        """
        del key, waits
        if self._synchronous:
            self._request += 1
        if self._synchronous or self._is_due():
            self._publish(agent_state)
        steps, tasks = self._learner_steps, set()
        rollouts: list[list[np.ndarray]] = []
        lags: list[int] = []
        deadline = time.monotonic() + self.wait_seconds
        while len(rollouts) < self._share:
            item = self._next(deadline)
            task_id = int(item.pop(TASK_ID))
            self._heard[task_id] = time.monotonic()
            lag = steps - int(item.pop(POLICY_VERSION))
            request = int(item.pop(REQUEST))
            late = self._max_policy_lag is not None and lag > self._max_policy_lag
            if late or (self._synchronous and (request != self._request or task_id in tasks)):
                self._dropped += 1
                continue
            tasks.add(task_id)
            rollouts.append([item[path] for path in self._leaves])
            lags.append(lag)
        joined = [np.concatenate(leaves, axis=1) for leaves in zip(*rollouts, strict=True)]
        played = tf.nest.pack_sequence_as(self._form, joined)
        self._env_steps += sum(self._of_all(int(np.count_nonzero(played.valid))))
        metrics = {
            **self._heartbeats(),
            "dropped_rollouts": np.float32(sum(self._of_all(self._dropped))),
            "policy_lag": np.float32(np.mean(self._of_all(float(np.mean(lags))))),
        }
        self._dropped = 0
        return CollectedRollouts(trajectory=played, metrics=metrics), env_state, carry

    def blank(self) -> Trajectory:
        """Returns a batch of zeros like those of `play`."""
        return tf.nest.map_structure(  # type: ignore[no-any-return]
            lambda x: tf.concat([x] * self._share, axis=1), self._form
        )

    def _of_all(self, value: Any) -> list[Any]:
        """The values of all workers of the learner."""
        return [value] if self._group is None else self._group.all_gather(value)

    def _next(self, deadline: float) -> dict[str, np.ndarray]:
        """The oldest rollout that was not learnt yet."""
        client = self._variables.client
        try:
            (sample,) = self._variables.guard(
                lambda: list(client.sample(ROLLOUTS, 1, emit_timesteps=False)),
                "waiting for rollouts",
                timeout=max(deadline - time.monotonic(), 1.0),
            )
        except ServerSilentError:
            self._refuse_wait("none")
        return dict(zip(self._paths, sample.data, strict=True))

    @property
    def _source(self) -> tuple[Connection, str]:
        return self._variables, ROLLOUTS
