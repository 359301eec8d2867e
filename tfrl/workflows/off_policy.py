"""The off-policy workflow: act, store, sample, learn."""

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.core import Agent
from tfrl.checks import boolean, number
from tfrl.envs.core import Env
from tfrl.envs.host import on_host
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.learners import DEFAULT_MODULE_ID, CheckNumerics, ModuleConfig
from tfrl.learning import leaves
from tfrl.metrics.accumulator import mean_of_steps
from tfrl.ops.schedules import check_schedule, make_schedule
from tfrl.replay import InGraphReplay, ReplayBuffer, ReplayFactory, ReverbReplay
from tfrl.replay.tensor_variable import as_leaves, as_variables
from tfrl.traces import counted_separately
from tfrl.types import ActionFn, Nest, ReplayAgent, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.autotune import Trials
from tfrl.workflows.checks import (
    check_agent,
    check_batch_size,
    check_config,
    check_counts,
    check_place_of_replay,
    check_replay,
    check_room,
    check_variables,
    check_whole,
    make_replay,
    on_server,
    sampled,
    updates_ratio,
    warn_of_no_updates,
)
from tfrl.workflows.collectors import POLICY_VERSION
from tfrl.workflows.experience import InGraphExperience
from tfrl.workflows.host_runner import HostRunner
from tfrl.workflows.learner_workflow import LearnerWorkflow
from tfrl.workflows.options import RunOptions, with_changes
from tfrl.workflows.reverb_experience import ReverbExperience
from tfrl.workflows.rollout_result import RolloutResult
from tfrl.workflows.run_state import RunMetrics, State, keys_of
from tfrl.workflows.runner import Runner
from tfrl.workflows.stages import RunPhase, Stages

if TYPE_CHECKING:
    from tfrl.replay.reverb.sharded import AnyReverbBuffer

# Iterations share a row of metrics until it is about so many env steps.
_STEPS_PER_ROW = 100
_CAPACITY = 1_000_000
# Prefix of the buffer's paths in a checkpoint.
REPLAY = "replay/"
# `learning_start` once the updates have begun.
_BEGUN = -1
_BETA = "0.4 is usual, often annealed to 1."


class OffPolicyWorkflow(LearnerWorkflow):
    """Trains an off-policy agent from a replay buffer.

    One iteration: `rollout_length` steps in each of the environments, which are added to the
    buffer, then `updates_per_step` learner steps for each of these env steps, each on a fresh
    sample. Before the first learner step random actions fill the buffer. On device environments one
    compiled call runs many iterations; their number never changes a result. Several iterations may
    share a row of metrics.

    An algorithm is an agent and, where needed, overrides of the hooks `setup_replay`, `collect`,
    `make_batch`, `update` and `priorities`.
    """

    def __init__(
        self,
        env: Env,
        agent: Agent | Callable[..., Agent],
        optimizer: Any = None,
        evaluator: Evaluator | None = None,
        replay_buffer: ReplayFactory | Callable[..., ReplayFactory] | None = None,
        *,
        eval_env: Env | None = None,
        replay: ReplayFactory | Callable[..., ReplayFactory] | None = None,
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
        """Assembles the static logic; `setup` makes the state.

        Args:
          env: The training environments, as returned by `tfrl.make_env`.
          agent: An agent that learns from replay, or a function (such as the class) that creates
            one from keyword arguments `obs_spec` and `action_spec`.
          optimizer: "adam", "adamw", "rmsprop", "sgd", "lion", one of `tfrl.learning.optimizers`,
            or a Keras optimizer, in place of `learner_config.optimizer`; None to keep that. The
            learning rate is `learner_config.lr`; where that is None a Keras optimizer's own.
          evaluator: Runs the evaluations in its own environments; None for `eval_episodes` episodes
            in `eval_env`.
          replay_buffer: Another name of `replay`, the name in gin files; set only one of the two.
          eval_env: The environments to evaluate on; the training ones by default. Evaluations omit
            wrappers above the autoreset that change rewards, and report the task's returns.
          replay: The factory of the replay buffer, an `InGraphReplay` or a
            `tfrl.replay.reverb.ReverbReplay`; or a function (such as
            `functools.partial(InGraphReplay, capacity=100_000)`; in gin the class, with a binding
            of its capacity) that creates one from keyword arguments `obs_spec`, `action_spec`,
            `num_envs`, `n_step` and `discount`; the last two are the agent's. None for a million
            steps with uniform sampling: an `InGraphReplay` for environments on the device, a
            `ReverbReplay` in this process for environments on the host.
          rollout_length: Steps per environment and iteration (T).
          updates_per_step: Learner steps per env step, after learning has started: 1 for one per
            env step, 0.25 for one per four env steps. The ratio is exact, up to a fraction of an
            update, for any `rollout_length` and number of environments.
          batch_size: Rows of a learner step, summed over all replicas.
          random_steps: Env steps with random actions at the start.
          learning_starts: Env steps before the first learner step; None for `random_steps`.
          priority_beta: The exponent of the importance weights of prioritised sampling, from 0 to
            1: a number or a schedule over env steps. Unused with uniform sampling.
          priority_epsilon: Added to |TD error| to get the priority.
          checkpoint_replay: Whether checkpoints hold the buffer. If False, a resumed run refills it
            for `learning_starts` env steps before it learns.
          learner_config: Learning rate and gradient clipping; by default 3e-4 and none.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_episodes: Episodes of one evaluation.
          compile: "auto", "xla", "graph", "eager", or a dict of them by stage: rollout, update (one
            learner step), evaluation, and loop; as in `OnPolicyWorkflow`.
          iterations_per_call: Iterations of one compiled call; None for about half a second.
          iterations_per_row: Iterations that share a row of metrics, their means; None for about
            100 env steps.
          overlap: For environments on the host, and with Reverb: whether the learner steps of an
            iteration run in the background of the next rollout, which then acts with the parameters
            from before them. The lag is constant, so runs are reproducible; the metric `policy_lag`
            is its number of learner steps. Otherwise, and in several processes, there is no lag.
          strategy: A tf.distribute strategy; by default the one in scope. All sizes are totals,
            which the replicas divide.

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
            default_config=ModuleConfig(adam_epsilon=1e-8),
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
        self.updates_per_step = updates_ratio(updates_per_step)  # a fraction
        check_schedule("OffPolicyWorkflow.priority_beta", priority_beta, 0.0, 1.0, _BETA)
        name = "OffPolicyWorkflow.priority_epsilon"
        number(name, priority_epsilon, 0, remedy="The usual value is 1e-6.")
        self.priority_beta, self.priority_epsilon = priority_beta, priority_epsilon
        self.checkpoint_replay = checkpoint_replay
        if replay is not None and replay_buffer is not None:
            raise UserError(
                "replay_buffer",
                expected="None with replay, which is the same argument",
                got=repr(replay_buffer),
                remedy="Pass only one of the two.",
            )
        name = "replay" if replay_buffer is None else "replay_buffer"
        self.replay = self._make_replay(replay_buffer if replay is None else replay, name)
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

    def _make_replay(self, replay: Any, name: str) -> ReplayFactory:
        """Returns the replay factory of the argument called `name`."""
        env = self.env
        agent = cast(ReplayAgent, self.agent)
        if replay is None:
            capacity = max(_CAPACITY // env.num_envs, 1) * env.num_envs
            kind = ReverbReplay if on_host(env) else InGraphReplay
            replay = functools.partial(kind, capacity=capacity)
        if not hasattr(replay, "init") or isinstance(replay, type):
            replay = make_replay(
                name,
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
        """Whether sampling is prioritized."""
        return sampled(self.replay).kind == "prioritized"

    @property
    def divides_rollouts(self) -> bool:
        """Whether each replica has a part of the rollouts; collectors write to a replay server."""
        return self.collectors is None

    @property
    def uses_reverb(self) -> bool:
        """Whether the replay buffer is a Reverb server, to which Python writes the experience."""
        return isinstance(self.replay, ReverbReplay)

    @property
    def loops_in_python(self) -> bool:
        """Whether Python runs the loop; see `LearnerWorkflow`."""
        return super().loops_in_python or self.uses_reverb

    def use_replay_server(self, address: str, reconnect_seconds: float | None = None) -> None:
        """Later runs use a running Reverb server.

        A buffer in the graph becomes a Reverb buffer with the same items.

        Args:
          address: "host:port", as `bin/reverb_server.py` prints it.
          reconnect_seconds: Seconds to wait for a lost server; None for the factory's setting, by
            default 0: a lost server is an error.

        Raises:
          UserError: For an address of another form, or a buffer that Reverb cannot hold.
        """
        replay = on_server(self.replay, address)
        if reconnect_seconds is not None:
            replay = replay.replace(reconnect_seconds=reconnect_seconds)
        self.replay = replay

    @property
    def divided_sizes(self) -> dict[str, int]:
        """Checks the batch size; returns {}, since a learner step takes a whole sample."""
        check_batch_size(self.batch_size, self.replicas.num_replicas)
        check_room(self.replay, self.batch_size)
        return {}

    def learn(
        self,
        state: State,
        options: RunOptions | None = None,
        *,
        callbacks: Any = (),
        **changes: Any,
    ) -> State:
        """Trains; see `Workflow.learn`. Warns of a run that ends before its first learner step."""
        asked, state = with_changes(options, changes), self.ready(state)
        begins = int(state.metrics.learning_start)
        warn_of_no_updates(asked.total_env_steps, begins, self.env_steps(state))
        return super().learn(state, asked, callbacks=callbacks)

    # Checkpoints.

    def is_loaded(self, path: str, *, environments: bool) -> bool:
        """Whether a path is loaded; experience only for a training, with `checkpoint_replay`."""
        if path.startswith(REPLAY):
            return environments and self.checkpoint_replay
        return super().is_loaded(path, environments=environments)

    def check_paths(self, checkpoint: str, want: set[str], have: set[str]) -> None:
        """Checks the paths; has a separate message for another place of the replay buffer."""
        check_place_of_replay(checkpoint, want, have)
        super().check_paths(checkpoint, want, have)

    def own_replay_state(self, state: State) -> Nest:
        """Returns the part of `replay_buffer_state` that a subclass has added."""
        own = super().own_replay_state(state)
        if self.uses_reverb:
            return own
        buffers = self.replay_buffer(state).variables()  # type: ignore[attr-defined]
        return {name: x for name, x in own.items() if name not in buffers}

    def state_values(self, state: State) -> dict[str, Any]:
        """Returns every value of the run by path; the buffer's under `replay/`."""
        values = super().state_values(state)
        if self.checkpoint_replay:
            own = self._experience(state).values()
            values.update({f"{REPLAY}{path}": x for path, x in own.items()})
        return values

    def state_paths(self, state: State) -> set[str]:
        """Returns the paths of `state_values`, without copying the buffer."""
        paths = super().state_paths(state)
        if self.checkpoint_replay:
            paths |= {f"{REPLAY}{path}" for path in self._experience(state).paths()}
        return paths

    def load_values(
        self, state: State, values: Mapping[str, Any], *, environments: bool = True
    ) -> State:
        """Returns `state` with every value replaced; see `Workflow.load_values`.

        Without a buffer among them, the run fills it again before the updates go on. Without
        environments, the buffer stays as it is.
        """
        state = super().load_values(state, values, environments=environments)
        if not environments:
            return state
        start = int(state.metrics.env_steps) + self.learning_starts
        if self.checkpoint_replay:
            begun = int(tf.convert_to_tensor(state.metrics.learner["learner_steps"])) > 0
            start = _BEGUN if begun else self.learning_starts
            own = {p.removeprefix(REPLAY): x for p, x in values.items() if p.startswith(REPLAY)}
            self._experience(state).load(own)
            if self.loops_in_python:
                self.replay_buffer(state).cut()  # new episodes
        return self._with_start(state, start)

    # A run.

    def setup_workflow_metrics(self) -> RunMetrics:
        """Returns the counters of a fresh run."""
        start = tf.constant(self.learning_starts, tf.int64)
        return super().setup_workflow_metrics().replace(learning_start=start)

    def _with_start(self, state: State, start: int) -> State:
        metrics = state.metrics.replace(learning_start=tf.constant(start, tf.int64))
        return state.replace(metrics=metrics)

    def setup_replay(self) -> ReplayBuffer:
        """Returns this process' empty replay buffer for a fresh run."""
        if not isinstance(self.replay, ReverbReplay):
            return self.replay.init()
        buffer = self.replay.part(self.replicas.num_workers).init(batch_size=self.batch_size)
        self._servers.add(buffer)
        return buffer

    def setup_replay_buffer(self, key: tf.Tensor) -> dict[str, tf.Variable]:
        """Returns the variables of an empty buffer by path; none if it is on a server."""
        if self.uses_reverb:
            return {}
        with self.replicas.scope():
            return self.setup_replay().variables()  # type: ignore[attr-defined]

    def replay_buffer(self, state: State) -> ReplayBuffer:
        """Returns the replay buffer of a state, with `add`, `sample`, `size`."""
        return self._experience(state).buffer

    @property
    def changed_hooks(self) -> list[str]:
        """Names of the methods of an iteration that a subclass overrides."""
        return self._overridden(OffPolicyWorkflow)

    def make_runner(self, state: State) -> Runner:
        """Returns the runner of a state; with Reverb it holds the experience."""
        if not self.uses_reverb:
            return super().make_runner(state)
        if changed := self.changed_hooks:
            raise UserError(
                f"{type(self).__name__}.{changed[0]}",
                expected="the library's method, with a replay buffer on Reverb",
                got="an override",
                remedy="Use replay_buffer=InGraphReplay.",
            )
        with self.replicas.scope():
            buffer = cast("AnyReverbBuffer", self.setup_replay())
            experience = ReverbExperience(self, buffer)
        # The server ends with the last reference to its run.
        weakref.finalize(experience, experience.buffer.close).atexit = False
        iterations = int(state.metrics.iterations)
        return HostRunner(self, self.traces, iterations, experience=experience)

    def copied(self, state: State) -> State:
        """Returns a copy of a state in variables of its own; with Reverb, also of its server."""
        if not self.uses_reverb:
            return super().copied(state)
        if self._runner_of(state) is None:
            raise UserError(
                "a state of tensors",
                expected="a replay buffer in the graph, whose experience is part of the state",
                got="a replay buffer on a Reverb server",
                remedy="Use workflow.snapshot, a checkpoint, or InGraphReplay.",
            )
        values = self._reverb(state).copy_values()
        copy = super().copied(state)
        self._experience(copy).load(values)
        return copy

    def _reverb(self, state: State) -> ReverbExperience:
        """Returns the Reverb experience of a state."""
        return self.runner(state).experience  # type: ignore[attr-defined]

    def _experience(self, state: State) -> InGraphExperience | ReverbExperience:
        """Returns the experience of a state, on Reverb or in the graph."""
        if isinstance(self.replay, ReverbReplay):
            return self._reverb(state)
        variables = as_variables(state.replay_buffer_state)
        return InGraphExperience(self, self.replay.over(variables, self.replicas))

    def close(self) -> None:
        """Closes environments on the host and Reverb servers."""
        super().close()
        with contextlib.ExitStack() as stack:  # closes all, even if one raises
            for buffer in tuple(self._servers):
                stack.callback(buffer.close)
            self._servers.clear()

    # Phases: random or policy actions, filling or learning.

    def phase_of(self, state: State) -> RunPhase:
        """Returns the phase that a run is in."""
        env_steps, start = int(state.metrics.env_steps), int(state.metrics.learning_start)
        # The number of items may fall at an episode's end. A run whose updates have begun goes on
        # with any number, drawn with replacement, so that calls of any length have one result.
        size = 1 if start == _BEGUN else self.batch_size
        due, random = env_steps >= start, env_steps < self.random_steps
        random &= self.collectors is None  # collectors decide it
        learns = due and self._experience(state).can_sample(size, state)
        ends = [n for n in (self.random_steps, start) if env_steps < n]
        if due and not learns:
            ends.append(env_steps + 1)  # one more iteration may suffice
        name = f"{'random' if random else 'policy'}, {'learns' if learns else 'fills'}"
        return RunPhase(name, min(ends, default=None), random=random, learns=learns)

    def end_call(self, before: State, after: State) -> State:
        """Returns the state after a call, and notes that the updates have begun."""
        after = super().end_call(before, after)
        run_stages = stages.current()
        learns = run_stages is not None and run_stages.phase.learns
        return self._with_start(after, _BEGUN) if learns else after

    def always_due(self) -> int | None:
        """Learner steps of an iteration; None where their number varies."""
        with tf.init_scope():
            zero = tf.constant(0, tf.int64)
            due = self.updates_due(zero, zero)
        return due if isinstance(due, int) else None

    @property
    def prefetches(self) -> bool:
        """Whether the rollout and the update of some phase run at the same time in a graph.

        An iteration then learns from a batch that was drawn before its own steps were added. Not
        with priorities: a learner step changes the priorities of the next draw. Nor if a subclass
        overrides `learn_from`.
        """
        alone = not self.loops_in_python and not self.prioritized
        return alone and not self._has_own_learning and self.always_due() == 1

    @property
    def _has_own_learning(self) -> bool:
        return type(self).learn_from is not OffPolicyWorkflow.learn_from

    def fuses_sampling(self, run_stages: Stages | None) -> bool:
        """Whether rollout, buffer and sample are one XLA program though the update is a graph.

        Their operations are small: the graph executor would take longer to schedule them. Not if a
        subclass overrides `play` or `learn_from`, which that program leaves out.
        """
        if (
            run_stages is None
            or not run_stages.phase.learns
            or self.loops_in_python
            or self._has_own_learning
            or "play" in self.changed_hooks
            or self.always_due() != 1
        ):
            return False
        alone = not self.replicas.several and isinstance(self.replay, InGraphReplay)
        return (
            alone and run_stages.modes["rollout"] == "xla" and run_stages.modes["loop"] == "graph"
        )

    def times_stages(self, run_stages: Stages) -> bool:
        """Whether clocks time the stages; not where they run at the same time and would wait."""
        alone = self.replicas.num_workers == 1 and not on_host(self.env)
        together = self.prefetches and run_stages.phase.learns
        return not (together and run_stages.modes["loop"] == "graph" and alone)

    # An iteration; traced.

    @tf.autograph.experimental.do_not_convert
    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """One iteration: rolls out, stores the steps, and learns from samples.

        Where each iteration has one learner step, it learns from a batch that was drawn before its
        own steps were added: the rollout and the learner step then run at the same time.

        Args:
          state: Before the iteration. Variables are changed in place, a buffer among them. Tensors
            are carried by the loop of a population, see `PBTWorkflow`.
          key: int32 [2].

        Returns:
          `{name: float32 scalar}` and the state after it.
        """
        self._check_direct_call(state)
        run_stages = stages.current()
        phase = self.phase_of(state) if run_stages is None else run_stages.phase
        state = state.replace(replay_buffer_state=as_variables(state.replay_buffer_state))
        act = self.agent.random_actions if phase.random else None
        prefetches, fused = self.prefetches and phase.learns, self.fuses_sampling(run_stages)
        if prefetches or fused:
            metrics, state = self._iterate_sampled(
                state, key, act, prefetches=prefetches, fused=fused
            )
            if run_stages is None:  # the next call has a key of its own
                state = state.replace(prefetched=None)
        else:
            play_key, learn_key = keys_of(key)
            out = self.play(state, play_key, act)
            with stages.after(out):
                metrics, state = self.learn_from(state, out, learn_key)
        buffer = as_leaves(state.replay_buffer_state)
        return metrics, state.replace(replay_buffer_state=buffer)

    def _check_direct_call(self, state: State) -> None:
        super()._check_direct_call(state)
        if stages.current() is not None:
            return
        check_variables(
            "OffPolicyWorkflow.iterate", state.agent_state, "whose replay buffer it writes to"
        )
        if not tf.executing_eagerly():
            raise UserError(
                "OffPolicyWorkflow.iterate",
                expected="a call from Python, which reads the buffer's size to decide whether to "
                "train",
                got="a call inside a tf.function",
                remedy="Use workflow.advance, which compiles it.",
            )

    def learn_from(
        self, state: State, out: RolloutResult, key: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Stores a rollout, and takes the learner steps that are due."""
        run_stages = stages.current()
        learns = self.phase_of(state).learns if run_stages is None else run_stages.phase.learns
        before = state.metrics.env_steps
        env_steps = before + out.counts["env_steps"]
        metrics: dict[str, tf.Tensor] = {}
        state = self.with_normalizer(state, out.normalizer)
        # Before the samples: a write after a read makes XLA copy the whole buffer.
        self._experience(state).add(out.batch)
        if learns:
            metrics, state = self._learn_from_replay(state, before, env_steps, key)
        else:
            # No update, but the schedules of acting advance.
            state = self._follow_schedules(state, env_steps)
        return self.finished(state, out, metrics)

    # One learner step per iteration, on a batch that is drawn as soon as the steps are stored.

    def _iterate_sampled(
        self, state: State, key: tf.Tensor, act: ActionFn | None, *, prefetches: bool, fused: bool
    ) -> tuple[dict[str, tf.Tensor], State]:
        """One iteration with one learner step.

        Args:
          state: Before the iteration.
          key: As the argument of `iterate`.
          act: As the argument `action_fn` of `play`.
          prefetches: Whether the batch is the next iteration's. This one learns from the batch that
            the last one drew, at the same time as it plays.
          fused: Whether rollout, buffer and sample are one XLA program.
        """
        if prefetches and state.prefetched is None:
            state = self._prefetched(state, key)
        play_key = state.prefetched[-1] if prefetches else keys_of(key)[0]
        sample_key = None if prefetches else key
        if fused:
            out, sample = self._fused_sampling(state, play_key, sample_key, act)
        else:
            out = self.play(state, play_key, act)
            state, out, sample = self._stored_and_sampled(state, out, sample_key)
        with stages.after((out, sample)):
            batch, update_key, _ = state.prefetched if prefetches else sample
            # The number of an iteration's steps is usually known without waiting for the rollout.
            steps = self.fixed_steps_per_iteration or out.counts["env_steps"]
            env_steps = state.metrics.env_steps + steps
            metrics, state, _ = self._update_on(
                state, batch, update_key, env_steps, inline=prefetches
            )
            metrics, state = self.finished(state, out, metrics)
        return metrics, state.replace(prefetched=sample if prefetches else None)

    def prefetch(self, state: State) -> State:
        """Draws the batch of the first iteration of a call, where batches are drawn ahead."""
        run_stages = stages.current()
        if not self.prefetches or run_stages is None or not run_stages.phase.learns:
            return state
        return self._prefetched(state, state.iteration_key())

    def _prefetched(self, state: State, key: tf.Tensor) -> State:
        return state.replace(prefetched=self._batch_of(state, key, state.metrics.env_steps))

    def _batch_of(self, state: State, key: tf.Tensor, env_steps: tf.Tensor) -> Nest:
        """Returns the sample of an iteration's learner step, and the keys of update and rollout."""
        play_key, key = keys_of(key)
        return *self._sample_number(state, tf.constant(0), key, env_steps), play_key

    def _stored_and_sampled(
        self, state: State, out: RolloutResult, key: tf.Tensor | None
    ) -> tuple[State, RolloutResult, Nest]:
        """Stores a rollout; returns the state, the rollout's other results, and a sample.

        Args:
          state: Before the iteration.
          out: The result of its rollout.
          key: Of the sample's iteration; None for the next of the run.
        """
        state = self.with_normalizer(state, out.normalizer)
        # Before the sample: a write after a read makes XLA copy the whole buffer.
        self._experience(state).add(out.batch)
        if key is None:
            key = state.iteration_key(ahead=1)
        env_steps = state.metrics.env_steps + out.counts["env_steps"]
        sample = self._batch_of(state, key, env_steps)
        return state, out.replace(batch=(), normalizer=None), sample

    def _fused_sampling(
        self, state: State, play_key: tf.Tensor, key: tf.Tensor | None, act: ActionFn | None
    ) -> tuple[RolloutResult, Nest]:
        """Plays, stores and samples in one XLA program; returns rollout and sample."""
        form = state.replace(prefetched=None)

        def played_and_stored(
            carried: list[tf.Tensor], play_key: tf.Tensor, key: tf.Tensor | None
        ) -> tuple[RolloutResult, Nest]:
            before = leaves.with_carried(form, carried)
            values = struct.values(before.agent_state)
            out = self.collect(values, before.env_state, before.carry, play_key, action_fn=act)
            _, out, sample = self._stored_and_sampled(before, out, key)
            return out, sample

        def make() -> Any:
            return tf.function(
                counted_separately(played_and_stored), jit_compile=True, autograph=False
            )

        run_stages: Any = stages.current()
        return run_stages.once("rollout and replay", make)(leaves.carried(form), play_key, key)

    # Learner steps.

    def update_stage(self, state: State, *, inline: bool = False) -> Callable[..., Any]:
        """Returns the stage of one learner step over the variables of a state."""

        def update(batch: Nest, key: tf.Tensor, timesteps: tf.Tensor, jit: bool = False) -> Any:
            learner, result = self.learner_of(state), {}
            if self.prioritized:
                # Before the step: of the parameters that the loss sees, with noise of their own.
                result["priorities"] = self.replicas.run(
                    lambda batch, key: self.priorities(
                        struct.values(learner.module_state(DEFAULT_MODULE_ID)), batch, key
                    ),
                    batch,
                    key,
                )
            return {"metrics": self.update(learner, batch, key, timesteps, jit=jit), **result}

        xla = functools.partial(update, jit=True) if self.replicas.several else None
        return stages.stage("update", update, xla, inline=inline)

    def _update_on(
        self,
        state: State,
        batch: Nest,
        key: tf.Tensor,
        env_steps: tf.Tensor,
        *,
        inline: bool = False,
    ) -> tuple[dict[str, tf.Tensor], State, list[tf.Tensor]]:
        """Takes a learner step on a batch; returns metrics, state and host outputs."""
        if not leaves.in_place(state.agent_state):
            return *self.fit(state, batch, key, env_steps), []
        result = self.update_stage(state, inline=inline)(batch, key, env_steps)
        outputs: list[tf.Tensor] = []
        if self.prioritized:
            experience = self._experience(state)
            outputs = experience.update_priorities(batch.index, result["priorities"])
        return result["metrics"], state, outputs

    def _follow_schedules(self, state: State, env_steps: tf.Tensor) -> State:
        """Returns the state with the schedules of acting at `env_steps`, without an update."""
        learner = self.learner_of(state) if leaves.in_place(state.agent_state) else self.learner
        own = learner.follow_schedules(self.learner_state(state), DEFAULT_MODULE_ID, env_steps)
        return self.with_learner_state(state, own)

    def _sample_number(
        self, state: State, number: tf.Tensor, key: tf.Tensor, env_steps: tf.Tensor
    ) -> tuple[Nest, tf.Tensor]:
        """Returns the sample of learner step `number` of an iteration, and its update's key."""
        keys = seeding.streams(seeding.fold_in(key, number), ("sample", "update"))
        beta = make_schedule(self.priority_beta)(env_steps)
        return self._experience(state).sample(number, keys["sample"], beta), keys["update"]

    def _learn_from_replay(
        self,
        state: State,
        before: tf.Tensor,
        env_steps: tf.Tensor,
        key: tf.Tensor,
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Takes the learner steps that are due, each on a fresh sample.

        Args:
          state: The state.
          before: int64, env steps before the rollout.
          env_steps: int64, env steps after the rollout.
          key: int32 [2].

        Returns:
          The means of the metrics, and the state.
        """
        due = self.updates_due(before, env_steps)
        if not isinstance(due, int) or due == 0:
            state = self._follow_schedules(state, env_steps)

        def once(
            number: tf.Tensor, state: State = state
        ) -> tuple[dict[str, tf.Tensor], State, list[tf.Tensor]]:
            batch, update_key = self._sample_number(state, number, key, env_steps)
            age = {} if self.collectors is None else self._age_of(state, batch)
            row, state, outputs = self._update_on(state, batch, update_key, env_steps)
            return {**row, **age}, state, outputs

        if isinstance(due, int) and due == 1:
            row, state, outputs = once(tf.constant(0))
            self._experience(state).take_outputs([x[tf.newaxis] for x in outputs])
            return row, state

        def step(j: tf.Tensor, carried: Any) -> tuple[Any, dict[str, tf.Tensor]]:
            kept, own = carried
            learner_state = leaves.with_carried(self.learner_state(state), own)
            row, after, outputs = once(j, self.with_learner_state(state, learner_state))
            kept = [array.write(j, x) for array, x in zip(kept, outputs, strict=True)]
            return (kept, leaves.carried(self.learner_state(after))), row

        size = self.batch_size // self.replicas.num_workers
        dtypes = self._experience(state).host_outputs
        kept = [tf.TensorArray(t, due, element_shape=[size]) for t in dtypes]
        carried = (kept, leaves.carried(self.learner_state(state)))
        (kept, own), row = mean_of_steps(due, step, carried)
        learner_state = leaves.with_carried(self.learner_state(state), own)
        state = self.with_learner_state(state, learner_state)
        self._experience(state).take_outputs([array.stack() for array in kept])
        return row, state

    def _age_of(self, state: State, batch: Nest) -> dict[str, tf.Tensor]:
        """Returns the mean number of learner steps since the policies that played a batch.

        The age of a transition in https://arxiv.org/abs/2007.06700.
        """
        now = tf.convert_to_tensor(state.metrics.learner["learner_steps"])

        def own(batch: Nest) -> tf.Tensor:
            versions = batch.extras["policy_extras"][POLICY_VERSION]
            # A restored learner has fewer steps than the policies of the lost ones.
            return tf.reduce_mean(tf.cast(tf.maximum(now - versions, 0), tf.float32))

        age = self.replicas.run(own, batch)
        return {"sample_age": tf.reduce_mean(tf.stack(self.replicas.per_replica(age)))}

    # How it is compiled.

    def fuses_on_host(self, state: State, run_stages: Stages) -> bool:
        """Whether an XLA update takes everything after a rollout into its program."""
        if not self.uses_reverb:
            return True
        reads = not run_stages.phase.learns or self._reverb(state).fetches(run_stages)
        return not self.replicas.several and reads

    def forget_traces(self, experience: ReverbExperience) -> None:
        """Drops the traces that refer to the iterator of an experience."""
        for _, runner in self._runners.values():
            if isinstance(runner, HostRunner) and runner.experience is experience:
                runner.forget()

    def trials(self, state: State, run_stages: Stages) -> Trials:
        """Returns the stages of a run and how to time them."""
        trials = super().trials(state, run_stages)
        fuses = not (self.uses_reverb and self.replicas.several)
        return dataclasses.replace(trials, prefers_fused=not self.uses_reverb, fuses_on_host=fuses)

    def trial_batch(self, state: State) -> Nest:
        """Returns a batch of zeros; the buffer may be empty."""
        form = self._experience(state).batch_form(state.key)
        return self.replicas.run_traced(
            lambda: tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), form)
        )

    # Hooks; they are traced.

    def make_batch(
        self, agent_state: Nest, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Returns the trajectory, which the buffer stores, and no metrics."""
        return trajectory, {}

    def updates_due(self, before: tf.Tensor, after: tf.Tensor) -> int | tf.Tensor:
        """Returns the number of learner steps that env steps cause; an int if it never varies.

        Args:
          before: int64, env steps before them.
          after: int64, env steps with them.
        """
        up, down = self.updates_per_step.numerator, self.updates_per_step.denominator
        steps = self.steps_per_iteration
        if self.collectors is not None:  # the server's rate limiter keeps the ratio
            return -(-steps * up // down)
        if self.all_rows_valid and steps * up % down == 0:
            return steps * up // down
        return tf.cast(after * up // down - before * up // down, tf.int32)

    @property
    def update_options(self) -> dict[str, Any]:
        """No shuffling: a sampled batch is one learner step."""
        return {"shuffle": False}

    def priorities(self, state: Any, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns the priorities of sampled rows, float32 [N]; `state` is that before the step."""
        return self.agent.td_errors(state, batch, key) + self.priority_epsilon

    def describe_updates(self) -> str:
        """Returns a short description of the updates."""
        return (
            f"{float(self.updates_per_step):g} updates per env step on {self.batch_size} rows of a "
            f"{sampled(self.replay).kind} replay of {sampled(self.replay).capacity:,}"
        )
