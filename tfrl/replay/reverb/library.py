"""Reverb itself, imported when it is needed and not before."""

import importlib
from typing import Any

from tfrl.errors import UserError


def reverb() -> Any:
    """Returns the module `reverb`.

    Raises:
      UserError: Where it is not installed.
    """
    try:
        return importlib.import_module("reverb")
    except ModuleNotFoundError as error:
        if error.name != "reverb":
            raise
        raise UserError(
            "Replay on Reverb",
            expected="dm-reverb to be installed",
            got="no module named reverb",
            remedy="Install it with: pip install 'dm-reverb~=0.14.0' (Linux, Python 3.10 or 3.11), "
            "or use tfrl.replay.InGraphReplay.",
        ) from error
