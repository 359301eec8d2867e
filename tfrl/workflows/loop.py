"""The training loop of all algorithms."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.experiment.callbacks import STOP, CallbackList, Event
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.experiment.progress import Progress
from tfrl.experiment.recorders import (
    ConsoleRecorder,
    CsvRecorder,
    JsonlRecorder,
    RecorderGroup,
    TensorBoardRecorder,
    WandbRecorder,
)
from tfrl.experiment.run_folder import RunFolder
from tfrl.storage import working_copy
from tfrl.workflows.options import RunOptions
from tfrl.workflows.video import VideoRecorder, check_video, drop_later_videos

if TYPE_CHECKING:
    from tfrl.workflows.core import Workflow
    from tfrl.workflows.run_state import State

_CALL_SECONDS = 0.5
# Key of a checkpoint's manifest: `{file: rows}` on disk when it was saved.
_NUM_ROWS = "num_rows"
_EVAL_RETURN = "eval_return_mean"


@dataclasses.dataclass
class RunReport:
    """How a run of `Workflow.learn` ended.

    Attributes:
      stopped_by: "budget", "target_return", "callback", or "worker" for a callback of another
        process of the strategy.
      env_steps: Env steps at the end, over all starts of the run.
      seconds: Wall seconds of this call of `learn`.
      env_steps_per_second: Env steps of this call per second of training, without compilation and
        evaluation; per wall second if there was only one compiled call.
    """

    stopped_by: str
    env_steps: int
    seconds: float
    env_steps_per_second: float


@dataclasses.dataclass
class RunTime:
    """The time of a run, over all its starts.

    Attributes:
      wall_seconds: Seconds in `learn`.
      train_seconds: Seconds in compiled calls, without the first of every start, which compiles.
      train_steps: Env steps of these calls.
    """

    wall_seconds: float = 0.0
    train_seconds: float = 0.0
    train_steps: int = 0

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> RunTime:
        """Reads it from a checkpoint's manifest; missing fields are 0."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: manifest[name] for name in names if name in manifest})

    @property
    def env_steps_per_second(self) -> float | None:
        """The speed of training, or None if all calls have compiled."""
        return self.train_steps / self.train_seconds if self.train_seconds > 0 else None


class TrainingLoop:
    """One call of `Workflow.learn`."""

    def __init__(self, workflow: Workflow, options: RunOptions, callbacks: Any):
        """Touches no files; `run` does."""
        self.workflow = workflow
        self.options = options
        self.callbacks = CallbackList(callbacks)
        self.report: RunReport | None = None
        self.manager: CheckpointManager | None = None
        self.progress: Progress | None = None
        self._videos: VideoRecorder | None = None
        self._folder: RunFolder | None = None
        self._identity: os.stat_result | None = None
        self._worker_group = workflow.worker_group
        # The chief of several processes writes the files and shows the progress.
        self._leads = self._worker_group is None or self._worker_group.is_chief
        self._stop: str | None = None
        self._iterations = workflow.iterations_per_call or 1
        self._train_seconds = 0.0
        self._train_steps = 0
        self._calls = 0
        self._phases = 0
        self._done = 0
        self._evaluated: dict[str, float] = {}  # metrics of the last evaluation
        self._warned = False

    # Set-up of files.

    def _open(self, state: State, env_steps: int) -> None:
        options = self.options
        recorders: list[Any] = []
        keeps = self._leads and options.root_dir is not None
        folder = RunFolder(str(options.root_dir)) if keeps else None
        if folder is not None:
            self._take(folder, state, env_steps)
            if env_steps < options.total_env_steps:
                folder.summary.unlink(missing_ok=True)  # it has earlier parameters
            self.manager = CheckpointManager(
                folder.checkpoints, max_to_keep=options.max_to_keep, log=self._log
            )
        for name in options.recorders:
            if name == "console" and self._leads:
                recorders.append(ConsoleRecorder())
            elif folder is not None:
                makers = {
                    "csv": lambda f: CsvRecorder(f.metrics_csv),
                    "jsonl": lambda f: JsonlRecorder(f.metrics_jsonl),
                    "tensorboard": lambda f: TensorBoardRecorder(f.tensorboard),
                    "wandb": lambda f: WandbRecorder(directory=f.root),
                }
                recorders.append(makers[name](folder))
        self.recorder = RecorderGroup(recorders)
        # Rows after the restored checkpoint will be written again.
        self.recorder.truncate(env_steps)
        if folder is not None:
            self._folder, self._identity = folder, os.stat(folder.root)
            self._note_missing_rows(env_steps)
            drop_later_videos(folder, env_steps)
            if options.video_interval:
                self._videos = VideoRecorder(
                    self.workflow, folder, options.video_seed, log=self._log
                )
        self.progress = (
            Progress(options.total_env_steps, done=env_steps)
            if options.progress and self._leads
            else None
        )
        self._saved_at = time.monotonic()

    def _take(self, folder: RunFolder, state: State, env_steps: int) -> None:
        """Binds the run to the folder, unless the folder is another run's."""
        folder.check_files()
        steps = CheckpointManager(folder.checkpoints, read_only=True).steps
        files = (folder.metrics_csv, folder.metrics_jsonl)
        rows = [file.name for file in files if file.is_file() and file.stat().st_size]
        if (steps or rows) and not self.workflow.is_of(state, folder.checkpoints):
            kept_files = [f"checkpoints of the steps {', '.join(map(str, steps))}"] if steps else []
            restore = f"Restore from {folder.checkpoints} to resume that run, or choose"
            raise UserError(
                f"root_dir {folder.root}",
                expected=f"a folder without a run, or the run folder of this state of {env_steps} "
                "env steps",
                got=" and ".join([*kept_files, *rows]) + " of another run",
                remedy=f"{restore if steps else 'Choose'} another root_dir.",
            )
        self.workflow.adopt(state, folder.checkpoints)

    def _note_missing_rows(self, env_steps: int) -> None:
        """Logs how many rows the metrics files have lost since the checkpoint was saved."""
        written = self.manager.manifest(env_steps).get(_NUM_ROWS, {}) if self.manager else {}
        for name, rows in self.recorder.num_rows.items():
            missing = written.get(name, rows) - rows
            if missing > 0:
                self._log(
                    f"Note: {name} lacks {missing:,} of the {written[name]:,} rows up to "
                    f"{env_steps:,} env steps; the run goes on without them."
                )

    def _check_folder(self) -> None:
        if self._folder is not None:
            self._folder.check_there(self._identity)

    def _log(self, message: str) -> None:
        """Prints a line without breaking the progress display."""
        message = working_copy.named(message)
        if self.progress is not None:
            self.progress.log(message)
        else:
            print(message, flush=True)

    # The loop.

    def run(self, state: State) -> State:
        """Trains; returns the last state."""
        start = self._counted_at = time.monotonic()
        if self.options.video_interval:
            check_video(self.workflow, self.options.root_dir)
        env_steps = start_steps = self.workflow.env_steps(state)
        self._open(state, env_steps)
        if not env_steps:
            self.workflow.start_run_time(state, RunTime())
        self._run_time = self.workflow.run_time_of(state)
        self._done = int(state.metrics.iterations)
        evaluated = None
        there = self.manager is not None and env_steps in self.manager.steps
        saved = env_steps if self._broadcast(there) else None
        try:
            while env_steps < self.options.total_env_steps and not self._stops():
                state, env_steps, rows = self._call(state, env_steps)
                if not rows:  # a signal came while it waited for collectors
                    self._stop = "callback"
                    break
                state, evaluated = self._evaluate_if_due(state, rows, env_steps)
                self._film_if_due(state, rows, env_steps)
                # Rows first: a checkpoint promises that all rows before it are on disk.
                self._write_rows(rows)
                saved = self._checkpoint_if_due(state, env_steps, evaluated)
            if saved != env_steps and self.options.root_dir is not None:
                self._save(state, env_steps, evaluated)
        finally:
            self.recorder.flush()
            self.recorder.close()
            if self.progress is not None:
                self.progress.close()
            if self._folder is not None:
                working_copy.publish(self._folder.root)
        seconds = time.monotonic() - start
        self.report = RunReport(
            stopped_by=self._stop or "budget",
            env_steps=env_steps,
            seconds=seconds,
            env_steps_per_second=self._train_steps / self._train_seconds
            if self._train_steps
            else (env_steps - start_steps) / max(seconds, 1e-9),
        )
        return state

    def _broadcast(self, value: int) -> int:
        """Returns the chief's value: decisions by time or files must agree in all processes."""
        return (
            int(value) if self._worker_group is None else int(self._worker_group.broadcast(value))
        )

    def _stops(self) -> bool:
        """Whether this process or another ends the run here."""
        if self._worker_group is not None and self._worker_group.any(self._stop is not None):
            self._stop = self._stop or "worker"
        return self._stop is not None

    def _call(self, state: State, env_steps: int) -> tuple[State, int, list[dict[str, Any]]]:
        """Runs one compiled call; returns the new state, env steps, and its rows."""
        options = self.options
        self._eval_due = _next_multiple(options.eval_interval, env_steps)
        self._save_due = _next_multiple(options.checkpoint_interval, env_steps)
        self._video_due = _next_multiple(options.video_interval or None, env_steps)
        due = (self._eval_due, self._save_due, self._video_due)
        until = int(min(options.total_env_steps, *due))
        self._iterations = self._broadcast(self._iterations)
        done = self.workflow.advance(state, self._iterations, until)
        self._check_folder()
        rows = [dict(r) for r in done.rows]
        new_steps = self.workflow.env_steps(done.state)
        if not rows:
            return done.state, new_steps, rows
        seconds = done.seconds["call"]
        self._calls += 1
        if self._calls > 1:  # the first call compiles
            self._train_seconds += seconds
            self._train_steps += new_steps - env_steps
            self._run_time.train_seconds += seconds
            self._run_time.train_steps += new_steps - env_steps
        before, self._done = self._done, int(rows[-1]["iterations"])
        self._adapt(seconds / (self._done - before))
        rows[-1].update({f"time/{k}": v for k, v in done.seconds.items()})
        rows[-1]["time/env_steps_per_second"] = (new_steps - env_steps) / seconds
        self._show(rows[-1], compiled=self._note_phases(done.state))
        self._warn(rows)
        self._tell(self.callbacks.on_step, new_steps, done.state, rows[-1])
        return done.state, new_steps, rows

    def _warn(self, rows: list[dict[str, Any]]) -> None:
        """Logs the first warning about the rows of metrics."""
        warnings = (
            [] if self._warned else [w for row in rows if (w := self.workflow.warning_of(row))]
        )
        if warnings and self._leads:
            self._log(f"Warning: {warnings[0]}")
        self._warned |= bool(warnings)

    def _adapt(self, seconds_per_iteration: float) -> None:
        """Chooses the iterations of the next call, for `_CALL_SECONDS`.

        At most 8 times the last ones, since a call that compiles says little.
        """
        if self.workflow.iterations_per_call is None:
            wanted = max(1, round(_CALL_SECONDS / max(seconds_per_iteration, 1e-9)))
            self._iterations = min(wanted, self._iterations * 8)

    def _note_phases(self, state: State) -> bool:
        """Counts the phases; returns whether the call was the first of its phase, and compiled."""
        before, self._phases = self._phases, len(self.workflow.runner(state).phases)
        return self._phases > before or self._calls == 1

    def _show(self, row: dict[str, Any], compiled: bool) -> None:
        if self.progress is None:
            return
        figures = {"return_": row.get("episode_return"), "length": row.get("episode_length")}
        figures["eval"] = self._evaluated.get(_EVAL_RETURN)
        for name in self.workflow.screen_metrics:
            figures[name.rpartition("/")[2]] = row.get(name, self._evaluated.get(name))
        known = {k: v for k, v in figures.items() if v is not None and math.isfinite(v)}
        self.progress.update(int(row["env_steps"]), compiled=compiled, **known)

    def _evaluate_if_due(
        self, state: State, rows: list[dict[str, Any]], env_steps: int
    ) -> tuple[Any, float | None]:
        """Evaluates if due; the metrics join the last row."""
        if env_steps < self._eval_due:
            return state, None
        start = time.monotonic()
        metrics, state = self.workflow.evaluate(state)
        rows[-1].update(metrics)
        rows[-1]["time/evaluation"] = time.monotonic() - start
        is_first = not self._evaluated
        self._evaluated, evaluated = metrics, float(metrics[_EVAL_RETURN])
        self._show(rows[-1], compiled=is_first)
        self._tell(self.callbacks.on_evaluate, env_steps, state, metrics)
        target = self.options.target_return
        if target is not None and evaluated >= target:
            self._stop = self._stop or "target_return"
        return state, evaluated

    def _film_if_due(self, state: State, rows: list[dict[str, Any]], env_steps: int) -> None:
        """Records a video if due."""
        if self._videos is not None and env_steps >= self._video_due:
            start = time.monotonic()
            self._videos.record(state, env_steps)
            rows[-1]["time/video"] = time.monotonic() - start

    def _write_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.recorder.write(int(row["env_steps"]), row)
        self.recorder.flush()
        if self._videos is not None:
            self._videos.show(self.recorder)

    def _checkpoint_if_due(
        self, state: State, env_steps: int, evaluated: float | None
    ) -> int | None:
        """Saves a checkpoint if due by steps or by time, and at the best evaluation so far."""
        if self.options.root_dir is None:
            return None
        seconds = self.options.checkpoint_seconds
        due = env_steps >= self._save_due
        due |= seconds is not None and time.monotonic() - self._saved_at >= seconds
        due |= evaluated is not None and self._is_best(evaluated)
        if not self._broadcast(due):
            return None
        self._save(state, env_steps, evaluated)
        return env_steps

    def _is_best(self, evaluated: float) -> bool:
        best = self.manager.best_metric if self.manager is not None else None
        return math.isfinite(evaluated) and (best is None or evaluated > best)

    def _save(self, state: State, env_steps: int, evaluated: float | None) -> None:
        """Saves a checkpoint: the chief gathers the values of all processes and writes."""
        values = self.workflow.state_values(state)
        manager = self.manager
        if manager is None:
            return
        now = time.monotonic()
        self._run_time.wall_seconds += now - self._counted_at
        self._counted_at = now
        self._check_folder()
        manifest = {**self.workflow.manifest(state), _NUM_ROWS: self.recorder.num_rows}
        path = manager.save(env_steps, values, manifest, metric=evaluated)
        self.workflow.adopt(state, path.parent)
        self._saved_at = time.monotonic()
        self._tell(self.callbacks.on_checkpoint, env_steps, state, {}, path)

    def _tell(
        self,
        callback: Callable[[Event], Any],
        env_steps: int,
        state: State,
        metrics: Mapping[str, Any],
        path: pathlib.Path | None = None,
    ) -> None:
        """Calls the callbacks of an event, one of which may end the run."""
        event = Event(
            env_steps=env_steps, metrics=metrics, state=state, workflow=self.workflow, path=path
        )
        if callback(event) is STOP:
            self._stop = self._stop or "callback"


def _next_multiple(interval: int | None, env_steps: int) -> float:
    """Returns the first multiple of an interval after `env_steps`; infinity for None."""
    return math.inf if interval is None else (env_steps // interval + 1) * interval
