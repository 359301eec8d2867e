"""Sources of the rollouts of a workflow: the device, the host, or collectors.

A source implements the differences between the three, for the iteration of a `LearnerWorkflow` and
for the runner of the host loop. It has no state: the workflow has the environments and collectors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.envs.host_env import HostEnv
from tfrl.rollout.acting import policy_for
from tfrl.rollout.host import blank_trajectory
from tfrl.types import EnvState, Nest, Trajectory
from tfrl.workflows.collectors import Collected, Collectors
from tfrl.workflows.rollout_result import RolloutResult
from tfrl.workflows.run_state import State
from tfrl.workflows.stages import CompiledStage, Stages

if TYPE_CHECKING:
    from tfrl.workflows.learner_workflow import LearnerWorkflow


class DeviceSource:
    """Environments on the device: a rollout is a compiled stage, on every replica.

    Attributes:
      in_python: Whether Python runs each rollout, and one compiled call follows it.
      rollout_modes: Additional compile modes of the stage "rollout".
      wait_seconds: Maximum seconds that a rollout waits for other processes.
    """

    in_python = False
    rollout_modes: tuple[str, ...] = ()
    wait_seconds = 0.0

    def __init__(self, workflow: LearnerWorkflow):
        """Takes the workflow, which has the environments."""
        self._workflow = workflow

    def reset(self, key: tf.Tensor) -> tuple[EnvState, Nest]:
        """Starts a replica's episodes; returns the environments' state and the recurrent state."""
        env, agent = self._workflow.replica_env, self._workflow.agent
        env_state = env.reset(key)
        make_carry = getattr(agent, "initial_carry", None)
        carry = make_carry(env.num_envs) if make_carry else None
        return self._as_leaves(env_state), carry

    def _as_leaves(self, env_state: EnvState) -> EnvState:
        return tf.nest.map_structure(tf.convert_to_tensor, env_state)  # type: ignore[no-any-return]

    def begin_call(self, state: State) -> None:
        """Called with the state before each call of several iterations."""

    def close(self) -> None:
        """Closes the environments or connections."""

    # A rollout from Python, for `HostRunner`.

    def rollout(self, run_stages: Stages, *, random: bool) -> Callable[..., Any]:
        """Returns `play(agent_state, env_state, carry, key)`, which returns a rollout.

        Args:
          run_stages: The stages of the phase.
          random: Whether the actions are random.

        Returns:
          A function that returns the rollout, the environments' state and the recurrent state.
        """
        workflow, name = self._workflow, "rollout/random" if random else "rollout"
        collect = self._collect(random)
        if not workflow.replicas.several:
            return run_stages.stage(name, collect)
        one = CompiledStage("rollout", collect)
        graph, xla = (functools.partial(self._play_on_all, one, m) for m in ("graph", "xla"))
        return run_stages.stage(name, graph, xla)

    def _collect(self, random: bool) -> Callable[..., Any]:
        workflow = self._workflow
        action_fn = workflow.agent.random_actions if random else None
        return functools.partial(workflow.collect_trajectory, action_fn=action_fn)

    def _play_on_all(
        self,
        stage: CompiledStage,
        mode: str,
        values: Nest,
        env_state: Nest,
        carry: Nest,
        key: tf.Tensor,
    ) -> tuple[Trajectory, Nest, Nest]:
        """Rolls out on every replica and returns the steps of all replicas, [T, B, ...]."""
        replicas = self._workflow.replicas

        def own(values: Nest, env_state: Nest, carry: Nest, key: tf.Tensor) -> Any:
            key = seeding.fold_in(key, replicas.index())
            played, after, carry = stage.compiled(mode)(values, env_state, carry, key)
            return played, merge_over_replicas(replicas, env_state, after), carry

        played, env_state, carry = replicas.run(own, values, env_state, carry, key)
        parts = replicas.per_replica(played)
        return tf.nest.map_structure(lambda *xs: tf.concat(xs, 1), *parts), env_state, carry

    def env_steps(self, played: Nest) -> int:
        """Returns the env steps of the result of `rollout`, including other processes' steps."""
        return self._count(played)

    def _count(self, trajectory: Trajectory) -> int:
        workflow = self._workflow
        if workflow.all_rows_valid:
            return workflow.steps_per_iteration
        steps, group = int(np.count_nonzero(trajectory.valid)), workflow.worker_group
        return steps if group is None else int(sum(group.all_gather(steps)))

    def result(self, state: State, played: Nest) -> RolloutResult:
        """Returns the processed result of `rollout`; traced.

        Args:
          state: Before the iteration.
          played: With several replicas, the concatenated rows of this process' replicas.
        """
        return self._processed(state, played)

    def _processed(self, state: State, trajectory: Trajectory) -> RolloutResult:
        workflow = self._workflow
        replicas, agent_state = workflow.replicas, state.agent_state
        process = workflow.compiled_process_rollout
        if not replicas.several:
            return process(struct.values(agent_state), trajectory)  # type: ignore[no-any-return]
        share = workflow.replica_env.num_envs

        def own(trajectory: Trajectory) -> RolloutResult:
            start = replicas.local_index() * share
            rows = tf.nest.map_structure(lambda x: x[:, start : start + share], trajectory)
            values = struct.values(agent_state)
            out = process(values, rows)
            return workflow.merged(out, workflow.normalizer(values), None)

        out = replicas.run(own, trajectory)
        common = replicas.any_replica(out.replace(batch=None))
        return common.replace(batch=out.batch)  # type: ignore[no-any-return]

    # How the rollout is compiled.

    def blank(self, state: State) -> Trajectory:
        """Returns a trajectory of zeros, for stages to be timed on."""
        raise NotImplementedError("rollouts on the device are tried as they are")

    def trial(self, run_stages: Stages) -> CompiledStage:
        """Returns the rollout's stage, to be timed."""
        workflow = self._workflow
        if workflow.loops_on_host:
            return run_stages.stage("rollout", self._collect(random=False))
        collect = functools.partial(workflow.collect, action_fn=None)
        return run_stages.stage("rollout", collect)

    def acting_mode(self, state: State) -> Callable[[str], str] | None:
        """Returns `choose(asked)`: the mode of the policy's call if no stage is compiled."""
        return None


class HostSource(DeviceSource):
    """Environments on the host: Python steps them, and only the policy is compiled."""

    in_python = True
    rollout_modes = ("numpy",)

    @property
    def _env(self) -> HostEnv:
        env = self._workflow.env
        assert isinstance(env, HostEnv)
        return env

    def _as_leaves(self, env_state: EnvState) -> EnvState:
        return env_state

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def rollout(self, run_stages: Stages, *, random: bool) -> Callable[..., Any]:
        """Returns the rollout function in Python; see `DeviceSource.rollout`."""
        return self._collect(random)

    def blank(self, state: State) -> Trajectory:
        """Returns a trajectory of zeros, because timing must not step environments on the host."""
        workflow = self._workflow
        return blank_trajectory(
            self._env,
            workflow.agent,
            state.env_state,
            struct.values(state.agent_state),
            workflow.rollout_length,
            workflow.rollout_fields(state.env_state),
        )

    def acting_mode(self, state: State) -> Callable[[str], str]:
        """Returns a function that chooses the policy's mode: the requested or the faster one."""
        env, agent = self._env, self._workflow.agent

        def choose(asked: str) -> str:
            policies = [policy_for(half, agent, agent.compute_actions) for half in env.halves]
            policy = policies[0]
            policy.mode = None if asked == "auto" else asked
            env_state = env.states_of(state.env_state)[0]
            carry = None if state.carry is None else policy.fresh_carry()
            policy.begin(struct.values(state.agent_state), state.key, 4, env_state.obs, carry)
            for other in policies:
                other.mode = policy.mode
            return str(policy.mode)

        return choose


class CollectorSource(DeviceSource):
    """Collectors in other processes; this process receives their trajectories or counts."""

    in_python = True

    def __init__(self, workflow: LearnerWorkflow, collectors: Collectors):
        """Takes the workflow and its collectors."""
        super().__init__(workflow)
        self._collectors = collectors
        self.wait_seconds = collectors.wait_seconds

    def begin_call(self, state: State) -> None:
        """Sends the agent's state to the collectors."""
        self._collectors.begin(state)

    def close(self) -> None:
        """Ends the connections to collectors."""
        self._collectors.close()

    def rollout(self, run_stages: Stages, *, random: bool) -> Callable[..., Any]:
        """Returns the function that receives the collectors' trajectories."""
        return functools.partial(self._collectors.play, waits=not run_stages.phase.learns)

    def env_steps(self, played: Nest) -> int:
        """Returns the env steps of all collectors since the last rollout."""
        if isinstance(played, Collected):
            return int(played.env_steps)
        return self._count(played.trajectory)

    def result(self, state: State, played: Nest) -> RolloutResult:
        """Returns the result, with the collectors' metrics; see `DeviceSource.result`."""
        if isinstance(played, Collected):
            normalizer = self._workflow.normalizer(state.agent_state)
            return played.as_result(struct.values(normalizer))
        result = self._processed(state, played.trajectory)
        return result.replace(metrics={**result.metrics, **played.metrics})  # type: ignore[no-any-return]

    def blank(self, state: State) -> Trajectory:
        """Returns trajectories of zeros of all collectors, [T, B, ...]."""
        return self._collectors.blank()  # type: ignore[no-any-return]

    def trial(self, run_stages: Stages) -> CompiledStage:
        """Returns a stage without timing, because this process has no rollout."""
        return run_stages.stage("rollout", self._workflow.collect)

    def acting_mode(self, state: State) -> Callable[[str], str]:
        """Returns a function that returns "graph", because this process does not act."""
        return lambda asked: "graph"
