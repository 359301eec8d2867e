"""The interface of distributions."""

import abc
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct

Nest = Any

# The logit of invalid actions: the probability is exactly 0 in float32, but differences and
# products stay finite, so that entropy and gradients have no NaN.
MASKED_LOGIT = -1e30


class Distribution(abc.ABC):
    """A batch of distributions over actions; subclasses are `struct.dataclass`es.

    Samples come from `tfrl.seeding` keys only. `log_prob`, `entropy` and `kl_divergence` are
    float32 `[...]`, one number per action; the axes of one action are summed.
    """

    @abc.abstractmethod
    def sample(self, key: tf.Tensor) -> Nest:
        """Draws one action per batch element.

        Args:
          key: int32 [2].

        Returns:
          Actions `[..., *action shape]` of the action spec's dtype.
        """

    @abc.abstractmethod
    def mode(self) -> Nest:
        """Returns the greedy action, of the shape and dtype of `sample`."""

    @abc.abstractmethod
    def log_prob(self, action: Nest) -> tf.Tensor:
        """Returns the log-probability (or log-density) of actions, float32 `[...]`."""

    @abc.abstractmethod
    def entropy(self) -> tf.Tensor:
        """Returns the entropy in nats, float32 `[...]`."""

    @abc.abstractmethod
    def kl_divergence(self, other: Any) -> tf.Tensor:
        """Returns KL(self || other) in nats, float32 `[...]`, for `other` of the same class."""

    def sample_and_log_prob(self, key: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Draws actions and returns their log-probabilities with them.

        If the action is a differentiable function of the parameters (Gaussians), so is the
        log-probability: SAC needs this pathwise gradient.
        """
        action = self.sample(key)
        return action, self.log_prob(action)

    def parameters(self) -> tuple[str, dict[str, tf.Tensor]]:
        """Returns the kind of the distribution and its parameters `[B, ...]`, for exports."""
        raise NotImplementedError(f"{type(self).__name__} does not expose its parameters")

    def to_tfp(self) -> Any:
        """Returns the TensorFlow Probability distribution with the same density."""
        raise NotImplementedError(f"{type(self).__name__} has no TensorFlow Probability equivalent")


def masked(logits: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Returns float32 logits with MASKED_LOGIT where `mask` is False."""
    logits = tf.cast(logits, tf.float32)
    if mask is None:
        return logits
    return tf.where(tf.cast(mask, tf.bool), logits, tf.constant(MASKED_LOGIT))


def flat_action(action: tf.Tensor, event_rank: int) -> tf.Tensor:
    """Flattens the axes of one action into one; a scalar action gets one."""
    if event_rank == 1:
        return action
    if event_rank == 0:
        return action[..., tf.newaxis]
    shape, rank = tf.shape(action), action.shape.rank
    flat = action.shape[rank - event_rank :].num_elements()
    return tf.reshape(action, tf.concat([shape[: rank - event_rank], [flat]], 0))


def shaped_action(action: tf.Tensor, event_shape: tuple[int, ...]) -> tf.Tensor:
    """The inverse of `flat_action`."""
    if len(event_shape) == 1:
        return action
    if not event_shape:
        return tf.squeeze(action, -1)
    return tf.reshape(action, tf.concat([tf.shape(action)[:-1], event_shape], 0))


@struct.dataclass
class Joint(Distribution):
    """Independent distributions for the leaves of a Dict or Tuple action.

    Attributes:
      parts: One distribution per leaf, in `tf.nest` order.
      spec: The nest of action specs, which gives actions their structure.
    """

    parts: tuple[Distribution, ...]
    spec: Nest = struct.field(static=True)

    def _keys(self, key: tf.Tensor) -> list[tf.Tensor]:
        return tf.unstack(seeding.split(key, len(self.parts)))

    def _pack(self, leaves: list[Any]) -> Nest:
        return tf.nest.pack_sequence_as(self.spec, leaves)

    def sample(self, key: tf.Tensor) -> Nest:
        """Draws a nest of actions."""
        keys = self._keys(key)
        return self._pack([d.sample(k) for d, k in zip(self.parts, keys, strict=True)])

    def mode(self) -> Nest:
        """Returns the nest of greedy actions."""
        return self._pack([d.mode() for d in self.parts])

    def log_prob(self, action: Nest) -> tf.Tensor:
        """Returns the sum over the leaves, float32 `[...]`."""
        leaves = tf.nest.flatten(action)
        return tf.add_n([d.log_prob(a) for d, a in zip(self.parts, leaves, strict=True)])

    def entropy(self) -> tf.Tensor:
        """Returns the sum over the leaves."""
        return tf.add_n([d.entropy() for d in self.parts])

    def kl_divergence(self, other: "Joint") -> tf.Tensor:
        """Returns the sum over the leaves."""
        pairs = zip(self.parts, other.parts, strict=True)
        return tf.add_n([p.kl_divergence(q) for p, q in pairs])

    def sample_and_log_prob(self, key: tf.Tensor) -> tuple[Nest, tf.Tensor]:
        """Draws a nest of actions and returns the sum of their log-probabilities."""
        keys = self._keys(key)
        drawn = [d.sample_and_log_prob(k) for d, k in zip(self.parts, keys, strict=True)]
        return self._pack([a for a, _ in drawn]), tf.add_n([p for _, p in drawn])
