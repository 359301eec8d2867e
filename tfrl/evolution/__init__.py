"""Evolution: searches by ask and tell over nests of parameters, all maximising."""

from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.diversity import (
    GaussianEmitter,
    GridArchive,
    IsoLineEmitter,
    MAPElites,
    coverage,
    plot_archive,
    qd_score,
)
from tfrl.evolution.fitness import centered_ranks, log_utilities, standardized
from tfrl.evolution.genetic import (
    CSO,
    DE,
    GA,
    PSO,
    SBX,
    ERLMutation,
    GaussianMutation,
    NeuronCrossover,
    NPointCrossover,
    PolynomialMutation,
    TournamentSelection,
    TruncationSelection,
    UniformCrossover,
)
from tfrl.evolution.many_objectives import (
    NSGA2,
    RVEA,
    crowding_distance,
    hypervolume,
    knee_point,
    non_dominated_ranks,
    pareto_front,
    plot_front,
)
from tfrl.evolution.policy_agent import PolicyAgent
from tfrl.evolution.strategies import OpenES
from tfrl.evolution.vectors import ravel, unravel

__all__ = [
    "CSO",
    "DE",
    "ERLMutation",
    "EvoOptimizer",
    "EvoState",
    "GA",
    "GaussianEmitter",
    "GaussianMutation",
    "GridArchive",
    "IsoLineEmitter",
    "MAPElites",
    "NPointCrossover",
    "NSGA2",
    "NeuronCrossover",
    "OpenES",
    "PolicyAgent",
    "PSO",
    "PolynomialMutation",
    "RVEA",
    "SBX",
    "TournamentSelection",
    "TruncationSelection",
    "UniformCrossover",
    "centered_ranks",
    "coverage",
    "crowding_distance",
    "hypervolume",
    "knee_point",
    "log_utilities",
    "non_dominated_ranks",
    "pareto_front",
    "plot_archive",
    "plot_front",
    "qd_score",
    "ravel",
    "standardized",
    "unravel",
]
