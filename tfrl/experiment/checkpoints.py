"""Checkpoints that survive a kill at any moment: atomic save, verification, pruning, restore."""

import contextlib
import dataclasses
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfrl import checks
from tfrl.errors import UserError
from tfrl.storage import checkpoint_format, files, remote, working_copy
from tfrl.storage.checkpoint_format import DamagedCheckpointError

_NAME = re.compile(r"^ckpt-(\d+)$")


@dataclasses.dataclass(frozen=True)
class Restored:
    """The content of a checkpoint.

    Attributes:
      step: The step of the save.
      values: `{path: array}`, every dtype as saved.
      manifest: The caller's manifest.
      path: The checkpoint's folder.
      metric: The saved metric, or None.
    """

    step: int
    values: dict[str, np.ndarray]
    manifest: dict[str, Any]
    path: pathlib.Path
    metric: float | None = None


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class CheckpointManager:
    """Saves and restores the checkpoints `ckpt-<step>` of one folder.

    A checkpoint is written under a temporary name, synced, marked complete and renamed: a kill at
    any moment leaves the previous one usable. In a run's folder steps only increase: saving a step
    removes checkpoints of later steps, which belong to an abandoned continuation.
    """

    def __init__(
        self,
        directory: str | pathlib.Path,
        max_to_keep: int | None = 3,
        keep_best: bool = True,
        *,
        drop_later: bool = True,
        read_only: bool = False,
        log: Callable[[str], None] | None = None,
    ):
        """Opens a folder of checkpoints, and removes leftovers of killed saves.

        Args:
          directory: The folder; created if missing. A remote folder, such as gs://bucket/a, has a
            local working copy, and each save is uploaded.
          max_to_keep: Number of newest checkpoints to keep; None for all.
          keep_best: Whether to also keep the one with the highest metric.
          drop_later: Whether saving a step removes the checkpoints of later steps. False for a
            folder with saves in any order.
          read_only: Neither creates nor cleans the folder, to read the folder of a live run.
          log: Takes one-line messages about damaged checkpoints; by default `warnings.warn`.
        """
        if max_to_keep is not None:
            remedy = "Pass None to keep all; a run needs at least one checkpoint to resume."
            checks.at_least("max_to_keep", max_to_keep, 1, remedy=remedy)
        is_remote = remote.is_remote(directory)
        self._directory = working_copy.local(directory) if is_remote else pathlib.Path(directory)
        self._max_to_keep = max_to_keep
        self._keep_best = keep_best
        self._drop_later = drop_later
        self._read_only = read_only
        self._log = log or _warn
        if not read_only:
            with _writing(self._directory):
                self._directory.mkdir(parents=True, exist_ok=True)
                files.recover_replaced(self._directory)
                files.remove_temporaries(self._directory)

    @property
    def directory(self) -> pathlib.Path:
        """The folder of the checkpoints."""
        return self._directory

    @property
    def steps(self) -> list[int]:
        """The steps of all checkpoints, ascending, including damaged ones."""
        return sorted(self._folders())

    @property
    def best_step(self) -> int | None:
        """The step with the highest metric (the latest of equal ones), or None without metrics."""
        ranked = self._ranked(self._folders())
        return ranked[0] if ranked else None

    @property
    def best_metric(self) -> float | None:
        """The highest metric of the existing checkpoints, or None without metrics."""
        best = self.best_step
        if best is None:
            return None
        metric = checkpoint_format.read_manifest(self._folders()[best])["metric"]
        return None if metric is None else float(metric)

    def manifest(self, step: int) -> dict[str, Any]:
        """Returns the caller's part of a step's manifest; empty without a readable checkpoint."""
        folder = self._folders().get(step)
        try:
            return checkpoint_format.read_manifest(folder)["manifest"] if folder else {}
        except DamagedCheckpointError:
            return {}  # a restore reports it

    def save(
        self,
        step: int,
        values: Mapping[str, Any],
        manifest: Mapping[str, Any],
        metric: float | None = None,
    ) -> pathlib.Path:
        """Saves a checkpoint; replaces one of the same step.

        Args:
          step: The step (a count, at least 0).
          values: `{path: tensor, variable or array}` of any shapes and dtypes; see
            `tfrl.struct.paths`.
          manifest: Other data to store, of JSON types; non-finite numbers become null.
          metric: The metric for the best checkpoint, higher is better. NaN means none.

        Returns:
          The folder of the checkpoint.

        Raises:
          UserError: The folder cannot be written, or the disk is full.
        """
        if self._read_only:
            raise RuntimeError(f"{self._directory} was opened with read_only=True")
        step = int(step)
        if step < 0:
            raise ValueError(f"step: expected at least 0, got {step}")
        if metric is not None:
            metric = float(metric) if math.isfinite(metric) else None
        final = self._directory / f"ckpt-{step}"
        with _writing(final):
            with checkpoint_format.replacing(final) as temporary:
                checkpoint_format.write(temporary, step, values, manifest, metric)
            self._prune(step)
        working_copy.publish(final)
        return final

    def restore(self, which: str | int = "latest") -> Restored | None:
        """Reads a checkpoint.

        A damaged one is logged, and the next by age (`"latest"`) or metric (`"best"`) is used.

        Args:
          which: `"latest"`, `"best"` (highest metric), or a step.

        Returns:
          Its content, or None if the folder has no checkpoint.

        Raises:
          UserError: No checkpoint is usable; the step is unknown or damaged; none has a metric; the
            schema is unsupported.
        """
        folders = self._folders()
        if not folders:
            return None
        if which == "latest":
            candidates = sorted(folders, reverse=True)
        elif which == "best":
            candidates = self._best_candidates(folders)
        else:
            return self._restore_step(folders, which)
        reasons = []
        for index, step in enumerate(candidates):
            try:
                return _read(folders[step])
            except DamagedCheckpointError as error:
                if not folders[step].exists():
                    # The live run has just removed this one: retry.
                    return self.restore(which)
                reasons.append(f"{folders[step].name}: {error}")
                if index + 1 < len(candidates):
                    following = folders[candidates[index + 1]].name
                    self._log(
                        f"checkpoint {folders[step]} is damaged: {error}; using {following} instead"
                    )
        raise UserError(
            f"checkpoints in {self._directory}",
            expected="a usable checkpoint",
            got=f"damage in all {len(reasons)} ({'; '.join(reasons)})",
            remedy="Restore a backup copy, or start a new run with --if_exists=new.",
        )

    def _restore_step(self, folders: dict[int, pathlib.Path], which: str | int) -> Restored:
        text = str(which)
        step = int(text) if text.isascii() and text.isdigit() else -1
        there = ", ".join(map(str, sorted(folders)))
        if step not in folders:
            raise UserError(
                f"checkpoint {which} of {self._directory}",
                expected=f"latest, best, or one of the steps {there}",
                got=text,
            )
        try:
            return _read(folders[step])
        except DamagedCheckpointError as error:
            if not folders[step].exists():
                return self._restore_step(self._folders(), which)
            raise UserError(
                f"checkpoint {folders[step]}",
                expected="an intact checkpoint",
                got=f"a damaged checkpoint: {error}",
                remedy=f"Choose one of the steps {there}, or latest for the newest intact "
                "checkpoint.",
            ) from error

    def _best_candidates(self, folders: dict[int, pathlib.Path]) -> list[int]:
        """Steps by metric, best first; logs unreadable metrics."""
        for folder in folders.values():
            try:
                checkpoint_format.read_manifest(folder)
            except DamagedCheckpointError as error:
                self._log(f"checkpoint {folder} is damaged: {error}; it is not considered as best")
        ranked = self._ranked(folders)
        if not ranked:
            raise UserError(
                f"best checkpoint of {self._directory}",
                expected="at least one checkpoint with a metric",
                got=f"none among the steps {', '.join(map(str, sorted(folders)))}",
                remedy="Choose latest or one of these steps; train.eval_interval below the budget "
                "gives checkpoints a metric.",
            )
        return ranked

    def _folders(self) -> dict[int, pathlib.Path]:
        """`{step: folder}`, including a folder in the middle of its replacement."""
        result: dict[int, pathlib.Path] = {}
        if not self._directory.is_dir():
            return result
        for entry in self._directory.iterdir():
            aside = entry.name.startswith(files.REPLACED)
            match = _NAME.match(entry.name.removeprefix(files.REPLACED))
            if match and entry.is_dir() and not (aside and int(match[1]) in result):
                result[int(match[1])] = entry
        return result

    def _ranked(self, folders: dict[int, pathlib.Path]) -> list[int]:
        """Steps with a metric, highest first, later steps first among equals."""
        metrics = {}
        for step, folder in folders.items():
            try:
                metric = checkpoint_format.read_manifest(folder)["metric"]
            except DamagedCheckpointError:
                continue  # Not comparable; a restore reports it.
            if metric is not None:
                metrics[step] = metric
        return sorted(metrics, key=lambda s: (metrics[s], s), reverse=True)

    def _prune(self, saved: int) -> None:
        """Removes checkpoints except the newest up to `saved` and the best; also later steps."""
        folders = self._folders()
        earlier = sorted(s for s in folders if s <= saved)
        keep = set(earlier if self._max_to_keep is None else earlier[-self._max_to_keep :])
        if self._keep_best:
            keep.update(self._ranked({s: folders[s] for s in earlier})[:1])
        if not self._drop_later:
            keep.update(s for s in folders if s > saved)
        for step in sorted(set(folders) - keep):
            if step > saved:
                self._log(
                    f"checkpoint {folders[step]} is removed: the run went on from an earlier one "
                    f"and has reached step {saved}"
                )
            files.remove_directory(folders[step])


def _read(folder: pathlib.Path) -> Restored:
    values, content = checkpoint_format.read(folder)
    return Restored(
        step=content["step"],
        values=values,
        manifest=content["manifest"],
        path=folder,
        metric=content["metric"],
    )


def _writing(path: pathlib.Path) -> contextlib.AbstractContextManager[None]:
    remedy = "Free disk space or choose another --root_dir; earlier checkpoints are intact."
    return checkpoint_format.writing(f"checkpoint {path}", remedy)
