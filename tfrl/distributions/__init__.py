"""Action distributions as nests, and the factory that makes them from an action spec."""

from tfrl.distributions.continuous import DiagonalGaussian, SquashedGaussian
from tfrl.distributions.core import Distribution, Joint
from tfrl.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from tfrl.distributions.factory import ActionDistribution, make_distribution

__all__ = [
    "ActionDistribution",
    "Bernoulli",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "Joint",
    "MultiCategorical",
    "SquashedGaussian",
    "make_distribution",
]
