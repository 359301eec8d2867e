"""Finds the configuration that a run folder holds."""

import pathlib

from tfrl.errors import UserError


def find(root_dir: str | None) -> pathlib.Path:
    """Returns the gin file of a run.

    Args:
      root_dir: The run folder, as the flag gave it.

    Raises:
      UserError: The flag is missing, or the folder holds no run.
    """
    if root_dir is None:
        raise UserError(
            "--root_dir",
            expected="the folder of a run",
            got="nothing",
            remedy="Give --root_dir=runs/... of a finished or running training.",
        )
    root = pathlib.Path(root_dir).expanduser().absolute()
    config = root / "operative_config.gin"
    if not config.is_file():
        raise UserError(
            f"--root_dir={root_dir}",
            expected="the folder of a run, with operative_config.gin in it",
            got="a folder without one" if root.is_dir() else f"no folder at {root}",
            remedy="Give the root_dir of a training.",
        )
    return config
