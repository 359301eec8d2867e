"""Finds the configuration in a run folder."""

import pathlib
from collections.abc import Sequence

from tfrl.errors import UserError
from tfrl.launch import gin_files
from tfrl.loading import distrust, trust
from tfrl.storage import working_copy


def find(root_dir: str | None) -> pathlib.Path:
    """Returns the gin file of a run.

    Args:
      root_dir: The value of the flag, the run folder.

    Raises:
      UserError: The flag is missing, or the folder has no run.
    """
    if root_dir is None:
        raise UserError(
            "--root_dir",
            expected="the folder of a run",
            got="no value",
            remedy="Pass --root_dir=runs/... of a finished or running training.",
        )
    config, root = _config(root_dir), _config(root_dir).parent
    if not config.is_file():
        raise UserError(
            f"--root_dir={root_dir}",
            expected="the folder of a run, with operative_config.gin in it",
            got="a folder without one" if root.is_dir() else f"no folder at {root}",
        )
    return config


def holds(root_dir: str | None) -> bool:
    """Whether a folder has the configuration of a run."""
    return root_dir is not None and _config(root_dir).is_file()


def _config(root_dir: str) -> pathlib.Path:
    return working_copy.local(root_dir) / gin_files.RUN_CONFIG


def seed(root_dir: str | None) -> int | None:
    """Returns the seed of a run; None if the folder has no metadata."""
    from tfrl.experiment.run_folder import RunFolder

    metadata = RunFolder(str(root_dir)).read_metadata()
    return None if metadata is None else metadata["seed"]


def read(
    root_dir: str | None,
    files: Sequence[str],
    bindings: Sequence[str],
    *,
    allow_code: bool = False,
) -> list[str]:
    """Returns the gin files of a run: the folder's file, then the caller's.

    A module that the folder's file names is imported only if `allow_code` is true, or if one of the
    caller's files or bindings names it too; see `tfrl.loading.distrust`, which the caller ends.

    Args:
      root_dir: The value of the flag, the run folder.
      files: The caller's gin files.
      bindings: The caller's bindings.
      allow_code: Whether to import Python modules that the folder's file names.

    Raises:
      UserError: There is no run; a file is malformed, or names code.
    """
    from tfrl.experiment.run_folder import RunFolder

    config = str(find(root_dir))
    RunFolder(str(root_dir)).check_files()
    for binding in gin_files.read(files, bindings):
        # For example 'gymnasium:module:Name-v0'.
        texts = (leaf for leaf in gin_files.leaves(binding.value) if isinstance(leaf, str))
        trust(*(part for text in texts for part in text.split(":")))
    if not allow_code:
        distrust(config)
    gin_files.read([config, *files], bindings)
    return [config, *files]
