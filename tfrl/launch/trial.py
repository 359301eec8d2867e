"""Runs one trial of a search in a separate process: chooses settings, trains, reports."""

import os
import pathlib
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from absl import flags

from tfrl import extras
from tfrl.distribute.choice import choose
from tfrl.errors import UserError
from tfrl.experiment.callbacks import STOP, Callback, Event
from tfrl.launch import api, best_gin, gin_registry
from tfrl.launch import flags as common_flags
from tfrl.launch import study as studies
from tfrl.launch.search_space import SearchSpace
from tfrl.launch.termination import Termination

if TYPE_CHECKING:
    from tfrl.launch.settings import Settings

# Exit codes of the process, beside the codes of `app`.
NOTHING_LEFT, FAILED = 3, 4
_METRIC = "eval_return_mean"


def run(options: studies.StudyOptions, space: SearchSpace, values: common_flags.CommonFlags) -> int:
    """Runs the next trial of a study, if there is one.

    Args:
      options: The options of the study.
      space: The search space.
      values: The common flags: gin files, bindings and seed of the trials.

    Returns:
      0 after a trial, `FAILED` after a failed trial, `NOTHING_LEFT` without a trial, or the code of
      a signal.

    Raises:
      UserError: The space has an unknown binding.
    """
    termination = Termination()
    termination.install()
    common_flags.configure_tensorflow(values)
    from tfrl.launch import settings as settings_lib

    _check_names(space)
    study = options.open()
    with studies.locked(options.root):
        studies.requeue_dead(study, options.trials_dir)
        if not studies.waiting(study) and len(studies.counted(study)) >= options.trials:
            return NOTHING_LEFT
        shared = studies.configuration_of(values.gin_file, values.gin_bindings, values.seed)
        studies.check_configuration(study, options.root, shared)
        options.prepare(study)
        trial = study.ask()
        folder = options.trials_dir / studies.folder_of(trial)
        log = studies.take_log(folder.with_name(f"{folder.name}.log"), wait=True)
        trial.set_user_attr("folder", folder.name)
        chosen = _choose(study, trial, space)
    screen = _redirect(log)
    lines = settings_lib.binding_lines(chosen)
    print(f"Trial {trial.number}: {'; '.join(lines)}", flush=True)
    bindings = (*values.gin_bindings, *lines)
    outcome = _Outcome(study, trial, folder, options, values)

    def make() -> "Settings":
        return settings_lib.assemble(values.gin_file, bindings)

    try:
        assembled, strategy = api.assemble(
            make,
            lambda: common_flags.strategy_from_flags(values, log=print),
            choose(values.strategy, tpu=values.tpu, num_logical_cpus=values.num_logical_cpus),
            str(folder),
        )
        report = _ReportEvaluations(trial, assembled.eval_interval)
        report.repeat(folder)
        code = api.start(
            assembled.replace(video=False),
            values,
            str(folder),
            strategy,
            termination,
            time.monotonic(),
            check_env=trial.number == 0,
            callbacks=[report],
        )
        text = outcome.completed(lines) if code == 0 else outcome.interrupted()
    except extras.require("optuna", "tune").TrialPruned as pruned:
        code, text = 0, outcome.ended("PRUNED", f"pruned at {pruned}")
    except (SystemExit, KeyboardInterrupt) as end:
        outcome.interrupted()
        raise end
    except Exception as error:
        code = FAILED
        if not isinstance(error, UserError):
            traceback.print_exc()
        text = outcome.ended("FAIL", f"failed: {error}")
    print(text, flush=True)
    if not flags.FLAGS["quiet"].value:
        os.write(screen, f"{text}\n".encode())
    return code


def _redirect(log: int) -> int:
    """Redirects the output to a log; returns a descriptor of the previous output."""
    screen = os.dup(1)
    sys.stdout.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    return screen


def _check_names(space: SearchSpace) -> None:
    """Checks that every binding of a space exists; the trials check bindings from functions."""
    for key in space.entries or {}:
        name = key.rpartition("/")[2]
        if "." in name:
            selector, _, parameter = name.rpartition(".")
            gin_registry.check_parameter(selector, parameter, f"--space={space.name}")


def _choose(study: Any, trial: Any, space: SearchSpace) -> dict[str, Any]:
    try:
        return space.choose(trial)
    except BaseException:
        study.tell(trial, state=extras.require("optuna.trial", "tune").TrialState.FAIL)
        raise


class _ReportEvaluations(Callback):
    """Reports every evaluation to the study, and ends a pruned trial.

    The step of a report is the number of the evaluation, since env steps depend on rollout lengths.
    """

    def __init__(self, trial: Any, eval_interval: int | None):
        self._trial, self._interval = trial, eval_interval
        self._pruned = False

    def repeat(self, folder: pathlib.Path) -> None:
        """Repeats the earlier reports of a resumed trial."""
        path = folder / "metrics.jsonl"
        if self._interval is None or not path.is_file():
            return
        from tfrl.experiment.checkpoints import CheckpointManager
        from tfrl.experiment.report import RunRecord

        saved = max(CheckpointManager(folder / "checkpoints", read_only=True).steps, default=0)
        for steps, value in zip(*RunRecord.read(folder).column(_METRIC), strict=True):
            if steps <= saved:
                self._trial.report(float(value), int(steps) // self._interval)

    def on_evaluate(self, event: Event) -> Any:
        value = float(event.metrics[_METRIC])
        self._trial.report(value, event.env_steps // (self._interval or 1))
        self._pruned = self._trial.should_prune()
        return STOP if self._pruned else None

    def on_checkpoint(self, event: Event) -> Any:
        # The stop saves a checkpoint; the run's files then have the evaluation too.
        if self._pruned:
            optuna = extras.require("optuna", "tune")
            raise optuna.TrialPruned(f"{event.env_steps:,} env steps")
        return None


class _Outcome:
    """Tells the study how a trial ended."""

    def __init__(
        self,
        study: Any,
        trial: Any,
        folder: pathlib.Path,
        options: studies.StudyOptions,
        values: common_flags.CommonFlags,
    ):
        self._study, self._trial, self._folder = study, trial, folder
        self._options, self._values = options, values

    def completed(self, lines: list[str]) -> str:
        from tfrl.experiment.run_folder import RunFolder

        summary = RunFolder(str(self._folder)).read_summary() or {}
        value = summary.get(_METRIC)
        if value is None:
            return self.ended("FAIL", "failed: its final return is not finite")
        # Stores the bindings: a function's bindings are not the trial's parameters.
        self._trial.set_user_attr("bindings", lines)
        with studies.locked(self._options.root):
            self._study.tell(self._trial, float(value))
            best_gin.write(self._study, self._options.root, self._values)
        return f"Trial {self._trial.number}: return {value:,.5g}, {self._folder}"

    def ended(self, state: str, how: str) -> str:
        states = extras.require("optuna.trial", "tune").TrialState
        self._trial.set_user_attr("ended", how)
        self._study.tell(self._trial, state=states[state])
        return f"Trial {self._trial.number}: {how.rstrip('.')}. {self._folder}"

    def interrupted(self) -> str:
        trial = next(t for t in self._study.trials if t.number == self._trial.number)
        if trial.state.name == "RUNNING":  # else the study has its result already
            with studies.locked(self._options.root):
                studies.requeue(self._study, trial)
        return f"Trial {self._trial.number}: stopped; the same command goes on."
