"""Independent categoricals: the distribution over MultiDiscrete actions."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.distributions.categorical import draw, select
from tfrl.distributions.core import Distribution, flat_action, masked, shaped_action


@struct.dataclass
class MultiCategorical(Distribution):
    """K independent categoricals, the k-th over `nvec[k]` values beginning with `start[k]`.

    Make it with `MultiCategorical.from_logits`. All K have one row of A = max(nvec) logits each,
    those beyond `nvec[k]` masked, so that one operation serves all of them.

    Attributes:
      logits: Normalised: float32 `[..., K, A]`.
      start: K smallest values.
      event_shape: The shape of one action; K elements.
      dtype: The dtype of actions.
    """

    logits: tf.Tensor
    start: tuple[int, ...] = struct.field(static=True)
    event_shape: tuple[int, ...] = struct.field(static=True)
    dtype: tf.DType = struct.field(static=True, default=tf.int64)

    @classmethod
    def from_logits(
        cls,
        logits: tf.Tensor,
        nvec: Any,
        mask: tf.Tensor | None = None,
        start: Any = None,
        dtype: tf.DType = tf.int64,
    ) -> "MultiCategorical":
        """Makes the distribution.

        Args:
          logits: Unnormalised, `[..., K, max(nvec)]`.
          nvec: Counts of values, of the shape of one action.
          mask: bool `[..., K, max(nvec)]`, True for the valid values; None for all.
          start: Smallest values, of the shape of one action; None for zeros.
          dtype: The dtype of actions.
        """
        nvec = np.asarray(nvec, np.int64)
        start = np.zeros_like(nvec) if start is None else np.asarray(start, np.int64)
        counts = nvec.reshape(-1)
        if counts.min() < counts.max():
            inside = np.arange(counts.max()) < counts[:, None]  # [K, A]
            mask = tf.constant(inside) if mask is None else tf.cast(mask, tf.bool) & inside
        return cls(
            logits=tf.nn.log_softmax(masked(logits, mask)),
            start=tuple(int(s) for s in start.reshape(-1)),
            event_shape=tuple(nvec.shape),
            dtype=dtype,
        )

    def _action(self, index: tf.Tensor) -> tf.Tensor:
        action = tf.cast(index, self.dtype)  # [..., K]
        if any(self.start):
            action += tf.constant(self.start, self.dtype)
        return shaped_action(action, self.event_shape)

    def sample(self, key: tf.Tensor) -> tf.Tensor:
        """Draws actions `[..., *event_shape]`."""
        return self._action(draw(self.logits, key))

    def mode(self) -> tf.Tensor:
        """Returns the most probable value of each, the first of equals."""
        return self._action(tf.argmax(self.logits, axis=-1))

    def log_prob(self, action: tf.Tensor) -> tf.Tensor:
        """Returns sum_k log p_k(action_k), float32 `[...]`."""
        index = flat_action(tf.convert_to_tensor(action), len(self.event_shape))
        if any(self.start):
            index -= tf.constant(self.start, index.dtype)
        return tf.reduce_sum(select(self.logits, index), axis=-1)

    def entropy(self) -> tf.Tensor:
        """Returns the sum of the K entropies."""
        return -tf.reduce_sum(tf.exp(self.logits) * self.logits, axis=[-2, -1])

    def kl_divergence(self, other: "MultiCategorical") -> tf.Tensor:
        """Returns the sum of the K divergences."""
        return tf.reduce_sum(tf.exp(self.logits) * (self.logits - other.logits), axis=[-2, -1])

    def to_tfp(self) -> Any:
        """Returns independent `tfp.distributions.Categorical`s over indices `[..., K]`."""
        import tensorflow_probability as tfp

        inner = tfp.distributions.Categorical(logits=self.logits, dtype=self.dtype)
        return tfp.distributions.Independent(inner, 1)
