"""`best.gin` of a search: the configuration of its best trial, as a gin file for training."""

import pathlib
from typing import Any

from tfrl.launch import flags as common_flags
from tfrl.launch import gin_files
from tfrl.launch import study as studies
from tfrl.storage import files

NAME = "best.gin"


def write(study: Any, root: pathlib.Path, values: common_flags.CommonFlags) -> pathlib.Path | None:
    """Writes `best.gin` to the folder of a search.

    Args:
      study: The optuna study.
      root: The folder.
      values: The common flags, which all trials share.

    Returns:
      The file; None before any trial is complete.
    """
    trial = studies.best(study)
    if trial is None:
        return None
    lines = [
        f"# Trial {trial.number} of a search by tfrl-tune: return {trial.value:,.5g} with seed "
        f"{values.seed}.",
        "",
        *(f"include '{_lasting(name)}'" for name in values.gin_file),
        "",
        *values.gin_bindings,
        *trial.user_attrs["bindings"],
    ]
    path = root / NAME
    files.write_text(path, "\n".join(lines) + "\n")
    return path


def _lasting(name: str) -> str:
    """Returns a gin file's name for any folder: unchanged for a shipped file, else its path."""
    path = gin_files.resolve(name)
    if isinstance(path, gin_files.RemoteFile):
        return str(path)
    shipped = gin_files.package_gin_dir()
    return path.relative_to(shipped).as_posix() if path.is_relative_to(shipped) else str(path)
