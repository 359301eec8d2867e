"""A collector: acts by the learner's parameters and writes its experience to a Reverb server."""

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UnavailableError, UserError
from tfrl.ops import statistics
from tfrl.replay.reverb.cancellable_call import leave_behind, within
from tfrl.replay.reverb.connection import Connection
from tfrl.replay.reverb.library import reverb
from tfrl.roles import parameters
from tfrl.roles.parameters import Published
from tfrl.roles.tables import (
    EPISODES,
    HEARTBEATS,
    REQUEST,
    ROLLOUTS,
    STATISTICS,
    TASK_ID,
    agent_form,
    check_rollouts,
    check_settings,
    collector_env,
    normalizes,
    replay_at,
    rollout_form,
)
from tfrl.types import Trajectory
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow
from tfrl.workflows.collectors import POLICY_VERSION
from tfrl.workflows.learner_workflow import LearnerWorkflow

# Seconds between two polls for new parameters.
_LOOK_SECONDS = 0.002
# Milliseconds between two checks for the end of the run, while the queue of rollouts is full.
_SLICE_MS = 200
_FLUSH_MS = 10_000
_MOST_UNSENT = 40  # above 50 unconfirmed items of a writer Reverb prints warnings
_CLOSE_SECONDS = 5.0
# Seconds of a wait for the learner before a log line.
_TELL_SECONDS = 10.0


class _EndedError(Exception):
    """The run has ended or this collector must stop, while it waits for the replay server."""


class Collector:
    """A process that plays.

    Attributes:
      env_steps: Steps that this collector has played.
      episodes: Episodes that have ended in this collector.
    """

    def __init__(
        self,
        workflow: LearnerWorkflow,
        connection: Connection,
        *,
        task_id: int,
        num_tasks: int,
        seed: int,
        pull_seconds: float,
        wait_seconds: float,
        log: Callable[[str], None],
    ):
        """Waits for the learner's first parameters.

        Args:
          workflow: The workflow of the gin file; the collector plays its environments.
          connection: The connection to the server of parameters and reports.
          task_id: The number of this collector, from 0.
          num_tasks: The number of collectors.
          seed: The run's seed. A collector's draws follow from it, from `task_id`, and from the
            run's env steps at its start, as the learner has counted and published them: a
            collector that is restarted after a publication plays other episodes.
          pull_seconds: Seconds between two reads of parameters, and between two reports.
          wait_seconds: Seconds to wait for other processes, at the start and when they are lost.
          log: Takes lines for the user.

        Raises:
          UserError: If other processes time out, or were started from another gin file.
        """
        self.workflow, self.task_id, self.num_tasks = workflow, task_id, num_tasks
        self.env = collector_env(workflow, num_tasks)
        self._player = copy.copy(workflow)
        self._player.replica_env = self.env
        for env in (workflow.env, workflow.eval_env):
            if isinstance(env, HostEnv) and env is not self.env:
                env.close()  # it plays only its own, and does not evaluate
        self.connection = connection
        check_settings(connection.address, connection.server_info(), workflow, num_tasks)
        self.form = agent_form(workflow, seed)
        self.parameters = parameters.Subscriber(
            connection, self.form, pull_seconds=pull_seconds, wait_seconds=wait_seconds, log=log
        )
        self._report_seconds, self._last_report = pull_seconds, -np.inf
        self._wait_seconds, self._log = wait_seconds, log
        # The current wait for the learner: its start, whether a line was logged, and the
        # parameters and outages of the server, whose change starts it anew.
        self._waits_since, self._logged, self._waits_with = 0.0, False, (None, 0)
        begun = self.parameters.newest().env_steps
        root = seeding.streams(seeding.key(seed), ("collectors",))["collectors"]
        self._key = seeding.fold_in(seeding.fold_in(root, task_id), begun)
        self.env_steps = self.episodes = 0
        self._stops: Callable[[], bool] = lambda: False
        self._reporters: dict[str, Any] = {}
        self._unsent = 0  # items of reports
        # An agent may make collectors differ, as in Ape-X.
        own = getattr(workflow.agent, "collector_state", None)
        self._own: Callable[..., Any] = own or (lambda state, *_: state)

    def run(self, stops: Callable[[], bool] = lambda: False) -> bool:
        """Plays until the run has ended or `stops` returns True.

        Args:
          stops: Called after every rollout, and while a server accepts no items.

        Returns:
          Whether the run has ended.
        """
        self._stops = stops
        self.connection.on_wait = self.end_if_asked
        try:
            self._play()
        except _EndedError:
            return self.parameters.finished

    def close(self) -> None:
        """Closes the connections and environments."""
        if self.connection.lost:
            leave_behind(self._reporters)
        else:
            for writer in self._reporters.values():
                writer.close()  # drops items that wait for a full queue
        self.parameters.close()
        self.connection.close()
        if isinstance(self.env, HostEnv):
            self.env.close()
        self.workflow.close()

    def end_if_asked(self) -> None:
        """Raises `_EndedError`, which ends `run`, if the run has ended or it must stop."""
        if self._stops() or self.parameters.newest().finished:
            raise _EndedError

    def _end(self) -> NoReturn:
        """In place of `end_if_asked` once `run` has ended: waits for no server."""
        raise _EndedError

    def report(self, table: str, row: Mapping[str, Any], items: int = 1) -> None:
        """Writes a report to its table, in the background.

        Args:
          table: The table's name.
          row: The report.
          items: How many items of the table have this row: each costs a fifth of another row.
        """
        if table not in self._reporters:
            open_writer = functools.partial(
                self.connection.client.trajectory_writer, num_keep_alive_refs=1
            )
            self._reporters[table] = self.connection.guard(open_writer, f"reports of {table}")
        writer = self._reporters[table]
        writer.append(row)
        history = writer.history
        columns = {name: history[name][-1] for name in row}
        for _ in range(items):
            writer.create_item(table, 1.0, columns)
            self._unsent += 1
            if self._unsent == _MOST_UNSENT:
                self._send_reports()

    def _send_reports(self) -> None:
        """Sends the reports; if the server does not answer, the next call sends them."""
        self._unsent = 0
        for table, writer in self._reporters.items():
            flush = functools.partial(writer.flush, timeout_ms=_FLUSH_MS)
            with contextlib.suppress(reverb().errors.DeadlineExceededError):
                self.connection.guard(flush, f"reports of {table}")

    def _send_last_reports(self) -> None:
        """Sends the reports; does not wait for a lost server."""
        if self.connection.lost:
            return
        self.connection.on_wait = self._end
        with contextlib.suppress(UserError, _EndedError):
            self.report_more()
            within(_CLOSE_SECONDS, self._send_reports, self.connection.address, "the last reports")

    def _begin_wait(self) -> None:
        self._waits_since, self._logged = time.monotonic(), False

    def _check_wait(self) -> None:
        """Called repeatedly while the learner takes no experience or requests none.

        Raises:
          UnavailableError: It has published nothing new for `wait_seconds` either.
        """
        self.end_if_asked()
        now: Any = (self.parameters.newest(), self.connection.reconnections)
        if now[0] is not self._waits_with[0] or now[1] != self._waits_with[1]:
            self._waits_with = now
            self._waits_since = time.monotonic()
        waited = time.monotonic() - self._waits_since
        if waited > self._wait_seconds:
            raise UnavailableError(
                f"The learner of the server at {self.connection.address}",
                expected=f"one that takes experience within {self._wait_seconds:g} s",
                got="no sign of it",
                remedy="Start tfrl-learn with the same gin file and servers.",
            )
        if waited > _TELL_SECONDS and not self._logged:
            self._logged = True
            self._log(
                f"Collector {self.task_id} waits up to {self._wait_seconds:g} s for the learner, "
                "which takes no experience."
            )

    # For subclasses.

    def acts_at_random(self, now: Published) -> bool:
        """Whether the next rollout has random actions."""
        return False

    def next_parameters(self) -> Published:
        """Returns the parameters for the next rollout."""
        return self.parameters.newest()

    def write(self, played: Trajectory, acted_by: Published) -> None:
        """Sends a rollout."""
        raise NotImplementedError

    def report_more(self) -> None:
        """Called with each heartbeat, for a subclass to report more."""

    def _play(self) -> NoReturn:
        workflow, env = self.workflow, self.env
        reset_key, key = tf.unstack(seeding.split(self._key, 2))
        env_state = env.reset(reset_key)
        make_carry = getattr(workflow.agent, "initial_carry", None)
        carry = make_carry(env.num_envs) if make_carry else None
        play, play_at_random = self._rollouts()
        iterations = 0
        while True:
            self.end_if_asked()
            now = self.next_parameters()
            agent_state = self._own(now.agent_state, self.task_id, self.num_tasks)
            rollout = play_at_random if self.acts_at_random(now) else play
            rollout_key = seeding.fold_in(key, iterations)
            played, env_state, carry = rollout(agent_state, env_state, carry, rollout_key)
            self.write(played, now)
            valid = np.asarray(played.valid)
            ended = (np.asarray(played.termination) | np.asarray(played.truncation)) & valid
            self.env_steps += int(np.count_nonzero(valid))
            self.episodes += int(np.count_nonzero(ended))
            if time.monotonic() - self._last_report >= self._report_seconds:
                heartbeat = {
                    "env_steps": np.int64(self.env_steps),
                    "learner_steps": np.int64(now.learner_steps),
                    "task_id": np.int32(self.task_id),
                }
                self.report(HEARTBEATS, heartbeat)
                self.report_more()
                self._send_reports()
                self._last_report = time.monotonic()
            iterations += 1

    def _rollouts(self) -> tuple[Any, Any]:
        """Returns the functions that play a rollout, by the policy and at random."""
        collect = self._player.collect_trajectory
        # On-policy agents need not be subclasses of `Agent`.
        random = functools.partial(
            collect, action_fn=getattr(self.workflow.agent, "random_actions", None)
        )
        if isinstance(self.env, HostEnv):
            return collect, random
        compiled = functools.partial(tf.function, autograph=False)
        return compiled(collect), compiled(random)


class ReplayCollector(Collector):
    """A collector that writes items to a replay server."""

    workflow: OffPolicyWorkflow

    def __init__(
        self,
        workflow: OffPolicyWorkflow,
        replay_server: str,
        variable_server: str | None = None,
        *,
        task_id: int = 0,
        num_tasks: int = 1,
        seed: int = 0,
        pull_seconds: float = 0.2,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
    ):
        """Waits for the servers and for the learner's first parameters; see `Collector`.

        Args:
          workflow: See `Collector`.
          replay_server: "host:port" of `bin/reverb_server.py --num_collectors=...`, or several,
            separated by commas.
          variable_server: "host:port" of the server of parameters and reports; None for the first
            replay server.
          task_id: See `Collector`.
          num_tasks: See `Collector`; the collectors share `random_steps`.
          seed: See `Collector`.
          pull_seconds: See `Collector`.
          wait_seconds: See `Collector`.
          log: See `Collector`.

        Raises:
          UserError: See `Collector`.
        """
        replay = replay_at(workflow, replay_server, wait_seconds, log)
        super().__init__(
            workflow,
            parameters.connect(variable_server or replay.addresses[0], wait_seconds, log),
            task_id=task_id,
            num_tasks=num_tasks,
            seed=seed,
            pull_seconds=pull_seconds,
            wait_seconds=wait_seconds,
            log=log,
        )
        self._random_steps = -(-workflow.random_steps // num_tasks)
        self._buffer = replay.init()
        self._buffer.on_wait = self._check_wait
        self._buffer.connection.on_wait = self.end_if_asked
        self._normalizes = normalizes(workflow)
        # Since the last report.
        self._ended: list[tuple[np.ndarray, np.ndarray]] = []  # lengths and returns
        self._played: list[Trajectory] = []  # for observation statistics
        self._statistics_of = tf.function(
            lambda obs, valid: statistics.update(self.form.normalizer, obs, mask=valid),
            autograph=False,
            reduce_retracing=True,  # for any number of steps
        )

    def acts_at_random(self, now: Published) -> bool:
        """Whether the next rollout is among the first `random_steps` of the run."""
        return not now.learner_steps and self.env_steps < self._random_steps

    def write(self, played: Trajectory, acted_by: Published) -> None:
        """Writes the items of a rollout; waits while the rate limiter takes none."""
        self._begin_wait()
        self._buffer.new_priority = acted_by.new_priority
        valid = np.asarray(played.valid)
        version = np.full(valid.shape, acted_by.learner_steps, np.int64)
        extras = {**(played.policy_extras or {}), POLICY_VERSION: version}
        self._buffer.add(played.replace(policy_extras=extras))
        ended = (np.asarray(played.termination) | np.asarray(played.truncation)) & valid
        if ended.any():
            infos = played.env_extras or {}
            lengths, returns = (infos[name] for name in ("episode_length", "episode_return"))
            self._ended.append((np.asarray(lengths)[ended], np.asarray(returns)[ended]))
        if self._normalizes:
            self._played.append(played)

    def report_more(self) -> None:
        """Reports the episodes and the observation statistics since the last report."""
        if self._ended:
            lengths, returns = map(np.concatenate, zip(*self._ended, strict=True))
            self._ended = []
            row = {
                "episodes": np.int32(1),
                "task_id": np.int32(self.task_id),
                "total_length": np.float32(lengths.mean()),
                "total_return": np.float32(returns.mean()),
            }
            self.report(EPISODES, row, items=len(lengths))
        if self._played:
            rollouts, self._played = self._played, []
            obs = tf.nest.map_structure(lambda *x: np.concatenate(x), *[r.obs for r in rollouts])
            valid = np.concatenate([r.valid for r in rollouts])
            obs_statistics = self._statistics_of(obs, valid)
            self.report(STATISTICS, {p: x.numpy() for p, x in struct.paths(obs_statistics).items()})

    def close(self) -> None:
        """Sends the pending items, then closes the connections and environments.

        Waits for no server that does not answer: the items that it has not confirmed are lost.
        """
        try:
            self._buffer.on_wait = None
            self._buffer.connection.on_wait = self._end
            with contextlib.suppress(_EndedError):
                self._buffer.close()
            self._send_last_reports()
        finally:
            super().close()


class RolloutCollector(Collector):
    """A collector that sends whole rollouts to an on-policy learner."""

    workflow: OnPolicyWorkflow

    def __init__(
        self,
        workflow: OnPolicyWorkflow,
        server: str,
        *,
        task_id: int = 0,
        num_tasks: int = 1,
        seed: int = 0,
        pull_seconds: float = 0.2,
        wait_seconds: float = 600.0,
        log: Callable[[str], None] = print,
    ):
        """Waits for the server and for the learner's first parameters; see `Collector`.

        Args:
          workflow: See `Collector`.
          server: "host:port" of `bin/reverb_server.py --num_collectors=...`.
          task_id: See `Collector`.
          num_tasks: See `Collector`; the collectors share the environments.
          seed: See `Collector`.
          pull_seconds: See `Collector`.
          wait_seconds: See `Collector`.
          log: See `Collector`.

        Raises:
          UserError: See `Collector`.
        """
        super().__init__(
            workflow,
            parameters.connect(server, wait_seconds, log),
            task_id=task_id,
            num_tasks=num_tasks,
            seed=seed,
            pull_seconds=pull_seconds,
            wait_seconds=wait_seconds,
            log=log,
        )
        form = rollout_form(workflow, num_tasks)
        check_rollouts(server, self.connection.server_info(), form, num_tasks)
        self._last_request = 0

    def next_parameters(self) -> Published:
        """Returns the newest parameters; with a synchronous learner, waits for its next request."""
        newest = self.parameters.newest()
        if not newest.request:  # reads again: parameters may be learner steps old already
            return self.parameters.refresh(self.end_if_asked)
        now: Published | None = newest
        self._begin_wait()
        while now is None or 0 < now.request <= self._last_request:
            self._check_wait()
            now = self.parameters.pull()
            if now is None:
                time.sleep(_LOOK_SECONDS)
        self._last_request = now.request
        return now

    def write(self, played: Trajectory, acted_by: Published) -> None:
        """Appends a rollout to the queue; waits while the queue is full."""
        row = {
            **{path: np.asarray(x) for path, x in struct.paths(played).items()},
            POLICY_VERSION: np.int64(acted_by.learner_steps),
            REQUEST: np.int64(acted_by.request),
            TASK_ID: np.int32(self.task_id),
        }
        self.report(ROLLOUTS, row)
        self._begin_wait()
        flush = functools.partial(self._reporters[ROLLOUTS].flush, timeout_ms=_SLICE_MS)
        while True:
            try:
                self.connection.guard(flush, "sending a rollout")
                break
            except reverb().errors.DeadlineExceededError:
                self._check_wait()
        self._unsent = 0
