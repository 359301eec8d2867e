"""`TaskWorkflow`: runs an `RLTask` as every other workflow runs."""

import pathlib
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import extras
from tfrl.distribute.replicas import Replicas
from tfrl.envs.workers import episode_seed
from tfrl.errors import UserError, did_you_mean
from tfrl.evaluation.result import EvaluationResult
from tfrl.evaluation.video import Video
from tfrl.evaluation.video_file import Preview
from tfrl.tasks import clip_recording, clips, policy_export
from tfrl.tasks.episode_returns import EpisodeReturns
from tfrl.tasks.frames import as_rgb
from tfrl.tasks.program import Stopwatch, TaskProgram
from tfrl.tasks.sampler import SamplingCounts
from tfrl.tasks.task import RLTask
from tfrl.tasks.task_evaluation import evaluate_task
from tfrl.tasks.task_state import TaskProgress, TaskState, fresh_progress, load_values, state_values
from tfrl.types import AgentState
from tfrl.workflows.checks import check_whole
from tfrl.workflows.core import Advance, Workflow

MODES = ("graph", "xla", "eager")
# Numbers of seeds that must not meet those of the training's episodes.
_EVALUATION, _FINAL = 1, 2


def check_video(task: RLTask) -> None:
    """Checks that the task's environment can be drawn and its video encoded, by drawing once.

    Raises:
      UserError: It cannot.
    """
    for module in ("imageio_ffmpeg", "PIL.Image"):
        extras.require(module, "video")
    env = task.get_environment()
    try:
        clip_recording.check_drawable(env)
        env.reset(seed=0)
        as_rgb(env.render())
    except UserError:
        raise
    except Exception as error:  # whatever a renderer raises without a screen or a package
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise UserError(
            "video_interval",
            expected="an environment that can be drawn",
            got=f"one that cannot ({type(error).__name__}: {lines[0]})",
            remedy="Leave video_interval out.",
        ) from error
    finally:
        env.close()


def record_video(
    task: RLTask, model: Any, path: str | pathlib.Path, seed: int, preview: Preview | None
) -> Video:
    """Records one episode with `optimal=True`.

    Args:
      task: The task.
      model: Of `get_model`.
      path: A file name ending in .mp4 or .gif.
      seed: Of the episode.
      preview: Takes the frames too.

    Raises:
      UserError: As `RLTask.sample_clip`.
    """
    wanted = clips.checked(
        save_path=path,
        return_images=False,
        return_states=True,
        writer=None,
        standardize_images=True,
        max_steps=task.config.max_steps,
        seed=seed,
    )
    clip = clip_recording.ClipPlayer(
        task.get_environment,
        lambda states, optimal: task.get_actions(model, states, optimal),
        optimal=True,
        max_steps=wanted.max_steps,
        max_episode_steps=task.config.max_episode_steps,
        seed=wanted.seed,
        renders=True,
    )
    clip_recording.record(clip, wanted, step=0, tag="clip", preview=preview)
    trajectory = clip.trajectory
    if trajectory is None:
        raise RuntimeError("the clip was not played to its end")
    return Video(
        path=pathlib.Path(path),
        frames=len(trajectory) + 1,
        episode_returns=(float(np.sum(trajectory.reward)),),
        episode_lengths=(len(trajectory),),
        fps=clip.fps,
    )


class TaskWorkflow(Workflow):
    """Trains an `RLTask`.

    One iteration: `num_collect_steps` env steps by the workers, then updates on clips of the replay
    buffer until the task's `epoch_is_over`. The environments are not part of a checkpoint: a
    resumed run restores counters, parameters, optimizer and replay buffer exactly, and begins new
    episodes with the seeds that follow. The workers are closed by `close`.
    """

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
          task: What is trained.
          eval_episodes: Episodes of one evaluation, with `optimal=True`.
          compile: Mode of the update: "graph", "xla" or "eager".
          iterations_per_call: Iterations between looks at the clock, evaluations and checkpoints;
            None for about half a second.

        Raises:
          UserError: For arguments that do not fit.
        """
        super().__init__(iterations_per_call=iterations_per_call)
        if not isinstance(task, RLTask):
            raise UserError(
                "task of TaskWorkflow",
                expected="an RLTask",
                got=f"{task!r} of type {type(task).__name__}",
                remedy="Derive it from tfrl.tasks.RLTask and give an object of the class.",
            )
        check_whole(eval_episodes=eval_episodes)
        self.task = task
        self.eval_episodes = eval_episodes
        self.use_compile(compile)
        self._programs: weakref.WeakSet[TaskProgram] = weakref.WeakSet()

    # The run.

    def setup(self, seed: int) -> TaskState:
        """Makes a fresh run; sets the global seeds of Python, NumPy and TensorFlow."""
        tf.keras.utils.set_random_seed(seed % 2**32)
        progress = fresh_progress(seed, self.task.config.num_pool_workers)
        return TaskState(progress=progress, program=self._program(), returns=EpisodeReturns())

    def _program(self) -> TaskProgram:
        program = TaskProgram(self.task, self.compile)
        self._programs.add(program)
        return program

    def iterate(self, state: TaskState, key: tf.Tensor) -> tuple[dict[str, Any], TaskState]:
        """One collection and its updates, in Python; they draw from the seeds of the run."""
        return self.step(state)

    def run_key(self, state: TaskState) -> Any:
        """Returns what all states of one run share, and only they."""
        return weakref.ref(state.program)

    def _check_fresh(self, state: TaskState) -> None:
        """Raises a UserError for a state that a later step has consumed."""
        if state.version != state.program.version:
            raise UserError(
                "the state given to the workflow",
                expected=f"the newest of its run (version {state.program.version})",
                got=f"version {state.version}, which a later step has consumed",
                remedy="Keep a copy with workflow.snapshot(state) before stepping.",
            )

    def advance(self, state: TaskState, iterations: int, until: int | None = None) -> Advance:
        """Runs up to `iterations` iterations; see `Workflow.advance`."""
        self._check_fresh(state)
        # Also where an iteration fails: it has changed what the state refers to.
        state.program.version += 1
        progress, watch = state.progress, Stopwatch()
        rows: list[dict[str, Any]] = []
        while not rows or (
            len(rows) < iterations and (until is None or progress.env_steps < until)
        ):
            progress, row = self._iteration(state, progress, watch)
            rows.append(row)
        new_state = state.replace(progress=progress, version=state.program.version)
        seconds = {**watch.seconds, "call": watch.total()}
        return Advance(rows=rows, state=new_state, seconds=seconds)

    def _iteration(
        self, state: TaskState, progress: TaskProgress, watch: Stopwatch
    ) -> tuple[TaskProgress, dict[str, Any]]:
        program, counts = state.program, SamplingCounts()
        sampled, next_episodes = program.collect(progress.next_episodes.tolist(), counts)
        watch.lap("rollout")
        taken = counts.samples + counts.discarded_samples + counts.trimmed_samples
        ended = state.returns.add(sampled)
        progress = progress.replace(
            iterations=progress.iterations + 1,
            env_steps=progress.env_steps + taken,
            episodes=progress.episodes + len(ended),
            next_episodes=np.array(next_episodes, np.int64),
        )
        if ended:
            mean_return, mean_length = np.mean(ended, axis=0).astype(np.float32)
            progress = progress.replace(episode_return=mean_return, episode_length=mean_length)
        where = (int(progress.seed), int(progress.iterations), int(progress.env_steps))
        metrics, updates = program.update(*where)
        watch.lap("update")
        progress = progress.replace(learner_steps=progress.learner_steps + updates)
        return progress, {
            "env_steps": int(progress.env_steps),
            "iterations": int(progress.iterations),
            "learner_steps": int(progress.learner_steps),
            "episodes": int(progress.episodes),
            "episode_return": float(progress.episode_return),
            "episode_length": float(progress.episode_length),
            **metrics,
            "updates": updates,
            "replay_samples": program.replay_size,
            "discarded_samples": counts.discarded_samples,
            "dropped_actions": counts.dropped_actions,
            "action_batch_size": counts.states / counts.batches,
            "worker_restarts": program.restarts,
        }

    def evaluate(self, state: TaskState) -> tuple[dict[str, float], TaskState]:
        """Plays `eval_episodes` episodes with `optimal=True`; seeds follow from the iteration."""
        result = self._evaluated(state, self.eval_episodes, self._seed(state, _EVALUATION))
        return result.metrics(), state

    def final_evaluation(
        self, state: TaskState, num_episodes: int, seed: int | None = None
    ) -> EvaluationResult:
        """Plays `num_episodes` episodes with `optimal=True`."""
        check_whole(num_episodes=num_episodes)
        return self._evaluated(
            state, num_episodes, self._seed(state, _FINAL) if seed is None else seed
        )

    def _evaluated(self, state: TaskState, num_episodes: int, seed: int) -> EvaluationResult:
        self._check_fresh(state)
        return evaluate_task(self.task, state.program.training.model, num_episodes, seed)

    def _seed(self, state: TaskState, purpose: int) -> int:
        """A seed out of the run's, the environments' and the iteration."""
        progress = state.progress
        mixed = episode_seed(self.task.config.env_seed, int(progress.seed) % 2**31, purpose)
        return episode_seed(mixed, int(progress.iterations), purpose)

    def snapshot(self, state: TaskState) -> TaskState:
        """Returns a copy, whose workers begin episodes of their own at its first step."""
        copy = TaskState(progress=state.progress, program=self._program(), returns=EpisodeReturns())
        return self.load_values(copy, self.state_values(state))

    def close(self) -> None:
        """Ends the workers of all runs."""
        for program in list(self._programs):
            program.close()

    # What a checkpoint holds.

    def env_steps(self, state: TaskState) -> int:
        """Env steps so far."""
        return int(state.progress.env_steps)

    def agent_state(self, state: TaskState) -> AgentState:
        """The model's values, under `params["model"]`."""
        variables = state.program.training.model_variables()
        return AgentState(
            params={"model": {n: tf.convert_to_tensor(v) for n, v in variables.items()}}
        )

    def state_values(self, state: TaskState) -> dict[str, Any]:
        """Every value of the run by path."""
        self._check_fresh(state)
        return state_values(state)

    def load_values(
        self, state: TaskState, values: Mapping[str, Any], *, environments: bool = True
    ) -> TaskState:
        """Returns `state` with every value replaced; workers begin where the others stopped."""
        return load_values(state, values)

    # What the binaries ask.

    def describe(self) -> str:
        """Names the task and its sizes."""
        config = self.task.config
        return (
            f"{type(self.task).__name__}, {config.num_pool_workers} environments x "
            f"{config.num_collect_steps} steps in all, {config.num_update_steps} updates on "
            f"{config.batch_size} clips of {config.num_samples}"
        )

    def use_compile(self, choices: str | Mapping[str, str]) -> None:
        """Sets the mode of the update for runs that are set up from now on."""
        mode = choices if isinstance(choices, str) else choices.get("update", "graph")
        if mode not in MODES:
            raise UserError(
                "compile of TaskWorkflow",
                expected=f"one of {', '.join(MODES)}",
                got=repr(mode),
                remedy=did_you_mean(str(mode), MODES),
            )
        self.compile = mode

    def compile_choices(self, state: TaskState) -> dict[str, str]:
        """The mode of the update."""
        return {"update": self.compile}

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Takes a strategy of one replica; a UserError for others."""
        replicas = Replicas(strategy)
        if replicas.several:
            raise UserError(
                "--strategy",
                expected="one replica, for a TaskWorkflow",
                got=f"{replicas.num_replicas} of {type(strategy).__name__}",
                remedy="Give --strategy=one_device, or train with OnPolicyWorkflow.",
            )
        self.replicas = replicas

    def video_env(self) -> Any:
        """Returns an environment of the task; the caller closes it."""
        return self.task.get_environment()

    def check_video(self) -> None:
        """Checks that clips of the task's environment can be drawn and encoded."""
        check_video(self.task)

    def record_video(
        self,
        state: TaskState,
        path: str | pathlib.Path,
        seed: int,
        preview: Preview | None = None,
    ) -> Video:
        """Records one episode with `optimal=True`, of `max_steps` at most."""
        self._check_fresh(state)
        model = state.program.training.model
        return record_video(self.task, model, path, seed, preview)

    def export_policy(self, state: TaskState, directory: str | pathlib.Path) -> Any:
        """Writes `get_actions(model, ..., optimal=True)` as a SavedModel, see `Workflow`."""
        return policy_export.export_task(self.task, state.program.training.model, directory)
