"""Evolution: searches by ask and tell over nests of parameters, all maximising."""

from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.fitness import centered_ranks, finite, log_utilities, standardized
from tfrl.evolution.strategies import (
    ARS,
    PGPE,
    SNES,
    XNES,
    EvolutionStrategy,
    OpenES,
    VanillaES,
    default_pop_size,
)
from tfrl.evolution.vectors import ravel, unravel

__all__ = [
    "ARS",
    "PGPE",
    "SNES",
    "XNES",
    "EvoOptimizer",
    "EvoState",
    "EvolutionStrategy",
    "OpenES",
    "VanillaES",
    "centered_ranks",
    "default_pop_size",
    "finite",
    "log_utilities",
    "ravel",
    "standardized",
    "unravel",
]
