"""Evolution strategies: a distribution of candidates that moves to where they are fitter."""

from tfrl.evolution.strategies.core import EvolutionStrategy, default_pop_size
from tfrl.evolution.strategies.open_es import OpenES

__all__ = [
    "EvolutionStrategy",
    "OpenES",
    "default_pop_size",
]
