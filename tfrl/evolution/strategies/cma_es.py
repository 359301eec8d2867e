"""Covariance matrix adaptation evolution strategy."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.strategies import cma
from tfrl.evolution.strategies.core import EvolutionStrategy
from tfrl.evolution.strategies.recombination import best_first, combine
from tfrl.evolution.strategies.spread import from_spectral, spectral
from tfrl.loading import loadable

# Eigenvalues below this share of the greatest are rounding errors of float32.
_LEAST_SHARE = 1e-7


@struct.dataclass
class CMAESState(struct.Struct):
    """Mean, step size, paths and covariance.

    Attributes:
      mean: float32 [D].
      sigma: float32 scalar.
      p_sigma: float32 [D].
      p_c: float32 [D].
      C: float32 [D, D], symmetric.
      root: C^1/2, symmetric, from the last eigendecomposition.
      inverse_root: C^-1/2, from the last eigendecomposition.
    """

    mean: tf.Tensor
    sigma: tf.Tensor
    p_sigma: tf.Tensor
    p_c: tf.Tensor
    C: tf.Tensor
    root: tf.Tensor
    inverse_root: tf.Tensor


@loadable
@struct.logic_dataclass
class CMAES(EvolutionStrategy):
    """Adapts mean, step size and covariance of a Gaussian.

      x_i = mean + sigma C^1/2 z_i,  y_i = (x_i - mean) / sigma,  i = 1 the best
      mean += sigma y_w,  y_w = sum_{i <= mu} w_i y_i
      C = keep C + c_1 p_c p_c' + c_mu sum_i v_i y_i y_i'
      v_i = w_i where w_i >= 0, else w_i D / |C^-1/2 y_i|^2

    `cma.advance` has the paths, sigma and keep. The root is symmetric, since the signs of
    eigenvectors differ between compilers.

    In float32 the covariance may have a condition number up to 1e7. A generation takes O(D^3) time
    and the state O(D^2) memory, for some hundred parameters; `SepCMAES` has no such limit. XLA on
    CPU takes 100 times as long to decompose as TensorFlow's kernel (0.3 s for D = 200).

    Source: Hansen 2016, the CMA evolution strategy: a tutorial, https://arxiv.org/abs/1604.00772v1.

    Attributes:
      pop_size: Candidates of a generation, P; see `default_pop_size`.
      init_std: The initial sigma, with C = I.
      active: Whether the worse half has negative weights.
      eigen_interval: Generations between eigendecompositions. The tutorial (appendix B.2) allows
        1 / (10 D (c_1 + c_mu)), which is O(D) for the default population.
    """

    init_std: float = 0.1
    active: bool = True
    eigen_interval: int = 1

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.positive("CMAES.init_std", self.init_std)
        checks.at_least("CMAES.eigen_interval", self.eigen_interval, 1)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> CMAESState:
        """Begins with a sphere."""
        zeros, identity = tf.zeros_like(mean), tf.eye(mean.shape[0])
        return CMAESState(
            mean=mean,
            sigma=tf.constant(self.init_std, tf.float32),
            p_sigma=zeros,
            p_c=zeros,
            C=identity,
            root=identity,
            inverse_root=identity,
        )

    def sample(self, search: CMAESState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma C^1/2 z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + search.sigma * tf.matmul(z, search.root)

    def learn(
        self,
        search: CMAESState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> CMAESState:
        """Moves the mean, then adapts sigma and C."""
        d = search.mean.shape[0]
        k = cma.full_constants(self.pop_size, d, self.active)
        y = (best_first(candidates, fitness) - search.mean) / search.sigma  # [P, D]
        white = tf.matmul(y, search.inverse_root)
        w = tf.constant(k.weights, tf.float32)
        y_w = combine(w[: k.mu], y[: k.mu])
        paths = cma.advance(search, y_w, combine(w[: k.mu], white[: k.mu]), generation, k)

        v = w * tf.where(w >= 0.0, 1.0, d / (tf.reduce_sum(tf.square(white), axis=1) + 1e-8))
        C = paths.keep * search.C + k.c_1 * paths.p_c[:, None] * paths.p_c
        C += k.c_mu * tf.matmul(y, v[:, None] * y, transpose_a=True)
        C = (C + tf.transpose(C)) / 2.0
        root, inverse_root = self._roots(search, C, generation)
        return CMAESState(
            mean=search.mean + search.sigma * y_w,
            sigma=paths.sigma,
            p_sigma=paths.p_sigma,
            p_c=paths.p_c,
            C=C,
            root=root,
            inverse_root=inverse_root,
        )

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: sigma."""
        return {"step_size": state.search.sigma}

    def _roots(
        self, search: CMAESState, C: tf.Tensor, generation: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns C^1/2 and C^-1/2, unchanged between eigendecompositions."""
        if self.eigen_interval == 1:
            return _roots(C)
        return tf.cond(
            (generation + 1) % self.eigen_interval == 0,
            lambda: _roots(C),
            lambda: (search.root, search.inverse_root),
        )


def _roots(C: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns C^1/2 and C^-1/2."""
    values, vectors = spectral(C)
    least = _LEAST_SHARE * tf.maximum(values[-1], cma.LEAST_VARIANCE)
    scale = tf.sqrt(tf.maximum(values, least))
    return from_spectral(scale, vectors), from_spectral(1.0 / scale, vectors)
