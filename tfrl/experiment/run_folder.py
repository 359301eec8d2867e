"""The folder of a run: layout, checks at the start, metadata and summary."""

import dataclasses
import errno
import os
import pathlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tfrl import checks
from tfrl.errors import UserError
from tfrl.experiment.recorders import check_table
from tfrl.storage import files, remote, working_copy

IF_EXISTS = ("resume", "fail", "new")


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The paths of a run.

    Attributes:
      root_dir: The folder; `~` is expanded. For a remote folder, such as gs://bucket/run, paths
        refer to this process's working copy.
    """

    root_dir: str | os.PathLike[str]

    @property
    def root(self) -> pathlib.Path:
        """The folder as an absolute path."""
        return working_copy.local(self.root_dir)

    @property
    def checkpoints(self) -> pathlib.Path:
        """Folder of the checkpoints."""
        return self.root / "checkpoints"

    @property
    def tensorboard(self) -> pathlib.Path:
        """Folder of TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def videos(self) -> pathlib.Path:
        """Folder of the videos."""
        return self.root / "videos"

    @property
    def policy(self) -> pathlib.Path:
        """Folder of the SavedModel, written by the export."""
        return self.root / "policy"

    @property
    def metrics_csv(self) -> pathlib.Path:
        """The metrics as a table."""
        return self.root / "metrics.csv"

    @property
    def metrics_jsonl(self) -> pathlib.Path:
        """The metrics as JSON lines."""
        return self.root / "metrics.jsonl"

    @property
    def operative_config(self) -> pathlib.Path:
        """The gin configuration in effect."""
        return self.root / "operative_config.gin"

    @property
    def metadata(self) -> pathlib.Path:
        """Seed, versions and settings of the run."""
        return self.root / "metadata.json"

    @property
    def summary(self) -> pathlib.Path:
        """The result, written last."""
        return self.root / "summary.json"

    def holds_run(self) -> bool:
        """Whether the folder contains a run."""
        marks = (self.metadata, self.operative_config, self.metrics_csv, self.metrics_jsonl)
        if any(path.exists() for path in (*marks, self.summary)):
            return True
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def prepare(self, if_exists: str = "resume", log: Callable[[str], None] = print) -> bool:
        """Creates the folders, and handles an existing run.

        Args:
          if_exists: See `apply_if_exists`.
          log: Takes one-line messages.

        Returns:
          Whether there is a run to resume.

        Raises:
          UserError: The folder cannot be written, has a run with `fail`, or the choice is unknown.
        """
        there = self.apply_if_exists(if_exists, log)
        try:
            if remote.is_remote(self.root_dir):
                working_copy.working_copy(os.fspath(self.root_dir)).claim()
                there = self.holds_run()
            for folder in (self.root, self.checkpoints, self.tensorboard, self.videos):
                folder.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.tensorboard, self.videos):
                files.remove_temporaries(folder)
            files.recover_replaced(self.root)
            self._try_writing()
        except OSError as error:
            raise self._unwritable(error) from error
        return there

    def apply_if_exists(self, if_exists: str, log: Callable[[str], None] = print) -> bool:
        """Handles an existing run; creates nothing.

        Args:
          if_exists: `resume` continues an existing run; `fail` is an error; `new` moves its folder
            to the sibling `<root_dir>.old-<k>` (deletes nothing) and starts a new run.
          log: Takes one-line messages.

        Returns:
          Whether there is a run to resume.

        Raises:
          UserError: There is a run with `fail`, it cannot be moved, or the choice is unknown.
        """
        checks.one_of("--if_exists", if_exists, IF_EXISTS)
        try:
            if if_exists != "new":
                self.check_files()
            there = self.holds_run()
            if there and if_exists == "fail":
                raise UserError(
                    f"root_dir {self.root}",
                    expected="a folder without a run, because of --if_exists=fail",
                    got="a folder with a run",
                    remedy="Choose another --root_dir, --if_exists=resume to resume the run, or "
                    "--if_exists=new to move it aside.",
                )
            if there and if_exists == "new":
                aside = self._move_aside()
                log(f"The run in {self.root} was moved to {aside}")
                return False
        except OSError as error:
            raise self._unwritable(error) from error
        return there

    def check_files(self) -> None:
        """Rejects links inside the folder and a damaged table, before any change.

        The folder itself may be a link, e.g. to a larger disk.

        Raises:
          UserError: Names the link, or shows the table's header.
        """
        for parent, folders, names in os.walk(self.root):
            links = [n for n in sorted(folders + names) if os.path.islink(os.path.join(parent, n))]
            if links:
                path = os.path.join(parent, links[0])
                raise UserError(
                    f"root_dir {self.root}",
                    expected="regular files and folders",
                    got=f"the symbolic link {path} to {os.readlink(path)}",
                    remedy="Replace the link by the file, or remove it; nothing was changed. "
                    "To keep a run on another disk, make root_dir itself the link.",
                )
            if "wandb" in folders:  # wandb keeps links there
                folders.remove("wandb")
        check_table(self.metrics_csv)

    def check_there(self, identity: os.stat_result | None = None) -> None:
        """Raises an error if the folder was moved or replaced.

        Args:
          identity: `os.stat` of the folder at the start of the run; another folder at this path is
            also an error.

        Raises:
          UserError: It was renamed, deleted or replaced.
        """
        try:
            now = os.stat(self.root)
            there = identity is None or os.path.samestat(now, identity)
            there &= self.checkpoints.is_dir()
        except FileNotFoundError:
            there = False
        if not there:
            raise UserError(
                f"root_dir {self.root}",
                expected="the folder that the run was started in",
                got="a missing or different folder, since it was renamed or deleted",
                remedy="Restart with the folder's new name as --root_dir to resume from the "
                "last checkpoint. Nothing was recreated.",
            )

    def _move_aside(self) -> pathlib.Path | str:
        if remote.is_remote(self.root_dir):
            return working_copy.working_copy(os.fspath(self.root_dir)).move_aside()
        number = 1
        while (aside := self.root.with_name(f"{self.root.name}.old-{number}")).exists():
            number += 1
        os.rename(self.root, aside)
        return aside

    def _try_writing(self) -> None:
        for folder in (self.root, self.checkpoints, self.tensorboard, self.videos):
            probe = files.temporary_name(folder)
            probe.touch(exist_ok=False)
            probe.unlink()

    def _unwritable(self, error: OSError) -> UserError:
        remedy = "Choose another --root_dir."
        if error.errno == errno.ENOSPC:
            remedy = "Free disk space, or choose another --root_dir."
        return files.unwritable(f"root_dir {self.root}", error, remedy=remedy)

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Writes `metadata.json`; see `tfrl.experiment.metadata.collect`."""
        self._write(self.metadata, files.to_json(metadata, indent=2) + "\n")

    def read_metadata(self, required: Collection[str] = ()) -> dict[str, Any] | None:
        """Reads `metadata.json`, or returns None if missing.

        Args:
          required: Required entries.

        Raises:
          UserError: It cannot be read, lacks an entry, or has one of a wrong type.
        """
        return _read_json(self.metadata, _METADATA, required)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes `summary.json`; non-finite numbers become null."""
        self._write(self.summary, files.to_json(summary, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """Reads `summary.json`, or returns None if the run has not ended."""
        return _read_json(self.summary, _SUMMARY)

    def write_operative_config(self, text: str) -> None:
        """Writes `operative_config.gin`."""
        self._write(self.operative_config, text)

    def _write(self, path: pathlib.Path, text: str) -> None:
        try:
            files.write_text(path, text)
        except OSError as error:
            raise self._unwritable(error) from error

    def check_same_configuration(
        self, old: Mapping[str, Any], new: Mapping[str, Any], allowed: Collection[str] = ()
    ) -> None:
        """Raises an error for resuming a run with another configuration.

        Args:
          old: `{binding: value}` of the run, as stored in its metadata.
          new: The requested `{binding: value}`.
          allowed: Bindings that may differ, such as `train.total_env_steps`.

        Raises:
          UserError: Lists every other different binding, with both values.
        """
        before, now = files.plain(old), files.plain(new)
        differing = [
            f"{name} = {_shown(now, name)} (the run has {_shown(before, name)})"
            for name in sorted({*before, *now} - set(allowed))
            if name not in before or name not in now or before[name] != now[name]
        ]
        if differing:
            raise UserError(
                f"root_dir {self.root}",
                expected="the configuration of its run",
                got="; ".join(differing),
                remedy="Use the run's values, another --root_dir, or --if_exists=new to move the "
                "run aside.",
            )


def _shown(values: Mapping[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "not set"


# Types of the entries that are read.
_METADATA: dict[str, Any] = {
    "seed": int,
    "compile_choices": dict,
    "configuration": dict,
    "versions": dict,
    "flags": dict,
    "num_replicas": int,
}
_SUMMARY: dict[str, Any] = {
    "env_steps": int,
    "env_steps_per_second": int | float | None,
    "eval_return_mean": int | float | None,
    "eval_return_std": int | float | None,
    "eval_episodes": int,
    "params_digest": str,
    "video": str | None,
}


def _read_json(
    path: pathlib.Path, types: Mapping[str, Any], required: Collection[str] = ()
) -> dict[str, Any] | None:
    try:
        content = files.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _damaged(
            path, "a JSON file written by tfrl", f"an unreadable file ({error})"
        ) from error
    if not isinstance(content, dict):
        raise _damaged(path, "a JSON object", type(content).__name__)
    for name, kind in types.items():
        if name not in content:
            if name in required:
                raise _damaged(path, f"the entry {name!r}", "no such entry")
        elif not isinstance(content[name], kind) or isinstance(content[name], bool):
            what = getattr(kind, "__name__", str(kind))
            raise _damaged(path, f"{name!r} of type {what}", repr(content[name])[:80])
    return content


def _damaged(path: pathlib.Path, expected: str, got: str) -> UserError:
    return UserError(
        f"{path}",
        expected=expected,
        got=got,
        remedy="Restore a backup copy, or start a new run with --if_exists=new.",
    )
