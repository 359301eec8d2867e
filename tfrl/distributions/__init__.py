"""Action distributions as nests, and the factory that makes them from an action spec."""

from tfrl.distributions.bernoulli import Bernoulli
from tfrl.distributions.categorical import Categorical
from tfrl.distributions.core import Distribution
from tfrl.distributions.factory import ActionDistribution, make_distribution
from tfrl.distributions.gaussian import DiagonalGaussian
from tfrl.distributions.joint import Joint
from tfrl.distributions.multi_categorical import MultiCategorical
from tfrl.distributions.squashed_gaussian import SquashedGaussian

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
