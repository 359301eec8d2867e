"""The off-policy workflow: act, store, sample, learn."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl.agents.core import Agent
from tfrl.checks import boolean, number
from tfrl.envs.core import Env
from tfrl.envs.host import on_host
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.learners import DEFAULT_MODULE_ID, CheckNumerics, Learner, ModuleConfig
from tfrl.ops.schedules import check_schedule
from tfrl.replay import InGraphReplay, ReplayBuffer
from tfrl.replay.reverb import ReverbReplay
from tfrl.types import Nest, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.checks import (
    check_agent,
    check_batch_size,
    check_config,
    check_counts,
    check_place_of_replay,
    check_replay,
    check_room,
    check_whole,
    made_replay,
    on_server,
    sampled,
    updates_ratio,
    warn_of_no_updates,
)
from tfrl.workflows.learner_workflow import LearnerWorkflow
from tfrl.workflows.off_policy_program import REPLAY, OffPolicyProgram
from tfrl.workflows.off_policy_reverb import ReverbProgram
from tfrl.workflows.options import RunOptions, with_changes
from tfrl.workflows.run_state import RolloutResult, State

# Iterations share a row of metrics until it is about so many env steps.
_STEPS_PER_ROW = 100
_CAPACITY = 1_000_000
_BETA = "0.4 is usual, often annealed to 1."


class OffPolicyWorkflow(LearnerWorkflow):
    """Trains an off-policy agent from a replay buffer.

    One iteration: `rollout_length` steps in each of the environments, which are added to the
    buffer, then `updates_per_step` learner steps for each of these env steps, on a fresh sample
    each. Before that the buffer is filled by random play. On device environments many iterations
    run in one compiled call; how many never changes a result. Some iterations share a row of
    metrics.

    An algorithm differs from this template by its agent and by the hooks `setup_replay`, `collect`,
    `make_batch`, `update` and `priorities`.
    """

    def __init__(
        self,
        env: Env,
        agent: Agent | Callable[..., Agent],
        optimizer: Any = None,
        evaluator: Evaluator | None = None,
        replay_buffer: Any = None,
        *,
        eval_env: Env | None = None,
        replay: Any = None,
        rollout_length: int = 1,
        updates_per_step: float = 1.0,
        batch_size: int = 256,
        random_steps: int = 1_000,
        learning_starts: int | None = None,
        priority_beta: Any = 0.4,
        priority_epsilon: float = 1e-6,
        checkpoint_replay: bool = True,
        learner_config: ModuleConfig | None = None,
        check_numerics: CheckNumerics = "raise",
        eval_episodes: int = 32,
        compile: str | Mapping[str, str] = "auto",
        iterations_per_call: int | None = None,
        iterations_per_row: int | None = None,
        overlap: bool = True,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Assembles the static logic; `setup` makes what changes.

        Args:
          env: The training environments, as `tfrl.make_env` gives them.
          agent: An off-policy agent (DQN, DDPG, TD3, SAC), or a function (such as the class) that
            makes one from keyword arguments `obs_spec` and `action_spec`.
          optimizer: "adam", "adamw", "rmsprop", "sgd", "lion", one of `tfrl.learning.optimizers`,
            or a Keras optimizer, in the place of `learner_config.optimizer`; None to leave it. The
            learning rate is `learner_config.lr`.
          evaluator: Plays the evaluations, in environments of its own; None for `eval_episodes`
            episodes in `eval_env`.
          replay_buffer: As `replay`, which is its name in gin files; one of the two.
          eval_env: The environments to evaluate on; the training ones by default. Wrappers above
            the autoreset that change rewards are left out: an evaluation tells the task's returns.
          replay: The maker of the replay buffer, or a function (such as
            `functools.partial(InGraphReplay, capacity=100_000)`; in gin the class, with a binding
            of its capacity) that makes one from keyword arguments `obs_spec`, `action_spec`,
            `num_envs`, `n_step` and `discount`; the last two are the agent's. Or
            `tfrl.replay.reverb.ReverbReplay`, likewise. None for a million steps, sampled
            uniformly: of environments on the device an `InGraphReplay`, of those on the host a
            `ReverbReplay` in this process.
          rollout_length: Steps per environment and iteration (T).
          updates_per_step: Learner steps per env step, once the learning has started: 1 for one
            each, 0.25 for one in four env steps. Of any `rollout_length` and number of
            environments the ratio is kept exactly, up to a fraction of an update.
          batch_size: Rows of a learner step, of all replicas together.
          random_steps: Env steps that are played at random at first.
          learning_starts: Env steps before the first learner step; None for `random_steps`.
          priority_beta: How far importance weights correct prioritised sampling, from 0 to 1: a
            number or a schedule over env steps. Without meaning for uniform sampling.
          priority_epsilon: Is added to |TD error| to make a priority.
          checkpoint_replay: Whether checkpoints hold the buffer. Without it a resumed run fills it
            again, `learning_starts` env steps long, before it goes on learning.
          learner_config: Learning rate and gradient clipping; by default 3e-4 and none.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_episodes: Episodes of one evaluation.
          compile: "auto", "xla", "graph", "eager", or a dict of them by stage: rollout, update (one
            learner step), evaluation, and loop; as of `OnPolicyWorkflow`.
          iterations_per_call: Iterations of one compiled call; None for about half a second.
          iterations_per_row: Iterations that share a row of metrics, their means; None for about
            100 env steps.
          overlap: In environments on the host, and with Reverb: whether the learner steps of an
            iteration run in the background of the next one's rollout, which then acts by the
            parameters from before them. This lag is always the same, and so is the run;
            `policy_lag` among the metrics is its number of learner steps. Elsewhere, and in several
            processes, there is none.
          strategy: A tf.distribute strategy; by default the one whose scope this is called in.
            All sizes are those of all replicas together, which divide them.

        Raises:
          UserError: For an agent that does not learn from replayed experience, numbers out of
            bounds, and sizes that do not divide.
        """
        super().__init__(
            env=env,
            agent=agent,
            optimizer=optimizer,
            evaluator=evaluator,
            eval_env=eval_env,
            rollout_length=rollout_length,
            learner_config=learner_config,
            default_config=ModuleConfig(lr=3e-4, adam_epsilon=1e-8),
            check_numerics=check_numerics,
            eval_episodes=eval_episodes,
            compile=compile,
            iterations_per_call=iterations_per_call,
            strategy=strategy,
        )
        learning_starts = random_steps if learning_starts is None else learning_starts
        check_counts(random_steps=random_steps, learning_starts=learning_starts)
        self.random_steps, self.learning_starts = random_steps, learning_starts
        self.batch_size = batch_size
        self.overlap = overlap
        boolean("OffPolicyWorkflow.overlap", overlap)
        boolean("OffPolicyWorkflow.checkpoint_replay", checkpoint_replay)
        self._ratio = updates_ratio(updates_per_step)
        check_schedule("OffPolicyWorkflow.priority_beta", priority_beta, 0.0, 1.0, _BETA)
        name = "OffPolicyWorkflow.priority_epsilon"
        number(name, priority_epsilon, 0, remedy="1e-6 is usual.")
        self.priority_beta, self.priority_epsilon = priority_beta, priority_epsilon
        self.checkpoint_replay = checkpoint_replay
        if replay is not None and replay_buffer is not None:
            raise UserError(
                "replay_buffer",
                expected="None beside replay, which is the same",
                got=repr(replay_buffer),
                remedy="Give one of the two.",
            )
        self.replay = self._make_replay(replay_buffer if replay is None else replay)
        self._servers: weakref.WeakSet[Any] = weakref.WeakSet()
        steps = rollout_length * env.num_envs
        if iterations_per_row is None:
            iterations_per_row = max(1, _STEPS_PER_ROW // steps)
        check_whole(iterations_per_row=iterations_per_row)
        self.iterations_per_row = iterations_per_row
        self._complete()

    def _check_agent(self, learner_config: ModuleConfig | None) -> None:
        check_agent(self.agent)
        check_config(self.agent, learner_config)

    def _make_replay(self, replay: Any) -> Any:
        """The maker of the buffer."""
        env, agent = self.env, self.agent
        if replay is None:
            capacity = max(_CAPACITY // env.num_envs, 1) * env.num_envs
            kind = ReverbReplay if on_host(env) else InGraphReplay
            replay = functools.partial(kind, capacity=capacity)
        if not hasattr(replay, "init") or isinstance(replay, type):
            replay = made_replay(
                replay,
                obs_spec=agent.obs_spec,
                action_spec=agent.action_spec,
                num_envs=env.num_envs,
                n_step=agent.n_step,
                discount=agent.discount,
            )
        check_replay(replay, agent, env.num_envs)
        return replay

    @property
    def prioritized(self) -> bool:
        """Whether items are sampled by priority."""
        return sampled(self.replay).kind == "prioritized"

    @property
    def loops_in_python(self) -> bool:  # type: ignore[override]
        """Whether Python runs the loop: experience goes to a Reverb server."""
        return isinstance(self.replay, ReverbReplay)

    def use_replay_server(self, address: str, reconnect_seconds: float | None = None) -> None:
        """Lets runs that are set up from now on use a Reverb server that runs already.

        A buffer in the graph becomes the one on Reverb that holds the same items.

        Args:
          address: "host:port", as `bin/reverb_server.py` prints it.
          reconnect_seconds: How long to wait for a server that was lost; None for what `replay`
            says, which is to end in an error where it says nothing.

        Raises:
          UserError: For an address of another form, or a buffer that Reverb cannot hold.
        """
        replay = on_server(self.replay, address)
        if reconnect_seconds is not None:
            replay = replay.replace(reconnect_seconds=reconnect_seconds)
        self.replay = replay

    @property
    def divided_sizes(self) -> dict[str, int]:
        """Rows of a learner step."""
        check_batch_size(self.batch_size, self.replicas.num_replicas)
        check_room(self.replay, self.batch_size)
        return {}

    def learn(
        self,
        state: State,
        options: RunOptions | None = None,
        *,
        callbacks: Sequence[Any] = (),
        **changes: Any,
    ) -> State:
        """Trains; see `Workflow.learn`. Warns of a run that ends before its first learner step."""
        asked = with_changes(options, changes)
        program, state = self.program(state)
        begins = program.learning_start  # type: ignore[attr-defined]
        warn_of_no_updates(asked.total_env_steps, begins, self.env_steps(state))
        return super().learn(state, asked, callbacks=callbacks)

    # Checkpoints.

    def is_loaded(self, path: str, *, environments: bool) -> bool:
        """All, but no experience for an evaluation, nor without `checkpoint_replay`."""
        return not path.startswith(REPLAY) or (environments and self.checkpoint_replay)

    def check_paths(self, checkpoint: str, want: set[str], have: set[str]) -> None:
        """Tells a checkpoint whose experience was elsewhere from others that do not fit."""
        check_place_of_replay(checkpoint, want, have)
        super().check_paths(checkpoint, want, have)

    # Hooks.

    def replay_buffer(self, state: State) -> ReplayBuffer:
        """Returns the buffer over the experience of a state: `add`, `sample`, `size`."""
        program, _ = self.program(state)
        return program.buffer  # type: ignore[attr-defined,no-any-return]

    def setup_replay(self) -> ReplayBuffer:
        """Makes the empty replay buffer of a fresh run; of several processes that of this one."""
        if not self.loops_in_python:
            return self.replay.init()  # type: ignore[no-any-return]
        buffer = self.replay.part(self.replicas.num_workers).init()
        self._servers.add(buffer)
        return buffer

    def make_program(self, learner: Learner) -> OffPolicyProgram:
        """Makes the variables and compiled functions of a fresh run over a built learner."""
        if not self.loops_in_python:
            return OffPolicyProgram(self, learner)
        program = ReverbProgram(self, learner)
        # The server of a run that nobody refers to any more ends with it.
        weakref.finalize(program, program.buffer.close).atexit = False
        return program

    def close(self) -> None:
        """Closes environments on the host, and what is Reverb's."""
        super().close()
        with contextlib.ExitStack() as stack:  # all are closed, whatever one of them raises
            for buffer in tuple(self._servers):
                stack.callback(buffer.close)
            self._servers.clear()

    # Those below are traced.

    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """One iteration: rolls out, stores it, and learns from samples.

        Where each iteration has one learner step, it learns from a batch that was drawn before its
        own steps were added: the rollout and the learner step then run at the same time.

        Args:
          state: Before the iteration. Its leaves are variables: a buffer changes in place.
          key: int32 [2].

        Returns:
          `{name: float32 scalar}` and the state after it.
        """
        if state.program is None:
            raise UserError(
                "OffPolicyWorkflow.iterate",
                expected="a state of variables, in whose replay buffer it writes",
                got="one of tensors",
                remedy="Use workflow.step, which copies it into variables.",
            )
        if state.ahead is None:
            return super().iterate(state, key)
        _, _, play_key = state.ahead
        out = self.play(state, play_key)
        with stages.after(out):
            return self.improve(state, out, play_key)

    def play(self, state: State, key: tf.Tensor) -> RolloutResult:
        """Rolls out; where the batch that follows is known, stores and samples too."""
        run = state.program
        if run.gathers:
            return run.gathered(state)  # type: ignore[no-any-return]
        out = super().play(state, key)
        return self.stored(state, out) if run.samples_ahead else out

    def stored(self, state: State, out: RolloutResult) -> RolloutResult:
        """Stores a rollout, and puts a sampled batch in the place of its experience."""
        run = state.program
        self.with_normalizer(state, out.normalizer)
        # Before the sample: a write after a read makes XLA copy the whole buffer.
        run.add(out.batch)
        iteration = state.metrics.iterations
        iteration = iteration + 1 if run.samples_ahead else iteration
        env_steps = state.metrics.env_steps + out.counts["env_steps"]
        batch = run.batch_of(state, iteration, env_steps)
        return out.replace(batch=batch, normalizer=None)  # type: ignore[no-any-return]

    def improve(
        self, state: State, out: RolloutResult, key: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Stores a rollout if it is not yet, and takes the learner steps that are due."""
        run, before = state.program, state.metrics.env_steps
        run.notes = []
        env_steps = before + out.counts["env_steps"]
        metrics: dict[str, tf.Tensor] = {}
        if run.samples_ahead or run.gathers:  # the experience is in the buffer
            batch, update_key, _ = state.ahead or out.batch
            if self.all_rows_valid:  # known without waiting for the rollout
                env_steps = before + self.steps_per_iteration
            metrics, _ = run.update_on(batch, update_key, env_steps)
        else:
            state = self.with_normalizer(state, out.normalizer)
            # Before the samples: a write after a read makes XLA copy the whole buffer.
            run.add(out.batch)
            if run.learning:
                metrics = run.learn_from_replay(before, env_steps, key)
            else:
                # Nothing is updated, yet the schedules of acting go on.
                run.learner.follow_schedules(DEFAULT_MODULE_ID, env_steps)
        metrics, state = self.finished(state, out, metrics)
        return metrics, state.replace(ahead=out.batch if run.samples_ahead else None)

    def make_batch(
        self, agent_state: Any, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Returns what the buffer is given of a rollout: all of it, and no metrics."""
        return trajectory, {}

    def updates_due(self, before: tf.Tensor, after: tf.Tensor) -> int | tf.Tensor:
        """Returns how many learner steps follow from env steps, a number where it is always that.

        Args:
          before: int64, env steps before them.
          after: int64, env steps with them.
        """
        up, down = self._ratio.numerator, self._ratio.denominator
        steps = self.steps_per_iteration
        if self.all_rows_valid and steps * up % down == 0:
            return steps * up // down
        return tf.cast(after * up // down - before * up // down, tf.int32)

    @property
    def update_options(self) -> dict[str, Any]:
        """A sampled batch is one learner step, in its order."""
        return {"shuffle": False}

    def priorities(self, state: Any, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns the priorities of sampled rows, float32 [N]; `state` is that before the step."""
        return self.agent.td_errors(state, batch, key) + self.priority_epsilon

    def describe_updates(self) -> str:
        """Returns how it learns, in a few words."""
        return (
            f"{float(self._ratio):g} updates per env step on {self.batch_size} rows of a "
            f"{sampled(self.replay).kind} replay of {sampled(self.replay).capacity:,}"
        )
