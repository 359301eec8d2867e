"""The categorical distribution, with an action mask."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distributions.core import Distribution, flat_action, masked, shaped_action


def draw(log_probs: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Draws indices by inverting the cumulative distribution.

    The index is #{i: F_i <= u F_A}, u uniform in [0, 1). An entry of probability 0 is never drawn:
    F does not grow there, and u F_A is less than F_A in float32 as well. One uniform per row makes
    this several times faster under XLA on a CPU than the argmax of Gumbel noise, and as fast in
    graph mode.

    Args:
      log_probs: float32 `[..., A]`.
      key: int32 [2].

    Returns:
      int32 `[...]`.
    """
    cumulative = tf.cumsum(tf.exp(log_probs), axis=-1)  # [..., A]
    u = seeding.uniform(key, tf.shape(log_probs)[:-1])[..., tf.newaxis]
    below = cumulative <= u * cumulative[..., -1:]
    return tf.reduce_sum(tf.cast(below, tf.int32), axis=-1)


def select(log_probs: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Returns `log_probs[..., index]`; a one-hot product, whose gradient is not a scatter."""
    if index.dtype not in (tf.int32, tf.int64):
        index = tf.cast(index, tf.int32)
    hot = tf.one_hot(index, log_probs.shape[-1], dtype=log_probs.dtype)
    return tf.reduce_sum(hot * log_probs, axis=-1)


@struct.dataclass
class Categorical(Distribution):
    """One of A actions, numbered from `start`.

    Make it with `Categorical.from_logits`. An invalid action is never drawn and does not affect
    entropy, KL or gradients. A row without valid actions is uniform over all A actions, without
    gradient; the caller should mask it in the loss. An action outside the range has log-probability
    0.

    Attributes:
      logits: Normalised, i.e. log-probabilities, float32 `[..., A]`.
      start: The number of the first action.
      dtype: The dtype of actions.
    """

    logits: tf.Tensor
    start: int = struct.field(static=True, default=0)
    dtype: tf.DType = struct.field(static=True, default=tf.int64)

    @classmethod
    def from_logits(
        cls,
        logits: tf.Tensor,
        mask: tf.Tensor | None = None,
        start: int = 0,
        dtype: tf.DType = tf.int64,
    ) -> "Categorical":
        """Makes the distribution softmax(logits).

        Args:
          logits: Unnormalised, `[..., A]`.
          mask: bool `[..., A]`, True for the valid actions; None for all.
          start: The number of the first action.
          dtype: The dtype of actions.
        """
        return cls(logits=tf.nn.log_softmax(masked(logits, mask)), start=start, dtype=dtype)

    def _index(self, action: tf.Tensor) -> tf.Tensor:
        action = tf.convert_to_tensor(action)
        return action - tf.cast(self.start, action.dtype) if self.start else action

    def _action(self, index: tf.Tensor) -> tf.Tensor:
        action = tf.cast(index, self.dtype)
        return action + tf.cast(self.start, self.dtype) if self.start else action

    def sample(self, key: tf.Tensor) -> tf.Tensor:
        """Draws actions `[...]`."""
        return self._action(draw(self.logits, key))

    def mode(self) -> tf.Tensor:
        """Returns the most probable action, the first of equals."""
        return self._action(tf.argmax(self.logits, axis=-1))

    def log_prob(self, action: tf.Tensor) -> tf.Tensor:
        """Returns log p(action), float32 `[...]`."""
        return select(self.logits, self._index(action))

    def entropy(self) -> tf.Tensor:
        """Returns -sum p log p."""
        return -tf.reduce_sum(tf.exp(self.logits) * self.logits, axis=-1)

    def kl_divergence(self, other: "Categorical") -> tf.Tensor:
        """Returns sum p (log p - log q)."""
        return tf.reduce_sum(tf.exp(self.logits) * (self.logits - other.logits), axis=-1)

    def parameters(self) -> tuple[str, dict[str, tf.Tensor]]:
        """Returns the kind and its logits."""
        return "categorical", {"logits": self.logits}

    def to_tfp(self) -> Any:
        """Returns a `tfp.distributions.Categorical` over indices, which begin with 0."""
        import tensorflow_probability as tfp

        return tfp.distributions.Categorical(logits=self.logits, dtype=self.dtype)


@struct.dataclass
class MultiCategorical(Distribution):
    """K independent categoricals, the k-th over `nvec[k]` values beginning with `start[k]`.

    Make it with `MultiCategorical.from_logits`. Each of the K has a row of A = max(nvec) logits,
    masked beyond `nvec[k]`, so that one operation computes all.

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

    def parameters(self) -> tuple[str, dict[str, tf.Tensor]]:
        """Returns the kind and its logits."""
        return "multi_categorical", {"logits": self.logits}

    def to_tfp(self) -> Any:
        """Returns independent `tfp.distributions.Categorical`s over indices `[..., K]`."""
        import tensorflow_probability as tfp

        inner = tfp.distributions.Categorical(logits=self.logits, dtype=self.dtype)
        return tfp.distributions.Independent(inner, 1)


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

    def parameters(self) -> tuple[str, dict[str, tf.Tensor]]:
        """Returns the kind and its logits."""
        return "bernoulli", {"logits": self.logits}

    def to_tfp(self) -> Any:
        """Returns independent `tfp.distributions.Bernoulli`s over bits `[..., K]`."""
        import tensorflow_probability as tfp

        inner = tfp.distributions.Bernoulli(logits=self.logits, dtype=self.dtype)
        return tfp.distributions.Independent(inner, 1)
