"""The base of the on-policy and off-policy workflows: one learner, one set of environments."""

import abc
import concurrent.futures
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.agents.core import Agent
from tfrl.distribute.replicas import Replicas
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host import check_place, on_host
from tfrl.envs.host_env import HostEnv, task_name
from tfrl.envs.host_wrappers import with_task_rewards
from tfrl.envs.wrappers.rewards import OUTLIER
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evaluation.replicated import evaluate_on_replicas
from tfrl.evaluation.result import EvaluationResult
from tfrl.learners import DEFAULT_MODULE_ID, CheckNumerics, Learner, ModuleConfig
from tfrl.learners.external_update import only_external_updates
from tfrl.learners.learner_state import LearnerState
from tfrl.learning import leaves
from tfrl.metrics.accumulator import EPISODE_METRICS
from tfrl.rollout import rollout
from tfrl.storage.checkpoint_format import check_fits
from tfrl.traces import Traces, counted_separately, logic_key, traces_of
from tfrl.types import ActionFn, EnvState, Nest, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.autotune import CompileModeTuner, Trials
from tfrl.workflows.checks import (
    algorithm_name,
    check_divided,
    check_ends,
    check_episodes,
    check_evaluated,
    check_evaluator,
    check_fit,
    check_resets,
    check_whole,
    make_agent,
)
from tfrl.workflows.collectors import Collectors
from tfrl.workflows.core import Workflow
from tfrl.workflows.hook_results import first_metrics, first_nests, with_tensors
from tfrl.workflows.host_runner import HostRunner
from tfrl.workflows.learner_rows import checked_rows, in_one_row
from tfrl.workflows.rollout_result import (
    RolloutResult,
    episode_metrics,
    finite_statistics,
    merge_results,
    outlier_metrics,
)
from tfrl.workflows.rollout_sources import CollectorSource, DeviceSource, HostSource, RolloutSource
from tfrl.workflows.run_state import RunMetrics, State
from tfrl.workflows.run_values import (
    OWN_REPLAY,
    PLAYED,
    filled,
    learner_values,
    load_learner,
    load_progress,
    progress_values,
)
from tfrl.workflows.runner import Runner
from tfrl.workflows.stages import RunPhase, Stages, check_compile

STAGES = ("rollout", "update", "evaluation", "loop")


class LearnerWorkflow(Workflow):
    """Trains the modules of one learner in one set of environments.

    A subclass defines an iteration (`iterate`) and how a trajectory becomes a batch (`make_batch`);
    `update_options` and `update` say how the learner trains on it. All hooks except the setup hooks
    are traced. The subclass' constructor ends with `_complete`.

    One learner serves all states: `learner_of` returns it over the variables of a state. Each state
    has a `Runner`, which keeps the compiled functions.
    """

    _not_traced = Workflow._not_traced | {
        "collectors",
        "_servers",
        "_learner",
        "_evaluators",
        "compiled_process_rollout",
    }
    # Processes that step environments in place of `env`, see `use_collectors`.
    collectors: Collectors | None = None
    # On the host: whether the update runs in the background of the next rollout.
    overlap = False
    env: Env
    agent: Agent
    evaluator: Evaluator
    compile: dict[str, str]

    def __init__(
        self,
        *,
        env: Env,
        agent: Agent | Callable[..., Agent],
        optimizer: Any,
        evaluator: Evaluator | None,
        eval_env: Env | None,
        rollout_length: int,
        learner_config: ModuleConfig | None,
        default_config: ModuleConfig,
        check_numerics: CheckNumerics,
        eval_episodes: int,
        compile: str | Mapping[str, str],
        iterations_per_call: int | None,
        strategy: tf.distribute.Strategy | None,
    ):
        """Sets the common fields; a subclass constructor ends with `_complete`.

        Args:
          env: The training environments.
          agent: An agent, or a function that creates one from `obs_spec` and `action_spec`.
          optimizer: Replaces `ModuleConfig.optimizer`; None to leave it.
          evaluator: Runs the evaluations in its own environments; None to create one from
            `eval_env` and `eval_episodes`.
          eval_env: The environments to evaluate on, or None for the training ones.
          rollout_length: Steps per environment and iteration (T).
          learner_config: The configuration of the agent's module, or None.
          default_config: Used if `learner_config` is None.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_episodes: Episodes of one evaluation.
          compile: As in `OnPolicyWorkflow`.
          iterations_per_call: Iterations of one compiled call; None for about half a second.
          strategy: A tf.distribute strategy; None for the one whose scope this is called in.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        self.replicas = Replicas(strategy)
        self._learner: Learner | None = None
        self._evaluators: dict[Any, Evaluator] = {}
        self.env = check_episodes("env", env)
        self.agent = make_agent(agent, env)
        agent = self.agent
        if optimizer is not None:
            learner_config = learner_config or default_config
            learner_config = learner_config.with_overrides({"optimizer": optimizer})
        self._check_agent(learner_config)
        self._evaluator = evaluator
        check_evaluator(evaluator, eval_env)
        check_evaluated(evaluator, agent)
        if evaluator is not None:
            eval_env, eval_episodes = evaluator.env, evaluator.num_episodes
        check_whole(rollout_length=rollout_length, eval_episodes=eval_episodes)
        # A multi-policy agent names its modules; any other agent is the learner's only module.
        own_modules = getattr(agent, "modules", None)
        # Then a state's `agent_state` is `{module_id: AgentState}`.
        self.has_modules = own_modules is not None
        self.modules: dict[str, Agent] = own_modules or {DEFAULT_MODULE_ID: agent}
        self.learns = any(module.updates for module in self.modules.values())
        self.rollout_length = rollout_length
        external = all(map(only_external_updates, self.modules.values()))
        self.learner_config = learner_config or (ModuleConfig() if external else default_config)
        self.check_numerics = check_numerics
        self.use_compile(compile)
        self.eval_env = with_task_rewards(env if eval_env is None else eval_env)
        if isinstance(env, HostEnv) and self.eval_env is env:
            self.eval_env = env.copy()  # an evaluation must not disturb the training's episodes
        check_ends(self.eval_env)
        self.eval_episodes = eval_episodes
        check_resets(env)
        check_fit(self.agent, {"env": self.env, "eval_env": self.eval_env})
        # Under SAME_STEP every row is a real step.
        self.all_rows_valid = env.autoreset in (Autoreset.SAME_STEP, Autoreset.SAME_STEP_CACHED)

    def _check_agent(self, learner_config: ModuleConfig | None) -> None:
        """Raises a UserError for an agent that this workflow does not train; accepts all here."""

    def _complete(self) -> None:
        """Ends a constructor, once all sizes are known."""
        self._divide()
        # Checks before the training that an evaluation can end.
        self.evaluator = self.make_evaluator(self.eval_episodes, self.compile["evaluation"])

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Later runs use the replicas of a strategy."""
        self.replicas = Replicas(strategy)
        self._learner = None
        self._divide()

    def use_collectors(self, collectors: Collectors, env: Env) -> None:
        """Later runs learn from the experience of other processes.

        Args:
          collectors: Receives their experience and sends them the agent's state.
          env: The specs of their environments; replaces this process' environments.
        """
        self.rollout_source.close()
        self.collectors, self.env, self.overlap = collectors, env, False
        modes = {"rollout": "graph", "loop": "eager"}
        self.use_compile({**self.compile, **modes})
        self._divide()

    @property
    def rollout_source(self) -> RolloutSource:
        """Where the rollouts come from: environments on the device, on the host, or collectors."""
        if self.collectors is not None:
            return CollectorSource(self, self.collectors)
        return HostSource(self) if isinstance(self.env, HostEnv) else DeviceSource(self)

    @property
    def overlaps_calls(self) -> bool:
        """Whether learner steps run in the background of the next rollout.

        Not in several processes: their collectives must have one order.
        """
        return self.overlap and self.worker_group is None

    @property
    def divided_sizes(self) -> dict[str, int]:
        """Batch sizes that the replicas divide, by module."""
        return {}

    @property
    def divides_rollouts(self) -> bool:
        """Whether each replica has a part of the environments or of the collectors' rollouts."""
        return True

    def _divide(self) -> None:
        """Divides the environments among the replicas."""
        self._connect_workers(self.rollout_source.wait_seconds)
        parts = self.replicas.num_replicas
        if parts > 1:
            self.rescale_config(parts)
        for env in (self.env, self.eval_env):
            if isinstance(env, HostEnv) and self.collectors is None:
                check_place(env.backend.name, parts)
        # Each process plays all episodes of an evaluation on the host.
        eval_parts = 1 if isinstance(self.eval_env, HostEnv) else parts
        sizes = {"num_envs": self.env.num_envs} if self.divides_rollouts else {}
        if eval_parts > 1:
            sizes["num_envs of eval_env"] = self.eval_env.num_envs
        check_divided(parts, sizes, self.divided_sizes)
        self.replica_env, self.replica_eval_env = self.env, self.eval_env
        if self.divides_rollouts:
            self.replica_env = self.env.with_num_envs(self.env.num_envs // parts)
        if eval_parts > 1:
            self.replica_eval_env = self.eval_env.with_num_envs(self.eval_env.num_envs // parts)
        self._evaluators = {}

    # The parts of an iteration, in its order; traced, except a rollout on the host.

    def play(
        self, state: State, key: tf.Tensor, action_fn: ActionFn | None = None
    ) -> RolloutResult:
        """Rolls out on every replica; merges statistics, counts and metrics of the replicas.

        Args:
          state: Before the iteration.
          key: int32 [2].
          action_fn: Chooses the actions; the agent's `compute_actions` by default.
        """
        replicas, agent_state = self.replicas, state.agent_state
        name, collect = self.named_rollout(action_fn)
        if not isinstance(self.env, HostEnv):  # there only the policy is compiled
            collect = stages.stage(name, collect, inline=self.prefetches)

        def own(env_state: Nest, carry: Nest, key: tf.Tensor) -> RolloutResult:
            values = struct.values(agent_state)
            if not replicas.several:
                return collect(values, env_state, carry, key)
            out = collect(values, env_state, carry, seeding.fold_in(key, replicas.index()))
            before, fields = self.normalizer(values), self.env.info_fields
            return merge_results(replicas, out, before, env_state, fields)

        out = replicas.run(own, state.env_state, state.carry, key)
        common = replicas.any_replica((out.normalizer, out.metrics, out.counts))
        return out.replace(normalizer=common[0], metrics=common[1], counts=common[2])

    def named_rollout(
        self, action_fn: ActionFn | None = None
    ) -> tuple[str, Callable[..., RolloutResult]]:
        """Returns the name and the function of the stage of a rollout."""
        name = "rollout"
        if action_fn is not None:
            is_random = action_fn == getattr(self.agent, "random_actions", None)
            name += "/random" if is_random else f"/{stages.name_of(action_fn)}"
        return name, functools.partial(self.collect, action_fn=action_fn)

    def collect(
        self,
        agent_state: Nest,
        env_state: EnvState,
        carry: Nest,
        key: tf.Tensor,
        action_fn: ActionFn | None = None,
    ) -> RolloutResult:
        """Rolls out and turns the trajectory into a batch; a pure function of values.

        A strategy runs it on every replica, in `replica_env`, with the replica's own key.
        """
        trajectory, env_state, carry = self.collect_trajectory(
            agent_state, env_state, carry, key, action_fn
        )
        return self.process_rollout(agent_state, trajectory).replace(
            env_state=env_state, carry=carry
        )

    def collect_trajectory(
        self,
        agent_state: Nest,
        env_state: EnvState,
        carry: Nest,
        key: tf.Tensor,
        action_fn: ActionFn | None = None,
    ) -> tuple[Trajectory, EnvState, Nest]:
        """Plays `rollout_length` steps; environments on the host are stepped in NumPy.

        The agent's `compute_actions` chooses the actions, unless `action_fn` is given.
        """
        return rollout(
            self.replica_env,
            self.agent,
            env_state,
            agent_state,
            key,
            self.rollout_length,
            env_extra_fields=self.rollout_fields(env_state),
            action_fn=action_fn,
            carry=carry,
            in_numpy=True,
        )

    def rollout_fields(self, env_state: EnvState) -> tuple[str, ...]:
        """The fields of `info` to store; agents that end together have no field `agents`."""
        asked = getattr(self.agent, "env_extra_fields", ())
        own = (name for name in asked if name != "agents" or name in env_state.info)
        counted = (name for name in (OUTLIER,) if name in env_state.info)
        fields = ("episode_return", "episode_length", *counted, *own, *self.env.info_fields)
        return tuple(dict.fromkeys(fields))

    def process_rollout(self, agent_state: Nest, trajectory: Trajectory) -> RolloutResult:
        """Turns a trajectory into a batch, statistics and metrics; a pure function of values."""
        of_episodes, episodes = episode_metrics(trajectory, self.env.info_fields)
        if self.all_rows_valid:  # no mask needed
            env_steps = tf.size(trajectory.valid, tf.int64)
            trajectory = trajectory.replace(valid=None)
        else:
            env_steps = tf.math.count_nonzero(trajectory.valid)
        batch, metrics = self.make_batch(agent_state, trajectory)
        normalizer = self.normalizer(self.agent.update_normalizer(agent_state, trajectory))
        nonfinite: dict[str, tf.Tensor] = {}
        if normalizer is not None and self.check_numerics != "off":
            normalizer, nonfinite = finite_statistics(self.normalizer(agent_state), normalizer)
        outliers = outlier_metrics(self.agent, agent_state, trajectory)
        return RolloutResult(
            batch=batch,
            normalizer=normalizer,
            metrics={**metrics, **nonfinite, **outliers, **of_episodes},
            counts={"env_steps": env_steps, "episodes": episodes},
        )

    @abc.abstractmethod
    def make_batch(
        self, agent_state: Nest, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Returns the batch for the update, and metrics `{name: float32 scalar}`."""

    def learn_from(
        self, state: State, out: RolloutResult, key: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Everything after a rollout; returns the metrics of the iteration and the state.

        Raises:
          UserError: Here; a workflow that overrides `iterate` does not need it.
        """
        raise UserError(
            f"{type(self).__name__}.learn_from",
            expected="an override, for rollouts in Python",
            got="none",
            remedy="Override `iterate`, or derive from OnPolicyWorkflow or OffPolicyWorkflow.",
        )

    def fit(
        self, state: State, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Trains on a batch; returns metrics and the state after the update.

        Pure where the state's leaves are tensors; in place where they are variables.

        Raises:
          UserError: For a state of tensors where a subclass overrides `update`, which changes
            variables.
        """
        if leaves.in_place(state.agent_state):
            return self.update_stage(state)(batch, key, timesteps), state
        if type(self).update is not LearnerWorkflow.update:
            raise UserError(
                f"{type(self).__name__}.iterate of a state of tensors",
                expected="the library's `update`, which is functional",
                got="an override, which changes variables",
                remedy="Pass a state of variables, as `setup` returns.",
            )
        if not self.learns:
            return {}, state
        options: dict[str, Any] = {"key": key, "timesteps": timesteps, **self.update_options}
        learner_state, results = self.learner.fit(self.learner_state(state), batch, **options)
        return in_one_row(results), self.with_learner_state(state, learner_state)

    def update_stage(self, state: State) -> Callable[..., Any]:
        """Returns the stage of `update` over the variables of a state."""
        update = functools.partial(self.update, self.learner_of(state))
        # Several replicas: XLA compiles the parts between the sums over replicas.
        xla = functools.partial(update, jit=True) if self.replicas.several else None
        return stages.stage("update", update, xla)

    @property
    def update_options(self) -> dict[str, Any]:
        """Arguments of `Learner.fit`: epochs, minibatches, shuffling; none by default."""
        return {}

    def update(
        self,
        learner: Learner,
        batch: Nest,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        jit: bool = False,
    ) -> dict[str, tf.Tensor]:
        """Trains on a batch; returns metrics, float32 scalars.

        With several modules the names are `<module_id>/<name>`.
        """
        if not self.learns:
            return {}
        state, options = learner.learner_state, self.update_options
        _, results = learner.fit(state, batch, key=key, timesteps=timesteps, jit=jit, **options)
        return in_one_row(results)

    def finished(
        self, state: State, out: RolloutResult, metrics: Mapping[str, tf.Tensor]
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Returns the metrics of an iteration, and the state with its rollout and counters."""
        counted = state.metrics.counted(
            env_steps=out.counts["env_steps"],
            episodes=out.counts["episodes"],
            **{name: out.metrics[name] for name in EPISODE_METRICS},
        )
        state = state.replace(metrics=counted, env_state=out.env_state, carry=out.carry)
        if stages.called_directly():
            self._note_iterations(state)
        episodes = {name: getattr(state.metrics, name) for name in EPISODE_METRICS}
        some = out.counts["episodes"] > 0  # no episode, no mean
        for field in self.env.info_fields:
            name = f"episode_{field}"
            episodes[name] = tf.where(some, out.metrics[name], np.nan)
        return {**out.metrics, **metrics, **episodes}, state

    def _check_direct_call(self, state: State) -> None:
        """Raises if the user calls `iterate` with a state that is not the newest."""
        if stages.called_directly() and self._runner_of(state) is not None:
            self.ready(state)

    # The parts of a state.

    def normalizer(self, agent_state: Nest) -> Nest:
        """Returns the observation statistics of an AgentState, or `{module_id: statistics}`."""
        if self.has_modules:
            statistics = {m: state.normalizer for m, state in agent_state.items()}
            statistics = {m: x for m, x in statistics.items() if x is not None}
            return statistics or None
        return agent_state.normalizer

    def with_normalizer(self, state: State, normalizer: Nest) -> State:
        """Returns the state with new observation statistics; None keeps the old ones."""
        if normalizer is None:
            return state
        after = tf.nest.map_structure(leaves.put, self.normalizer(state.agent_state), normalizer)
        if not self.has_modules:
            agent_state = state.agent_state.replace(normalizer=after)
        else:
            agent_state = {
                m: own.replace(normalizer=after[m]) if m in after else own
                for m, own in state.agent_state.items()
            }
        return state.replace(agent_state=agent_state)

    @property
    def learner(self) -> Learner:
        """The learner without variables; `learner_of` binds it to a state."""
        if self._learner is None:
            # In a thread of its own: this may run while a loop is traced, whose name scopes the
            # variables would take over.
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                learner = threads.submit(lambda: self.setup_agent(seeding.key(0))).result()
            self._learner = learner.form()
        return self._learner

    def learner_of(self, state: State) -> Learner:
        """Returns the learner bound to the variables of a state."""
        return self.learner.over(self.learner_state(state))

    def learner_state(self, state: State) -> LearnerState:
        """Returns the learner's part of a state."""
        agent_state, opt_state = state.agent_state, state.opt_state
        if not self.has_modules:
            agent_state = {DEFAULT_MODULE_ID: agent_state}
            opt_state = {DEFAULT_MODULE_ID: opt_state}
        return LearnerState(
            agent_state=agent_state,
            opt_state=opt_state,
            counters=state.metrics.learner,
        )

    def with_learner_state(self, state: State, learner_state: LearnerState) -> State:
        """Returns the state with a new learner state."""
        agent_state: Nest = learner_state.agent_state
        opt_state = learner_state.opt_state
        if not self.has_modules:
            agent_state = agent_state[DEFAULT_MODULE_ID]
            opt_state = opt_state.get(DEFAULT_MODULE_ID, {})
        metrics = state.metrics.replace(learner=learner_state.counters)
        return state.replace(agent_state=agent_state, opt_state=opt_state, metrics=metrics)

    # The run.

    def setup_agent(self, key: tf.Tensor) -> Learner:
        """Returns a built learner for the agent's modules."""
        learner = Learner(
            self.modules,
            config=self.learner_config,
            check_numerics=self.check_numerics,
            strategy=self.replicas.strategy,
        )
        learner.build(key)
        return learner

    def setup(self, seed: int | tf.Tensor) -> State:
        """Returns a fresh state from a seed, or a key int32 [2], by the hooks of `Workflow`."""
        keys = seeding.streams(
            seeding.as_key(seed), ["agent", "environment", "run", "replay_buffer"]
        )
        learner = self.setup_agent(keys["agent"])
        env_state, carry = self.replicas.run_traced(self._begin, keys["environment"])
        state = self._state_over(
            learner,
            key=keys["run"],
            metrics=first_metrics(self),
            env_state=env_state,
            carry=carry,
            replay_buffer_state=self.setup_replay_buffer(keys["replay_buffer"]),
        )
        if type(self).setup_agent_and_optimizer is not LearnerWorkflow.setup_agent_and_optimizer:
            first = first_nests(self, self.setup_agent_and_optimizer(keys["agent"]))
            for name, x in zip(("agent_state", "opt_state"), first, strict=True):
                what = f"{name} of {type(self).__name__}.setup_agent_and_optimizer"
                filled(what, getattr(state, name), x)
        return self.postsetup_replay_buffer(state)

    def _begin(self, key: tf.Tensor) -> tuple[EnvState, Nest]:
        """Resets the environments and the recurrent state of one replica."""
        if self.replicas.several:
            key = seeding.fold_in(key, self.replicas.index())
        env_state, carry = self.rollout_source.reset(key)
        if type(self).setup_env_state is not LearnerWorkflow.setup_env_state:
            env_state = self.setup_env_state(key)
        return env_state, carry

    def _state_over(
        self,
        learner: Learner,
        *,
        key: Any,
        metrics: RunMetrics,
        env_state: Nest,
        carry: Nest,
        replay_buffer_state: Any,
    ) -> State:
        """Returns a state over the variables of a learner, and adds its runner."""
        self._learner = self._learner or learner.form()
        own = learner.learner_state
        state = State(
            key=key,
            metrics=metrics,
            agent_state=None,
            opt_state={},
            env_state=env_state,
            replay_buffer_state=replay_buffer_state,
            carry=carry,
        )
        state = self.with_learner_state(state, own)
        self._add_runner(state, self.make_runner(state))
        return state

    def _variable_of(self, state: State) -> tf.Variable | None:
        steps = state.metrics.learner.get("learner_steps")
        return steps if isinstance(steps, tf.Variable) else None

    def make_runner(self, state: State) -> Runner:
        """Returns the runner of a state."""
        kind = HostRunner if self.loops_in_python and not self.changed_hooks else Runner
        return kind(self, self.traces, int(state.metrics.iterations))

    @property
    def traces(self) -> Traces:
        """The traces for a new runner, those of equal logic where they can be shared."""
        # Not under several replicas: a trace keeps the distributed variables of its first call. Not
        # where the graph calls Python environments: a trace would keep them alive.
        if self.replicas.several or self.steps_in_graph:
            return Traces()
        return traces_of(logic_key((self, self.learner)))

    @property
    def changed_hooks(self) -> list[str]:
        """Names of the methods of an iteration that a user's subclass overrides.

        On the host the `iterate` of such a workflow runs as written, without overlap.
        """
        return self._overridden(LearnerWorkflow)

    def _overridden(self, base: type) -> list[str]:
        """Returns the names of an iteration's methods that differ from those of a base."""
        # The host's runner replaces these by a rollout in Python and one compiled call.
        names = ("iterate", "play", "collect")
        return [n for n in names if getattr(type(self), n) is not getattr(base, n)]

    @property
    def loops_in_python(self) -> bool:
        """Whether Python runs each rollout, and one compiled call follows it."""
        return self.rollout_source.in_python

    @property
    def steps_in_graph(self) -> bool:
        """Whether a graph calls Python to step the environments."""
        return on_host(self.env) and not isinstance(self.env, HostEnv)

    def setup_agent_and_optimizer(self, key: tf.Tensor) -> tuple[Any, Any]:
        """Returns the first `agent_state` and `opt_state`, nests of tensors; may be overridden.

        An override calls it for a fresh learner's values and returns values of the same form, for
        example the parameters of another run.
        """
        fresh = self.setup_agent(key)
        state = State(
            **dict.fromkeys(("key", "agent_state", "opt_state", "env_state")),
            metrics=RunMetrics.start(),
            replay_buffer_state={},
        )
        state = self.with_learner_state(state, fresh.learner_state)
        return struct.values((state.agent_state, state.opt_state))

    def ready(self, state: State) -> State:
        """Returns a state over this workflow's variables.

        A state of tensors or of another workflow is copied into variables.

        Raises:
          UserError: For a state that a later step has consumed.
        """
        checks.instance("the state given to the workflow", state, State, "a state from `setup`")
        if self._runner_of(state) is None:
            return self.copied(state)
        return super().ready(state)

    def copied(self, state: State) -> State:
        """Returns a copy of a state in variables of its own, with the compile modes of its runner.

        Args:
          state: Of tensors, or of variables.
        """
        runner = self._runner_of(state)
        if runner is None:
            self._check_played(state)
            played = [] if self.rollout_source.in_python else ["env_state", "carry"]
            names = ["key", "metrics", *played]
            state = state.replace(**{n: with_tensors(n, getattr(state, n)) for n in names})
        learner = self.setup_agent(state.key) if runner is None else self.learner_of(state).clone()
        copy = self._state_over(
            learner,
            key=state.key,
            metrics=state.metrics,
            env_state=state.env_state,
            carry=state.carry,
            replay_buffer_state=self.setup_replay_buffer(state.key),
        )
        names = ["replay_buffer_state"]
        if runner is None:
            names += ["agent_state", "opt_state"]
            filled("the counters of the state", copy.metrics.learner, state.metrics.learner)
        else:
            self.runner(copy).take_modes(runner)
        values = {
            name: filled(f"{name} of the state", getattr(copy, name), getattr(state, name))
            for name in names
        }
        return copy.replace(**values)

    def _check_played(self, state: State) -> None:
        """Raises a UserError for environments of other observations, number or replicas."""
        if self.rollout_source.in_python:
            return  # environments of its own
        parts = [len(getattr(x, "values", (x,))) for x in tf.nest.flatten(state.env_state)]
        if max(parts, default=1) != self.replicas.num_local:
            raise UserError(
                "env_state of the state",
                expected=f"a part for each of this process' {self.replicas.num_local} replicas",
                got=str(max(parts, default=1)),
                remedy="Set up the state in a workflow with the same strategy.",
            )
        if self.replicas.several:
            return
        env = self.env
        obs = struct.paths(specs.add_batch(env.obs_spec, env.num_envs))
        check_fits(
            "env_state.obs of the state",
            obs,
            struct.paths(getattr(state.env_state, "obs", {})),
            expected=f"the observations of {env.num_envs} environments of this workflow",
            remedy="Set up the state with the same num_envs, or begin new episodes: "
            "state.replace(env_state=workflow.env.reset(key)).",
        )

    def snapshot(self, state: State) -> State:
        """Returns a copy that later steps of `state` do not change."""
        state = self.ready(state)
        return self.copied(state)

    def _checked_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows without zero counts; raises errors for losses that are not finite."""
        raises = self.check_numerics == "raise" and self.learns
        return checked_rows(rows, self.modules, raises=raises)

    def begin_call(self, state: State) -> State:
        """Drops the leaves that no iteration changes; publishes the agent's state to collectors."""
        if self.collectors is not None:
            self.collectors.begin(state)
        metrics = state.metrics.replace(evaluations=None, learning_start=None)
        return state.replace(metrics=metrics, prefetched=None)

    def end_call(self, before: State, after: State) -> State:
        """Puts back the leaves that `begin_call` dropped."""
        if self.collectors is not None:
            self.collectors.end_call()
        kept = {n: getattr(before.metrics, n) for n in ("evaluations", "learning_start")}
        return after.replace(metrics=after.metrics.replace(**kept))

    def times_stages(self, run_stages: Stages) -> bool:
        """Whether clocks time rollout and update where possible; here always."""
        return True

    @property
    def steps_per_iteration(self) -> int:
        """Env steps of an iteration in which all rows are valid."""
        return self.rollout_length * self.env.num_envs

    @property
    def fixed_steps_per_iteration(self) -> int | None:
        """Env steps of an iteration; None where autoreset rows change their number."""
        return self.steps_per_iteration if self.all_rows_valid else None

    @property
    def prefetches(self) -> bool:
        """Whether the rollout and the update of some phase run at the same time in a graph."""
        return False

    # For the host's runner.

    @functools.cached_property
    def compiled_process_rollout(self) -> Any:
        """`process_rollout` as a compiled function."""
        return tf.function(counted_separately(self.process_rollout), autograph=False)

    def fuses_on_host(self, state: State, run_stages: Stages) -> bool:
        """Whether an XLA update takes everything after a rollout into its program."""
        return False

    def _evaluation(
        self, state: State, num_episodes: int | None, key: tf.Tensor
    ) -> EvaluationResult:
        """Plays greedy episodes, divided among the replicas."""
        if self._runner_of(state) is not None:
            state = self.ready(state)  # a consumed state is an error
        self.learner.check_agent_state(self.learner_state(state).agent_state)
        n = self.eval_episodes if num_episodes is None else num_episodes
        replicas = self.replicas
        known, mode = self._evaluators, self.evaluation_mode
        alone = not replicas.several or isinstance(self.eval_env, HostEnv)
        if (n, mode) not in known:
            share = n if alone else -(-n // replicas.num_replicas)
            known[n, mode] = self.make_evaluator(share, mode)
        evaluator, values = known[n, mode], self.agent_state(state)
        if alone:
            return evaluator.evaluate(values, key)
        return evaluate_on_replicas(evaluator, replicas, values, key, n)

    @property
    def evaluation_mode(self) -> str:
        """The evaluation's compile mode; "auto" is graph on a CPU, where its loop can end early."""
        if self.compile["evaluation"] != "auto":
            return str(self.compile["evaluation"])
        if on_host(self.eval_env):
            return "auto" if isinstance(self.env, HostEnv) else "graph"
        return "graph" if stages.auto_needs_timing() else "xla"

    def video_env(self) -> Env:
        """The evaluation's environments; a video shows the first one."""
        return self.eval_env

    def describe(self) -> str:
        """Names the agent, the task and the sizes."""
        env = self.env
        how = env.halves[0].backend.stepped if isinstance(env, HostEnv) else ""
        updates = self.describe_updates()
        return (
            f"{algorithm_name(self.agent)} on {task_name(env)}, "
            f"{env.num_envs} environments{f' ({how})' if how else ''} x "
            f"{self.rollout_length} steps{f', {updates}' if updates else ''}"
        )

    def describe_updates(self) -> str:
        """Returns a short description of the updates, empty by default."""
        return ""

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile modes for runs that are set up from now on."""
        more = self.rollout_source.rollout_modes
        self.compile = check_compile(choices, STAGES, {"rollout": more} if more else None)
        if self._evaluator is not None and self.compile["evaluation"] == "auto":
            self.compile["evaluation"] = self._evaluator.compile

    def make_evaluator(self, num_episodes: int, compile: str) -> Evaluator:
        """Returns an evaluator of a number of episodes in this workflow's environments."""
        evaluator = self._evaluator
        if evaluator is None:
            evaluator = Evaluator(
                env=self.replica_eval_env, agent=self.agent, num_episodes=num_episodes
            )
        return evaluator.replace(
            env=self.replica_eval_env, num_episodes=num_episodes, compile=compile
        )

    def close(self) -> None:
        """Closes environments on the host, and connections to collectors."""
        self.rollout_source.close()
        if isinstance(self.eval_env, HostEnv):
            self.eval_env.close()

    # How it is compiled.

    def compile_choices(self, state: State) -> dict[str, str]:
        """Settles the compile mode of every stage and returns `{stage: mode}`."""
        state = self.ready(state)
        # Any phase will do; `phase_of` may need all processes.
        modes = self.runner(state).settled(state, RunPhase()).modes
        chosen = {name: modes[name] for name in ("loop", "rollout", "update")}
        return {**chosen, "evaluation": self.evaluation_mode}

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """Settles the compile modes of a run; equal logic reuses earlier timings."""
        notes = self.runner(state).traces.notes
        note = ("modes", tuple(sorted(self.compile.items())))
        trials = self.trials(state, run_stages)
        if note in notes:
            modes, seconds = notes[note]
            for name, mode in modes.items():
                run_stages.set_mode(name, mode)
            run_stages.seconds.update(seconds)
            if trials.choose_acting is not None:  # timed in other environments
                trials.choose_acting(run_stages.modes["rollout"])
            return
        tuner = CompileModeTuner(self.compile, trials, run_stages)
        tuner.settle()
        settled = (dict(run_stages.modes), {k: dict(v) for k, v in run_stages.seconds.items()})
        # A restored run asks for these modes by name.
        named = {n: run_stages.modes[n] for n in ("loop", "rollout", "update")}
        named["evaluation"] = self.evaluation_mode
        notes[note] = notes["modes", tuple(sorted(named.items()))] = settled

    def trials(self, state: State, run_stages: Stages) -> Trials:
        """Returns the stages of a run and how to time them."""

        def keep() -> Callable[[], None]:
            learner = self.learner_of(state)
            before = {p: v.numpy() for p, v in learner.variables().items()}
            return lambda: learner.assign_variables(before)

        def rollout_args() -> tuple[Any, ...]:
            # One replica's rollout represents all of them.
            env_state, carry = self.replicas.per_replica((state.env_state, state.carry))[0]
            return struct.values(state.agent_state), env_state, carry, state.key

        source = self.rollout_source
        return Trials(
            rollout=source.timed_stage(run_stages),
            update=self.update_stage(state),  # type: ignore[arg-type]
            rollout_args=rollout_args,
            update_args=lambda: (self.trial_batch(state), state.key, state.metrics.env_steps),
            keep=keep,
            choose_acting=source.acting_mode_chooser(state),
            steps_in_graph=self.steps_in_graph,
            loops_in_python=self.loops_in_python,
            several=self.replicas.several,
            several_workers=self.replicas.num_workers > 1,
            prefetches=self.prefetches,
            steps_in_xla=getattr(self.env.unwrapped, "steps_in_xla", False),
        )

    def trial_batch(self, state: State) -> Nest:
        """Returns a batch to time the update on, that of a rollout; making it changes nothing."""
        if not self.loops_in_python:
            return self.play(state, state.key).batch
        agent_state, blank = struct.values(state.agent_state), self.rollout_source.blank(state)
        return self.compiled_process_rollout(agent_state, blank).batch

    # What a checkpoint holds.

    def own_replay_state(self, state: State) -> Nest:
        """Returns the part of `replay_buffer_state` that a subclass has added."""
        return state.replay_buffer_state

    def run_key(self, state: State) -> Any:
        """Returns a key that is the same for all states of a run, and for no other."""
        if self._variable_of(state) is None:
            return super().run_key(state)
        return weakref.ref(self.runner(state))

    def state_values(self, state: State) -> dict[str, Any]:
        """Returns every value of the run by path."""
        state = self.ready(state)
        return {**progress_values(self, state), **learner_values(self, state)}

    def is_loaded(self, path: str, *, environments: bool) -> bool:
        """Whether a path is loaded; without `environments` not what only a training needs."""
        return environments or not path.startswith((*PLAYED, OWN_REPLAY))

    def check_paths(self, checkpoint: str, want: set[str], have: set[str]) -> None:
        """Checks the paths; earlier versions did not save a subclass' own replay state."""
        super().check_paths(
            checkpoint, {p for p in want if p in have or not p.startswith(OWN_REPLAY)}, have
        )

    def load_values(
        self, state: State, values: Mapping[str, Any], *, environments: bool = True
    ) -> State:
        """Returns `state` with every value replaced; see `Workflow.load_values`."""
        state = load_progress(self, self.ready(state), values, environments)
        load_learner(self, state, values)
        self._note_iterations(state)
        return state
