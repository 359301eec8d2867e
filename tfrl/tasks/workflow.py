"""`TaskWorkflow`: trains an `RLTask`."""

import pathlib
import weakref
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfrl import checks, keras, seeding, struct
from tfrl.envs.workers import episode_seed
from tfrl.errors import UserError
from tfrl.evaluation.result import EvaluationResult
from tfrl.evaluation.video import Video
from tfrl.evaluation.video_file import Preview
from tfrl.tasks import clip_recording, policy_export
from tfrl.tasks.environments import evaluate_task
from tfrl.tasks.runner import TaskRunner, TaskState
from tfrl.tasks.task import RLTask
from tfrl.types import AgentState
from tfrl.workflows import stages
from tfrl.workflows.core import Workflow
from tfrl.workflows.run_state import State
from tfrl.workflows.stages import Stages

MODES = ("graph", "xla", "eager")
# Purposes of seeds, distinct from the training episodes'.
_EVALUATION, _FINAL = 1, 2
# Counters of a checkpoint; checkpoints of earlier versions have no `evaluations`.
_COUNTERS = ("iterations", "env_steps", "episodes", "episode_return", "episode_length")
_EVALUATIONS = "progress/evaluations"


class TaskWorkflow(Workflow):
    """Trains an `RLTask`.

    One iteration: `num_collect_steps` env steps by the workers, then updates on clips of the replay
    buffer until the task's `epoch_is_over`. The environments are not part of a checkpoint: a
    resumed run restores counters, parameters, optimizer and replay buffer exactly, and begins new
    episodes with the next seeds. `close` closes the workers.
    """

    compile: str

    def __init__(
        self,
        task: RLTask,
        *,
        eval_episodes: int = 32,
        compile: str = "graph",
        iterations_per_call: int | None = None,
    ):
        """Assembles the static logic.

        Args:
          task: The task to train.
          eval_episodes: Episodes of one evaluation, with `optimal=True`.
          compile: The compile mode of the update: "graph", "xla" or "eager".
          iterations_per_call: Iterations between checks for evaluations, checkpoints and the end of
            the run; None for about half a second.

        Raises:
          UserError: For wrong arguments.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        if not isinstance(task, RLTask):
            raise UserError(
                "task of TaskWorkflow",
                expected="an RLTask",
                got=f"{task!r} of type {type(task).__name__}",
                remedy="Derive a class from tfrl.tasks.RLTask and pass an instance.",
            )
        checks.at_least("eval_episodes", eval_episodes, 1)
        self.task = task
        self.eval_episodes = eval_episodes
        self.use_compile(compile)

    # The run.

    def setup(self, seed: int | tf.Tensor) -> TaskState:
        """Returns a fresh state from a seed or key; sets Python's, NumPy's, TensorFlow's seeds."""
        key = seeding.as_key(seed)
        keras.seed_all(int(key[0]) % 2**32)
        return self._begin(key)

    def _begin(self, key: tf.Tensor) -> TaskState:
        """Returns a fresh state with a new model, workers and replay buffer."""
        runner = TaskRunner(self, self.task, self.compile)
        state = runner.fresh_state(key)
        self._add_runner(state, runner)
        return state

    def runner(self, state: State) -> TaskRunner:
        """Returns the runner of a state.

        Raises:
          UserError: For a state that is not of this workflow.
        """
        runner = self._runner_of(state)
        if not isinstance(runner, TaskRunner):
            raise UserError(
                "the workflow's state",
                expected="a state of this TaskWorkflow: its model and workers are Python objects",
                got="a state that this workflow did not make",
                remedy="Use a state from setup, snapshot or restore of this workflow.",
            )
        return runner

    def _runner_of_newest(self, state: State) -> TaskRunner:
        """Returns the runner of a state; raises a UserError for a consumed state."""
        self._check_newest(state)
        return self.runner(state)

    def model(self, state: State) -> Any:
        """Returns the task's model, the result of `get_model`, with its values in this state."""
        return self._runner_of_newest(state).learner.model

    def _variable_of(self, state: State) -> tf.Variable | None:
        # The only variable that no runner holds: the workers end with the last state of a run.
        return state.env_state if isinstance(state.env_state, tf.Variable) else None

    def settle_modes(self, state: State, run_stages: Stages) -> None:
        """The loop over iterations runs in Python."""
        run_stages.modes["loop"] = "eager"

    def times_stages(self, run_stages: Stages) -> bool:
        """Whether clocks time rollout and update; here always."""
        return True

    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, Any], State]:
        """Runs one collection and its updates in Python, with random draws from the run's seed."""
        runner = self._runner_of_newest(state)
        # Also for an iteration that fails, since it has changed the workers and the replay buffer.
        runner.iterations += 1
        episodes = state.env_state.numpy().tolist()
        sampled, counts, next_episodes = runner.collect(episodes)
        ended = runner.returns.add(sampled)
        metrics = state.metrics.counted(
            counts.samples + counts.discarded_samples + counts.trimmed_samples,
            len(ended),
            *(np.mean(ended, axis=0) if ended else ()),
        )
        state.env_state.assign(next_episodes)
        state = state.replace(metrics=metrics)
        with stages.after(next_episodes):
            iteration = int(metrics.iterations)
            row, updates = runner.update(_seed(state), iteration, self.env_steps(state))
        return {
            "episode_return": metrics.episode_return,
            "episode_length": metrics.episode_length,
            **row,
            "updates": updates,
            "replay_samples": runner.replay_size,
            "discarded_samples": counts.discarded_samples,
            "dropped_actions": counts.dropped_actions,
            "action_batch_size": counts.states / max(1, counts.batches),
            "worker_restarts": runner.restarts,
        }, state

    def evaluate(self, state: State) -> tuple[dict[str, float], State]:
        """Plays `eval_episodes` episodes with `optimal=True`, with new seeds each time."""
        number = int(state.metrics.evaluations)
        seed = self._episodes_seed(state, _EVALUATION, number)
        result = self._evaluated(state, self.eval_episodes, seed)
        metrics = state.metrics.replace(evaluations=state.metrics.evaluations + 1)
        return result.metrics(), state.replace(metrics=metrics)

    def final_evaluation(
        self, state: State, num_episodes: int, seed: int | None = None
    ) -> EvaluationResult:
        """Plays `num_episodes` episodes with `optimal=True`."""
        checks.at_least("num_episodes", num_episodes, 1)
        if seed is None:
            seed = self._episodes_seed(state, _FINAL, int(state.metrics.iterations))
        return self._evaluated(state, num_episodes, seed)

    def _evaluated(self, state: State, num_episodes: int, seed: int) -> EvaluationResult:
        return evaluate_task(self.task, self.model(state), num_episodes, seed)

    def _episodes_seed(self, state: State, purpose: int, number: int) -> int:
        """Returns a seed from the run's seed, the environments' seed and a number."""
        mixed = episode_seed(self.task.config.env_seed, _seed(state) % 2**31, purpose)
        return episode_seed(mixed, number, purpose)

    def snapshot(self, state: State) -> State:
        """Returns a copy; its first step starts new workers with new episodes."""
        return self.load_values(self._begin(state.key), self.state_values(state))

    def close(self) -> None:
        """Ends the workers of all runs and closes the task's environment for clips."""
        for _, runner in list(self._runners.values()):
            cast(TaskRunner, runner).close()
        self.task.close()

    # Checkpoints.

    def run_key(self, state: State) -> Any:
        """Returns a key that identifies the run of a state."""
        return weakref.ref(self.runner(state))

    def agent_state(self, state: State) -> AgentState:
        """Returns the model's values, under `params["model"]`."""
        variables = self._runner_of_newest(state).learner.module.variables()
        return AgentState(params={"model": struct.values(variables)})

    def state_values(self, state: State) -> dict[str, Any]:
        """Returns every value of the run by path."""
        values = {f"progress/{name}": getattr(state.metrics, name) for name in _COUNTERS}
        return {
            "progress/seed": np.int64(_seed(state)),
            **values,
            _EVALUATIONS: state.metrics.evaluations,
            "progress/learner_steps": tf.convert_to_tensor(state.metrics.learner["learner_steps"]),
            "progress/next_episodes": tf.convert_to_tensor(state.env_state),
            **self._runner_of_newest(state).saved_values(),
        }

    def is_loaded(self, path: str, *, environments: bool) -> bool:
        """Whether `load` needs a value."""
        return path != _EVALUATIONS

    def load_values(
        self, state: State, values: Mapping[str, Any], *, environments: bool = True
    ) -> State:
        """Returns `state` with every value replaced; workers begin at the next episodes."""
        progress = {p.removeprefix("progress/"): tf.convert_to_tensor(values[p]) for p in values}
        progress.setdefault("evaluations", tf.constant(0, tf.int64))
        self.runner(state).load(values, state.env_state.shape[0])
        state.metrics.learner["learner_steps"].assign(progress["learner_steps"])
        key, iterations = seeding.key(int(progress["seed"])), int(progress["iterations"])
        # Models must not repeat the random draws of the start of the run.
        keras.seed_all(episode_seed(int(progress["seed"]) % 2**31, 0, iterations))
        counters = {name: progress[name] for name in (*_COUNTERS, "evaluations")}
        state.env_state.assign(progress["next_episodes"])
        return state.replace(key=key, metrics=state.metrics.replace(**counters))

    # For the binaries.

    def describe(self) -> str:
        """Names the task and its sizes."""
        config = self.task.config
        return (
            f"{type(self.task).__name__}, {config.num_pool_workers} environments x "
            f"{config.num_collect_steps} steps in total, {config.num_update_steps} updates on "
            f"{config.batch_size} clips of {config.num_samples}"
        )

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the compile mode of the update for later runs."""
        mode = choices if isinstance(choices, str) else choices.get("update", "graph")
        self.compile = checks.one_of("compile of TaskWorkflow", mode, MODES)

    def compile_choices(self, state: State) -> dict[str, str]:
        """Returns the compile mode of the update."""
        return {"update": self.compile}

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Accepts a strategy of one replica; raises a UserError for others."""
        if strategy.num_replicas_in_sync > 1:
            raise UserError(
                "--strategy",
                expected="one replica for a TaskWorkflow",
                got=f"{strategy.num_replicas_in_sync} of {type(strategy).__name__}",
                remedy="Pass --strategy=one_device, or train with OnPolicyWorkflow.",
            )

    def video_env(self) -> Any:
        """Returns an environment of the task; the caller closes it."""
        return self.task.get_environment()

    def check_video(self) -> None:
        """Checks that the task's environment renders and clips can be encoded."""
        clip_recording.check_video(self.task)

    def record_video(
        self,
        state: State,
        path: str | pathlib.Path,
        seed: int,
        preview: Preview | None = None,
    ) -> Video:
        """Records one episode with `optimal=True`, of at most `max_steps`."""
        return clip_recording.record_video(self.task, self.model(state), path, seed, preview)

    def export_policy(self, state: State, directory: str | pathlib.Path) -> Any:
        """Writes `get_actions(model, ..., optimal=True)` as a SavedModel, see `Workflow`."""
        return policy_export.export_task(self.task, self.model(state), directory)


def _seed(state: State) -> int:
    """Returns the seed of a run."""
    low, high = state.key.numpy().view(np.uint32).tolist()
    return int(low | high << 32)
