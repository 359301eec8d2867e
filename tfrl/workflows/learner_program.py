"""The compiled part of a run over one learner: its variables and the loop over the stages."""

import abc
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.tracing import counted_apart
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.learners import DEFAULT_MODULE_ID, Learner
from tfrl.traces import Traces, logic_key, traces_of
from tfrl.types import Nest, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.autotune import CompileModeTuner
from tfrl.workflows.evaluations import Evaluations
from tfrl.workflows.host_loop import HostLoop
from tfrl.workflows.metric_accumulator import EPISODE_METRICS
from tfrl.workflows.run_state import Progress, RunMetrics, State
from tfrl.workflows.runner import MAX_ROWS, Runner, as_rows
from tfrl.workflows.stages import CompiledStage, PythonStage
from tfrl.xla import never_in_xla

T = TypeVar("T")

_LEARNER = "learner/"
_METRICS = ("iterations", "env_steps", "episodes", "evaluations", *EPISODE_METRICS)


class LearnerProgram(CompileModeTuner, abc.ABC):
    """Runs iterations of a workflow over one learner; made by `setup`, freed with its states.

    An iteration is a rollout (a pure function) and what the workflow makes of it: `improve`. A run
    may have phases, which differ in what is traced.
    """

    # While the call behind a rollout is traced: what it leaves to Python, of `note_dtypes`.
    notes: Sequence[tf.Tensor] = ()

    def __init__(self, workflow: Any, learner: Learner):
        """Prepares the stages; nothing is traced yet.

        Args:
          workflow: The `LearnerWorkflow` whose hooks run.
          learner: A built learner.
        """
        self.learner = learner
        # That of the newest state: those before it were consumed.
        self.iterations = 0
        self._workflow = workflow
        self.evaluations = Evaluations(workflow, learner)
        self.replicas = learner.replicas
        # Environments on the host are stepped in Python, and so is the loop over the stages.
        self._on_host = isinstance(workflow.env, HostEnv)
        self._in_python = self._on_host or workflow.loops_in_python
        self.rollout = self._playing("rollout", workflow.collect, workflow.roll)
        self._digest = tf.function(counted_apart(workflow.digest), autograph=False)
        # Of two calls at a time the sums over processes could come in different orders.
        ahead = workflow.overlap and self.replicas.num_workers == 1
        self._host = HostLoop(self, ahead) if self._in_python else None
        # Under several replicas the sums over them stand between what XLA compiles.
        xla = functools.partial(self._update, jit=True) if self.replicas.several else None
        self.update = CompiledStage("update", self._update, xla=xla, bind=self.bind)
        self._structure = learner.structure_version
        self._state: State | None = None
        self._traces: Traces | None = None
        self._phase = "learn"
        self._loops: dict[str, Any] = {}
        self._names: dict[str, list[str]] = {}
        self._loop_mode: str | None = None

    def _playing(
        self, name: str, collect: Callable[..., Any], roll: Callable[..., Any]
    ) -> CompiledStage:
        """The stage of a rollout, and of what is made of it where the loop is compiled."""
        if self._on_host:
            return PythonStage(name, roll)
        return CompiledStage(name, roll if self._in_python else collect, bind=self.bind)

    def clone(self) -> "LearnerProgram":
        """Returns a program over a copy of the variables, with the same compile choices."""
        other = type(self)(self._workflow, self.learner.clone())
        other.iterations = self.iterations
        other._loop_mode, other._traces = self._loop_mode, self._traces
        for mine, its in zip(self._stages(), other._stages(), strict=True):
            its.mode, its.seconds = mine.mode, dict(mine.seconds)
        return other

    def _stages(self) -> tuple[CompiledStage, ...]:
        return (self.rollout, self.update)

    # What is traced.

    def variables(self) -> dict[str, tf.Variable]:
        """Returns all that compiled functions change, by path."""
        return self.learner.variables()

    # Of these variables the state of a run is made.

    def counters(self) -> dict[str, tf.Variable]:
        """Returns those of the learner."""
        return self.learner.learner_state.counters

    def agent_state(self) -> Any:
        """Returns the AgentState, or `{module_id: AgentState}`."""
        return self._workflow.acting_state(self.learner)

    def opt_state(self) -> dict[str, Any]:
        """Returns what optimizers keep, by module id where there are several modules."""
        found = self.learner.learner_state.opt_state
        if hasattr(self._workflow.agent, "modules"):
            return found
        return found.get(DEFAULT_MODULE_ID, {})

    def replay_buffer_state(self) -> dict[str, tf.Variable]:
        """Returns the variables of a replay buffer by path."""
        return {}

    def assign(self, state: State) -> None:
        """Takes the values of a state of the same form."""
        mine = (self.agent_state(), self.opt_state(), self.counters(), self.replay_buffer_state())
        others = (state.metrics.learner, state.replay_buffer_state)
        given = (state.agent_state, state.opt_state, *others)
        tf.nest.map_structure(lambda v, x: v.assign(x), mine, given)
        self.iterations = int(state.metrics.iterations)

    @property
    def shares_traces(self) -> bool:
        """Whether runs of equal logic have the same compiled functions.

        Not under several replicas: their variables stay those of the first call. Not with
        environments that Python steps within the graph, which a trace would keep.
        """
        in_graph = on_host(self._workflow.env) and not self._on_host
        return not self.replicas.several and not in_graph

    @property
    def traces(self) -> Traces:
        """What has been traced for the logic of this run."""
        if self._traces is None:
            key = logic_key((type(self), self._workflow, self.learner))
            self._traces = traces_of(key) if self.shares_traces else Traces()
        return self._traces

    def bind(self, name: Hashable, make: Callable[[], Any], args: Any) -> Any:
        """Returns a compiled function over the variables of this run, see `Traces.bound`."""
        return self.traces.bound(name, make, args, self.variables())

    @property
    def how(self) -> tuple[Any, ...]:
        """The phase and the modes: what the trace of a whole iteration depends on."""
        return self._phase, self._loop_mode, self.rollout.mode, self.update.mode

    # What a checkpoint holds beside the progress.

    def state_values(self) -> dict[str, Any]:
        """Returns the values of the variables by path, under `learner/`."""
        return {f"{_LEARNER}{path}": v for path, v in self.learner.variables().items()}

    def state_paths(self) -> set[str]:
        """Returns the paths of `state_values`."""
        return set(self.state_values())

    def load_values(self, values: Mapping[str, Any], *, environments: bool) -> None:
        """Puts back what `state_values` gave.

        Args:
          values: By path; others than the program's are left out.
          environments: Whether the run's environments are replaced too, by those of the values.
        """
        own = {p: v for p, v in values.items() if p.startswith(_LEARNER)}
        self.learner.assign_variables({p.removeprefix(_LEARNER): v for p, v in own.items()})

    # What subclasses say.

    @abc.abstractmethod
    def _update(self, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor, jit: bool = False) -> Any:
        """The update stage: trains on a batch."""

    def _look_ahead(self, progress: Progress) -> Nest:
        """Returns what the first iteration of a call learns from, if it is known before; traced."""
        return None

    def _phase_of(self, progress: Progress) -> tuple[str, int | None]:
        """Returns the phase that a run is in, and at how many env steps it ends, or None."""
        return "learn", None

    def stage_of_phase(self) -> CompiledStage:
        """Returns the stage that plays in this phase."""
        return self.rollout

    @property
    def playing(self) -> Callable[..., Any]:
        """How this phase plays, in the compile mode of its stage."""
        stage = self.stage_of_phase()
        return stage.inlined if self._overlaps else stage.__call__

    @abc.abstractmethod
    def _metric_names(self, progress: Progress) -> list[str]:
        """Returns the names of the metrics of `improve` in this phase; traced and never run."""

    def _before_eager(self, progress: Progress) -> None:
        """Prepares a call whose loop is Python's."""
        return

    def acting_state(self) -> Any:
        """Returns the values by which the agent acts, of the replica that this is called on."""
        return struct.values(self._workflow.acting_state(self.learner))

    # Running.

    def run(
        self, progress: Progress, iterations: int, until: int | None
    ) -> tuple[list[dict[str, Any]], Progress, dict[str, float]]:
        """Runs iterations until there are `iterations`, or `until` env steps are reached.

        A call ends with a phase.

        Returns:
          Rows of metrics, the progress, and seconds: `call`, `rollout`, `update`.
        """
        self.choose(progress)
        if self._structure != self.learner.structure_version:
            self._forget_traces()
        self._phase, ends = self._phase_of(progress)
        most = np.iinfo(np.int64).max
        limit = min(most if until is None else until, most if ends is None else ends)
        iterations = min(iterations, MAX_ROWS * self._workflow.iterations_per_row)
        start = time.perf_counter()
        # Nothing in a call changes it, and a loop that carries it takes longer.
        evaluations, progress = progress.evaluations, progress.replace(evaluations=None)
        if self._loop_mode == "eager":
            self._before_eager(progress)
            run = self._run_eagerly if self._host is None else self._host.run
            result = run(progress, iterations, limit)
        else:
            args = (progress, tf.constant(iterations), tf.constant(limit, tf.int64))
            loop = self._loops.get(self._phase) or self._trace(*args)
            result = loop(*args)
        progress, done, floats, counters, (t_rollout, t_update) = result
        progress = progress.replace(evaluations=evaluations)
        phase, host = self._phase, self._host
        names = self._names[phase] if host is None else host.names(phase)
        rows = as_rows(int(done), names, floats, counters)
        self.iterations = rows[-1]["iterations"] if rows else self.iterations
        seconds = {"call": time.perf_counter() - start}
        seconds.update(self._time_split(seconds["call"], float(t_rollout), float(t_update)))
        return rows, progress, seconds

    def _trace(self, progress: Progress, *args: tf.Tensor) -> Any:
        """Returns the loop of this phase."""

        def make() -> Any:
            self._find_names(progress)  # and so, how long a row is
            loop: Callable[..., Any] = self._run_loop
            loop = loop if self.fused else never_in_xla(loop)
            return tf.function(counted_apart(loop), jit_compile=self.fused, autograph=False)

        phase = self._phase
        if tf.config.functions_run_eagerly():
            self._loops[phase] = make()
        else:
            self._loops[phase] = self.bind(("loop", *self.how), make, (progress, *args))
            names = self._names.get(phase, [])
            self._names[phase] = self.traces.notes.setdefault(("names", phase), names)
        return self._loops[phase]

    def _find_names(self, progress: Progress) -> None:
        def once(progress: Progress) -> Any:
            out = self._workflow.play(self.state_of(progress), progress.key)
            self._names[self._phase] = sorted({*out.metrics, *self._metric_names(progress)})
            return tf.constant(0)

        # Traced and never run: the stages that are called keep their traces for the loop.
        tf.function(once, autograph=False).get_concrete_function(progress)

    def whole(self, progress: Progress) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns the loop over iterations as one function, and arguments for it."""
        self.choose(progress)
        self._phase, _ = self._phase_of(progress)
        if self._phase not in self._names:
            self._find_names(progress)
        progress = progress.replace(evaluations=None)
        return self._run_loop, (progress, tf.constant(1), tf.constant(1, tf.int64))

    def _forget_traces(self) -> None:
        """Modules have come or gone: everything is traced anew, in the modes chosen before."""
        for stage in self._stages():
            stage.forget_traces()
        self._loops, self._names, self._traces, self._state = {}, {}, None, None
        if self._host is not None:
            self._host.forget()
        self.evaluations.forget()
        self._structure = self.learner.structure_version

    def state_of(self, progress: Progress) -> State:
        """Returns the state of this run with what one iteration handed to the next."""
        if self._state is None or self._structure != self.learner.structure_version:
            others: Any = dict.fromkeys(_METRICS)
            self._state = State(
                key=None,
                metrics=RunMetrics(**others, learner=self.counters()),
                agent_state=self.agent_state(),
                opt_state=self.opt_state(),
                env_state=progress.env_state,
                replay_buffer_state=self.replay_buffer_state(),
            ).replace(env_state=None)
        return self._state.with_progress(progress)

    def _iterate(self, progress: Progress) -> tuple[Progress, tf.Tensor, tf.Tensor, tf.Tensor]:
        """One iteration: progress, float metrics, counters, and seconds by stage."""
        start = tf.timestamp() if self._timed else tf.constant(0.0, tf.float64)
        key = seeding.fold_in(progress.key, progress.iterations)
        with stages.timed(self._timed) as times, tf.control_dependencies(self._clocks(start)):
            metrics, state = self._workflow.iterate(self.state_of(progress), key)
        (middle,) = times or [start]
        end = self._clock(start, metrics)
        return *self._row_of(state, metrics, end), tf.stack([middle - start, end - middle])

    def _row_of(self, state: State, metrics: Mapping[str, tf.Tensor], end: tf.Tensor) -> Any:
        """Progress, float metrics and counters of an iteration."""
        names = self._names.setdefault(self._phase, sorted(metrics))  # eager calls do not trace
        floats = tf.stack([tf.cast(metrics[n], tf.float32) for n in names])
        progress = state.progress
        with tf.control_dependencies(self._clocks(end)):
            counters = self._counters(progress)
        return progress, floats, counters

    def _counters(self, progress: Progress) -> tf.Tensor:
        """The `COUNTERS` after an iteration."""
        learner_steps = tf.identity(self.learner.learner_steps.read_value())
        return tf.stack([progress.iterations, progress.env_steps, progress.episodes, learner_steps])

    def _clock(self, start: tf.Tensor, behind: Nest) -> tf.Tensor:
        """The time when a nest is computed; `start` where there are no clocks."""
        if not self._timed:
            return start
        with tf.control_dependencies(stages.data(behind)):
            return tf.timestamp()

    def _clocks(self, *times: tf.Tensor) -> list[tf.Tensor]:
        """What has to wait for a clock waits for these."""
        return list(times) if self._timed else []

    def _runner(self) -> Runner:
        workflow = self._workflow
        return Runner(
            self._iterate,
            self._counters,
            lambda progress: progress.env_steps,
            lambda: self._names[self._phase],
            per_row=workflow.iterations_per_row,
            steps=workflow.steps_per_iteration if workflow.all_rows_valid else None,
            timed=self._timed,
        )

    def _run_loop(self, progress: Progress, iterations: tf.Tensor, limit: tf.Tensor) -> Any:
        progress = progress.replace(ahead=self._look_ahead(progress))
        progress, *rest = self._runner().loop(progress, iterations, limit)
        return progress.replace(ahead=None), *rest

    def _run_eagerly(self, progress: Progress, iterations: int, limit: int) -> Any:
        progress = progress.replace(ahead=self._look_ahead(progress))
        progress, *rest = self._runner().run(progress, iterations, limit)
        return progress.replace(ahead=None), *rest

    # For the loop in Python over environments on the host.

    @property
    def phase(self) -> str:
        """The phase of the run."""
        return self._phase

    @property
    def workflow(self) -> Any:
        """The workflow whose hooks run."""
        return self._workflow

    def action_fn_of_phase(self) -> Callable[..., Any]:
        """Returns how the agent acts in this phase."""
        return self._workflow.agent.compute_actions

    def names_of_phase(self) -> list[str]:
        """Returns the names of a row's metrics, once they are traced."""
        return self._names[self._phase]

    def take(self, played: Trajectory) -> None:
        """Is told what was played, before the call that follows it."""
        return

    @property
    def note_dtypes(self) -> list[tf.DType]:
        """Those of the notes of a call, which are Python's to read."""
        return []

    def settle(self, notes: Sequence[tf.Tensor]) -> None:
        """Is given the notes of a call when it is done."""
        return

    def guarded(self, fn: Callable[..., T], *args: Any) -> T:
        """Calls what may wait for others."""
        return fn(*args)

    @property
    def fetches(self) -> bool:
        """Whether in this phase a call takes something from where XLA cannot: `fetched`."""
        return False

    def fetched(self, progress: Progress) -> Nest:
        """Returns what a call takes from elsewhere before all else; traced, never by XLA."""
        return ()

    def behind_the_host(
        self, progress: Progress, played: Trajectory, key: tf.Tensor, fetched: Nest
    ) -> tuple[Progress, tf.Tensor, tf.Tensor]:
        """All that follows a rollout: progress, float metrics and counters; traced.

        Args:
          progress: That before the iteration, without environments.
          played: What the rollout gave.
          key: int32 [2].
          fetched: What `fetched` gave.
        """
        out = self._digested(played)
        metrics, state = self._workflow.improve(self.state_of(progress), out, key)
        return self._row_of(state, metrics, tf.constant(0.0))  # type: ignore[no-any-return]

    def _digested(self, played: Trajectory) -> Any:
        """What is made of a rollout on the host, a `RolloutResult`; traced."""
        return self._digest(self.acting_state(), played)
