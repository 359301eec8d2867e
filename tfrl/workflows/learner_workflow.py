"""What the workflows over one learner share: environments, hooks, and the run as a value."""

import abc
import concurrent.futures
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.agents.core import Agent
from tfrl.distribute.replicas import Replicas
from tfrl.distribute.tracing import counted_apart
from tfrl.distribute.worker_group import WorkerGroup
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host import check_place, on_host
from tfrl.envs.host_env import HostEnv
from tfrl.envs.host_wrappers import with_task_rewards
from tfrl.envs.wrappers.rewards import OUTLIER
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evaluation.replicated import evaluate_on_replicas
from tfrl.evaluation.result import EvaluationResult
from tfrl.learners import (
    DEFAULT_MODULE_ID,
    CheckNumerics,
    Learner,
    ModuleConfig,
    raise_if_nonfinite,
)
from tfrl.learners.external_update import trains_itself
from tfrl.learners.learner_state import LearnerState
from tfrl.learning import leaves
from tfrl.metrics.accumulator import (
    EPISODE_METRICS,
)
from tfrl.rollout import rollout
from tfrl.rollout.step import ActionFn
from tfrl.traces import Traces, logic_key, traces_of
from tfrl.types import EnvState, Nest, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.autotune import CompileModeTuner, Trials
from tfrl.workflows.checks import (
    check_divided,
    check_ends,
    check_episodes,
    check_evaluator,
    check_fit,
    check_newest,
    check_resets,
    check_whole,
    made_agent,
    name_of,
)
from tfrl.workflows.collectors import Collectors
from tfrl.workflows.core import Advance, Workflow
from tfrl.workflows.host_runner import HostRunner
from tfrl.workflows.rollout_result import (
    NONFINITE_STATISTICS,
    RolloutResult,
    episode_metrics,
    finite_statistics,
    merge_results,
    outlier_metrics,
)
from tfrl.workflows.rollout_sources import CollectorSource, DeviceSource, HostSource
from tfrl.workflows.run_state import RunMetrics, State
from tfrl.workflows.run_values import (
    PLAYED,
    learner_values,
    load_learner,
    load_progress,
    progress_values,
)
from tfrl.workflows.runner import Runner
from tfrl.workflows.stages import RunPhase, Stages, check_compile

# How long workers wait for each other where none of them waits for collectors.
_WORKER_SECONDS = 600.0
STAGES = ("rollout", "update", "evaluation", "loop")


class LearnerWorkflow(Workflow):
    """Trains the modules of one learner in one set of environments; subclasses say how.

    They say what an iteration is (`iterate`), and what becomes of a rollout's experience
    (`make_batch`, `update`). All hooks but those that make something are traced.

    One learner serves all states: `learner_of` gives it over the variables of a state. What is
    compiled for these is kept by a `Runner` of theirs.
    """

    _not_traced = Workflow._not_traced | {
        "collectors",
        "_worker_group",
        "_servers",
        "_learner",
        "_evaluators",
        "compiled_process_rollout",
    }
    # Whether Python runs the loop over iterations, as it must where it steps the environments.
    loops_in_python = False
    # Who plays in the place of `env`, see `use_collectors`.
    collectors: Collectors | None = None
    # Whether learning runs in the background of the next rollout on the host.
    overlap = False
    # What the host's runner does in two parts: the rollout in Python, one call for the rest.
    _played_in_two: tuple[str, ...] = ("iterate", "play", "collect")
    env: Env

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
        """Takes what they have in common; a constructor ends with `_complete`.

        Args:
          env: The training environments.
          agent: An agent, or a function that makes one from `obs_spec` and `action_spec`.
          optimizer: What `ModuleConfig.optimizer` takes, in its place; None to leave it.
          evaluator: Plays the evaluations, in its own environments; None for one that follows from
            `eval_env` and `eval_episodes`.
          eval_env: The environments to evaluate on, or None for the training ones.
          rollout_length: Steps per environment and iteration (T).
          learner_config: Of the agent's module, or None.
          default_config: What None stands for.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_episodes: Episodes of one evaluation.
          compile: As of `OnPolicyWorkflow`.
          iterations_per_call: Iterations of one compiled call; None for about half a second.
          strategy: A tf.distribute strategy; None for the one whose scope this is called in.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        self.replicas = Replicas(strategy)
        self._learner: Learner | None = None
        self._evaluators: dict[Any, Evaluator] = {}
        self.env = check_episodes("env", env)
        self.agent: Any = made_agent(agent, env)
        agent = self.agent
        if optimizer is not None:
            learner_config = learner_config or default_config
            learner_config = learner_config.with_overrides({"optimizer": optimizer})
        self._check_agent(learner_config)
        self._evaluator = evaluator
        if evaluator is not None:
            check_evaluator(evaluator, eval_env)
            eval_env, eval_episodes = evaluator.env, evaluator.num_episodes
        check_whole(rollout_length=rollout_length, eval_episodes=eval_episodes)
        # An agent of several policies names them; any other is the only module of the learner.
        self.modules: dict[str, Any] = getattr(agent, "modules", None) or {DEFAULT_MODULE_ID: agent}
        self.learns = any(module.updates for module in self.modules.values())
        self.rollout_length = rollout_length
        own = all(map(trains_itself, self.modules.values()))  # by optimizers that are not ours
        self.learner_config = learner_config or (ModuleConfig() if own else default_config)
        self.check_numerics = check_numerics
        self.use_compile(compile)
        played = check_episodes("eval_env", eval_env) if eval_env is not None else env
        self.eval_env = with_task_rewards(played)
        if isinstance(env, HostEnv) and self.eval_env is env:
            self.eval_env = env.copy()  # an evaluation must not disturb the training's episodes
        check_ends(self.eval_env)
        self.eval_episodes = eval_episodes
        check_resets(env)
        check_fit(self.agent, {"env": self.env, "eval_env": self.eval_env})
        # Under SAME_STEP every row is a real step.
        self.all_rows_valid = env.autoreset in (Autoreset.SAME_STEP, Autoreset.SAME_STEP_CACHED)

    @abc.abstractmethod
    def _check_agent(self, learner_config: ModuleConfig | None) -> None:
        """Raises a UserError for an agent that this workflow does not train."""

    def _complete(self) -> None:
        """The last step of a constructor, when all sizes are known."""
        self._divide()
        # Says now, not after the training, that an evaluation could not end.
        self.evaluator = self.make_evaluator(self.eval_episodes, self.compile["evaluation"])

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Spreads runs that are set up from now on over the replicas of a strategy."""
        self.replicas = Replicas(strategy)
        self._learner = None
        self._divide()

    def use_collectors(self, collectors: Collectors, env: Env) -> None:
        """Lets runs that are set up from now on learn from what other processes play.

        Args:
          collectors: Gives what they have played, and hands them the agent's state.
          env: What is known of their environments, in the place of those of this process.
        """
        self.rollout_source.close()
        self.collectors, self.env, self.overlap = collectors, env, False
        modes = {"rollout": "graph", "loop": "eager"}
        self.use_compile({**self.compile, **modes})
        self._divide()

    @property
    def rollout_source(self) -> DeviceSource:
        """Where the rollouts come from: environments on the device, on the host, or collectors."""
        if self.collectors is not None:
            return CollectorSource(self, self.collectors)
        return HostSource(self) if isinstance(self.env, HostEnv) else DeviceSource(self)

    @property
    def worker_group(self) -> WorkerGroup | None:
        """How the processes of a multi-worker strategy decide together; None for one process."""
        return self._worker_group

    @property
    def divided_sizes(self) -> dict[str, int]:
        """Rows that the replicas divide among them, by module."""
        return {}

    @property
    def divides_rollouts(self) -> bool:
        """Whether each replica has its part of the environments, or of what they have played."""
        return True

    def _divide(self) -> None:
        """Makes each replica's part of the environments."""
        several = self.replicas.num_workers > 1
        self._worker_group: WorkerGroup | None = None
        if several:
            seconds = _WORKER_SECONDS + self.rollout_source.wait_seconds
            self._worker_group = WorkerGroup(self.replicas.strategy, seconds)
        parts = self.replicas.num_replicas
        if parts > 1:
            self.rescale_config(parts)
        for env in (self.env, self.eval_env):
            if isinstance(env, HostEnv) and self.collectors is None:
                check_place(env.backend.name, parts)
        # A learner that steps no environment plays those of its evaluations by itself.
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

    # The parts of an iteration; traced.

    def play(
        self, state: State, key: tf.Tensor, action_fn: ActionFn | None = None
    ) -> RolloutResult:
        """Rolls out on every replica; statistics, counts and metrics are those of all.

        Args:
          state: Before the iteration.
          key: int32 [2].
          action_fn: How the agent acts; its `compute_actions` by default.
        """
        replicas, agent_state = self.replicas, state.agent_state
        collect: Any = functools.partial(self.collect, action_fn=action_fn)
        if not isinstance(self.env, HostEnv):  # whose policy alone is compiled
            name = "rollout" if action_fn is None else "rollout/random"
            collect = stages.stage(name, collect, inline=self.overlaps)

        def own(env_state: Nest, carry: Nest, key: tf.Tensor) -> RolloutResult:
            values = struct.values(agent_state)
            if not replicas.several:
                return collect(values, env_state, carry, key)
            out = collect(values, env_state, carry, seeding.fold_in(key, replicas.index()))
            return self.merged(out, self.normalizer(values), env_state)

        out = replicas.run(own, state.env_state, state.carry, key)
        common = replicas.any_replica((out.normalizer, out.metrics, out.counts))
        return out.replace(normalizer=common[0], metrics=common[1], counts=common[2])

    def fit(
        self, state: State, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Trains on a batch: metrics, and the state after the update.

        Pure where the state's leaves are tensors; in place where they are variables.

        Raises:
          UserError: For a state of tensors where `update` is a workflow's own, which changes
            variables.
        """
        if leaves.in_place(state.agent_state):
            return self.update_stage(state)(batch, key, timesteps), state
        if type(self).update is not LearnerWorkflow.update:
            raise UserError(
                f"{type(self).__name__}.iterate of a state of tensors",
                expected="the `update` of the library, a function of the state",
                got="one of its own, which changes variables",
                remedy="Give a state of variables, as `setup` does.",
            )
        if not self.learns:
            return {}, state
        options: dict[str, Any] = {"key": key, "timesteps": timesteps, **self.update_options}
        learner_state, results = self.learner.fit(self.learner_state(state), batch, **options)
        return self.named(results), self.with_learner_state(state, learner_state)

    def update_stage(self, state: State) -> Callable[..., Any]:
        """Returns the stage of `update` over the variables of a state."""
        update = functools.partial(self.update, self.learner_of(state))
        # Under several replicas the sums over them stand between what XLA compiles.
        xla = functools.partial(update, jit=True) if self.replicas.several else None
        return stages.stage("update", update, xla)

    def finished(
        self, state: State, out: RolloutResult, metrics: Mapping[str, tf.Tensor]
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Returns the row of an iteration and the state with its counters."""
        state = state.after(out)
        if stages.current() is None and tf.executing_eagerly():  # `iterate` was called by itself
            self._note_iterations(state)
        episodes = {name: getattr(state.metrics, name) for name in EPISODE_METRICS}
        for name in map("episode_{}".format, self.env.info_fields):
            some = out.counts["episodes"] > 0  # without any there is no mean
            episodes[name] = tf.where(some, out.metrics[name], np.nan)
        return {**out.metrics, **metrics, **episodes}, state

    def merged(self, out: RolloutResult, normalizer: Nest, env_state: Nest) -> RolloutResult:
        """Returns a replica's result with the counts, metrics and statistics of all replicas."""
        return merge_results(self.replicas, out, normalizer, env_state, self.env.info_fields)

    def with_normalizer(self, state: State, normalizer: Nest) -> State:
        """Returns the state with other statistics of observations; None for those that it has."""
        if normalizer is None:
            return state
        after = tf.nest.map_structure(leaves.put, self.normalizer(state.agent_state), normalizer)
        if not hasattr(self.agent, "modules"):
            agent_state = state.agent_state.replace(normalizer=after)
        else:
            agent_state = {
                m: own.replace(normalizer=after[m]) if m in after else own
                for m, own in state.agent_state.items()
            }
        return state.replace(agent_state=agent_state)  # type: ignore[no-any-return]

    def stages_of(self, state: State) -> Stages | None:
        """Returns the stages in use, None where `iterate` is called by itself: once for a state."""
        run_stages = stages.current()
        if run_stages is None and tf.executing_eagerly() and self._runner_of(state) is not None:
            self.ready(state)
        return run_stages

    def _note_iterations(self, state: State) -> None:
        runner = self._runner_of(state)
        if runner is not None:
            runner.iterations = int(state.metrics.iterations)

    @property
    def learner(self) -> Learner:
        """The learner whose logic trains all states; `learner_of` is it over one of them."""
        if self._learner is None:
            # In a thread of its own: what is traced here may be in a loop, and variables would take
            # over its scopes.
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                learner = threads.submit(lambda: self.setup_agent(seeding.key(0))).result()
            self._learner = learner.form()
        return self._learner

    def learner_of(self, state: State) -> Learner:
        """Returns the learner over the variables of a state."""
        return self.learner.over(self.learner_state(state))

    def learner_state(self, state: State) -> LearnerState:
        """Returns the learner's part of a state."""
        several = hasattr(self.agent, "modules")

        def by_module(own: Any) -> dict[str, Any]:
            return own if several else {DEFAULT_MODULE_ID: own}

        return LearnerState(
            agent_state=by_module(state.agent_state),
            opt_state=by_module(state.opt_state),
            counters=state.metrics.learner,
        )

    def with_learner_state(self, state: State, learner_state: LearnerState) -> State:
        """Returns the state with another part of the learner."""
        agent_state: Any = learner_state.agent_state
        opt_state = learner_state.opt_state
        if not hasattr(self.agent, "modules"):
            agent_state = agent_state[DEFAULT_MODULE_ID]
            opt_state = opt_state.get(DEFAULT_MODULE_ID, {})
        metrics = state.metrics.replace(learner=learner_state.counters)
        return state.replace(  # type: ignore[no-any-return]
            agent_state=agent_state, opt_state=opt_state, metrics=metrics
        )

    # Hooks; all are traced.

    def setup_agent(self, key: tf.Tensor) -> Learner:
        """Makes the built learner of the agent."""
        learner = Learner(
            self.modules,
            config=self.learner_config,
            check_numerics=self.check_numerics,
            strategy=self.replicas.strategy,
        )
        learner.build(key)
        return learner

    def normalizer(self, agent_state: Any) -> Nest:
        """Returns the observation statistics out of an AgentState, or those of several by id."""
        if hasattr(self.agent, "modules"):
            statistics = {m: state.normalizer for m, state in agent_state.items()}
            statistics = {m: x for m, x in statistics.items() if x is not None}
            return statistics or None
        return agent_state.normalizer

    def collect(
        self,
        agent_state: Any,
        env_state: EnvState,
        carry: Nest,
        key: tf.Tensor,
        action_fn: ActionFn | None = None,
    ) -> RolloutResult:
        """Rolls out, and turns the experience into a batch; a pure function of values.

        Under a strategy it runs on every replica, in `replica_env`, with the replica's own key.
        """
        trajectory, env_state, carry = self.collect_trajectory(
            agent_state, env_state, carry, key, action_fn
        )
        return self.process_rollout(agent_state, trajectory).replace(
            env_state=env_state, carry=carry
        )

    def collect_trajectory(
        self,
        agent_state: Any,
        env_state: EnvState,
        carry: Nest,
        key: tf.Tensor,
        action_fn: ActionFn | None = None,
    ) -> tuple[Trajectory, EnvState, Nest]:
        """Plays `rollout_length` steps; in environments on the host in NumPy, not in a graph.

        By the agent's `compute_actions`, unless `action_fn` is given.
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

    @property
    def steps_per_iteration(self) -> int:
        """Env steps of an iteration in which all rows are valid."""
        return self.rollout_length * self.env.num_envs

    def rollout_fields(self, env_state: EnvState) -> tuple[str, ...]:
        """The fields of `info` that are stored; agents that end together have no `agents`."""
        asked = getattr(self.agent, "env_extra_fields", ())
        own = (name for name in asked if name != "agents" or name in env_state.info)
        counted = (name for name in (OUTLIER,) if name in env_state.info)
        fields = ("episode_return", "episode_length", *counted, *own, *self.env.info_fields)
        return tuple(dict.fromkeys(fields))

    def process_rollout(self, agent_state: Any, trajectory: Trajectory) -> RolloutResult:
        """Turns the experience of a rollout into a batch; a pure function of values."""
        of_episodes, episodes = episode_metrics(trajectory, self.env.info_fields)
        if self.all_rows_valid:  # so nothing needs a mask
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
        self, agent_state: Any, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Returns what the update takes of a rollout, and metrics, `{name: float32 scalar}`."""

    @property
    @abc.abstractmethod
    def update_options(self) -> dict[str, Any]:
        """The arguments of `Learner.update` that say how it trains on a batch."""

    def update(
        self,
        learner: Learner,
        batch: Nest,
        key: tf.Tensor,
        timesteps: tf.Tensor,
        jit: bool = False,
    ) -> dict[str, tf.Tensor]:
        """Trains on a batch; returns float32 scalars.

        Those of one of several modules are named `<module_id>/<name>`.
        """
        if not self.learns:
            return {}
        options = self.update_options
        return self.named(learner.update(batch, key=key, timesteps=timesteps, jit=jit, **options))

    def named(self, results: Mapping[str, Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        """Returns a learner's results as one dict; those of several modules begin with its id."""
        return {
            (name if m == DEFAULT_MODULE_ID else f"{m}/{name}"): x
            for m, row in results.items()
            for name, x in row.items()
        }

    # The run.

    def setup(self, seed: int | tf.Tensor) -> State:
        """Makes a fresh run from a seed, or a key int32 [2], by the hooks of `Workflow`."""
        keys = seeding.streams(
            seeding.as_key(seed), ["agent", "environment", "run", "replay_buffer"]
        )
        learner = self.setup_agent(keys["agent"])
        env_state, carry = self.replicas.run_traced(self._begin, keys["environment"])
        state = self._state_over(
            learner,
            key=keys["run"],
            metrics=self.setup_workflow_metrics(),
            env_state=env_state,
            carry=carry,
            replay_buffer_state=self.setup_replay_buffer(keys["replay_buffer"]),
        )
        if type(self).setup_agent_and_optimizer is not LearnerWorkflow.setup_agent_and_optimizer:
            first = self.setup_agent_and_optimizer(keys["agent"])
            for name, x in zip(("agent_state", "opt_state"), first, strict=True):
                what = f"{name} of {type(self).__name__}.setup_agent_and_optimizer"
                _assign(what, getattr(state, name), x)
        return self.postsetup_replay_buffer(state)

    def _begin(self, key: tf.Tensor) -> tuple[EnvState, Nest]:
        """The environments and the carry of a replica of a run that begins."""
        if self.replicas.several:
            key = seeding.fold_in(key, self.replicas.index())
        return self.rollout_source.reset(key)

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
        """A state over the variables of a learner, with a runner for it."""
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
        """Returns what runs the iterations over the variables of a state."""
        shares = self.shares_traces
        traces = traces_of(logic_key((type(self), self, self.learner))) if shares else Traces()
        kind = HostRunner if self.loops_on_host and not self.changed_hooks else Runner
        return kind(self, traces, int(state.metrics.iterations))

    @property
    def changed_hooks(self) -> list[str]:
        """The parts of an iteration that a class of one's own has in the library's place.

        On the host such a workflow's `iterate` runs as it is written, without overlap.
        """
        methods = ((name, getattr(type(self), name)) for name in self._played_in_two)
        return [name for name, method in methods if not method.__module__.startswith("tfrl.")]

    @property
    def loops_on_host(self) -> bool:
        """Whether a rollout is a step of Python's, and all that follows it one call."""
        return self.rollout_source.in_python or self.loops_in_python

    @property
    def shares_traces(self) -> bool:
        """Whether runs of equal logic have the same compiled functions.

        Not under several replicas: their variables stay those of the first call. Not with
        environments that Python steps within the graph, which a trace would keep.
        """
        return not self.replicas.several and not self.steps_in_graph

    @property
    def steps_in_graph(self) -> bool:
        """Whether a graph calls Python to step the environments."""
        return on_host(self.env) and not isinstance(self.env, HostEnv)

    def setup_agent_and_optimizer(self, key: tf.Tensor) -> tuple[Any, Any]:
        """Returns the first `agent_state` and `opt_state`, tensors; to be overridden.

        Call it for those of a fresh learner, and return others of the same form: parameters of
        another run, say.
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
        """Returns a state over variables of this workflow's, the newest of its run.

        One of tensors, or of another workflow, is copied into variables.

        Raises:
          UserError: For a state that a later step has consumed.
        """
        checks.instance("the state given to the workflow", state, State, "what `setup` returned")
        runner = self._runner_of(state)
        if runner is None:
            return self.copied(state, None)
        check_newest(int(state.metrics.iterations), runner.iterations)
        return state

    def copied(self, state: State, runner: Runner | None) -> State:
        """Returns a copy of a state in variables of its own.

        Args:
          state: Of tensors, or of variables.
          runner: That of the state, whose compile modes the copy has too; None for a state that
            has none.
        """
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
            _assign("the counters of the state", copy.metrics.learner, state.metrics.learner)
        else:
            self.runner(copy).take_modes(runner)
        for name in names:
            _assign(f"{name} of the state", getattr(copy, name), getattr(state, name))
        return copy

    def snapshot(self, state: State) -> State:
        """Returns a copy that later steps of `state` do not change."""
        state = self.ready(state)
        return self.copied(state, self.runner(state))

    def advance(self, state: State, iterations: int, until: int | None = None) -> Advance:
        """Runs up to `iterations` iterations in one compiled call; see `Workflow.advance`."""
        done = super().advance(state, iterations, until)
        if self.check_numerics == "raise" and self.learns:
            for row in done.rows:
                where = f" at iteration {row['iterations']}, env step {row['env_steps']}"
                raise_if_nonfinite({m: self._row_of(m, row) for m in self.modules}, where)
                if row.get(NONFINITE_STATISTICS):
                    raise UserError(
                        f"the statistics of observations{where}",
                        expected="finite moments",
                        got="others, which were left out",
                        remedy="Check the agent's `update_normalizer` and the checkpoint that was "
                        "gone on from, or choose check_numerics='skip'.",
                    )
        rows = [{k: v for k, v in row.items() if "nonfinite/" not in k or v} for row in done.rows]
        return done.replace(rows=rows)  # type: ignore[no-any-return]

    def begin_call(self, state: State) -> State:
        """Leaves out what no iteration changes; tells collectors what the agent is now."""
        self.rollout_source.begin_call(state)
        metrics = state.metrics.replace(evaluations=None, learning_start=None)
        return state.replace(metrics=metrics, prefetched=None)  # type: ignore[no-any-return]

    def end_call(self, before: State, after: State) -> State:
        """Puts back what `begin_call` left out."""
        kept = {n: getattr(before.metrics, n) for n in ("evaluations", "learning_start")}
        return after.replace(metrics=after.metrics.replace(**kept))  # type: ignore[no-any-return]

    def times_stages(self, run_stages: Stages) -> bool:
        """Rollout and update are timed, but not by clocks where they overlap in a graph."""
        return True

    @property
    def steps_of_iteration(self) -> int | None:
        """Env steps of an iteration, where all rows are steps."""
        return self.steps_per_iteration if self.all_rows_valid else None

    @property
    def overlaps(self) -> bool:
        """Whether the rollout and the update of some phase run at the same time in a graph."""
        return False

    # On the host, where a rollout is Python's.

    def action_fn_of(self, phase: RunPhase) -> ActionFn:
        """Returns how the agent acts in a phase."""
        agent = self.agent
        return agent.random_actions if phase.random else agent.compute_actions  # type: ignore[no-any-return]

    @abc.abstractmethod
    def after_rollout(
        self, state: State, played: Trajectory, key: tf.Tensor, batches: Nest
    ) -> tuple[dict[str, tf.Tensor], State, list[tf.Tensor]]:
        """All that follows a rollout on the host, see `host_runner.HostIterating`."""

    @functools.cached_property
    def compiled_process_rollout(self) -> Any:
        """`process_rollout` as a compiled function."""
        return tf.function(counted_apart(self.process_rollout), autograph=False)

    def fuses_on_host(self, state: State, run_stages: Stages) -> bool:
        """Whether XLA has all that follows a rollout where it has the update."""
        return False

    def _row_of(self, module_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of a module out of a row."""
        if module_id == DEFAULT_MODULE_ID:
            return dict(row)
        prefix = f"{module_id}/"
        return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}

    def replica_function(self, state: State) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns all that a device does in a call of `advance`, and example arguments.

        For `tfrl.distribute.check_compilable`: on a TPU it is one program.
        """
        return self.runner(state).whole(self.ready(state))

    def _evaluation(
        self, state: State, num_episodes: int | None, key: tf.Tensor
    ) -> EvaluationResult:
        """Plays greedy episodes, divided among the replicas."""
        if self._runner_of(state) is not None:
            state = self.ready(state)  # one that was consumed is an error
        n, replicas = num_episodes or self.eval_episodes, self.replicas
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
        """Graph on a CPU, where an episode's loop ends early, unless told otherwise."""
        if self.compile["evaluation"] != "auto":
            return str(self.compile["evaluation"])
        if on_host(self.eval_env):
            return "auto" if isinstance(self.env, HostEnv) else "graph"
        return "graph" if stages.auto_needs_timing() else "xla"

    def video_env(self) -> Env:
        """The evaluation's environments, of which a video shows the first."""
        return self.eval_env

    def describe(self) -> str:
        """Names the agent, the task and the sizes."""
        env = self.env
        task = env.backend.name if isinstance(env, HostEnv) else type(env.unwrapped).__name__
        how = env.halves[0].backend.stepped if isinstance(env, HostEnv) else ""
        return (
            f"{name_of(self.agent)} on {task}, "
            f"{env.num_envs} environments{f' ({how})' if how else ''} x "
            f"{self.rollout_length} steps, {self.describe_updates()}"
        )

    @abc.abstractmethod
    def describe_updates(self) -> str:
        """Returns how it learns, in a few words."""

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile modes of runs that are set up from now on."""
        more = self.rollout_source.rollout_modes
        self.compile = check_compile(choices, STAGES, {"rollout": more} if more else None)
        if self._evaluator is not None and self.compile["evaluation"] == "auto":
            self.compile["evaluation"] = self._evaluator.compile

    def make_evaluator(self, num_episodes: int, compile: str) -> Evaluator:
        """Makes the evaluator of this workflow's environments for some number of episodes."""
        evaluator = self._evaluator
        if evaluator is None:
            evaluator = Evaluator(
                env=self.replica_eval_env, agent=self.agent, num_episodes=num_episodes
            )
        return evaluator.replace(  # type: ignore[no-any-return]
            env=self.replica_eval_env, num_episodes=num_episodes, compile=compile
        )

    def close(self) -> None:
        """Closes environments on the host, and connections to collectors."""
        self.rollout_source.close()
        if isinstance(self.eval_env, HostEnv):
            self.eval_env.close()

    # How it is compiled.

    def compile_choices(self, state: State) -> dict[str, str]:
        """Chooses the compile mode of every stage if it is not yet chosen, and returns them."""
        state = self.ready(state)
        # Of any phase: to ask which one it is may be a call of all processes.
        modes = self.runner(state).settled(state, RunPhase()).modes
        chosen = {name: modes[name] for name in ("loop", "rollout", "update")}
        return {**chosen, "evaluation": self.evaluation_mode}

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """Settles the modes of a run's stages; what was timed once holds for equal logic."""
        notes = self.runner(state).traces.notes
        note = ("modes", tuple(sorted(self.compile.items())))
        trials = self.trials(state, run_stages)
        if note in notes:
            modes, seconds = notes[note]
            for name, mode in modes.items():
                run_stages.set_mode(name, mode)
            run_stages.seconds.update(seconds)
            if trials.choose_acting is not None:  # known of other environments
                trials.choose_acting(run_stages.modes["rollout"])
            return
        tuner = CompileModeTuner(self.compile, trials, run_stages)
        tuner.settle(lambda mode: stages.may_have_clocks(mode) and not self.loops_on_host)
        settled = (dict(run_stages.modes), {k: dict(v) for k, v in run_stages.seconds.items()})
        # A run that is restored asks for these modes by name.
        named = {n: run_stages.modes[n] for n in ("loop", "rollout", "update")}
        named["evaluation"] = self.evaluation_mode
        notes[note] = notes["modes", tuple(sorted(named.items()))] = settled

    def trials(self, state: State, run_stages: Stages) -> Trials:
        """Returns the stages of a run, and how they are tried."""

        def keep() -> Callable[[], None]:
            learner = self.learner_of(state)
            before = {p: v.numpy() for p, v in learner.variables().items()}
            return lambda: learner.assign_variables(before)

        def rollout_args() -> tuple[Any, ...]:
            # The rollout of one replica tells how the others' will do.
            env_state, carry = self.replicas.per_replica((state.env_state, state.carry))[0]
            return struct.values(state.agent_state), env_state, carry, state.key

        source = self.rollout_source
        return Trials(
            rollout=source.trial(run_stages),
            update=self.update_stage(state),  # type: ignore[arg-type]
            rollout_args=rollout_args,
            update_args=lambda: (self.trial_batch(state), state.key, state.metrics.env_steps),
            keep=keep,
            choose_acting=source.acting_mode(state),
            python_steps=self.steps_in_graph,
            python_loop=self.loops_on_host,
            several=self.replicas.several,
            several_workers=self.replicas.num_workers > 1,
            overlaps=self.overlaps,
            steps_in_xla=getattr(self.env.unwrapped, "steps_in_xla", False),
        )

    @abc.abstractmethod
    def trial_batch(self, state: State) -> Nest:
        """Returns a batch for the update to be timed on; nothing may change by making it."""

    # What a checkpoint holds.

    def run_key(self, state: State) -> Any:
        """Returns what all states of one run share, and only they."""
        return weakref.ref(self.runner(state))

    def state_values(self, state: State) -> dict[str, Any]:
        """Every value of the run by path."""
        state = self.ready(state)
        return {**progress_values(self, state), **learner_values(self, state)}

    def state_paths(self, state: State) -> set[str]:
        """The paths of `state_values`."""
        return set(self.state_values(state))

    def is_loaded(self, path: str, *, environments: bool) -> bool:
        """All; but without environments not those of environments and carry."""
        return environments or not path.startswith(PLAYED)

    def load_values(
        self, state: State, values: Mapping[str, Any], *, environments: bool = True
    ) -> State:
        """Returns `state` with every value replaced; see `Workflow.load_values`."""
        state = load_progress(self, self.ready(state), values, environments)
        load_learner(self, state, values)
        self.runner(state).iterations = int(state.metrics.iterations)
        return state


def _assign(what: str, variables: Nest, values: Nest) -> None:
    """Assigns a nest of values; raises a UserError for one of another form."""
    own, new = struct.paths(variables), struct.paths(values)
    wrong = sorted(set(own) ^ set(new)) or [
        f"{p} of shape {tuple(new[p].shape)} for {tuple(x.shape)}"
        for p, x in own.items()
        if tuple(new[p].shape) != tuple(x.shape)
    ]
    if wrong:
        raise UserError(
            what,
            expected="the form that this workflow's have",
            got=f"another one at {', '.join(wrong[:3])}{', ...' if len(wrong) > 3 else ''}",
            remedy="Begin with what `setup` of this workflow, or its hook, returns.",
        )
    for path, variable in own.items():
        variable.assign(new[path])
