"""Evolution strategies: a distribution of candidates that moves towards higher fitness."""

from tfrl.evolution.strategies.ars import ARS
from tfrl.evolution.strategies.cem import CEM
from tfrl.evolution.strategies.cma_es import CMAES
from tfrl.evolution.strategies.core import EvolutionStrategy, default_pop_size
from tfrl.evolution.strategies.diagonal_cem import DiagonalCEM
from tfrl.evolution.strategies.open_es import OpenES
from tfrl.evolution.strategies.pgpe import PGPE
from tfrl.evolution.strategies.sep_cma_es import SepCMAES
from tfrl.evolution.strategies.snes import SNES
from tfrl.evolution.strategies.vanilla_es import VanillaES
from tfrl.evolution.strategies.xnes import XNES

__all__ = [
    "ARS",
    "CEM",
    "CMAES",
    "PGPE",
    "SNES",
    "XNES",
    "DiagonalCEM",
    "EvolutionStrategy",
    "OpenES",
    "SepCMAES",
    "VanillaES",
    "default_pop_size",
]
