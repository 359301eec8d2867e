"""Genetic searches and particle swarms."""

from tfrl.evolution.genetic.crossover import (
    SBX,
    NeuronCrossover,
    NPointCrossover,
    UniformCrossover,
)
from tfrl.evolution.genetic.cso import CSO
from tfrl.evolution.genetic.de import DE
from tfrl.evolution.genetic.ga import GA
from tfrl.evolution.genetic.mutation import ERLMutation, GaussianMutation, PolynomialMutation
from tfrl.evolution.genetic.pso import PSO
from tfrl.evolution.genetic.selection import TournamentSelection, TruncationSelection

__all__ = [
    "CSO",
    "DE",
    "ERLMutation",
    "GA",
    "GaussianMutation",
    "NPointCrossover",
    "NeuronCrossover",
    "PSO",
    "PolynomialMutation",
    "SBX",
    "TournamentSelection",
    "TruncationSelection",
    "UniformCrossover",
]
