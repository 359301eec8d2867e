"""Evolution: searches by ask and tell over nests of parameters, all maximising."""

from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.fitness import centered_ranks, finite, log_utilities, standardized
from tfrl.evolution.strategies import (
    ARS,
    CEM,
    CMAES,
    PGPE,
    SNES,
    XNES,
    DiagonalCEM,
    EvolutionStrategy,
    OpenES,
    SepCMAES,
    VanillaES,
    default_pop_size,
)
from tfrl.evolution.vectors import ravel, unravel

__all__ = [
    "ARS",
    "CEM",
    "CMAES",
    "PGPE",
    "SNES",
    "XNES",
    "DiagonalCEM",
    "EvoOptimizer",
    "EvoState",
    "EvolutionStrategy",
    "OpenES",
    "SepCMAES",
    "VanillaES",
    "centered_ranks",
    "default_pop_size",
    "finite",
    "log_utilities",
    "ravel",
    "standardized",
    "unravel",
]
