"""Cross-entropy method with independent coordinates."""

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.strategies.elites import EliteStrategy
from tfrl.evolution.strategies.recombination import best_first, combine
from tfrl.loading import loadable


@struct.dataclass
class DiagonalCEMState(struct.Struct):
    """The mean and variances, float32 [D]."""

    mean: tf.Tensor
    variance: tf.Tensor


@loadable
@struct.logic_dataclass
class DiagonalCEM(EliteStrategy):
    """Fits a Gaussian with independent coordinates to the elites.

      x_i = mean + sqrt(variance) z_i
      variance = sum_i lambda_i (x_i - mean)^2 + epsilon,  i = 1 .. K the best
      mean = sum_i lambda_i x_i

    The variance is around the previous mean. CEM-RL uses this search.

    Source: Pourchot and Sigaud 2019, equations 1 and 2 and section 4.3,
    https://arxiv.org/abs/1810.01222 (they use 10 candidates and 5 elites).
    """

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> DiagonalCEMState:
        """Begins with equal variances."""
        return DiagonalCEMState(mean=mean, variance=tf.fill(mean.shape, float(self.init_std) ** 2))

    def sample(self, search: DiagonalCEMState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sqrt(variance) z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + tf.sqrt(search.variance) * z

    def learn(
        self,
        search: DiagonalCEMState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> DiagonalCEMState:
        """Fits the elites."""
        y = best_first(candidates, fitness, self._num_elites) - search.mean
        return DiagonalCEMState(
            mean=search.mean + combine(self._weights, y),
            variance=combine(self._weights, tf.square(y)) + self._noise(generation),
        )

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: the mean standard deviation."""
        return {"step_size": tf.reduce_mean(tf.sqrt(state.search.variance))}
