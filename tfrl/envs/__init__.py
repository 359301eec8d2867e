"""Environments: the protocol, the registry, wrappers, and environments written in TensorFlow.

Names load at first use, so that worker processes import `tfrl.envs.workers` without TensorFlow.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfrl.envs import testing
    from tfrl.envs.checker import check_env
    from tfrl.envs.core import Autoreset, Env, Wrapper
    from tfrl.envs.multi_agent import MultiAgentEnv
    from tfrl.envs.registry import env_ids, make_env, register, register_suite
    from tfrl.envs.to_gymnasium import as_gymnasium
    from tfrl.envs.vectorize import vectorize

# The modules of the public names.
_NAMES = {
    "Autoreset": "core",
    "Env": "core",
    "MultiAgentEnv": "multi_agent",
    "as_gymnasium": "to_gymnasium",
    "Wrapper": "core",
    "check_env": "checker",
    "env_ids": "registry",
    "make_env": "registry",
    "register": "registry",
    "register_suite": "registry",
    "vectorize": "vectorize",
}

__all__ = [
    "Autoreset",
    "Env",
    "MultiAgentEnv",
    "Wrapper",
    "as_gymnasium",
    "check_env",
    "env_ids",
    "make_env",
    "register",
    "register_suite",
    "testing",
    "vectorize",
]


def __getattr__(name: str) -> Any:
    """Loads a public name or a submodule at first use (PEP 562)."""
    if name in _NAMES:
        value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return sorted({*globals(), *__all__})
