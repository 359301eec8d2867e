"""The optuna study of a search: its storage, its trials, and trials of dead processes."""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfrl import extras
from tfrl.errors import UserError
from tfrl.launch import gin_files
from tfrl.launch.gin_registry import equal_texts

LOG = "study.log"
_RETRIES = 3  # the most retries of a trial whose process died


@dataclasses.dataclass(frozen=True)
class StudyOptions:
    """How a study is stored and searched.

    Attributes:
      root: The folder of the search.
      storage: The address of a database for optuna; None for a journal in the folder.
      sampler: "tpe" or "random".
      pruner: "median", "hyperband" or "none".
      startup: Random trials, never pruned, before sampler and pruner begin.
      seed: The seed of the sampler.
      trials: The number of complete or pruned trials at the end.
      evaluations: Evaluations per trial, or None without any.
    """

    root: pathlib.Path
    storage: str | None
    sampler: str
    pruner: str
    startup: int
    seed: int
    trials: int
    evaluations: int | None

    @property
    def trials_dir(self) -> pathlib.Path:
        """Folder of the trials' runs and logs."""
        return self.root / "trials"

    def open(self) -> Any:
        """Opens the optuna study; creates it if missing.

        Raises:
          UserError: optuna is not installed.
        """
        optuna = extras.require("optuna", "tune")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if self.storage is None:
            journal = optuna.storages.journal.JournalFileBackend(str(self.root / LOG))
            storage, name = optuna.storages.JournalStorage(journal), "tfrl"
        else:
            storage, name = self.storage, self.root.name
        return optuna.create_study(
            study_name=name, storage=storage, direction="maximize", load_if_exists=True
        )

    def prepare(self, study: Any) -> None:
        """Sets the study's sampler and pruner; their draws depend on the trials so far."""
        optuna = extras.require("optuna", "tune")
        seed = self.seed + len(study.trials)
        study.sampler = (
            optuna.samplers.RandomSampler(seed)
            if self.sampler == "random"
            else optuna.samplers.TPESampler(
                n_startup_trials=self.startup,
                multivariate=True,
                group=True,
                constant_liar=True,  # several processes search
                seed=seed,
            )
        )
        study.pruner = {
            "none": optuna.pruners.NopPruner,
            # The first third of the evaluations never prunes.
            "median": lambda: optuna.pruners.MedianPruner(
                self.startup, n_warmup_steps=(self.evaluations or 0) // 3 + 1
            ),
            "hyperband": lambda: optuna.pruners.HyperbandPruner(1, self.evaluations or "auto"),
        }[self.pruner]()


def configuration_of(files: Sequence[str], bindings: Sequence[str], seed: int) -> dict[str, str]:
    """Returns what all trials of a search share: `{name: gin's text of the value}`.

    Args:
      files: The gin files of the trials.
      bindings: The bindings of the trials.
      seed: The seed of the trials.
    """
    all_bindings = gin_files.read(files, bindings)
    bound, macros = {b.key: b.value for b in all_bindings}, gin_files.macro_names(all_bindings)

    def text(value: Any) -> str:
        if isinstance(value, gin_files.Macro) and value.name in bound:
            return text(bound[value.name])
        return f"@{value.scoped_name}" if isinstance(value, gin_files.Reference) else repr(value)

    shared = {name: text(value) for name, value in bound.items() if name not in macros}
    return {"--seed": str(seed), **shared}


def check_configuration(study: Any, root: pathlib.Path, configuration: Mapping[str, str]) -> None:
    """Checks that a study's trials have this configuration; records it before the first trial.

    To be called while the study is `locked`.

    Args:
      study: The optuna study.
      root: The folder of the search.
      configuration: The result of `configuration_of`.

    Raises:
      UserError: The trials have another configuration.
    """
    before = study.user_attrs.get("configuration")
    if before is None or not (counted(study) or waiting(study)):
        study.set_user_attr("configuration", dict(configuration))
        return
    unbound = "not bound"
    other = sorted(
        name
        for name in {*before, *configuration}
        if not equal_texts(before.get(name, unbound), configuration.get(name, unbound))
    )
    if other:
        name = other[0]
        raise UserError(
            f"the search in {root}",
            expected=f"{name} = {before.get(name, unbound)}, as in its trials",
            got=configuration.get(name, unbound)
            + (f"; different too: {', '.join(other[1:4])}" if other[1:] else ""),
            remedy="Use the gin files, bindings, budget and seed of its first start, or another "
            "--root_dir.",
        )


@contextlib.contextmanager
def locked(root: pathlib.Path) -> Iterator[None]:
    """Locks a study, so that one process at a time assigns trials."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def take_log(path: pathlib.Path, *, wait: bool = False) -> int:
    """Opens the log of a trial and locks it until the process ends; returns the descriptor.

    Args:
      path: The log.
      wait: Whether to wait for a process that is about to end.

    Raises:
      BlockingIOError: Another process runs the trial.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def requeue_dead(study: Any, trials_dir: pathlib.Path) -> None:
    """Marks running trials of dead processes as failed, and queues them again.

    The new trial has the folder of the old and resumes from its last checkpoint.
    """
    for trial in study.trials:
        if trial.state.name != "RUNNING":
            continue
        log = trials_dir / f"{folder_of(trial)}.log"
        try:
            os.close(take_log(log))
        except BlockingIOError:
            continue
        requeue(study, trial)


def requeue(study: Any, trial: Any) -> None:
    """Marks a running trial as failed, and queues it again unless it has failed too often."""
    states = extras.require("optuna.trial", "tune").TrialState
    study.tell(trial.number, state=states.FAIL)
    tries = trial.user_attrs.get("tries", 1)
    if trial.params and tries <= _RETRIES:
        attrs = {"folder": folder_of(trial), "tries": tries + 1}
        study.enqueue_trial(trial.params, user_attrs=attrs)


def folder_of(trial: Any) -> str:
    """Returns the name of a trial's run folder."""
    return str(trial.user_attrs.get("folder", f"trial_{trial.number:04d}"))


def counted(study: Any) -> list[Any]:
    """Returns the trials that count: running, complete and pruned ones."""
    return [t for t in study.trials if t.state.name in ("RUNNING", "COMPLETE", "PRUNED")]


def waiting(study: Any) -> list[Any]:
    """Returns the trials that wait for a process."""
    return [t for t in study.trials if t.state.name == "WAITING"]


def best(study: Any) -> Any | None:
    """Returns the completed trial of the greatest value, or None."""
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    return max(done, key=lambda t: float(t.value)) if done else None
