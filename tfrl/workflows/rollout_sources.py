"""Sources of the rollouts of a workflow: the device, the host, or collectors.

A `RolloutSource` has the differences between the three, for the iteration of a `LearnerWorkflow`
and for the host's runner. It has no state of its own: environments and collectors belong to the
workflow.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.envs.host_env import HostEnv
from tfrl.rollout.acting import HostPolicy, policy_for
from tfrl.rollout.host import blank_trajectory
from tfrl.types import EnvState, Nest, Trajectory
from tfrl.workflows.collectors import Collected, Collectors
from tfrl.workflows.rollout_result import RolloutResult, merge_results
from tfrl.workflows.run_state import State
from tfrl.workflows.stages import CompiledStage, Stages

if TYPE_CHECKING:
    from tfrl.workflows.learner_workflow import LearnerWorkflow


class RolloutSource(abc.ABC):
    """The source of a workflow's rollouts.

    Attributes:
      in_python: Whether Python runs each rollout, and one compiled call follows it.
      rollout_modes: Compile modes of the stage "rollout" beside the usual ones.
      wait_seconds: How long a rollout may wait for other processes.
    """

    in_python = True
    rollout_modes: tuple[str, ...] = ()
    wait_seconds = 0.0

    def __init__(self, workflow: LearnerWorkflow):
        """Takes the workflow, which has the environments."""
        self._workflow = workflow

    def reset(self, key: tf.Tensor) -> tuple[EnvState, Nest]:
        """Starts the episodes of a replica; returns the environments' and the recurrent state."""
        env, agent = self._workflow.replica_env, self._workflow.agent
        env_state = env.reset(key)
        make_carry = getattr(agent, "initial_carry", None)
        return env_state, make_carry(env.num_envs) if make_carry else None

    def close(self) -> None:
        """Closes environments and connections."""
        return

    # A rollout from Python, for the host's runner.

    @abc.abstractmethod
    def rollout(self, run_stages: Stages) -> Callable[..., Any]:
        """Returns `play(agent_state, env_state, carry, key)`.

        Args:
          run_stages: The stages of the phase, which says whether the actions are random.

        Returns:
          A function that returns the experience, the environments' state and the recurrent state.
        """

    def policies(self, *, random: bool) -> list[HostPolicy]:
        """Returns the policies that act outside the graph, one for each half of the environments.

        Args:
          random: Whether the actions are random.
        """
        return []

    def env_steps(self, played: Nest) -> int:
        """Returns the env steps of the experience that `play` returned, in all processes."""
        workflow = self._workflow
        if workflow.all_rows_valid:
            return workflow.steps_per_iteration
        steps, group = int(np.count_nonzero(played.valid)), workflow.worker_group
        return steps if group is None else int(sum(group.all_gather(steps)))

    def result(self, state: State, played: Nest) -> RolloutResult:
        """Returns the result of a rollout; traced.

        Args:
          state: Before the iteration.
          played: The experience that `play` returned: `[T, B, ...]` of this process' replicas, one
            behind the other.
        """
        workflow = self._workflow
        replicas, agent_state = workflow.replicas, state.agent_state
        process = workflow.compiled_process_rollout
        if not replicas.several:
            return process(struct.values(agent_state), played)
        share = workflow.replica_env.num_envs

        def own(trajectory: Trajectory) -> RolloutResult:
            start = replicas.local_index() * share
            rows = tf.nest.map_structure(lambda x: x[:, start : start + share], trajectory)
            values = struct.values(agent_state)
            out = process(values, rows)
            before, fields = workflow.normalizer(values), workflow.env.info_fields
            return merge_results(replicas, out, before, None, fields)

        out = replicas.run(own, played)
        common = replicas.any_replica(out.replace(batch=None))
        return common.replace(batch=out.batch)

    def _collect(self, random: bool) -> Callable[..., Any]:
        workflow = self._workflow
        action_fn = workflow.agent.random_actions if random else None
        return functools.partial(workflow.collect_trajectory, action_fn=action_fn)

    # How the rollout is compiled.

    def blank(self, state: State) -> Trajectory:
        """Returns a trajectory of zeros to time the update on, where Python plays."""
        raise NotImplementedError

    def timed_stage(self, run_stages: Stages) -> CompiledStage:
        """Returns the stage "rollout" for `Trials`; not timed where Python plays."""
        return run_stages.stage("rollout", self._workflow.collect)

    def acting_mode_chooser(self, state: State) -> Callable[[str], str] | None:
        """Returns `choose(asked)`, which settles how the policy is called; None for a stage."""
        return None


class DeviceSource(RolloutSource):
    """Environments stepped in a graph: a rollout is a compiled stage on every replica."""

    in_python = False

    def reset(self, key: tf.Tensor) -> tuple[EnvState, Nest]:
        """Starts the episodes of a replica; see `RolloutSource.reset`."""
        env_state, carry = super().reset(key)
        return tf.nest.map_structure(tf.convert_to_tensor, env_state), carry

    def rollout(self, run_stages: Stages) -> Callable[..., Any]:
        """Returns the compiled rollout, for a run whose experience goes to Reverb."""
        stage = self._stage(run_stages, random=run_stages.phase.random)
        if not self._workflow.replicas.several:
            return stage
        # A compiled function takes no distributed variables.
        return lambda agent_state, *rest: stage(struct.values(agent_state), *rest)

    def _stage(self, run_stages: Stages, *, random: bool) -> CompiledStage:
        name, collect = "rollout/random" if random else "rollout", self._collect(random)
        if not self._workflow.replicas.several:
            return run_stages.stage(name, collect)
        one = CompiledStage("rollout", collect)
        graph, xla = (functools.partial(self._play_on_all, one, m) for m in ("graph", "xla"))
        return run_stages.stage(name, graph, xla)

    def _play_on_all(
        self,
        stage: CompiledStage,
        mode: str,
        values: Nest,
        env_state: Nest,
        carry: Nest,
        key: tf.Tensor,
    ) -> tuple[Trajectory, Nest, Nest]:
        """Plays on every replica; returns the steps of this process' replicas, [T, B, ...]."""
        replicas = self._workflow.replicas

        def own(values: Nest, env_state: Nest, carry: Nest, key: tf.Tensor) -> Any:
            key = seeding.fold_in(key, replicas.index())
            played, after, carry = stage.compiled(mode)(values, env_state, carry, key)
            return played, merge_over_replicas(replicas, env_state, after), carry

        played, env_state, carry = replicas.run(own, values, env_state, carry, key)
        parts = replicas.per_replica(played)
        return tf.nest.map_structure(lambda *xs: tf.concat(xs, 1), *parts), env_state, carry

    def timed_stage(self, run_stages: Stages) -> CompiledStage:
        """Returns the stage of the run: the first function of a name is the run's, too."""
        workflow = self._workflow
        if workflow.loops_in_python:
            return self._stage(run_stages, random=False)
        return run_stages.stage(*workflow.named_rollout())


class HostSource(RolloutSource):
    """Environments on the host: Python steps them, and only the policy is compiled."""

    rollout_modes = ("numpy",)

    @property
    def _env(self) -> HostEnv:
        return cast(HostEnv, self._workflow.env)

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def rollout(self, run_stages: Stages) -> Callable[..., Any]:
        """Returns the rollout in Python; see `RolloutSource.rollout`."""
        return self._collect(run_stages.phase.random)

    def policies(self, *, random: bool) -> list[HostPolicy]:
        """Returns the policies of the environments; see `RolloutSource.policies`."""
        agent = self._workflow.agent
        act = agent.random_actions if random else agent.compute_actions
        return [policy_for(half, agent, act) for half in self._env.halves]

    def blank(self, state: State) -> Trajectory:
        """Returns a trajectory of zeros: host environments cannot be stepped on trial."""
        workflow = self._workflow
        return blank_trajectory(
            self._env,
            workflow.agent,
            state.env_state,
            struct.values(state.agent_state),
            workflow.rollout_length,
            workflow.rollout_fields(state.env_state),
        )

    def acting_mode_chooser(self, state: State) -> Callable[[str], str]:
        """Returns `choose(asked)`: sets the mode of every half's policy; "auto" is the faster."""

        def choose(asked: str) -> str:
            policies = self.policies(random=False)
            policy = policies[0]
            policy.mode = None if asked == "auto" else asked
            env_state = self._env.states_of(state.env_state)[0]
            carry = None if state.carry is None else policy.fresh_carry()
            policy.begin(struct.values(state.agent_state), state.key, 4, env_state.obs, carry)
            for other in policies:
                other.mode = policy.mode
            return str(policy.mode)

        return choose


class CollectorSource(RolloutSource):
    """Collectors in other processes: this process receives their trajectories or their counts."""

    def __init__(self, workflow: LearnerWorkflow, collectors: Collectors):
        """Takes the workflow and its collectors."""
        super().__init__(workflow)
        self._collectors = collectors
        self.wait_seconds = collectors.wait_seconds

    def close(self) -> None:
        """Closes the connections to collectors."""
        self._collectors.close()

    def rollout(self, run_stages: Stages) -> Callable[..., Any]:
        """Returns a function that receives the collectors' experience."""
        waits = not run_stages.phase.learns

        def play(agent_state: Nest, env_state: Nest, carry: Nest, key: tf.Tensor) -> Any:
            return self._collectors.play(agent_state, waits=waits), env_state, carry

        return play

    def env_steps(self, played: Nest) -> int:
        """Returns the env steps of all collectors since the last rollout."""
        if isinstance(played, Collected):
            return int(played.env_steps)
        return super().env_steps(played.trajectory)

    def result(self, state: State, played: Nest) -> RolloutResult:
        """Returns the result with the collectors' metrics; see `RolloutSource.result`."""
        if isinstance(played, Collected):
            normalizer = self._workflow.normalizer(state.agent_state)
            return played.as_result(struct.values(normalizer))
        result = super().result(state, played.trajectory)
        return result.replace(metrics={**result.metrics, **played.metrics})

    def blank(self, state: State) -> Trajectory:
        """Returns trajectories of zeros of all collectors, [T, B, ...]."""
        return self._collectors.blank()

    def acting_mode_chooser(self, state: State) -> Callable[[str], str]:
        """Returns a function that returns "graph": this process does not act."""
        return lambda asked: "graph"
