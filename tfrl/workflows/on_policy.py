"""The on-policy workflow: roll out, learn from it, throw it away."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.core import Agent
from tfrl.distribute.replicas import Replicas
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host import check_place
from tfrl.envs.host_env import HostEnv
from tfrl.envs.wrappers.task_rewards import with_task_rewards
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evaluation.result import EvaluationResult
from tfrl.learners import (
    DEFAULT_MODULE_ID,
    CheckNumerics,
    Learner,
    ModuleConfig,
    raise_if_nonfinite,
)
from tfrl.learners.minibatches import Remainder
from tfrl.rollout import rollout
from tfrl.types import EnvState, Nest, Trajectory
from tfrl.workflows.checks import (
    check_ends,
    check_episodes,
    check_fit,
    check_resets,
    check_whole,
)
from tfrl.workflows.core import Advance, Workflow
from tfrl.workflows.on_policy_program import MAX_ITERATIONS, OnPolicyProgram, Progress
from tfrl.workflows.on_policy_state import OnPolicyState, RolloutResult
from tfrl.workflows.on_policy_values import load_values, state_values
from tfrl.workflows.seams import check_compile
from tfrl.workflows.sizes import check_divided, minibatch_sizes

SEAMS = ("rollout", "update", "evaluation", "loop")


class OnPolicyWorkflow(Workflow):
    """Trains an on-policy agent on a batch of environments.

    One iteration: `rollout_length` steps in each of the environments, then `num_epochs` passes
    over their rows in `num_minibatches` shuffled minibatches. On device environments several
    iterations run in one compiled call; how many never changes a result. An algorithm differs from
    this template by its agent and by the hooks `collect` (which is `roll` and `digest`) and
    `update`, which are traced.

    Environments on the host (`tfrl.envs.host_env.HostEnv`) are stepped in Python by `roll`; what
    follows is compiled as well. A checkpoint does not hold them: a resumed run restores everything
    else exactly and begins new episodes. The workflow closes them in `close`.
    """

    def __init__(
        self,
        *,
        env: Env,
        agent: Agent | Callable[..., Agent],
        eval_env: Env | None = None,
        rollout_length: int = 128,
        num_epochs: int | None = None,
        num_minibatches: int | None = None,
        remainder: Remainder = "error",
        learner_config: ModuleConfig | None = None,
        check_numerics: CheckNumerics = "raise",
        eval_episodes: int = 32,
        compile: str | Mapping[str, str] = "auto",
        iterations_per_call: int | None = None,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Assembles the static logic; `setup` makes what changes.

        Args:
          env: The training environments, as `tfrl.make_env` gives them.
          agent: An agent, or a function (such as the class) that makes one from keyword arguments
            `obs_spec` and `action_spec`.
          eval_env: The environments to evaluate on; the training ones by default. Wrappers above
            the autoreset that change rewards are left out: an evaluation tells the task's returns.
          rollout_length: Steps per environment and iteration (T).
          num_epochs: Passes over the rows of an iteration; None for the agent's own number, which
            is 4 for PPO and 1 for A2C, REINFORCE and IMPALA.
          num_minibatches: Gradient steps of a pass; must divide T x B unless `remainder` says how.
            None as for `num_epochs`.
          remainder: "error", "pad", "drop" or "wrap".
          learner_config: Learning rate and gradient clipping; by default 3e-4 and 0.5.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_episodes: Episodes of one evaluation.
          compile: "auto", "xla", "graph", "eager", or a dict of them by seam: rollout, update,
            evaluation, and loop (the loop over the iterations of a call; "xla" makes one program
            of it where rollout and update are XLA). In environments on the host the rollout's
            mode says how the policy is called, "numpy" among them; "auto" measures.
          iterations_per_call: Iterations of one compiled call; None for about half a second.
          strategy: A tf.distribute strategy; by default the one whose scope this is called in.
            All sizes are those of all replicas together, which divide them.

        Raises:
          UserError: For sizes that do not divide.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        self.replicas = Replicas(strategy)
        self.env = check_episodes("env", env)
        if not hasattr(agent, "compute_actions") or isinstance(agent, type):
            agent = agent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        self.agent = agent
        epochs, minibatches = getattr(agent, "epochs_and_minibatches", (4, 4))
        num_epochs = epochs if num_epochs is None else num_epochs
        num_minibatches = minibatches if num_minibatches is None else num_minibatches
        check_whole(
            rollout_length=rollout_length,
            num_epochs=num_epochs,
            num_minibatches=num_minibatches,
            eval_episodes=eval_episodes,
        )
        # An agent of several policies names them; any other is the only module of the learner.
        self.modules: dict[str, Any] = getattr(agent, "modules", None) or {DEFAULT_MODULE_ID: agent}
        self.learns = any(module.updates for module in self.modules.values())
        self.rollout_length = rollout_length
        self.learner_config = learner_config or ModuleConfig(grad_clip=0.5)
        self.check_numerics = check_numerics
        self.use_compile(compile)
        self.num_epochs = num_epochs
        self.minibatch_sizes = minibatch_sizes(
            self.modules,
            getattr(agent, "members", {}),
            rollout_length=rollout_length,
            num_envs=env.num_envs,
            num_minibatches=num_minibatches,
            num_epochs=num_epochs,
            remainder=remainder,
        )
        self.remainder = remainder
        played = check_episodes("eval_env", eval_env) if eval_env is not None else env
        self.eval_env = with_task_rewards(played)
        if isinstance(env, HostEnv) and self.eval_env is env:
            self.eval_env = env.copy()  # an evaluation must not disturb the training's episodes
        check_ends(self.eval_env)
        self.eval_episodes = eval_episodes
        check_resets(env)
        check_fit(self.agent, {"env": self.env, "eval_env": self.eval_env})
        self._divide()
        # Says now, not after the training, that an evaluation could not end.
        self.make_evaluator(eval_episodes, "graph")
        # Under SAME_STEP every row is a real step, so the batch needs no mask.
        self.all_rows_valid = env.autoreset in (Autoreset.SAME_STEP, Autoreset.SAME_STEP_CACHED)

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Spreads runs that are set up from now on over the replicas of a strategy."""
        self.replicas = Replicas(strategy)
        self._divide()

    @property
    def agreement(self) -> Any:
        """How the processes of a multi-worker strategy decide together; None for one process."""
        return self._agreement

    def _divide(self) -> None:
        """Makes each replica's part of the environments."""
        several = self.replicas.num_workers > 1
        self._agreement: Any = None
        if several:
            from tfrl.distribute.agreement import Agreement

            self._agreement = Agreement(self.replicas.strategy)
        parts = self.replicas.num_replicas
        for env in (self.env, self.eval_env):
            if isinstance(env, HostEnv):
                check_place(env.backend.name, parts)
        check_divided(
            parts,
            {"num_envs": self.env.num_envs, "num_envs of eval_env": self.eval_env.num_envs},
            self.minibatch_sizes,
        )
        self.replica_env = self.env.with_num_envs(self.env.num_envs // parts)
        self.replica_eval_env = self.eval_env.with_num_envs(self.eval_env.num_envs // parts)

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

    def acting_state(self, learner: Learner) -> Any:
        """Returns the variables that the agent acts by.

        Those of the only module, or `{module_id: AgentState}` for an agent of several.
        """
        states = {m: learner.module_state(m) for m in self.modules}
        return states if hasattr(self.agent, "modules") else states[DEFAULT_MODULE_ID]

    def normalizer(self, agent_state: Any) -> Nest:
        """Returns the observation statistics out of a state as `acting_state` gives it."""
        if hasattr(self.agent, "modules"):
            found = {m: state.normalizer for m, state in agent_state.items()}
            found = {m: x for m, x in found.items() if x is not None}
            return found or None
        return agent_state.normalizer

    def collect(
        self, agent_state: Any, env_state: EnvState, carry: Nest, key: tf.Tensor
    ) -> RolloutResult:
        """Rolls out, and turns the experience into a batch; a pure function of values.

        Under a strategy it runs on every replica, in `replica_env`, with the replica's own key.
        """
        trajectory, env_state, carry = self.roll(agent_state, env_state, carry, key)
        return self.digest(agent_state, trajectory).replace(env_state=env_state, carry=carry)

    def roll(
        self, agent_state: Any, env_state: EnvState, carry: Nest, key: tf.Tensor
    ) -> tuple[Trajectory, EnvState, Nest]:
        """Plays `rollout_length` steps; in environments on the host, outside of a graph."""
        return rollout(
            self.replica_env,
            self.agent,
            env_state,
            agent_state,
            key,
            self.rollout_length,
            env_extra_fields=self.rollout_fields(env_state),
            carry=carry,
        )

    def rollout_fields(self, env_state: EnvState) -> tuple[str, ...]:
        """The fields of `info` that are stored; agents that end together have no `agents`."""
        asked = getattr(self.agent, "env_extra_fields", ())
        own = (name for name in asked if name != "agents" or name in env_state.info)
        return ("episode_return", "episode_length", *own)

    def digest(self, agent_state: Any, trajectory: Trajectory) -> RolloutResult:
        """Turns the experience of a rollout into a batch; a pure function of values."""
        ended = (trajectory.termination | trajectory.truncation) & trajectory.valid
        ends = tf.cast(ended, tf.float32)
        count = tf.reduce_sum(ends)
        extras = trajectory.env_extras
        some = tf.maximum(count, 1.0)
        lengths = tf.cast(extras["episode_length"], tf.float32)
        # Of several agents: that of the team.
        returns = tf.add_n(tf.nest.flatten(extras["episode_return"]))
        env_steps = tf.math.count_nonzero(trajectory.valid)
        if self.all_rows_valid:
            trajectory = trajectory.replace(valid=None)
        # An agent that does not learn shares all but the update.
        batch, metrics = (
            self.agent.learner_batch(agent_state, trajectory)
            if self.learns
            else (trajectory.reward, {})
        )
        return RolloutResult(
            batch=batch,
            normalizer=self.normalizer(self.agent.observe(agent_state, trajectory)),
            metrics={
                **metrics,
                "episode_return": tf.reduce_sum(ends * returns) / some,
                "episode_length": tf.reduce_sum(ends * lengths) / some,
            },
            counts={"env_steps": env_steps, "episodes": tf.cast(count, tf.int64)},
        )

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
        results = learner.update(
            batch,
            key=key,
            timesteps=timesteps,
            num_epochs=self.num_epochs,
            minibatch_size=self.minibatch_sizes,
            remainder=self.remainder,
            jit=jit,
        )
        return {
            (name if m == DEFAULT_MODULE_ID else f"{m}/{name}"): x
            for m, row in results.items()
            for name, x in row.items()
        }

    # The run.

    def setup(self, seed: int) -> OnPolicyState:
        """Makes a fresh run from a seed."""
        key = seeding.key(seed)
        keys = seeding.streams(key, ["agent", "environment", "run", "evaluation"])
        program = OnPolicyProgram(self, self.setup_agent(keys["agent"]), keys["evaluation"])
        make_carry = getattr(self.agent, "initial_carry", None)

        def begin(key: tf.Tensor) -> tuple[EnvState, Nest]:
            if self.replicas.several:
                key = seeding.fold_in(key, self.replicas.index())
            env_state = self.replica_env.reset(key)
            carry = make_carry(self.replica_env.num_envs) if make_carry else None
            if isinstance(self.replica_env, HostEnv):
                return env_state, carry
            return tf.nest.map_structure(tf.convert_to_tensor, env_state), carry

        env_state, carry = self.replicas.run_once(begin, keys["environment"])
        zero = tf.constant(0, tf.int64)
        progress = Progress(
            env_state=env_state,
            carry=carry,
            key=keys["run"],
            iterations=zero,
            env_steps=zero,
            episodes=zero,
            episode_return=tf.constant(np.nan, tf.float32),
            episode_length=tf.constant(np.nan, tf.float32),
        )
        return OnPolicyState(progress=progress, program=program)

    def snapshot(self, state: OnPolicyState) -> OnPolicyState:
        """Returns a copy that later steps of `state` do not change."""
        self._check_fresh(state)
        program = state.program.clone()
        return state.replace(program=program, version=program.version)

    def advance(self, state: OnPolicyState, iterations: int, until: int | None = None) -> Advance:
        """Runs up to `iterations` iterations in one compiled call; see `Workflow.advance`."""
        self._check_fresh(state)
        program = state.program
        rows, progress, seconds = program.run(
            state.progress, min(iterations, MAX_ITERATIONS), until
        )
        program.version += 1
        new_state = state.replace(progress=progress, version=program.version)
        if self.check_numerics == "raise" and self.learns:
            for row in rows:
                where = f" at iteration {row['iterations']}, env step {row['env_steps']}"
                raise_if_nonfinite({m: self._row_of(m, row) for m in self.modules}, where)
        rows = [{k: v for k, v in row.items() if "nonfinite/" not in k or v} for row in rows]
        return Advance(rows=rows, state=new_state, seconds=seconds)

    def _row_of(self, module_id: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics of a module out of a row."""
        if module_id == DEFAULT_MODULE_ID:
            return dict(row)
        prefix = f"{module_id}/"
        return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}

    def replica_function(self, state: OnPolicyState) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns all that a device does in a call of `advance`, and example arguments.

        For `tfrl.distribute.check_compilable`: on a TPU it is one program.
        """
        return state.program.whole(state.progress)

    def evaluate(self, state: OnPolicyState) -> tuple[dict[str, float], OnPolicyState]:
        """Runs `eval_episodes` greedy episodes; the keys follow from the iteration."""
        self._check_fresh(state)
        result = state.program.evaluations.evaluate(state.progress.iterations)
        return result.metrics(), state

    def final_evaluation(
        self, state: OnPolicyState, num_episodes: int, seed: int | None = None
    ) -> EvaluationResult:
        """Runs `num_episodes` greedy episodes."""
        self._check_fresh(state)
        key = None if seed is None else seeding.stream(seeding.key(seed), "final_evaluation")
        return state.program.evaluations.evaluate(state.progress.iterations, num_episodes, key)

    def video_env(self) -> Env:
        """The evaluation's environments, of which a video shows the first."""
        return self.eval_env

    def describe(self) -> str:
        """Names the agent, the task and the sizes."""
        env = self.env
        task = env.backend.name if isinstance(env, HostEnv) else type(env.unwrapped).__name__
        how = env.halves[0].backend.stepped if isinstance(env, HostEnv) else ""
        return (
            f"{type(self.agent).__name__} on {task}, "
            f"{self.env.num_envs} environments{f' ({how})' if how else ''} x "
            f"{self.rollout_length} steps, minibatches of "
            + ", ".join(str(n) for n in dict.fromkeys(self.minibatch_sizes.values()))
        )

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile modes of runs that are set up from now on."""
        more = {"rollout": ("numpy",)} if isinstance(self.env, HostEnv) else None
        self.compile = check_compile(choices, SEAMS, more)

    def make_evaluator(self, num_episodes: int, compile: str) -> Evaluator:
        """Makes the evaluator of this workflow's environments for some number of episodes."""
        return Evaluator(
            env=self.replica_eval_env,
            agent=self.agent,
            num_episodes=num_episodes,
            compile=compile,
        )

    def close(self) -> None:
        """Closes environments on the host."""
        for env in (self.env, self.eval_env):
            if isinstance(env, HostEnv):
                env.close()

    # What a checkpoint holds.

    def env_steps(self, state: OnPolicyState) -> int:
        """Valid agent steps so far."""
        return int(state.progress.env_steps)

    def agent_state(self, state: OnPolicyState) -> Any:
        """The agent's state, values."""
        return struct.values(self.acting_state(state.program.learner))

    def state_values(self, state: OnPolicyState) -> dict[str, Any]:
        """Every value of the run by path."""
        self._check_fresh(state)
        return state_values(self, state)

    def load_values(
        self, state: OnPolicyState, values: Mapping[str, Any], *, environments: bool = True
    ) -> OnPolicyState:
        """Returns `state` with every value replaced; see `Workflow.load_values`."""
        return load_values(self, state, values, environments)

    def compile_choices(self, state: OnPolicyState) -> dict[str, str]:
        """Chooses the compile mode of every seam if it is not yet chosen, and returns them."""
        return state.program.choose(state.progress)
