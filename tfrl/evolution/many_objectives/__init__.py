"""Multi-objective searches: populations that approach the Pareto front."""

from tfrl.evolution.many_objectives.fronts import (
    crowding_distance,
    knee_point,
    non_dominated_ranks,
    pareto_front,
)
from tfrl.evolution.many_objectives.hypervolume import hypervolume
from tfrl.evolution.many_objectives.nsga2 import NSGA2
from tfrl.evolution.many_objectives.plotting import plot_front
from tfrl.evolution.many_objectives.rvea import RVEA

__all__ = [
    "NSGA2",
    "RVEA",
    "crowding_distance",
    "hypervolume",
    "knee_point",
    "non_dominated_ranks",
    "pareto_front",
    "plot_front",
]
