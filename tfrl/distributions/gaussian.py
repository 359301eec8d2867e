"""The diagonal Gaussian."""

import math
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distributions.core import Distribution, flat_action, shaped_action

_LOG_2PI = math.log(2.0 * math.pi)


def standard_log_prob(z: tf.Tensor, log_std: tf.Tensor) -> tf.Tensor:
    """Returns sum_i -z_i^2 / 2 - log std_i - log(2 pi) / 2 over the last axis."""
    size = z.shape[-1]
    return (
        -0.5 * tf.reduce_sum(tf.square(z), axis=-1)
        - tf.reduce_sum(log_std, axis=-1)
        - 0.5 * size * _LOG_2PI
    )


def gaussian_entropy(loc: tf.Tensor, log_std: tf.Tensor) -> tf.Tensor:
    """Returns sum_i log std_i + (1 + log(2 pi)) / 2, of the batch shape of `loc` `[..., A]`."""
    per_action = tf.reduce_sum(log_std, axis=-1) + 0.5 * loc.shape[-1] * (1.0 + _LOG_2PI)
    return tf.broadcast_to(per_action, tf.shape(loc)[:-1])


def gaussian_kl(
    loc: tf.Tensor, log_std: tf.Tensor, other_loc: tf.Tensor, other_log_std: tf.Tensor
) -> tf.Tensor:
    """Returns KL(N(loc, std) || N(other_loc, other_std)), summed over the last axis."""
    log_ratio = log_std - other_log_std
    distance = (loc - other_loc) * tf.exp(-other_log_std)
    each = 0.5 * (tf.exp(2.0 * log_ratio) + tf.square(distance) - 1.0) - log_ratio
    return tf.reduce_sum(each, axis=-1)


@struct.dataclass
class DiagonalGaussian(Distribution):
    """N(loc, diag(std^2)) over A independent elements. Samples are not clipped to any bounds.

    Attributes:
      loc: float32 `[..., A]`.
      log_std: float32, broadcasts to `loc`.
      event_shape: The shape of one action; A elements. None for `(A,)`.
      dtype: The dtype of actions.
    """

    loc: tf.Tensor
    log_std: tf.Tensor
    event_shape: tuple[int, ...] | None = struct.field(static=True, default=None)
    dtype: tf.DType = struct.field(static=True, default=tf.float32)

    def _shape(self) -> tuple[int, ...]:
        return (self.loc.shape[-1],) if self.event_shape is None else self.event_shape

    def _action(self, flat: tf.Tensor) -> tf.Tensor:
        return shaped_action(tf.cast(flat, self.dtype), self._shape())

    def sample(self, key: tf.Tensor) -> tf.Tensor:
        """Draws loc + std z, z standard normal."""
        return self.sample_and_log_prob(key)[0]

    def mode(self) -> tf.Tensor:
        """Returns loc."""
        return self._action(self.loc)

    def log_prob(self, action: tf.Tensor) -> tf.Tensor:
        """Returns the log-density, float32 `[...]`."""
        flat = tf.cast(flat_action(tf.convert_to_tensor(action), len(self._shape())), tf.float32)
        return standard_log_prob((flat - self.loc) * tf.exp(-self.log_std), self.log_std)

    def entropy(self) -> tf.Tensor:
        """Returns sum log std + A (1 + log(2 pi)) / 2."""
        return gaussian_entropy(self.loc, self.log_std)

    def kl_divergence(self, other: "DiagonalGaussian") -> tf.Tensor:
        """Returns the closed form."""
        return gaussian_kl(self.loc, self.log_std, other.loc, other.log_std)

    def sample_and_log_prob(self, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws actions; their log-probabilities come from the noise, not from the rounded sum."""
        z = seeding.normal(key, tf.shape(self.loc))
        action = self._action(self.loc + tf.exp(self.log_std) * z)
        return action, standard_log_prob(z, self.log_std)

    def to_tfp(self) -> Any:
        """Returns a `tfp.distributions.MultivariateNormalDiag` over actions `[..., A]`."""
        import tensorflow_probability as tfp

        std = tf.broadcast_to(tf.exp(self.log_std), tf.shape(self.loc))
        return tfp.distributions.MultivariateNormalDiag(self.loc, std)
