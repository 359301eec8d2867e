"""The learner's side of its collectors: their experience in, parameters out."""

import contextlib
import operator
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.distribute.worker_group import WorkerGroup
from tfrl.envs.remote_env import RemoteEnv
from tfrl.errors import UnavailableError, UserError
from tfrl.nest_packing import array_of
from tfrl.ops import statistics
from tfrl.replay.reverb.buffer import InsertCount
from tfrl.replay.reverb.cancellable_call import ServerSilentError, leave_behind, within
from tfrl.replay.reverb.connection import Connection
from tfrl.replay.reverb.duplicates import Duplicates
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.sharded import AnyReverbBuffer
from tfrl.roles import parameters
from tfrl.roles.tables import (
    EPISODES,
    EVALUATOR_TASK,
    HEARTBEATS,
    REQUEST,
    ROLLOUTS,
    STATISTICS,
    TASK_ID,
    agent_form,
    check_rollouts,
    check_settings,
    collectors_of,
    collectors_told,
    normalizes,
    replay_at,
    rollout_form,
    rollout_signature,
)
from tfrl.traces import counted_separately
from tfrl.types import Nest, Trajectory
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow, State
from tfrl.workflows.collectors import (
    POLICY_VERSION,
    Collected,
    CollectedRollouts,
    Collectors,
    WaitEndedError,
)
from tfrl.workflows.learner_workflow import LearnerWorkflow

# The least seconds between two publications; on-policy, each batch has one in any case.
_PUBLISH_SECONDS = 0.2
# Seconds between two polls of a server for reports and counts.
_LOOK_SECONDS = 0.05
_WAIT_SECONDS = 0.01
_ANSWER_SECONDS = 10
_CLOSE_SECONDS = 5.0
# Seconds without progress before a line names the processes that the learner waits for.
_PATIENCE_SECONDS = 30.0
# Seconds without a heartbeat after which a collector no longer counts as playing.
_SILENT_SECONDS = 10.0
# Seconds without a learner step after which a learner that waits obeys a signal. Several workers
# have more time for an end that all agree on, with a checkpoint.
_IDLE_SECONDS, _IDLE_SECONDS_OF_WORKERS = 2.0, 8.0


class RemoteCollectors(Collectors):
    """Publishes the agent's state to collectors, and counts their experience.

    In a learner of several workers, the chief does so and broadcasts the results. After a restart
    of the server each worker of a synchronous learner publishes, to ask for rollouts again.
    """

    _num_collectors = 0  # not known

    def __init__(
        self,
        workflow: LearnerWorkflow,
        connection: Connection,
        *,
        wait_seconds: float,
        log: Callable[[str], None],
        stops: Callable[[], bool],
    ):
        """Registers with a workflow.

        Args:
          workflow: The workflow that the learner trains; it no longer plays.
          connection: The connection to the server of parameters and reports.
          wait_seconds: Seconds to wait for experience.
          log: Takes lines for the user.
          stops: Returns whether this process must end.

        Raises:
          UserError: The server was started from another gin file.
        """
        info = connection.server_info()
        check_settings(connection.address, info, workflow)
        parameters.check_form(connection.address, agent_form(workflow), info)
        self._stops, self._idle = stops, (-1, 0.0)  # learner steps when it was asked, and when
        connection.on_wait = self._end_if_asked
        self._workflow, self._variables = workflow, connection
        self._num_collectors = self._num_collectors or collectors_told(info)
        self.wait_seconds, self._log = wait_seconds, log
        self._reader = parameters.AgentStateReader()
        self._publisher = parameters.Publisher(connection.client)
        self._env_steps = self._episodes = 0
        self._published = -np.inf
        self._request = 0
        self._heard: dict[int, float] = {}  # time of each collector's last heartbeat
        self._lags: dict[int, int] = {}  # policy lag at each collector's last heartbeat
        self._evaluator_heard = np.nan  # time of the evaluator's last heartbeat
        self._reading_heartbeats, self._heartbeats_read = threading.Lock(), -np.inf
        self._unread: dict[str, list[Any]] = {}  # sampled reports by table
        self._answers: dict[str, Any] = {}  # `server_info` before the last sample, by table
        self._duplicates = Duplicates()  # of reports and rollouts
        self._steps: Any = None  # the variable of the learner steps
        self._iterating = False  # False while the learner evaluates or saves
        workflow.use_collectors(self, RemoteEnv.of(workflow.env, repr(workflow.env.unwrapped)))
        self._ending = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._watching.start()

    @property
    def _group(self) -> WorkerGroup | None:
        return self._workflow.worker_group

    @property
    def _leads(self) -> bool:
        """Whether this process publishes parameters and reads reports."""
        return self._group is None or self._group.is_chief

    @property
    def _learner_steps(self) -> int:
        return int(array_of(self._steps))

    def _end_if_asked(self) -> None:
        """Raises `WaitEndedError` if this process must end and no learner step is under way.

        While the learner saves, a server that does not answer may be writing the checkpoint.
        """
        if not self._stops():
            return
        if not (self._iterating or any(connection.away for connection in self._connections)):
            return
        most = _IDLE_SECONDS if self._group is None else _IDLE_SECONDS_OF_WORKERS
        steps = -1 if self._steps is None else self._learner_steps
        if steps != self._idle[0]:
            self._idle = steps, time.monotonic()
        elif time.monotonic() - self._idle[1] > most:
            raise WaitEndedError

    def begin(self, state: State) -> None:
        """Publishes the agent's state, and takes the counters of the run."""
        self._env_steps = int(state.metrics.env_steps)
        self._episodes = int(state.metrics.episodes)
        self._steps = state.metrics.learner["learner_steps"]
        self._iterating = True
        if self._is_due():
            with contextlib.suppress(WaitEndedError):  # `play` raises it too, where a runner saves
                self._publish(state.agent_state)

    def end_call(self) -> None:
        """See `Collectors`."""
        self._iterating = False

    def finish(self, state: State) -> None:
        """Tells the collectors that the run has ended; does not wait for them."""
        self._ending.set()
        self._steps = state.metrics.learner["learner_steps"]
        if self._leads:
            self._publish(state.agent_state, finished=True)

    def close(self) -> None:
        """Closes the connections."""
        self._ending.set()
        self._watching.join(timeout=_ANSWER_SECONDS)
        if self._variables.away:
            leave_behind(self._publisher)
        else:
            with contextlib.suppress(ServerSilentError, RuntimeError):
                close = self._publisher.close
                within(_CLOSE_SECONDS, close, self._variables.address, "closing a stream")
        self._variables.close()

    # Parameters.

    def _is_due(self) -> bool:
        """Whether this process should publish parameters."""
        return self._leads and time.monotonic() - self._published >= _PUBLISH_SECONDS

    def _publish(self, agent_state: Nest, finished: bool = False) -> None:
        now = parameters.Published(
            self._reader.arrays(agent_state),
            self._learner_steps,
            self._env_steps,
            finished,
            self._request,
            self._new_priority(),
        )
        self._variables.guard(lambda: self._publisher.publish(now), "publishing parameters")
        self._published = time.monotonic()

    def _new_priority(self) -> float:
        """Returns the priority of new items of a prioritised replay."""
        return 1.0

    # Reports.

    def _reports(self, table: str) -> list[list[np.ndarray]]:
        """Returns the collectors' reports since the last call, each once.

        If the server does not answer, the next call returns them.
        """
        with contextlib.suppress(ServerSilentError, reverb().errors.DeadlineExceededError):
            self._variables.guard(
                lambda: self._sample_reports(table), f"reading {table}", 2.0 * _ANSWER_SECONDS
            )
        return self._new_reports(table)

    def _sample_reports(self, table: str) -> None:
        """Samples all reports; waits for others if another client takes some meanwhile."""
        client, unread = self._variables.client, self._unread.setdefault(table, [])
        self._answers[table] = client.server_info(timeout=_ANSWER_SECONDS)
        if size := self._answers[table][table].current_size:
            for item in client.sample(table, size, emit_timesteps=False):
                unread.append(item)

    def _new_reports(self, table: str) -> list[list[np.ndarray]]:
        """Returns the sampled reports; without repetitions of a server that was restored."""
        unread = self._unread.get(table, [])
        items = unread[:]
        del unread[: len(items)]  # an abandoned call may append more
        return [item.data for item in items if self._duplicates.is_new(item.info.key)]

    def _heartbeats(self) -> dict[str, np.float32]:
        """Returns the number of playing collectors, their policy lag, and the oldest heartbeats.

        Workers other than the chief return zeros; only the chief's records count.
        """
        if not self._leads:
            names = ("heartbeat_age", "server_heartbeat_age", "evaluator_heartbeat_age")
            return dict.fromkeys(("collectors", "policy_lag", *names), np.float32(0))
        if time.monotonic() - self._heartbeats_read >= _LOOK_SECONDS:
            with self._reading_heartbeats:
                self._note_heartbeats(self._reports(HEARTBEATS))
            self._heartbeats_read = time.monotonic()
        ages = [time.monotonic() - heard for heard in self._heard.values()]
        return {
            "collectors": np.float32(sum(age < _SILENT_SECONDS for age in ages)),
            "heartbeat_age": np.float32(max(ages, default=0.0)),
            "policy_lag": np.float32(np.mean(list(self._lags.values()) or [0])),
            "server_heartbeat_age": np.float32(max(c.heartbeat_age for c in self._connections)),
            "evaluator_heartbeat_age": np.float32(time.monotonic() - self._evaluator_heard),
        }

    def _note_heartbeats(self, reports: list[list[np.ndarray]]) -> None:
        for _, learner_steps, task_id in reports:
            if task_id == EVALUATOR_TASK:
                self._evaluator_heard = time.monotonic()
                continue
            self._heard[task_id.item()] = time.monotonic()
            self._lags[task_id.item()] = max(self._learner_steps - learner_steps.item(), 0)

    # Messages about waiting.

    def _watch(self) -> None:
        """Logs a line when neither env steps nor learner steps increase."""
        before, since, logged = (0, 0), time.monotonic(), False
        while not self._ending.wait(_PATIENCE_SECONDS / 10):
            if self._steps is None or not self._leads:
                since = time.monotonic()  # no run yet
                continue
            now = (self._env_steps, self._learner_steps)
            if now != before:
                before, since, logged = now, time.monotonic(), False
            elif not logged and time.monotonic() - since > _PATIENCE_SECONDS:
                logged = True
                doing = "" if self._iterating else "The learner evaluates or saves. "
                waited = time.monotonic() - since
                self._log(f"No progress for {waited:.0f} s. {doing}{self._who()}")

    def _who(self) -> str:
        """Describes the processes that the learner waits for, for the user; called in a thread."""
        with contextlib.suppress(Exception):  # `_of_tables` says that the server does not respond
            self._look_at_heartbeats()
        now, last = time.monotonic(), dict(self._heard)
        missing = self._missing()  # read last: who reports in between is in neither
        heard = [f"collector {i} {now - at:.0f} s ago" for i, at in sorted(last.items())]
        if not np.isnan(self._evaluator_heard):
            heard.append(f"evaluator {now - self._evaluator_heard:.0f} s ago")
        message = f"Last reports: {', '.join(heard) or 'none'}."
        return f"{missing}{message} {self._of_tables()}"

    def _missing(self) -> str:
        """Names the collectors that have not reported, or returns ""."""
        return self._none_of("report", set(self._heard))

    def _none_of(self, what: str, answered: set[int]) -> str:
        missing = sorted(set(range(self._num_collectors)) - answered)
        return f"No {what} of collectors {', '.join(map(str, missing))}. " if missing else ""

    def _look_at_heartbeats(self) -> None:
        """Reads the heartbeats while the main thread waits for experience."""
        if self._reading_heartbeats.acquire(timeout=_ANSWER_SECONDS):
            try:
                self._sample_reports(HEARTBEATS)
                self._note_heartbeats(self._new_reports(HEARTBEATS))
            finally:
                self._reading_heartbeats.release()

    def _of_tables(self) -> str:
        """Describes the table of experience at each server, and a lost server of parameters."""
        connections, name = self._experience
        several = len(connections) > 1
        described = [self._of_table(each, name, several) for each in connections]
        if self._variables.address not in {each.address for each in connections}:
            try:
                self._variables.client.server_info(timeout=_ANSWER_SECONDS)
            except Exception:  # noqa: BLE001  (Reverb's errors have no common base)
                described.append(_does_not_respond(self._variables))
        return " ".join(described)

    def _of_table(self, connection: Connection, name: str, several: bool) -> str:
        try:
            info = connection.client.server_info(timeout=_ANSWER_SECONDS)[name]
        except Exception:  # noqa: BLE001  (Reverb's errors have no common base)
            return _does_not_respond(connection)
        limiter, at = info.rate_limiter_info, f" at {connection.address}" if several else ""
        return (
            f"Table {name!r}{at}: {info.current_size:,} items, {limiter.insert_stats.completed:,} "
            f"inserted, {limiter.sample_stats.completed:,} sampled, "
            f"{limiter.samples_per_insert:g} samples per insert."
        )

    @property
    def _experience(self) -> tuple[list[Connection], str]:
        """The connections to the servers of experience, and the name of its table."""
        raise NotImplementedError

    @property
    def _connections(self) -> list[Connection]:
        """The connections to all servers."""
        return [self._variables]

    def _refuse_wait(self, missing: str) -> NoReturn:
        connections, name = self._experience
        addresses = ", ".join(connection.address for connection in connections)
        raise UnavailableError(
            f"The table {name!r} at {addresses}",
            expected=f"new experience within {self.wait_seconds:g} s",
            got=missing,
            remedy=f"{self._missing()}Start tfrl-collect with the same gin file and servers.",
        )


class ReplayCollectors(RemoteCollectors):
    """Collectors of an off-policy workflow; a replay server holds the experience."""

    def __init__(
        self,
        workflow: OffPolicyWorkflow,
        replay_server: str,
        variable_server: str | None = None,
        *,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
        stops: Callable[[], bool] = lambda: False,
    ):
        """Waits for the servers, then registers with a workflow.

        Args:
          workflow: The workflow that the learner trains; it no longer plays.
          replay_server: "host:port" of `bin/reverb_server.py --num_collectors=...`, or several,
            separated by commas.
          variable_server: "host:port" of the server of parameters and reports; None for the first
            replay server.
          wait_seconds: Seconds to wait for the servers and for experience.
          log: Takes lines for the user.
          stops: Returns whether this process must end.

        Raises:
          UserError: For a workflow that cannot be distributed, a server that does not answer in
            time, and a server that was started from another gin file.
        """
        replay = replay_at(workflow, replay_server, wait_seconds, log)
        first = replay.addresses[0]
        connection = parameters.connect(variable_server or first, wait_seconds, log)
        self._servers = [
            Connection(address, timeout=wait_seconds, reconnect_seconds=wait_seconds)
            for address in replay.addresses
        ]
        for server in self._servers:
            server.on_wait = self._end_if_asked
        self._table, self._block_size = replay.table().name, replay.block
        self._normalizes = normalizes(workflow)
        self._buffer: AnyReverbBuffer | None = None
        self._none: Nest = None  # statistics of zero observations
        self._means = (0.0, 0.0)  # of the last episodes: length and return
        self._looked = -np.inf
        workflow.replay = replay
        super().__init__(
            workflow,
            connection,
            wait_seconds=wait_seconds,
            log=log,
            stops=stops,
        )

    def begin(self, state: State) -> None:
        """Publishes the agent's state, and takes the counters of the run."""
        workflow = cast(OffPolicyWorkflow, self._workflow)
        buffer = cast(AnyReverbBuffer, workflow.replay_buffer(state))
        if self._group is not None:  # each worker sets the priorities of its own items
            buffer.new_priority = max(self._group.all_gather(float(buffer.new_priority)))
        buffer.connection.on_wait = self._end_if_asked
        if self._buffer is None and self._leads and not int(state.metrics.env_steps):
            self._check_first_steps()
        self._buffer = buffer
        super().begin(state)
        metrics = state.metrics
        self._means = (float(metrics.episode_length), float(metrics.episode_return))
        if self._normalizes and self._none is None:
            normalizer = struct.values(state.agent_state.normalizer)
            self._none = tf.nest.map_structure(tf.zeros_like, normalizer)

    def _check_first_steps(self) -> None:
        """Checks that the servers' experience is of this run, which has no checkpoint.

        A learner that is killed before its first checkpoint leaves experience of the same run.

        Raises:
          UserError: The experience is of a run that has ended.
        """
        inserted = self._block_size * sum(_inserts(info, self._table) for info in self._infos())
        if inserted and parameters.has_ended(self._variables):
            raise UserError(
                f"the table {self._table!r} at {', '.join(s.address for s in self._servers)}",
                expected="no experience of another run",
                got=f"{inserted:,} env steps of a run that has ended",
                remedy="Resume that run with its --root_dir, or restart the servers with empty "
                "ones.",
            )
        if inserted:
            self._log(
                f"Note: the replay servers already have {inserted:,} env steps of an earlier "
                "learner. They count for this run, which has no checkpoint."
            )

    def play(self, agent_state: Nest, *, waits: bool) -> Collected:
        """Returns the experience since the last call; see `Collectors.play`."""
        if self._is_due():
            self._publish(agent_state)
        played = self._played(waits)
        if self._group is not None:
            leaves = self._group.broadcast_arrays(tf.nest.flatten(played))
            played = tf.nest.pack_sequence_as(played, leaves)
        self._env_steps += int(played.env_steps)
        return played

    def _new_priority(self) -> float:
        return 1.0 if self._buffer is None else float(self._buffer.new_priority)

    def _played(self, waits: bool) -> Collected:
        """Returns the experience since the last call; none in workers other than the chief."""
        deadline, steps = time.monotonic() + self.wait_seconds, 0
        while self._leads and not (steps := self._new_steps()) and waits and not self._stops():
            if time.monotonic() > deadline:
                self._refuse_wait("no new experience")
            time.sleep(_WAIT_SECONDS)
        episodes = self._new_episodes() if steps else 0
        length, total = self._means
        return Collected(
            env_steps=np.asarray(steps, np.int64),
            episodes=np.asarray(episodes, np.int64),
            episode_return=np.asarray(total, np.float32),
            episode_length=np.asarray(length, np.float32),
            metrics=self._heartbeats(),
            obs_statistics=None if self._none is None else self._obs_statistics(steps),
        )

    def close(self) -> None:
        """Closes the connections."""
        super().close()
        for server in self._servers:
            server.close()

    def _new_steps(self) -> int:
        """Returns the env steps written since the last count.

        A server restored from its last checkpoint has fewer inserts than before; env steps that
        were counted stay counted. The buffers keep the counts in the learner's checkpoints.
        """
        counts = self._counts("env_steps")
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            infos = self._infos()
            self._looked = time.monotonic()
            if not any(count.total for count in counts):
                # Also after a checkpoint without counts.
                inserted = self._block_size * sum(_inserts(info, self._table) for info in infos)
                counts[0].lost = max(self._env_steps - inserted, 0)
            for count, info in zip(counts, infos, strict=True):
                count.look(info, self._table, self._block_size)
        return int(sum(count.total for count in counts) - self._env_steps)

    def _infos(self) -> list[dict[str, Any]]:
        """Returns the tables of each replay server."""
        return [server.server_info() for server in self._servers]

    def _counts(self, name: str) -> list[InsertCount]:
        """Returns the counts of each server; the buffers keep them."""
        shards = getattr(self._buffer, "shards", [self._buffer])
        return [shard.inserted[name] for shard in shards]

    def _new_episodes(self) -> int:
        """Returns the number of episodes reported since the last count, and takes their means.

        Counted like env steps. Where a learner before this one has read the reports, the means stay
        those of the last episodes.
        """
        if reports := self._reports(EPISODES):
            number, _, length, total = np.sum(reports, axis=0, dtype=np.float64)
            self._means = float(length / number), float(total / number)
        count = self._counts("episodes")[0]
        info = self._answers.get(EPISODES)
        if info is None:  # the server has not answered yet
            return 0
        if not count.total:  # also after a checkpoint without counts
            count.lost = max(self._episodes - _inserts(info, EPISODES), 0)
        count.look(info, EPISODES)
        episodes = count.total - self._episodes
        self._episodes += episodes
        return episodes

    def _obs_statistics(self, steps: int) -> Nest:
        """Returns the observation statistics since the last call."""
        merged = self._none
        for leaves in self._reports(STATISTICS) if steps else ():
            by_path = dict(zip(sorted(struct.paths(merged)), leaves, strict=True))
            leaves = [by_path[path] for path in struct.paths(merged)]
            merged = _merge(merged, tf.nest.pack_sequence_as(merged, leaves))
        return tf.nest.map_structure(np.asarray, merged)

    @property
    def _experience(self) -> tuple[list[Connection], str]:
        return self._servers, self._table

    @property
    def _connections(self) -> list[Connection]:
        return [self._variables, *self._servers]


# Compiled: TensorFlow keeps some bytes of each eager tensor for the life of the process.
_merge = tf.function(counted_separately(statistics.merge), autograph=False)


def _inserts(info: dict[str, Any], table: str) -> int:
    return int(info[table].rate_limiter_info.insert_stats.completed)


class RolloutCollectors(RemoteCollectors):
    """Collectors of an on-policy workflow; the learner takes each rollout once from a queue.

    A learner batch has one rollout of each collector if they are synchronous. Otherwise it has the
    same number of rollouts, in the order of their arrival.
    """

    def __init__(
        self,
        workflow: OnPolicyWorkflow,
        server: str,
        *,
        synchronous: bool | None = None,
        max_policy_lag: int | None = None,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
        stops: Callable[[], bool] = lambda: False,
    ):
        """Waits for the server, then registers with a workflow.

        Args:
          workflow: The workflow that the learner trains; it no longer plays.
          server: "host:port" of `bin/reverb_server.py --num_collectors=...`.
          synchronous: Whether collectors play one rollout for each publication of parameters, so
            that the policy lag is 0. None for True unless the agent corrects for a policy lag.
          max_policy_lag: The most learner steps between acting and learning; older rollouts, and
            those of policies that a restored learner has lost, are dropped and counted. None for no
            bound.
          wait_seconds: Seconds to wait for the server and for experience.
          log: Takes lines for the user.
          stops: Returns whether this process must end.

        Raises:
          UserError: For environments that the collectors do not divide, a server that does not
            answer in time, and a server that was started from another gin file.
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
        self._sources: set[tuple[int, int]] = set()  # request and collector of a batch's rollouts
        super().__init__(
            workflow,
            connection,
            wait_seconds=wait_seconds,
            log=log,
            stops=stops,
        )

    def begin(self, state: State) -> None:
        """See `RemoteCollectors`; starts a synchronous run's requests at a new number."""
        if self._synchronous and not self._request:
            self._request = max(self._of_all(time.time_ns()))
        if self._steps is None and self._leads and parameters.has_ended(self._variables):
            client = self._variables.client  # the queue may have rollouts of the ended run
            self._variables.guard(lambda: client.reset(ROLLOUTS), "emptying the queue")
        super().begin(state)

    def _is_due(self) -> bool:
        """False in a synchronous run, where `play` publishes with each request.

        Collectors would answer one of `begin`, and their rollouts would be dropped.
        """
        return not self._synchronous and super()._is_due()

    @property
    def _share(self) -> int:
        """The rollouts per batch of this process.

        Raises:
          UserError: The workers do not divide the collectors.
        """
        workers = 1 if self._group is None else self._group.num_workers
        if self._num_collectors % workers:
            raise UserError(
                f"{self._num_collectors} collectors",
                expected=f"a multiple of the learner's {workers} workers, which share the "
                "collectors",
                got=str(self._num_collectors),
                remedy="Change the number of collectors or workers.",
            )
        return self._num_collectors // workers

    def play(self, agent_state: Nest, *, waits: bool) -> CollectedRollouts:
        """Returns a batch of rollouts, `[T, B, ...]`, concatenated along B.

        Each of several workers gets its share of them.
        """
        del waits
        if self._synchronous:
            self._request = max(self._of_all(self._request)) + 1
        if self._leads:
            self._publish(agent_state)
        rollouts, lags = self._gather(agent_state)
        joined = [np.concatenate(leaves, axis=1) for leaves in zip(*rollouts, strict=True)]
        played = tf.nest.pack_sequence_as(self._form, joined)
        self._env_steps += sum(self._of_all(int(np.count_nonzero(played.valid))))
        metrics = {
            **self._heartbeats(),
            "dropped_rollouts": np.float32(sum(self._of_all(self._dropped))),
            "policy_lag": np.float32(np.mean(self._of_all(float(np.mean(lags))))),
        }
        self._dropped = 0
        return CollectedRollouts(trajectory=played, metrics=metrics)

    def _gather(self, agent_state: Nest) -> tuple[list[list[np.ndarray]], list[int]]:
        """Waits for this process's share of rollouts.

        A synchronous run takes one from each collector, in their order, so that it is repeatable: a
        restarted collector may send a second one.

        Args:
          agent_state: The state to publish again if the server restarts.

        Returns:
          The leaves of each rollout, and its policy lag.
        """
        steps, deadline = self._learner_steps, time.monotonic() + self.wait_seconds
        taken: list[tuple[int, list[np.ndarray], int]] = []  # collector, leaves, policy lag
        self._sources = sources = set()

        def request_again() -> None:
            """After a restart, which may have lost the parameters or rollouts."""
            nonlocal deadline
            self._dropped += len(taken)
            taken.clear()
            # Collectors answer the greatest request: the latest, if several workers ask again.
            self._request = max(self._request + 1, time.time_ns())
            self._publish(agent_state)
            deadline = time.monotonic() + self.wait_seconds

        on_reconnect = request_again if self._synchronous else None
        while len(taken) < self._share:
            item = self._next(deadline, on_reconnect)
            task_id, request = int(item.pop(TASK_ID)), int(item.pop(REQUEST))
            self._heard[task_id] = time.monotonic()
            lag = steps - int(item.pop(POLICY_VERSION))
            # A restored learner has fewer steps than the policies of the lost ones.
            within = self._max_policy_lag is None or 0 <= lag <= self._max_policy_lag
            # Another worker's request may be newer.
            late = request < self._request or (request, task_id) in sources
            if not within or (self._synchronous and late):
                self._dropped += 1
                continue
            sources.add((request, task_id))
            taken.append((task_id, [item[path] for path in self._leaves], max(lag, 0)))
        if self._synchronous:
            taken.sort(key=operator.itemgetter(0))
        return [leaves for _, leaves, _ in taken], [lag for *_, lag in taken]

    def _missing(self) -> str:
        """Synchronous collectors: names those that have not sent their rollout."""
        if not self._synchronous or self._group is not None:
            return super()._missing()
        sent = {task for request, task in set(self._sources) if request >= self._request}
        return self._none_of("rollout", sent)

    def blank(self) -> Trajectory:
        """Returns a batch of zeros with the shapes of `play`'s."""
        return tf.nest.map_structure(lambda x: tf.concat([x] * self._share, axis=1), self._form)

    def _of_all(self, value: Any) -> list[Any]:
        """Returns the values of all workers of the learner."""
        return [value] if self._group is None else self._group.all_gather(value)

    def _next(
        self, deadline: float, on_reconnect: Callable[[], None] | None
    ) -> dict[str, np.ndarray]:
        """Takes the oldest rollout from the queue; see `Connection.guard`.

        A rollout that a collector has sent again after a broken connection is taken once.
        """
        client = self._variables.client
        while True:
            try:
                (sample,) = self._variables.guard(
                    lambda: list(client.sample(ROLLOUTS, 1, emit_timesteps=False)),
                    "waiting for rollouts",
                    timeout=max(deadline - time.monotonic(), 1.0),
                    on_reconnect=on_reconnect,
                    may_wait=True,
                )
            except ServerSilentError:
                self._refuse_wait("no new experience")
            if self._duplicates.is_new(sample.info.key):
                return dict(zip(self._paths, sample.data, strict=True))

    @property
    def _experience(self) -> tuple[list[Connection], str]:
        return [self._variables], ROLLOUTS


def _does_not_respond(connection: Connection) -> str:
    return f"The server at {connection.address} does not respond."
