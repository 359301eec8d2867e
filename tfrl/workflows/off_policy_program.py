"""The compiled part of an off-policy run: roll, add to the replay buffer, sample, update."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.tracing import counted_apart
from tfrl.errors import UserError
from tfrl.learners import DEFAULT_MODULE_ID, Learner
from tfrl.ops.schedules import make_schedule
from tfrl.replay import InGraphBuffer
from tfrl.types import Nest, Trajectory
from tfrl.workflows.host_loop import keys_of
from tfrl.workflows.learner_program import LearnerProgram
from tfrl.workflows.metric_accumulator import MetricAccumulator
from tfrl.workflows.run_state import Progress, State
from tfrl.workflows.stages import CompiledStage

# What paths of the buffer in a checkpoint begin with.
REPLAY = "replay/"


class OffPolicyProgram(LearnerProgram):
    """Runs iterations of an `OffPolicyWorkflow` whose replay buffer is in the graph.

    Its phases: who acts (at random or the policy), and whether the agent learns.

    Attributes:
      buffer: The replay buffer.
      learning: Whether the agent learns in this phase.
      learning_start: Env steps at which the updates begin: `learning_starts`, later in a run that
        goes on without its buffer.
    """

    fuses_on_host = True  # many small operations on the buffer
    prefers_fused = True

    def __init__(self, workflow: Any, learner: Learner):
        """Makes the buffer, empty; see `LearnerProgram`."""
        super().__init__(workflow, learner)
        with self.replicas.scope():
            self.buffer = workflow.setup_replay()
        self.learning_start: int = workflow.learning_starts
        random = workflow.agent.random_actions
        self.fill = self._playing(
            "fill",
            functools.partial(workflow.collect, action_fn=random),
            functools.partial(workflow.roll, action_fn=random),
        )
        self._gather: dict[str, Any] = {}  # by phase
        self._random = self.learning = self._learnt = False
        self._update_names: list[str] = []
        self._can_sample = self._asking_for_a_batch()

    def _asking_for_a_batch(self) -> Callable[[], tf.Tensor]:
        """Returns a function that says whether a batch can be sampled."""
        made: dict[int, Any] = {}

        def ask(size: int) -> tf.Tensor:
            if size not in made:
                fn = counted_apart(lambda: self.buffer.can_sample(size))
                make = functools.partial(tf.function, fn, autograph=False)
                made[size] = self.bind(("can sample", size), make, ())
            return made[size]()

        # Items that episodes' ends make come and go. What has begun goes on with those that there
        # are, however many iterations a call has: they are drawn with replacement.
        return lambda: ask(1 if self._learnt else self._workflow.batch_size)

    @property
    def shares_traces(self) -> bool:
        """See `LearnerProgram`; a buffer that is a server is a run's own."""
        return super().shares_traces and isinstance(self.buffer, InGraphBuffer)

    def variables(self) -> dict[str, tf.Variable]:
        """Returns all that compiled functions change, by path."""
        own = self.replay_buffer_state()
        return {**super().variables(), **{f"{REPLAY}{path}": v for path, v in own.items()}}

    def replay_buffer_state(self) -> dict[str, tf.Variable]:
        """Returns the variables of the buffer by path; of one on a server none."""
        return self.buffer.variables() if isinstance(self.buffer, InGraphBuffer) else {}

    def assign(self, state: State) -> None:
        """Takes the values of a state of the same form.

        Raises:
          UserError: The experience is on a server.
        """
        if not isinstance(self.buffer, InGraphBuffer):
            raise UserError(
                "a state of tensors",
                expected="a replay buffer in the graph, whose experience is part of the state",
                got="one on a Reverb server",
                remedy="Use workflow.snapshot, or a checkpoint, or InGraphReplay.",
            )
        super().assign(state)
        self._learnt = int(self.learner.learner_steps.numpy()) > 0

    # The buffer; traced.

    def add(self, trajectory: Trajectory) -> None:
        """Stores what was played."""
        self.buffer.add(trajectory)

    def _sample(self, key: tf.Tensor, beta: tf.Tensor) -> Nest:
        batch = self.buffer.sample(key, self._workflow.batch_size, beta)
        # What nobody asks for costs something in every iteration of a graph.
        return batch if self._workflow.prioritized else batch.replace(index=None)

    def _update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> list[tf.Tensor]:
        """Sets priorities; returns notes of what is left to Python, of `note_dtypes`."""
        self.buffer.update_priorities(index, priorities)
        return []

    # The run.

    def clone(self) -> "OffPolicyProgram":
        """Returns a program over a copy of the variables, with the same compile choices."""
        other: Any = super().clone()
        other._load_buffer(self._buffer_values())
        other.learning_start, other._learnt = self.learning_start, self._learnt
        return other

    def _stages(self) -> tuple[CompiledStage, ...]:
        return (*super()._stages(), self.fill)

    def _forget_traces(self) -> None:
        super()._forget_traces()
        self._gather = {}

    # What a checkpoint holds.

    def state_values(self) -> dict[str, Any]:
        """Returns the values of the variables by path, those of the buffer under `replay/`."""
        values = super().state_values()
        if self._workflow.checkpoint_replay:
            found = self._of_all_processes(self._buffer_values())
            values.update({f"{REPLAY}{path}": x for path, x in found.items()})
        return values

    def _of_all_processes(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the buffers of all processes; those that are not the chief get none."""
        group = self._workflow.worker_group
        if group is None:
            return dict(own)
        found = {}
        for path in sorted(own):
            value = np.asarray(own[path])
            parts = group.gather_to_chief(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
            shape = [-1] if value.ndim == 1 else value.shape  # files are of different lengths
            for worker, part in enumerate(parts):
                found[self._path_of(worker, path)] = part.view(value.dtype).reshape(shape)
        return found

    def _path_of(self, worker: int, path: str) -> str:
        """What a checkpoint calls a value of one of several processes' buffer."""
        number, _, rest = path.partition("/")
        return f"{worker * self.replicas.num_local + int(number)}/{rest}"

    def state_paths(self) -> set[str]:
        """Returns the paths of `state_values`, without a copy of the buffer."""
        paths = set(super().state_values())
        if self._workflow.checkpoint_replay:
            own, group = self._buffer_paths(), self._workflow.worker_group
            if group is not None:
                workers = range(group.num_workers)
                own = {self._path_of(worker, path) for worker in workers for path in own}
            paths |= {f"{REPLAY}{path}" for path in own}
        return paths

    def _buffer_paths(self) -> set[str]:
        return self.buffer.state_paths()

    def _buffer_values(self) -> dict[str, Any]:
        return self.buffer.state_values()

    def _load_buffer(self, values: Mapping[str, Any]) -> None:
        self.buffer.load_values(values)

    def load_values(self, values: Mapping[str, Any], *, environments: bool) -> None:
        """Puts back what `state_values` gave; see `LearnerProgram.load_values`.

        Without a buffer among them it is filled again before the updates go on. Without
        environments, the buffer stays as it is.
        """
        super().load_values(values, environments=environments)
        if not environments:
            return
        if self._workflow.checkpoint_replay:
            group = self._workflow.worker_group
            names = {path: path for path in self._buffer_paths()}
            if group is not None:
                names = {path: self._path_of(group.index, path) for path in names}
            self._load_buffer({p: values[f"{REPLAY}{name}"] for p, name in names.items()})
            if self._in_python:
                self.buffer.cut()  # new episodes
            self._learnt = int(self.learner.learner_steps.numpy()) > 0
        else:
            self._learnt = False
            done = int(values["progress/env_steps"])
            self.learning_start = done + self._workflow.learning_starts

    # Phases.

    def _phase_of(self, progress: Progress) -> tuple[str, int | None]:
        env_steps, random_steps = int(progress.env_steps), self._workflow.random_steps
        due = env_steps >= self.learning_start
        self._random = env_steps < random_steps
        self.learning = due and bool(self._can_sample())
        self._learnt = self._learnt or self.learning
        ends = [n for n in (random_steps, self.learning_start) if env_steps < n]
        if due and not self.learning:
            ends.append(env_steps + 1)  # an iteration may suffice
        acts = "random" if self._random else "policy"
        return f"{acts}, {'learns' if self.learning else 'fills'}", min(ends, default=None)

    def action_fn_of_phase(self) -> Callable[..., Any]:
        """Returns how the agent acts in this phase."""
        agent = self._workflow.agent
        return agent.random_actions if self._random else agent.compute_actions

    def stage_of_phase(self) -> CompiledStage:
        """Returns the stage that plays in this phase."""
        if not self._random:
            return self.rollout
        self.fill.mode = self.rollout.mode
        return self.fill

    # Collecting; traced.

    @property
    def _due(self) -> int | tf.Tensor:
        """The learner steps of an iteration, a number where it is always that."""
        with tf.init_scope():
            zero = tf.constant(0, tf.int64)
            return self._workflow.updates_due(zero, zero)  # type: ignore[no-any-return]

    @property
    def _one_is_due(self) -> bool:
        """Whether each iteration of a phase that learns has one learner step."""
        due = self._due
        return not self._in_python and isinstance(due, int) and due == 1

    @property
    def _learns_once(self) -> bool:
        """Whether each iteration has one learner step."""
        return self.learning and self._one_is_due

    @property
    def samples_ahead(self) -> bool:
        """Whether an iteration learns from a batch drawn before its own steps were added.

        The rollout and the learner step then run at the same time where the loop is a graph. Not
        with priorities: a learner step changes those of the next draw.
        """
        return self._learns_once and not self._workflow.prioritized

    @property
    def _timed(self) -> bool:
        """Not where the stages run at the same time: clocks would make them wait."""
        overlap = self.samples_ahead and self._loop_mode == "graph" and self._times_apart
        return super()._timed and not overlap

    @property
    def _overlaps(self) -> bool:
        return self._one_is_due and not self._workflow.prioritized

    @property
    def gathers(self) -> bool:
        """Whether rollout, buffer and sample are one XLA program though the update is a graph.

        Their operations are so small that the graph executor takes longer to schedule them.
        """
        apart = self.replicas.several or self._loop_mode != "graph"
        xla = self.rollout.mode == "xla" and isinstance(self.buffer, InGraphBuffer)
        return self._learns_once and xla and not apart

    def gathered(self, state: State) -> Any:
        """Returns `OffPolicyWorkflow.stored` of a rollout, all of it one XLA program."""
        if self._phase not in self._gather:

            def played_and_stored(progress: Progress) -> Any:
                workflow, state = self._workflow, self.state_of(progress)
                play_key, _ = keys_of(progress.key, progress.iterations)
                act, env_state = self.action_fn_of_phase(), state.env_state
                agent_state = struct.values(state.agent_state)
                out = workflow.collect(agent_state, env_state, state.carry, play_key, action_fn=act)
                return workflow.stored(state, out)

            fn = counted_apart(played_and_stored)
            self._gather[self._phase] = tf.function(fn, jit_compile=True, autograph=False)
        return self._gather[self._phase](state.progress.replace(ahead=None))

    def batch_of(self, state: State, iteration: tf.Tensor, env_steps: tf.Tensor) -> Nest:
        """The sample of an iteration's one learner step, the key of its update, and a rollout's."""
        play_key, key = keys_of(state.key, iteration)
        return *self._sample_number(tf.constant(0), key, env_steps), play_key

    def _look_ahead(self, progress: Progress) -> Nest:
        if not self.samples_ahead:
            return None
        return self.batch_of(self.state_of(progress), progress.iterations, progress.env_steps)

    # Learning; traced.

    def _update(self, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor, jit: bool = False) -> Any:
        """Returns the metrics of one learner step and, where they are asked for, priorities."""
        workflow, found = self._workflow, {}
        if workflow.prioritized:
            # Before the step: of the parameters that the loss sees, with noise of their own.
            found["priorities"] = self.replicas.run(self._priorities, batch, key)
        return {"metrics": workflow.update(self.learner, batch, key, timesteps, jit=jit), **found}

    def _priorities(self, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        state = struct.values(self.learner.module_state(DEFAULT_MODULE_ID))
        return self._workflow.priorities(state, batch, key)

    def learn_from_replay(
        self, before: tf.Tensor, env_steps: tf.Tensor, key: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Takes the learner steps that are due, each on a fresh sample.

        Args:
          before: int64, env steps before the rollout.
          env_steps: int64, with those of the rollout.
          key: int32 [2].

        Returns:
          The means of their metrics.
        """
        due = self._workflow.updates_due(before, env_steps)
        if not isinstance(due, int) or due == 0:
            self.learner.follow_schedules(DEFAULT_MODULE_ID, env_steps)

        def once(number: tf.Tensor) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
            return self._update_once(number, key, env_steps)

        if isinstance(due, int) and due == 1:
            row, notes = once(tf.constant(0))
            self.notes = [x[tf.newaxis] for x in notes]
            return row
        if tf.executing_eagerly():
            return self._mean([once(tf.constant(j))[0] for j in range(int(due))])
        tally, size = MetricAccumulator(self._update_names), self._rows_here
        kept = [tf.TensorArray(t, due, element_shape=[size]) for t in self.note_dtypes]

        def body(j: tf.Tensor, sums: tf.Tensor, kept: list[Any]) -> Any:
            row, notes = once(j)
            floats = tf.stack([tf.cast(row[n], tf.float32) for n in self._update_names])
            kept = [array.write(j, x) for array, x in zip(kept, notes, strict=True)]
            return j + 1, tally.add(sums, floats), kept

        _, sums, kept = tf.while_loop(
            lambda j, *_: j < due,
            body,
            (tf.constant(0), tally.start(), kept),
            parallel_iterations=1,
            maximum_iterations=due if isinstance(due, int) else None,
            name="updates",
        )
        self.notes = [array.stack() for array in kept]
        return dict(zip(self._update_names, tf.unstack(tally.result(sums)), strict=True))

    @property
    def _rows_here(self) -> int:
        """Rows of a learner step that are this process'."""
        return int(self._workflow.batch_size) // self.replicas.num_workers

    def _sample_number(
        self, number: tf.Tensor, key: tf.Tensor, env_steps: tf.Tensor
    ) -> tuple[Nest, tf.Tensor]:
        """The sample of a learner step of an iteration, and the key of its update."""
        keys = seeding.streams(seeding.fold_in(key, number), ("sample", "update"))
        beta = make_schedule(self._workflow.priority_beta)(env_steps)
        return self._sample(keys["sample"], beta), keys["update"]

    def _update_once(
        self, number: tf.Tensor, key: tf.Tensor, env_steps: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """A learner step of an iteration on a fresh sample: its metrics and notes."""
        return self.update_on(*self._sample_number(number, key, env_steps), env_steps)

    def update_on(
        self, batch: Nest, key: tf.Tensor, env_steps: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """A learner step on a batch: its metrics, and notes of what is left to Python."""
        # At the same time as a rollout that it does not need.
        learn = self.update.inlined if self.samples_ahead else self.update.__call__
        found = learn(batch, key, env_steps)
        notes: list[tf.Tensor] = []
        if self._workflow.prioritized:
            notes = self._update_priorities(batch.index, found["priorities"])
        return found["metrics"], notes

    def _mean(self, rows: list[dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        if rows:
            self._update_names = list(rows[0])
        tally = MetricAccumulator(self._update_names)
        sums = tally.start()
        for row in rows:
            floats = [tf.cast(row[n], tf.float32) for n in self._update_names]
            sums = tally.add(sums, tf.stack(floats))
        return dict(zip(self._update_names, tf.unstack(tally.result(sums)), strict=True))

    # Traced and never run, or on what changes nothing.

    def _before_eager(self, progress: Progress) -> None:
        known = self.traces.notes.get("names of an update", [])
        self._update_names = self._update_names or known
        # A learner step in Python is looked at before its time only where there may be none yet.
        early = self.update.mode != "eager" or not isinstance(self._due, int) or not self._due
        if self.learning and not self._update_names and early:

            def once() -> tf.Tensor:
                self._metric_names(progress)
                return tf.constant(0)

            tf.function(once, autograph=False).get_concrete_function()

    def _metric_names(self, progress: Progress) -> list[str]:
        if not self.learning:
            return []
        batch = self._sample(progress.key, tf.constant(1.0))
        self._update_names = sorted(self.update(batch, progress.key, progress.env_steps)["metrics"])
        self.traces.notes["names of an update"] = self._update_names
        return self._update_names

    def _trial_batch(self, progress: Progress) -> Nest:
        """A batch of zeros: nothing may have been added yet."""
        form: list[Nest] = []

        def sample() -> tf.Tensor:
            items = self._sample(progress.key, tf.constant(1.0))
            own = self.replicas.per_replica(items)[0]
            form[:] = [tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), own)]
            return tf.constant(0)

        tf.function(sample, autograph=False).get_concrete_function()  # and not run
        return self.replicas.run_traced(
            lambda: tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), form[0])
        )
