"""Multi-layer perceptrons."""

import math

import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.errors import UserError
from tfrl.networks import layers
from tfrl.networks.core import Nest, Params, Torso, fold
from tfrl.networks.layers import activation, initializer


def feature_size(spec: Nest) -> int:
    """Returns the size of the concatenated features of a nest of vectors.

    Raises:
      UserError: If a leaf is not of rank 1; the message has its path.
    """
    for path, leaf in struct.paths(spec).items():
        if leaf.shape.rank != 1:
            raise UserError(
                f"spec {path} of an MLP's input",
                expected="rank 1",
                got=f"shape {leaf.shape}",
                remedy="Use tfrl.networks.make_torso(obs_spec), which flattens and encodes.",
            )
    return specs.flat_dim(spec)


def features(x: Nest) -> tf.Tensor:
    """Returns float32 `[..., F]`: the leaves `[..., F_i]` concatenated in `tf.nest` order."""
    leaves = [tf.cast(leaf, tf.float32) for leaf in tf.nest.flatten(x)]
    return leaves[0] if len(leaves) == 1 else tf.concat(leaves, axis=-1)


@struct.logic_dataclass
class Linear(Torso):
    """x W + b.

    Attributes:
      size: Number of outputs.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    size: int
    kernel_init: str = "orthogonal"
    kernel_scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks the names."""
        initializer(self.kernel_init)

    def output_size(self, spec: Nest) -> int:
        """Returns `size`."""
        return self.size

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"kernel": [in, size], "bias": [size]}`."""
        return layers.init_dense(
            key, feature_size(spec), self.size, self.kernel_init, self.kernel_scale
        )

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns float32 `[..., size]`."""
        flat, restore = fold(features(x), 1, params["kernel"].shape.rank == 3)
        return restore(layers.dense(params, flat))


@struct.logic_dataclass
class MLP(Torso):
    """Dense layers with an activation after each. A nest of vectors is concatenated first.

    Attributes:
      hidden: The sizes of the layers.
      activation: The name of the activation.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
      layer_norm: Normalise before each activation.
      activate_final: Normalise and activate after the last layer too.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    kernel_init: str = "orthogonal"
    kernel_scale: float = math.sqrt(2.0)
    layer_norm: bool = False
    activate_final: bool = True

    def __post_init__(self) -> None:
        """Checks sizes and names."""
        checks.sizes("MLP.hidden", self.hidden)
        activation(self.activation)
        initializer(self.kernel_init)

    def output_size(self, spec: Nest) -> int:
        """Returns the size of the last layer."""
        return self.hidden[-1] if self.hidden else feature_size(spec)

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"layer_0": {"kernel", "bias", ["norm"]}, ...}`."""
        params: Params = {}
        size_in = feature_size(spec)
        for i, size in enumerate(self.hidden):
            name = f"layer_{i}"
            params[name] = layers.init_dense(
                seeding.stream(key, name), size_in, size, self.kernel_init, self.kernel_scale
            )
            if self.layer_norm and self._activated(i):
                params[name]["norm"] = layers.init_norm(size)
            size_in = size
        return params

    def _activated(self, layer: int) -> bool:
        return self.activate_final or layer + 1 < len(self.hidden)

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns float32 `[..., hidden[-1]]`."""
        y = features(x)
        if not self.hidden:
            return y
        y, restore = fold(y, 1, params["layer_0"]["kernel"].shape.rank == 3)
        act = activation(self.activation)
        for i in range(len(self.hidden)):
            layer = params[f"layer_{i}"]
            y = layers.dense(layer, y)
            if self._activated(i):
                y = act(layers.layer_norm(layer["norm"], y) if self.layer_norm else y)
        return restore(y)
