"""Agents: static logic over an AgentState; one folder per algorithm.

Classes with the decorator `algorithm` are attributes of this package, e.g. `tfrl.agents.PPO`.
"""

import importlib
import pkgutil
from typing import Any

from tfrl.agents.actor_critic import ActorCritic
from tfrl.agents.core import ALGORITHMS, Agent, ExternalUpdate, OwnUpdate, Update, algorithm
from tfrl.agents.multi_agent import MultiAgent
from tfrl.agents.off_policy import OffPolicy, OffPolicyActorCritic
from tfrl.agents.random import RandomAgent

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = [
    "ALGORITHMS",
    "ActorCritic",
    "Agent",
    "MultiAgent",
    "OffPolicy",
    "OffPolicyActorCritic",
    "OwnUpdate",
    "ExternalUpdate",
    "RandomAgent",
    "Update",
    "algorithm",
]
__all__.extend(ALGORITHMS)


def __getattr__(name: str) -> Any:
    """Returns an algorithm by its name (PEP 562)."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
