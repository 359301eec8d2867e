"""Separable CMA-ES."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.strategies import cma
from tfrl.evolution.strategies.core import EvolutionStrategy
from tfrl.evolution.strategies.recombination import best_first, combine
from tfrl.loading import loadable


@struct.dataclass
class SepCMAESState(struct.Struct):
    """Mean, step size sigma (a scalar), paths p_sigma and p_c, variances C; float32 [D]."""

    mean: tf.Tensor
    sigma: tf.Tensor
    p_sigma: tf.Tensor
    p_c: tf.Tensor
    C: tf.Tensor


@loadable
@struct.logic_dataclass
class SepCMAES(EvolutionStrategy):
    """CMA-ES with a diagonal covariance: O(D) time and memory per candidate.

      x_i = mean + sigma sqrt(C) z_i,  y_i = (x_i - mean) / sigma,  i = 1 the best
      mean += sigma y_w,  y_w = sum_i w_i y_i
      C = keep C + c_1 p_c^2 + c_mu sum_i w_i y_i^2

    `cma.advance` has the paths, sigma and keep.

    Source: Ros and Hansen 2008, https://hal.inria.fr/inria-00287367, with the rates of the package
    `cmaes`, see `cma.separable_constants`.

    Attributes:
      pop_size: Candidates of a generation, P; see `default_pop_size`.
      init_std: The initial sigma, with C = 1.
    """

    init_std: float = 0.1

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.positive("SepCMAES.init_std", self.init_std)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> SepCMAESState:
        """Begins with a sphere."""
        zeros = tf.zeros_like(mean)
        return SepCMAESState(
            mean=mean,
            sigma=tf.constant(self.init_std, tf.float32),
            p_sigma=zeros,
            p_c=zeros,
            C=tf.ones_like(mean),
        )

    def sample(self, search: SepCMAESState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma sqrt(C) z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + search.sigma * tf.sqrt(search.C) * z

    def learn(
        self,
        search: SepCMAESState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> SepCMAESState:
        """Moves the mean, then adapts sigma and C."""
        k = cma.separable_constants(self.pop_size, search.mean.shape[0])
        y = (best_first(candidates, fitness, k.mu) - search.mean) / search.sigma
        y_w = combine(k.weights, y)
        paths = cma.advance(search, y_w, y_w / tf.sqrt(search.C), generation, k)
        C = paths.keep * search.C + k.c_1 * tf.square(paths.p_c)
        return SepCMAESState(
            mean=search.mean + search.sigma * y_w,
            sigma=paths.sigma,
            p_sigma=paths.p_sigma,
            p_c=paths.p_c,
            C=tf.maximum(C + k.c_mu * combine(k.weights, tf.square(y)), cma.LEAST_VARIANCE),
        )

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: sigma."""
        return {"step_size": state.search.sigma}
