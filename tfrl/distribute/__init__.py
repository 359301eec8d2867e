"""Distribution strategies: the devices and processes of a run, and their collectives.

Importing this package does not import TensorFlow, so that wrong flags are reported at once: names
load when first used (PEP 562).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfrl.distribute.choice import STRATEGIES, choose
    from tfrl.distribute.multi_worker import (
        RendezvousError,
        WorkerLostError,
        lost_workers,
    )
    from tfrl.distribute.replicas import Replicas
    from tfrl.distribute.strategy import describe, make_logical_cpus, make_strategy
    from tfrl.distribute.worker_group import WorkerGroup, is_chief
    from tfrl.distribute.workers import Workers, workers_of
    from tfrl.distribute.xla import Problem, assert_compilable, check_compilable

_NAMES = {
    "STRATEGIES": "choice",
    "Agreement": "worker_group",
    "WorkerGroup": "worker_group",
    "Problem": "xla",
    "RendezvousError": "multi_worker",
    "Replicas": "replicas",
    "WorkerLostError": "multi_worker",
    "Workers": "workers",
    "assert_compilable": "xla",
    "check_compilable": "xla",
    "choose": "choice",
    "describe": "strategy",
    "is_chief": "worker_group",
    "lost_workers": "multi_worker",
    "make_logical_cpus": "strategy",
    "make_strategy": "strategy",
    "workers_of": "workers",
}

__all__ = [
    "STRATEGIES",
    "WorkerGroup",
    "Problem",
    "RendezvousError",
    "Replicas",
    "WorkerLostError",
    "Workers",
    "assert_compilable",
    "check_compilable",
    "choose",
    "describe",
    "is_chief",
    "lost_workers",
    "make_logical_cpus",
    "make_strategy",
    "workers_of",
]


def __getattr__(name: str) -> Any:
    """Loads a public name at its first use."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the public names, loaded or not."""
    return sorted({*globals(), *_NAMES})
