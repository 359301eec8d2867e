"""Reinforcement learning at TensorFlow speed.

Importing tfrl imports neither TensorFlow nor NumPy: names and submodules load when first used.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from tfrl import _quiet
from tfrl._version import __version__

if TYPE_CHECKING:
    from tfrl.envs.registry import make_env
    from tfrl.loading import loadable

_quiet.install()

# Where the names of the top level live.
_NAMES = {"loadable": "tfrl.loading", "make_env": "tfrl.envs.registry"}

_SUBMODULES = (
    "agents",
    "checks",
    "compat",
    "distribute",
    "distributions",
    "envs",
    "episodes",
    "errors",
    "evaluation",
    "evolution",
    "experiment",
    "extras",
    "launch",
    "learners",
    "loading",
    "metrics",
    "networks",
    "ops",
    "replay",
    "rollout",
    "seeding",
    "specs",
    "storage",
    "struct",
    "tasks",
    "types",
    "workflows",
)

__all__ = ["__version__", "loadable", "make_env"]


def __getattr__(name: str) -> Any:
    """Loads a public name or a submodule when it is first used (PEP 562)."""
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _SUBMODULES and importlib.util.find_spec(f"{__name__}.{name}"):
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return sorted({*globals(), *_NAMES, *_SUBMODULES})
