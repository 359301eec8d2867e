"""The torso of a critic Q(o, a): an encoder of observations, then a body that has the action."""

import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.networks.core import Nest, Params, Torso
from tfrl.networks.mlp import features


@struct.logic_dataclass
class StateActionTorso(Torso):
    """Encodes the observation, then applies a body to the features and the action together.

    It takes the tuple (observation, action); the action is any nest of float vectors.

    Attributes:
      encoder: Observations to features: `make_torso(obs_spec)` for images, with `hidden=()` for
        anything flat, which then goes into the body as it is.
      body: Features and action to features.
    """

    encoder: Torso
    body: Torso

    def _body_spec(self, spec: Nest) -> tf.TensorSpec:
        obs, action = spec
        return tf.TensorSpec([self.encoder.output_size(obs) + specs.flat_dim(action)], tf.float32)

    def output_size(self, spec: Nest) -> int:
        """Returns that of the body."""
        return self.body.output_size(self._body_spec(spec))

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"encoder", "body"}`.

        Args:
          key: int32 [2].
          spec: The tuple (observation spec, action spec).
        """
        return {
            "encoder": self.encoder.init(seeding.stream(key, "encoder"), spec[0]),
            "body": self.body.init(seeding.stream(key, "body"), self._body_spec(spec)),
        }

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns the body's output for (observations, actions) `[..., *spec shape]`."""
        obs, action = x
        hidden = self.encoder.apply(params["encoder"], obs)
        return self.body.apply(params["body"], features((hidden, action)))

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[tf.Tensor, Params]:
        """Returns the output with both parts in training mode, and the parameters after."""
        obs, action = x
        keys = seeding.streams(key, ("encoder", "body"))
        hidden, encoder = self.encoder.apply_training(params["encoder"], obs, keys["encoder"])
        y, body = self.body.apply_training(params["body"], features((hidden, action)), keys["body"])
        return y, {"encoder": encoder, "body": body}
