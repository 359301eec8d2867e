"""Independent bits: the distribution over MultiBinary actions."""

from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distributions.core import Distribution, flat_action, masked, shaped_action


@struct.dataclass
class Bernoulli(Distribution):
    """K independent bits with P(bit = 1) = sigmoid(logit).

    Attributes:
      logits: float32 `[..., K]`; where an action mask is False the bit is always 0.
      event_shape: The shape of one action; K elements.
      dtype: The dtype of actions.
    """

    logits: tf.Tensor
    event_shape: tuple[int, ...] = struct.field(static=True)
    dtype: tf.DType = struct.field(static=True, default=tf.int8)

    @classmethod
    def from_logits(
        cls,
        logits: tf.Tensor,
        event_shape: Any = None,
        mask: tf.Tensor | None = None,
        dtype: tf.DType = tf.int8,
    ) -> "Bernoulli":
        """Makes the distribution.

        Args:
          logits: `[..., K]`.
          event_shape: The shape of one action; None for `(K,)`.
          mask: bool `[..., K]`; False fixes a bit at 0. None for all free.
          dtype: The dtype of actions.
        """
        logits = masked(logits, mask)
        shape = (logits.shape[-1],) if event_shape is None else tuple(event_shape)
        return cls(logits=logits, event_shape=shape, dtype=dtype)

    def _action(self, bits: tf.Tensor) -> tf.Tensor:
        return shaped_action(tf.cast(bits, self.dtype), self.event_shape)

    def sample(self, key: tf.Tensor) -> tf.Tensor:
        """Draws actions `[..., *event_shape]`."""
        u = seeding.uniform(key, tf.shape(self.logits))
        return self._action(u < tf.sigmoid(self.logits))

    def mode(self) -> tf.Tensor:
        """Returns 1 where it is more probable than 0."""
        return self._action(self.logits > 0.0)

    def log_prob(self, action: tf.Tensor) -> tf.Tensor:
        """Returns the sum over the bits, float32 `[...]`."""
        bits = tf.cast(flat_action(tf.convert_to_tensor(action), len(self.event_shape)), tf.float32)
        loss = tf.nn.sigmoid_cross_entropy_with_logits(labels=bits, logits=self.logits)
        return -tf.reduce_sum(loss, axis=-1)

    def entropy(self) -> tf.Tensor:
        """Returns the sum of the bits' entropies."""
        p = tf.sigmoid(self.logits)
        return tf.reduce_sum(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=p, logits=self.logits), axis=-1
        )

    def kl_divergence(self, other: "Bernoulli") -> tf.Tensor:
        """Returns the sum of the bits' divergences."""
        p = tf.sigmoid(self.logits)
        cross = tf.nn.sigmoid_cross_entropy_with_logits(labels=p, logits=other.logits)
        own = tf.nn.sigmoid_cross_entropy_with_logits(labels=p, logits=self.logits)
        return tf.reduce_sum(cross - own, axis=-1)

    def to_tfp(self) -> Any:
        """Returns independent `tfp.distributions.Bernoulli`s over bits `[..., K]`."""
        import tensorflow_probability as tfp

        inner = tfp.distributions.Bernoulli(logits=self.logits, dtype=self.dtype)
        return tfp.distributions.Independent(inner, 1)
