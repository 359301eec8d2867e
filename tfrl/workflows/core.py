"""The workflow protocol: setup, step, evaluate, learn, save, restore."""

import abc
import dataclasses
import pathlib
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.agents.core import Agent
from tfrl.distribute.replicas import Replicas
from tfrl.distribute.worker_group import WorkerGroup
from tfrl.envs.core import Env
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.evaluation.evaluator import Evaluator
from tfrl.evaluation.result import EvaluationResult
from tfrl.evaluation.video import Video, check_drawable, independent_env, record_video
from tfrl.evaluation.video_file import Preview
from tfrl.experiment.checkpoints import CheckpointManager, Restored
from tfrl.experiment.export import export_policy
from tfrl.learning.leaves import in_place, put
from tfrl.storage.checkpoint_format import check_fits
from tfrl.traces import class_settings, logic_key, traces_of
from tfrl.workflows.hook_results import first_metrics, first_nests, with_tensors
from tfrl.workflows.loop import RunReport, RunTime, TrainingLoop
from tfrl.workflows.options import RunOptions, with_changes
from tfrl.workflows.run_state import RunMetrics, State
from tfrl.workflows.runner import Runner, variables_of
from tfrl.workflows.stages import MODES, RunPhase, Stages


@struct.logic_dataclass
class Advance(struct.Struct):
    """What one compiled call did.

    Attributes:
      rows: Rows of metrics, oldest first; one per iteration, or several share one.
      state: The state after the last.
      seconds: Wall seconds of the call (`call`) and of its parts (`rollout`, `update`).
    """

    rows: Sequence[Mapping[str, Any]]
    state: State
    seconds: Mapping[str, float]


# Timeout between the workers of a multi-worker strategy; an iteration's own waits come on top.
_WORKER_SECONDS = 600.0


class Workflow(abc.ABC):
    """Static logic of a training run; everything that changes is in the state.

    A user's workflow defines `setup_agent_and_optimizer` and `iterate`, and sets `env`, `agent` and
    `evaluator` in its constructor. Everything else follows from the state: the compiled loop,
    `learn`, evaluations, checkpoints, videos, exported policies.

    `step` does not change a state of tensors. It updates a state of variables in place and consumes
    it: using it again is an error. `snapshot` copies a state.
    """

    # Attributes that no trace depends on; compile modes are part of a trace's name.
    _not_traced = frozenset(
        (
            "iterations_per_call",
            "report",
            "_run_times",
            "_folders",
            "_runners",
            "_worker_group",
            "_host_eval_env",
            "replicas",
            "compile",
        )
    )
    # Iterations that share a row of metrics.
    iterations_per_row = 1
    # The gin bindings of `build_from_config`, unless a subclass has a `config` of its own.
    config: Mapping[str, Any] = types.MappingProxyType({})

    def __init__(self, *, iterations_per_call: int | None = None):
        """Sets how many iterations one compiled call runs in `learn`.

        Args:
          iterations_per_call: Changes no result; None for calls of about half a second.
        """
        self.iterations_per_call = checks.at_least(
            "iterations_per_call",
            iterations_per_call,
            1,
            optional=True,
            remedy="Pass None to choose it by timing.",
        )
        self.compile: Any = "graph"  # a mode; in some subclasses {stage: mode}
        self.agent: Agent | None = None
        self.evaluator: Evaluator | None = None
        # The environments; None for a workflow that makes them itself.
        self.env: Env | None = None
        # For evaluations, where the evaluator has the training's environments on the host.
        self._host_eval_env: HostEnv | None = None
        self.replicas = Replicas()
        self._worker_group: WorkerGroup | None = None
        self.report: RunReport | None = None
        # {`run_key`: over all starts of the run}; part of checkpoints.
        self._run_times: dict[Any, RunTime] = {}
        # {id of a variable of a state, None for one of tensors: (the variable, its runner)}
        self._runners: dict[int | None, tuple[Any, Runner]] = {}
        # {`run_key`: (folder of the run's checkpoints, env steps of the newest)}
        self._folders: dict[Any, tuple[pathlib.Path, int]] = {}

    # Hooks of a fresh run.

    def setup(self, seed: int | tf.Tensor) -> State:
        """Returns a fresh state from a seed, or a key int32 [2], by the hooks below."""
        names = ["agent", "environment", "run", "replay_buffer"]
        keys = seeding.streams(seeding.as_key(seed), names)
        agent_state, opt_state = first_nests(self, self.setup_agent_and_optimizer(keys["agent"]))
        state = State(
            key=keys["run"],
            metrics=first_metrics(self),
            agent_state=with_tensors("agent_state", agent_state),
            opt_state=with_tensors("opt_state", opt_state),
            env_state=self.setup_env_state(keys["environment"]),
            replay_buffer_state=self.setup_replay_buffer(keys["replay_buffer"]),
        )
        state = self.postsetup_replay_buffer(state)
        self._runners.pop(None, None)  # settings may have changed since the last run
        self._note_iterations(state)  # a setup may reset variables of the workflow's own
        return state

    def setup_agent_and_optimizer(self, key: tf.Tensor) -> tuple[Any, Any]:
        """Returns the first `agent_state` and `opt_state`, nests of tensors.

        Args:
          key: int32 [2].
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define setup_agent_and_optimizer or override setup"
        )

    def setup_workflow_metrics(self) -> RunMetrics:
        """Returns the counters of a fresh run."""
        return RunMetrics.start()

    def setup_env_state(self, key: tf.Tensor) -> Any:
        """Returns the first `env_state`; None for a workflow that plays whole episodes."""
        return None if self.env is None else self.env.reset(key)

    def setup_replay_buffer(self, key: tf.Tensor) -> Any:
        """Returns the first `replay_buffer_state`; empty by default."""
        return {}

    def postsetup_replay_buffer(self, state: State) -> State:
        """Returns the state that the training begins with; may fill the replay buffer.

        `restore` calls it, too, before it takes the checkpoint's values.

        Returns the state unchanged by default.
        """
        return state

    # An iteration.

    @abc.abstractmethod
    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """One iteration; a pure function of tensors, traced.

        Args:
          state: Before it.
          key: int32 [2], `state.iteration_key()` in a run.

        Returns:
          `{name: float32 scalar}`, and the state after it, with its counters
          (`state.metrics.counted`).
        """

    def advance(self, state: State, iterations: int, until: int | None = None) -> Advance:
        """Runs iterations in one compiled call.

        Args:
          state: The newest state of a run.
          iterations: At most so many.
          until: Stops with the first iteration that reaches this many env steps in all.

        Raises:
          UserError: For a state that was consumed, a non-finite loss under "raise", or an `iterate`
            that does not count.
        """
        checks.at_least("iterations of advance", iterations, 1)
        state = self.ready(state)
        before = int(state.metrics.iterations)
        rows, state, seconds = self.runner(state).run(state, iterations, until)
        if rows and rows[-1]["iterations"] == before:
            raise UserError(
                f"{type(self).__name__}.iterate",
                expected="a state with counters that include the iteration",
                got="the counters of before",
                remedy="Return state.replace(metrics=state.metrics.counted(env_steps=...)).",
            )
        return Advance(rows=self._checked_rows(rows), state=state, seconds=seconds)

    def _checked_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows of metrics of a call; an override raises errors for their values."""
        return rows

    def ready(self, state: State) -> State:
        """Returns the state that iterations can start from.

        Raises:
          UserError: For a state of variables that a later step has consumed.
        """
        if not in_place(state):
            return struct.values(state)
        self._check_newest(state)
        return state

    def _check_newest(self, state: State) -> None:
        runner = self._runner_of(state)
        if runner is None or not in_place(state):
            return
        iterations, newest = int(state.metrics.iterations), runner.iterations
        if iterations < newest:
            raise UserError(
                "the state given to the workflow",
                expected=f"the newest state of its run, of iteration {newest}",
                got=f"the state of iteration {iterations}, which a later step has consumed",
                remedy="Keep a copy with workflow.snapshot(state) before stepping.",
            )

    def _note_iterations(self, state: State) -> None:
        """Makes a state the newest of its run."""
        runner = self._runner_of(state)
        if runner is not None and in_place(state):
            runner.iterations = int(state.metrics.iterations)

    def runner(self, state: State) -> Runner:
        """Returns the runner of a state; it is kept as long as the state."""
        runner = self._runner_of(state)
        if runner is None:
            iterations = int(state.metrics.iterations)
            runner = Runner(self, traces_of(logic_key(self)), iterations)
            self._add_runner(state, runner)
        return runner

    def _variable_of(self, state: State) -> tf.Variable | None:
        """A variable that identifies a state; None for a state of tensors."""
        return next(iter(variables_of(state).values()), None)

    def _runner_of(self, state: State) -> Runner | None:
        variable = self._variable_of(state)
        _, runner = self._runners.get(variable if variable is None else id(variable), (None, None))
        return runner

    def _add_runner(self, state: State, runner: Runner) -> None:
        variable = self._variable_of(state)
        if variable is None:
            self._runners[None] = (None, runner)
            return
        number, workflow = id(variable), weakref.ref(self)

        def ended(_: Any) -> None:
            if (own := workflow()) is not None:
                own._runners.pop(number, None)

        self._runners[number] = (weakref.ref(variable, ended), runner)

    # For the runner.

    def counters(self, state: State) -> tf.Tensor:
        """Returns iterations, env_steps, episodes and learner_steps, int64 [4]; traced."""
        return state.metrics.counters()

    def phase_of(self, state: State) -> RunPhase:
        """Returns the phase of a run; each phase has one trace."""
        return RunPhase()

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """Settles the compile modes of a run: the mode of the loop is `self.compile`."""
        eager = _known_mode(self.compile) == "eager" or isinstance(self.env, HostEnv)
        run_stages.modes["loop"] = "eager" if eager else self.compile

    def begin_call(self, state: State) -> State:
        """Returns the state without the leaves that no iteration changes, for the loop to carry."""
        return state

    def end_call(self, before: State, after: State) -> State:
        """Returns the state after a call, with the leaves that `begin_call` dropped."""
        return after

    def prefetch(self, state: State) -> State:
        """Returns the state that the first iteration of a call begins with; traced."""
        return state

    def times_stages(self, run_stages: Stages) -> bool:
        """Whether clocks time rollout and update where possible."""
        return False

    def warning_of(self, row: Mapping[str, Any]) -> str | None:
        """Returns a warning about a row of metrics, or None; `learn` prints one per run."""
        return None

    @property
    def fixed_steps_per_iteration(self) -> int | None:
        """Env steps of an iteration; None where their number varies."""
        return None

    # Looking at a run.

    def evaluate(self, state: State) -> tuple[dict[str, float], State]:
        """Evaluates the greedy policy: metrics `eval_return_mean`, `eval_episodes`, ...

        Every evaluation plays other episodes: the state counts them. A training does not depend on
        its evaluations.
        """
        checks.instance("the state given to the workflow", state, State, "a state from `setup`")
        key = seeding.fold_in(seeding.stream(state.key, "evaluation"), state.metrics.evaluations)
        result = self._evaluation(state, None, key)
        metrics = state.metrics.replace(evaluations=state.metrics.evaluations + 1)
        return result.metrics(), state.replace(metrics=metrics)

    def final_evaluation(
        self, state: State, num_episodes: int, seed: int | None = None
    ) -> EvaluationResult:
        """Evaluates the greedy policy over a number of episodes.

        Args:
          state: The newest state of a run.
          num_episodes: Exactly so many.
          seed: Of the episodes; None for what follows from the run.
        """
        key = state.key if seed is None else seeding.key(seed)
        return self._evaluation(state, num_episodes, seeding.stream(key, "final_evaluation"))

    def _evaluation(
        self, state: State, num_episodes: int | None, key: tf.Tensor
    ) -> EvaluationResult:
        """Plays `num_episodes` episodes; the evaluator's number by default."""
        if self.evaluator is None:
            raise UserError(
                f"{type(self).__name__}.evaluator",
                expected="an Evaluator",
                got="None",
                remedy="Set it in the constructor: self.evaluator = Evaluator(env=env, "
                "agent=agent, num_episodes=32).",
            )
        evaluator = self.evaluator
        if evaluator.env is self.env and isinstance(evaluator.env, HostEnv):
            # An evaluation must not disturb the training's episodes.
            self._host_eval_env = self._host_eval_env or evaluator.env.copy()
            evaluator = evaluator.replace(env=self._host_eval_env)
        if num_episodes is not None:
            evaluator = evaluator.replace(num_episodes=num_episodes)
        return evaluator.evaluate(self.agent_state(state), key)

    def video_env(self) -> Env:
        """Returns environments to record a video in.

        Raises:
          UserError: The workflow makes its environments itself, and does not override this.
        """
        env = self.env if self.evaluator is None else self.evaluator.env
        if env is None:
            raise UserError(
                f"{type(self).__name__}.video_env",
                expected="an override that returns environments",
                got="none, in a workflow that makes its environments itself",
                remedy="Override it, or set `env` in the constructor.",
            )
        return env

    def check_video(self) -> None:
        """Checks that `record_video` can draw the environments of `video_env`.

        Raises:
          UserError: It cannot; it would show observation bars.
        """
        check_drawable(self.video_env())

    def record_video(
        self, state: State, path: str | pathlib.Path, seed: int, preview: Preview | None = None
    ) -> Video:
        """Records one episode of the greedy policy in environments of its own.

        Args:
          state: The newest state of a run, which stays as it is.
          path: A file name ending in .mp4 or .gif.
          seed: Of the episode.
          preview: Takes the frames too, for TensorBoard.

        Returns:
          The file, its return and length.

        Raises:
          UserError: The file cannot be written, or the extra `video` is not installed.
        """
        return record_video(
            independent_env(self.video_env()),  # the training's episodes go on undisturbed
            self.acting_agent,
            self.agent_state(state),
            seeding.stream(seeding.key(seed), "video"),
            path,
            preview=preview,
        )

    def export_policy(self, state: State, directory: str | pathlib.Path) -> pathlib.Path | None:
        """Writes the greedy policy as a SavedModel, see `tfrl.experiment.export.export_policy`.

        Args:
          state: The newest state of a run.
          directory: The SavedModel's folder.

        Returns:
          The folder, or None for a policy that TensorFlow cannot save.
        """
        return export_policy(self.acting_agent, self.agent_state(state), directory)

    @property
    def acting_agent(self) -> Agent:
        """`agent`, for videos and exported policies; a UserError if it is None."""
        if self.agent is None:
            raise UserError(
                f"{type(self).__name__}.agent",
                expected="an agent, which acts in videos and exported policies",
                got="None",
                remedy="Set it in the constructor.",
            )
        return self.agent

    def write_pictures(self, state: State, folder: pathlib.Path) -> dict[str, pathlib.Path]:
        """Writes pictures of a run that has ended into its folder; returns `{title: file}`."""
        return {}

    @property
    def screen_metrics(self) -> tuple[str, ...]:
        """The agent's metrics that the progress line shows beside return and length."""
        return tuple(getattr(self.agent, "screen_metrics", ()))

    def describe(self) -> str:
        """Returns a short description: workflow, agent, task."""
        env = self.env
        played = "" if env is None else f" on {type(env.unwrapped).__name__}"
        return f"{type(self).__name__} of {type(self.agent).__name__}{played}"

    def logic(self) -> dict[str, Any]:
        """Returns the settings that traces depend on; equal logic shares traces."""
        settings = {**class_settings(type(self)), **vars(self)}
        if isinstance(self.config, types.MappingProxyType):  # gin's: references equal by their text
            settings["config"] = {
                name: str(x) for name, x in self.config.items() if not name.startswith("train.")
            }
        return {name: x for name, x in settings.items() if name not in self._not_traced}

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile modes by stage, for example those of a checkpoint.

        Args:
          choices: "graph", "xla" or "eager", or `{"iterations": mode}`.
        """
        mode = choices if isinstance(choices, str) else choices.get("iterations", self.compile)
        self.compile = _known_mode(mode)
        self._renew_runners()

    def _renew_runners(self) -> None:
        """Forgets modes and traces of the runs so far; which states are consumed stays known."""
        traces = traces_of(logic_key(self))
        for number, (variable, runner) in self._runners.items():
            self._runners[number] = variable, Runner(self, traces, runner.iterations)

    def compile_choices(self, state: State) -> dict[str, str]:
        """Settles the compile mode of every stage, and returns them by stage."""
        return {"iterations": self.compile}

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Runs that are set up from now on use the replicas of a tf.distribute strategy.

        Raises:
          UserError: For sizes that the replicas cannot divide.
        """
        if strategy.num_replicas_in_sync > 1:
            raise UserError(
                f"the strategy of {type(self).__name__}",
                expected="one device",
                got=f"{strategy.num_replicas_in_sync} replicas",
                remedy="Use --strategy=one_device.",
            )

    # The state as values.

    def snapshot(self, state: State) -> State:
        """Returns a copy of the leaves, which later steps of `state` do not change."""
        self._check_newest(state)
        return tf.nest.map_structure(
            lambda x: tf.Variable(x, trainable=x.trainable) if isinstance(x, tf.Variable) else x,
            state,
        )

    def env_steps(self, state: State) -> int:
        """Returns the valid agent steps so far."""
        return int(state.metrics.env_steps)

    def agent_state(self, state: State) -> Any:
        """Returns the AgentState of the policy, as tensors."""
        return struct.values(state.agent_state)

    def state_values(self, state: State) -> dict[str, Any]:
        """Returns every value of the run by path, the content of a checkpoint.

        Environments on the host are left out: a resumed run begins new episodes.
        """
        self._check_newest(state)
        on_host = isinstance(self.env, HostEnv)
        return struct.paths(state.replace(env_state=None) if on_host else state)

    def state_paths(self, state: State) -> set[str]:
        """Returns the paths of `state_values`."""
        return set(self.state_values(state))

    def is_loaded(self, path: str, *, environments: bool) -> bool:
        """Whether `load` wants a value; see `load_values` for `environments`."""
        return True

    def check_paths(self, checkpoint: str, want: set[str], have: set[str]) -> None:
        """Raises a UserError unless a checkpoint has the paths that this workflow wants."""
        if want != have:
            raise UserError(
                f"the checkpoint {checkpoint}",
                expected="the values of this workflow",
                got=f"missing {sorted(want - have)[:5]}, unknown {sorted(have - want)[:5]}",
                remedy="Restore with the configuration that saved it.",
            )

    def load_values(
        self, state: State, values: Mapping[str, Any], *, environments: bool = True
    ) -> State:
        """Puts the values of a checkpoint into a state that `setup` made.

        Args:
          state: The state.
          values: What `state_values` returned.
          environments: Whether to load the environments' state. An evaluation does not need it and
            so loads on any number of replicas.
        """
        own = struct.paths(state)
        if isinstance(self.env, HostEnv):
            values = {**own, **values}
        kept = () if environments else ("env_state", "carry")
        loaded = {p: x for p, x in own.items() if p.split("/")[0] not in kept}
        check_fits(
            "the checkpoint",
            loaded,
            {p: values[p] for p in loaded},
            expected="the shapes of this workflow's state",
            remedy="Restore with the configuration that saved it.",
        )
        leaves = [
            put(x, tf.convert_to_tensor(values[p])) if p in loaded else x for p, x in own.items()
        ]
        state = tf.nest.pack_sequence_as(state, leaves)
        plays_on = state.env_state is not None
        if environments and plays_on and isinstance(self.env, HostEnv):
            # Environments on the host begin new episodes, with seeds that follow from the run.
            key = seeding.fold_in(seeding.stream(state.key, "episodes"), state.metrics.iterations)
            state = state.replace(env_state=self.env.reset(key))
        self._note_iterations(state)
        return state

    @property
    def enable_multi_devices(self) -> bool:
        """Whether runs are spread over several replicas, see `use_strategy`."""
        return self.replicas.several

    def rescale_config(self, num_replicas: int) -> None:
        """Called before several replicas divide the sizes, which are global.

        A workflow whose sizes are per replica multiplies them here.
        """
        return

    @property
    def worker_group(self) -> WorkerGroup | None:
        """How the processes of a multi-worker strategy decide together; None for one process."""
        return self._worker_group

    def _connect_workers(self, wait_seconds: float = 0.0) -> None:
        """Sets `worker_group` to that of the replicas.

        Args:
          wait_seconds: Seconds that an iteration may wait for other processes.
        """
        several = self.replicas.num_workers > 1
        seconds = _WORKER_SECONDS + wait_seconds
        self._worker_group = WorkerGroup(self.replicas.strategy, seconds) if several else None

    def step(self, state: State) -> tuple[dict[str, Any], State]:
        """Runs one iteration; returns its metrics row and the new state."""
        done = self.advance(state, 1)
        return dict(done.rows[-1]), done.state

    def learn(
        self,
        state: State,
        options: RunOptions | None = None,
        *,
        callbacks: Any = (),
        **changes: Any,
    ) -> State:
        """Trains until the budget, a target or a callback ends the run.

        Args:
          state: From `setup` or `restore`; it is consumed.
          options: Budget, evaluation, checkpoints, records.
          callbacks: A user's own code at the run's events: an object with one or more of the
            methods of `tfrl.experiment.callbacks.Callback`, or several of them.
          **changes: Fields of `RunOptions`, on top of `options` or instead of them.

        Returns:
          The state at the end; `self.report` tells how the run ended.

        Raises:
          UserError: For wrong arguments, a non-finite loss, or a `root_dir` that holds another
            run.
        """
        loop = TrainingLoop(self, with_changes(options, changes), callbacks)
        state = loop.run(self.ready(state))
        self.report = loop.report
        return state

    def save(
        self, state: State, directory: str | pathlib.Path, *, metric: float | None = None
    ) -> pathlib.Path:
        """Saves a checkpoint `ckpt-<env_steps>` into a folder of checkpoints.

        It replaces a checkpoint of the same env steps; all others stay. Saving settles compile
        modes, which an exact resume needs. All processes of a strategy must call it: each gives its
        part, and the chief writes.

        Args:
          state: The newest state of a run.
          directory: The folder; made when missing. All processes must see it.
          metric: A figure to choose the best by, higher is better.

        Returns:
          The checkpoint's folder.
        """
        checks.path("directory of save", directory)
        checks.number("metric of save", metric, optional=True)
        state = self.ready(state)
        values, steps, group = self.state_values(state), self.env_steps(state), self.worker_group
        path = pathlib.Path(directory) / f"ckpt-{steps}"
        if group is None or group.is_chief:
            manager = CheckpointManager(directory, max_to_keep=None, drop_later=False)
            path = manager.save(steps, values, self.manifest(state), metric=metric)
        if group is not None:
            group.barrier("a checkpoint that is written")
        return path

    def manifest(self, state: State) -> dict[str, Any]:
        """Returns a checkpoint's manifest: compile modes, env steps, run time."""
        return {
            "env_steps": self.env_steps(state),
            "compile_choices": self.compile_choices(state),
            **dataclasses.asdict(self.run_time_of(state)),
        }

    def run_time_of(self, state: State) -> RunTime:
        """Returns the time of a state's run, over all its starts."""
        return self._run_times.setdefault(self.run_key(state), RunTime())

    def start_run_time(self, state: State, run_time: RunTime) -> None:
        """Sets the time of a state's run."""
        self._run_times[self.run_key(state)] = run_time

    def run_key(self, state: State) -> Any:
        """Returns a key that is the same for all states of a run, and for no other."""
        return tuple(state.key.numpy().tolist())

    def adopt(self, state: State, directory: str | pathlib.Path) -> None:
        """Makes a folder of checkpoints the run's own: `learn` may go on in it.

        `learn` drops its checkpoints beyond the state's env steps.
        """
        place = pathlib.Path(directory).resolve()
        self._folders[self.run_key(state)] = place, self.env_steps(state)

    def is_of(self, state: State, directory: str | pathlib.Path) -> bool:
        """Whether the state's run was restored from this folder of checkpoints or trained in it.

        A state older than the folder's newest counts as another run: it would repeat steps.
        """
        place, env_steps = self._folders.get(self.run_key(state), (None, 0))
        return place == pathlib.Path(directory).resolve() and self.env_steps(state) >= env_steps

    def restore(
        self, directory: str | pathlib.Path, which: str | int = "latest", *, seed: int = 0
    ) -> State:
        """Restores a run from a folder of checkpoints, so that it goes on exactly.

        The run's compile modes replace this workflow's: other modes may round differently.

        Args:
          directory: A folder of `save`, or a run folder's `checkpoints/`.
          which: "latest", "best", or the env steps of one.
          seed: For the state that takes the values; changes no result.

        Raises:
          UserError: When there is none, none is usable, or it belongs to another configuration.
        """
        checks.path("directory of restore", directory)
        restored = CheckpointManager(directory, read_only=True).restore(which)
        if restored is None:
            raise UserError(
                f"the folder {directory}",
                expected="a checkpoint",
                got="no checkpoint",
                remedy="Pass the checkpoints folder of a run.",
            )
        choices = restored.manifest.get("compile_choices")
        if choices:
            self.use_compile(choices)
        return self.load(self.setup(seed), restored)

    def load(self, state: State, restored: Restored, *, environments: bool = True) -> State:
        """Puts a checkpoint into a state that `setup` made, after comparing their paths.

        The run time and the folder of the checkpoint become the run's.

        Args:
          state: The state.
          restored: The checkpoint.
          environments: See `load_values`.
        """

        def loaded(paths: set[str]) -> set[str]:
            return {p for p in paths if self.is_loaded(p, environments=environments)}

        self.check_paths(
            str(restored.path), loaded(self.state_paths(state)), loaded(set(restored.values))
        )
        state = self.load_values(state, restored.values, environments=environments)
        self.start_run_time(state, RunTime.of(restored.manifest))
        self.adopt(state, restored.path.parent)
        return state

    def close(self) -> None:
        """Closes what the workflow holds outside the state, such as environments on the host."""
        if self._host_eval_env is not None:
            self._host_eval_env.close()
            self._host_eval_env = None


def _known_mode(mode: object) -> str:
    if isinstance(mode, str) and mode in MODES:
        return mode
    raise UserError(
        "compile",
        expected=", ".join(MODES),
        got=repr(mode),
        remedy="Choose one of these modes.",
    )
