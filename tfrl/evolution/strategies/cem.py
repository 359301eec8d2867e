"""Cross-entropy method with a full covariance."""

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.strategies.elites import EliteStrategy
from tfrl.evolution.strategies.recombination import best_first, combine
from tfrl.loading import loadable


@struct.dataclass
class CEMState(struct.Struct):
    """The Gaussian N(mean, factors' factors + noise I).

    Attributes:
      mean: float32 [D].
      factors: float32 [K, D], a row for each elite; 0 at the start.
      noise: float32 scalar, a variance.
    """

    mean: tf.Tensor
    factors: tf.Tensor
    noise: tf.Tensor


@loadable
@struct.logic_dataclass
class CEM(EliteStrategy):
    """Fits a Gaussian of full covariance to the elites.

      x_i ~ N(mean, Sigma)
      Sigma = sum_i lambda_i (x_i - mean) (x_i - mean)' + epsilon I,  i = 1 .. K the best
      mean = sum_i lambda_i x_i

    Sigma is around the previous mean. It is stored as the K elites that define it, so that time and
    memory are O(K D) per candidate, and D may be large.

    Source: Pourchot and Sigaud 2019, equations 1 and 2 and section 4.3,
    https://arxiv.org/abs/1810.01222 (they use 10 candidates and 5 elites).
    """

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> CEMState:
        """Begins with a sphere."""
        factors = tf.zeros([self._num_elites, *mean.shape])
        return CEMState(mean=mean, factors=factors, noise=tf.constant(self.init_std**2, tf.float32))

    def sample(self, search: CEMState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + z' factors + sqrt(noise) z."""
        elites, noise = tf.unstack(seeding.split(key))
        z = seeding.normal(elites, [self.pop_size, self._num_elites])
        noises = seeding.normal(noise, [self.pop_size, *search.mean.shape])
        return search.mean + tf.matmul(z, search.factors) + tf.sqrt(search.noise) * noises

    def learn(
        self,
        search: CEMState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> CEMState:
        """Fits the elites."""
        y = best_first(candidates, fitness, self._num_elites) - search.mean
        root = tf.constant(np.sqrt(self._weights), tf.float32)
        return CEMState(
            mean=search.mean + combine(self._weights, y),
            factors=root[:, None] * y,
            noise=self._noise(generation),
        )

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: the root of the mean variance."""
        search = state.search
        variance = tf.reduce_sum(tf.square(search.factors), axis=0) + search.noise
        return {"step_size": tf.sqrt(tf.reduce_mean(variance))}
