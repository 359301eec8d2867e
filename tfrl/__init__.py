"""Reinforcement learning at TensorFlow speed.

Importing tfrl imports neither TensorFlow nor NumPy: names and submodules load when first used.
"""

# With underscores: whatever stands here is an attribute of the package.
import importlib as _importlib
import pathlib as _pathlib
import re as _re
import sys as _sys
import typing as _typing

from tfrl import _log_filter
from tfrl._version import __version__

if _typing.TYPE_CHECKING:
    from tfrl.agents import Agent, MultiAgent, RandomAgent, algorithm
    from tfrl.envs.registry import make_env
    from tfrl.evaluation import Evaluator
    from tfrl.launch.api import train
    from tfrl.launch.loaded import load
    from tfrl.launch.settings import build_from_config
    from tfrl.learners import Learner, ModuleConfig
    from tfrl.loading import loadable
    from tfrl.replay import InGraphReplay
    from tfrl.workflows import (
        ERLWorkflow,
        EvolutionWorkflow,
        OffPolicyWorkflow,
        OnPolicyWorkflow,
        PBTWorkflow,
        Workflow,
    )

_log_filter.install()

# The names of the top level, by the module that has them.
_NAMES = {
    "tfrl.agents": ("Agent", "MultiAgent", "RandomAgent", "algorithm"),
    "tfrl.envs.registry": ("make_env",),
    "tfrl.evaluation": ("Evaluator",),
    "tfrl.launch.api": ("train",),
    "tfrl.launch.loaded": ("load",),
    "tfrl.launch.settings": ("build_from_config",),
    "tfrl.learners": ("Learner", "ModuleConfig"),
    "tfrl.loading": ("loadable",),
    "tfrl.replay": ("InGraphReplay",),
    "tfrl.workflows": (
        "ERLWorkflow",
        "EvolutionWorkflow",
        "OffPolicyWorkflow",
        "OnPolicyWorkflow",
        "PBTWorkflow",
        "Workflow",
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

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
    "learning",
    "loading",
    "metrics",
    "networks",
    "ops",
    "replay",
    "roles",
    "rollout",
    "seeding",
    "serving",
    "specs",
    "storage",
    "struct",
    "tasks",
    "types",
    "workflows",
)

__all__ = [
    "Agent",
    "ERLWorkflow",
    "Evaluator",
    "EvolutionWorkflow",
    "InGraphReplay",
    "Learner",
    "ModuleConfig",
    "MultiAgent",
    "OffPolicyWorkflow",
    "OnPolicyWorkflow",
    "PBTWorkflow",
    "RandomAgent",
    "Workflow",
    "__version__",
    "algorithm",
    "build_from_config",
    "load",
    "loadable",
    "make_env",
    "train",
]


def __getattr__(name: str) -> _typing.Any:
    """Loads a public name, an algorithm or a submodule when it is first used (PEP 562)."""
    if name in _MODULE_OF:
        value = getattr(_importlib.import_module(_MODULE_OF[name]), name)
    elif name in _SUBMODULES:
        value = _importlib.import_module(f"{__name__}.{name}")
    elif not name.startswith("_") and name in _algorithm_names():
        value = getattr(_importlib.import_module(f"{__name__}.agents"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _algorithm_names() -> set[str]:
    """The registered names; before `tfrl.agents` is imported, those in its sources.

    Without sources, as in a zip file, this imports `tfrl.agents`.
    """
    core = f"{__name__}.agents.core"
    if core not in _sys.modules and (names := _names_in_sources()):
        return names
    return set(_importlib.import_module(core).ALGORITHMS)


def _names_in_sources() -> set[str]:
    """The names of the classes in `tfrl.agents` that the decorator `algorithm` registers."""
    sources = (_pathlib.Path(__file__).parent / "agents").glob("*/*.py")
    decorated = _re.compile(r"^@algorithm\n(?:@.*\n)*class (\w+)", _re.MULTILINE)
    return {name for path in sources for name in decorated.findall(path.read_text())}


def __dir__() -> list[str]:
    """Lists the public names, the algorithms and the submodules; imports nothing."""
    return sorted({*__all__, *_SUBMODULES, *_algorithm_names()})
