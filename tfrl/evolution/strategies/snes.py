"""Separable natural evolution strategy."""

import math

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.strategies.natural import NaturalStrategy
from tfrl.evolution.strategies.recombination import combine
from tfrl.evolution.strategies.settings import shaped
from tfrl.evolution.strategies.spread import bounded_std, growth
from tfrl.loading import loadable


@struct.dataclass
class SNESState(struct.Struct):
    """The mean and standard deviations sigma, float32 [D]."""

    mean: tf.Tensor
    sigma: tf.Tensor


@loadable
@struct.logic_dataclass
class SNES(NaturalStrategy):
    """Follows the natural gradient of a Gaussian with independent coordinates.

      x_i = mean + sigma z_i
      mean += eta_mean sigma sum_i u_i z_i
      sigma *= exp(eta_sigma / 2 sum_i u_i (z_i^2 - 1))

    The utilities u are the shaped fitness. Exponents are clipped to [-3, 3], which sampled
    candidates reach only if sigma is below the rounding errors of the mean.

    Source: Wierstra et al. 2014, algorithm 6, http://jmlr.org/papers/v15/wierstra14a.html.

    By default eta_sigma is (3 + log D) / (5 sqrt(D)). See `NaturalStrategy` for the attributes.
    """

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> SNESState:
        """Begins with equal standard deviations."""
        return SNESState(mean=mean, sigma=tf.fill(mean.shape, float(self.init_std)))

    def sample(self, search: SNESState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + search.sigma * z

    def learn(
        self,
        search: SNESState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> SNESState:
        """Takes a step of mean and standard deviations."""
        mean, sigma = search.mean, search.sigma
        u = shaped(self.fitness_shaping_fn, fitness)
        z = (candidates - mean) / sigma
        d = mean.shape[0]
        default = (3.0 + math.log(d)) / (5.0 * math.sqrt(d))
        eta_mean, eta_sigma = self._rates(generation, default)
        exponent = eta_sigma / 2.0 * combine(u, tf.square(z) - 1.0)
        return SNESState(
            mean=mean + eta_mean * sigma * combine(u, z),
            sigma=bounded_std(sigma * growth(exponent)),
        )

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: the mean standard deviation."""
        return {"step_size": tf.reduce_mean(state.search.sigma)}
