"""A collector: plays by the learner's parameters, and writes into the replay server."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.envs.host_env import HostEnv
from tfrl.ops import statistics
from tfrl.replay.reverb.connection import await_tables
from tfrl.roles import parameters
from tfrl.roles.tables import (
    EPISODES,
    HEARTBEATS,
    STATISTICS,
    agent_form,
    distributed_replay,
    normalizes,
)
from tfrl.types import Trajectory
from tfrl.workflows import OffPolicyWorkflow
from tfrl.workflows.collectors import POLICY_VERSION


class _EndedError(Exception):
    """The run has ended, or this collector is to stop, while it waited for the replay server."""


class Collector:
    """One of the processes that play.

    Attributes:
      env_steps: Steps that this one has played.
      episodes: Episodes that have ended in it.
    """

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
        """Waits for the servers and for the learner's first parameters.

        Args:
          workflow: What the gin file describes; its environments are played.
          replay_server: "host:port" of `bin/reverb_server.py --distributed`.
          variable_server: Likewise, for parameters and reports; None for the same.
          task_id: The number of this collector, from 0.
          num_tasks: How many there are; they share `random_steps`.
          seed: The run's; a collector's draws follow from it, from `task_id`, and from the learner
            steps at its start: one that was started again plays other episodes.
          pull_seconds: Between two readings of parameters, and between two reports.
          wait_seconds: How long to wait for others, at the start and where they are lost.
          log: Takes lines for the user.

        Raises:
          UserError: For a workflow without replay, and for others that are not there in time, or
            were started from another gin file.
        """
        replay = distributed_replay(workflow).replace(
            address=replay_server, timeout=wait_seconds, reconnect_seconds=wait_seconds
        )
        await_tables(replay, log)
        self._workflow, self._task_id = workflow, task_id
        self._random_steps = -(-workflow.random_steps // num_tasks)
        self._server = parameters.connect(variable_server or replay_server, wait_seconds, log)
        form = agent_form(workflow, seed)
        self._subscriber = parameters.Subscriber(
            self._server, form, pull_seconds=pull_seconds, wait_seconds=wait_seconds, log=log
        )
        self._buffer = replay.init()
        self._form, self._seen = form, form.normalizer
        self._normalizes = normalizes(workflow)
        self._report_seconds, self._told = pull_seconds, -np.inf
        begun = self._subscriber.newest().learner_steps
        root = seeding.streams(seeding.key(seed), ("collectors",))["collectors"]
        self._key = seeding.fold_in(seeding.fold_in(root, task_id), begun)
        self.env_steps = self.episodes = 0

    def run(self, stops: Callable[[], bool] = lambda: False) -> bool:
        """Plays until the run has ended, or until it is told to stop.

        Args:
          stops: Asked after every rollout, and while the replay server takes no more.

        Returns:
          Whether the run has ended.
        """

        def end() -> None:
            if stops() or self._subscriber.newest().finished:
                raise _EndedError

        self._buffer.on_wait = end
        try:
            self._play(end)
        except _EndedError:
            return self._subscriber.newest().finished

    def _play(self, end: Callable[[], None]) -> Any:
        workflow = self._workflow
        reset_key, key = tf.unstack(seeding.split(self._key, 2))
        env_state = workflow.env.reset(reset_key)
        make_carry = getattr(workflow.agent, "initial_carry", None)
        carry = make_carry(workflow.env.num_envs) if make_carry else None
        play, play_at_random = self._rollouts()
        iterations = 0
        while True:
            end()
            now = self._subscriber.newest()
            at_random = not now.learner_steps and self.env_steps < self._random_steps
            rollout = play_at_random if at_random else play
            rollout_key = seeding.fold_in(key, iterations)
            played, env_state, carry = rollout(now.agent_state, env_state, carry, rollout_key)
            self._write(played, now.learner_steps)
            iterations += 1

    def _rollouts(self) -> tuple[Any, Any]:
        """How a rollout is played, by the policy and at random."""
        workflow = self._workflow
        random = functools.partial(
            workflow.collect_trajectory, action_fn=workflow.agent.random_actions
        )
        if isinstance(workflow.env, HostEnv):
            return workflow.collect_trajectory, random
        compiled = functools.partial(tf.function, autograph=False)
        return compiled(workflow.collect_trajectory), compiled(random)

    def _write(self, played: Trajectory, learner_steps: int) -> None:
        valid = np.asarray(played.valid)
        version = np.full(valid.shape, learner_steps, np.int64)
        extras = {**(played.policy_extras or {}), POLICY_VERSION: version}
        self._buffer.add(played.replace(policy_extras=extras))
        self.env_steps += int(np.count_nonzero(valid))
        ended = (np.asarray(played.termination) | np.asarray(played.truncation)) & valid
        if ended.any():
            self._report_episodes(played, ended)
        if self._normalizes:
            self._seen = self._with_rows(self._seen, played.obs, played.valid)
        if time.monotonic() - self._told >= self._report_seconds:
            self._report(HEARTBEATS, [np.int64(self.env_steps), np.int32(self._task_id)])
            self._report_statistics()
            self._told = time.monotonic()

    @functools.cached_property
    def _with_rows(self) -> Any:
        return tf.function(
            lambda seen, obs, valid: statistics.update(seen, obs, mask=valid), autograph=False
        )

    def _report_episodes(self, played: Trajectory, ended: np.ndarray) -> None:
        """Tells the learner of episodes that have ended."""
        extras = played.env_extras or {}
        for t, b in np.argwhere(ended):
            self.episodes += 1
            length, total = (
                np.float32(np.asarray(extras[name])[t, b])
                for name in ("episode_length", "episode_return")
            )
            self._report(EPISODES, [length, total, np.int32(self._task_id)])

    def _report_statistics(self) -> None:
        """Tells the learner of the observations since the last time."""
        if self._normalizes:
            self._report(STATISTICS, [x.numpy() for x in tf.nest.flatten(self._seen)])
            self._seen = self._form.normalizer

    def _report(self, table: str, row: list[Any]) -> None:
        insert = functools.partial(self._server.client.insert, row, {table: 1.0})
        self._server.guard(insert, f"a report of {table}")

    def close(self) -> None:
        """Sends what there is, and ends the connections and environments."""
        try:
            self._buffer.close()
        finally:
            self._subscriber.close()
            self._server.close()
            self._workflow.close()
