"""The joint distribution over a nest of actions."""

from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distributions.core import Distribution

Nest = Any


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
