"""The deterministic policy of TD3 and DDPG."""

from typing import Any

import tensorflow as tf

from tfrl import networks, seeding, struct
from tfrl.agents.off_policy.unit_actions import UnitActions
from tfrl.types import Nest


@struct.logic_dataclass
class DeterministicPolicy(networks.Network):
    """mu(o) = tanh(head(torso(o))), a vector in [-1, 1].

    Attributes:
      torso: Observations to features.
      size: The length of the vector.
      head_scale: The gain of the head's orthogonal kernel; small, so that initial actions are near
        0, where tanh is not flat.
    """

    torso: networks.Torso
    size: int
    head_scale: float = 0.01

    def _head(self) -> networks.Linear:
        return networks.Linear(size=self.size, kernel_scale=self.head_scale)

    def init(self, key: tf.Tensor, spec: Nest) -> dict[str, Any]:
        """Makes `{"torso", "head"}`."""
        keys = seeding.streams(key, ("torso", "head"))
        features = tf.TensorSpec([self.torso.output_size(spec)], tf.float32)
        return {
            "torso": self.torso.init(keys["torso"], spec),
            "head": self._head().init(keys["head"], features),
        }

    def apply(self, params: dict[str, Any], x: Nest) -> tf.Tensor:
        """Returns vectors, float32 `[..., size]`."""
        hidden = self.torso.apply(params["torso"], x)
        return tf.tanh(self._head().apply(params["head"], hidden))

    def apply_training(
        self, params: dict[str, Any], x: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Returns vectors with the torso in training mode, and the parameters after the call."""
        hidden, torso = self.torso.apply_training(params["torso"], x, key)
        return tf.tanh(self._head().apply(params["head"], hidden)), {**params, "torso": torso}


@struct.logic_dataclass
class WholePolicy(networks.Network):
    """Adapts a network of actions within bounds to vectors in [-1, 1].

    Attributes:
      network: Observations to actions of the spec.
      unit_actions: The map between both.
    """

    network: networks.Network
    unit_actions: UnitActions

    def init(self, key: tf.Tensor, spec: Nest) -> dict[str, Any]:
        """Makes the network's parameters."""
        return self.network.init(key, spec)

    def apply(self, params: dict[str, Any], x: Nest) -> tf.Tensor:
        """Returns vectors, float32 `[..., size]`."""
        return self.unit_actions.to_unit(self.network.apply(params, x))

    def apply_training(
        self, params: dict[str, Any], x: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, Any]]:
        """Returns vectors in training mode, and the parameters after the call."""
        action, after = self.network.apply_training(params, x, key)
        return self.unit_actions.to_unit(action), after
