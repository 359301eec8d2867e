"""Evolution: searches by ask and tell over nests of parameters, all maximising."""

from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.fitness import centered_ranks, log_utilities, standardized
from tfrl.evolution.policy_agent import PolicyAgent
from tfrl.evolution.strategies import OpenES
from tfrl.evolution.vectors import ravel, unravel

__all__ = [
    "EvoOptimizer",
    "EvoState",
    "OpenES",
    "PolicyAgent",
    "centered_ranks",
    "log_utilities",
    "ravel",
    "standardized",
    "unravel",
]
