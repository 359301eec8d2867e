"""Exponential natural evolution strategy."""

import math

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.strategies.natural import NaturalStrategy
from tfrl.evolution.strategies.settings import shaped
from tfrl.evolution.strategies.spread import (
    bounded_std,
    from_spectral,
    growth,
    spectral,
    within_bounds,
)
from tfrl.loading import loadable

_MOST_CONDITION = 1e5  # in the Frobenius norm


@struct.dataclass
class XNESState(struct.Struct):
    """The mean, float32 [D], the step size sigma, scalar, and the shape B, [D, D] of det 1."""

    mean: tf.Tensor
    sigma: tf.Tensor
    B: tf.Tensor


@loadable
@struct.logic_dataclass
class XNES(NaturalStrategy):
    """Follows the natural gradient of a Gaussian of any shape, in its natural coordinates.

      x_i = mean + sigma B z_i
      G_mean = sum_i u_i z_i,  G_M = sum_i u_i (z_i z_i' - I)
      G_sigma = tr(G_M) / D,   G_B = G_M - G_sigma I
      mean += eta_mean sigma B G_mean
      sigma *= exp(eta_sigma / 2 G_sigma),  B = B exp(eta_sigma / 2 G_B)

    The utilities u are the shaped fitness. Exponents and their eigenvalues stay within [-3, 3],
    which sampled candidates reach only if sigma is below the rounding errors of the mean. B stays
    as it is if a step would bring its condition number above 1e5, beyond float32. A generation
    takes O(D^3) time and the state O(D^2) memory, for some hundred parameters; XLA on CPU is slow
    for large D, as in `CMAES`.

    Source: Glasmachers et al. 2010, algorithm 1, https://doi.org/10.1145/1830483.1830557.

    By default eta_sigma is (9 + 3 log D) / (5 D sqrt(D)). See `NaturalStrategy` for the
    attributes.
    """

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> XNESState:
        """Begins with a sphere."""
        return XNESState(
            mean=mean, sigma=tf.constant(self.init_std, tf.float32), B=tf.eye(mean.shape[0])
        )

    def sample(self, search: XNESState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma B z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + search.sigma * tf.matmul(z, search.B, transpose_b=True)

    def learn(
        self,
        search: XNESState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> XNESState:
        """Takes a step of mean, step size and shape."""
        mean, sigma, B = search.mean, search.sigma, search.B
        u = shaped(self.fitness_shaping_fn, fitness)
        inverse = tf.linalg.inv(B)  # since XLA on CPU crashes with tf.linalg.solve
        z = tf.matmul(inverse, (candidates - mean) / sigma, transpose_b=True)  # [D, P]
        d = mean.shape[0]
        G_mean = tf.linalg.matvec(z, u)
        G_M = tf.matmul(z * u, z, transpose_b=True) - tf.reduce_sum(u) * tf.eye(d)
        G_sigma = tf.linalg.trace(G_M) / d
        values, vectors = spectral(G_M - G_sigma * tf.eye(d))

        default = (9.0 + 3.0 * math.log(d)) / (5.0 * d * math.sqrt(d))
        eta_mean, eta_sigma = self._rates(generation, default)
        step = eta_mean * sigma * tf.linalg.matvec(B, G_mean)
        exponents = within_bounds(eta_sigma / 2.0 * values)
        after = tf.matmul(B, from_spectral(tf.exp(exponents), vectors))
        inverse_after = tf.matmul(from_spectral(tf.exp(-exponents), vectors), inverse)
        condition = _condition(after, inverse_after)
        fits = (condition < _MOST_CONDITION) | (condition < _condition(B, inverse))
        return XNESState(
            mean=mean + step,
            sigma=bounded_std(sigma * growth(eta_sigma / 2.0 * G_sigma)),
            B=tf.where(fits, after, B),
        )

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: sigma."""
        return {"step_size": state.search.sigma}


def _condition(matrix: tf.Tensor, inverse: tf.Tensor) -> tf.Tensor:
    """Returns the condition number of a matrix in the Frobenius norm."""
    return tf.norm(matrix) * tf.norm(inverse)
