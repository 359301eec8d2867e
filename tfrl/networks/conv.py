"""The convolutional network of the DQN paper."""

import math
from typing import ClassVar

import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.errors import UserError
from tfrl.networks import layers
from tfrl.networks.core import Nest, Params, Torso, fold
from tfrl.networks.layers import activation, initializer


def checked_image(spec: Nest, channels_first: bool) -> tuple[int, int, int]:
    """Returns (H, W, C) of an image spec.

    Raises:
      UserError: If it is not one leaf of rank 3.
    """
    if not specs.is_spec(spec) or spec.shape.rank != 3:
        raise UserError(
            "spec of a convolutional network's input",
            expected="one image of shape [H, W, C], or [C, H, W] with channels_first=True",
            got=repr(spec),
            remedy="Choose the image with make_torso(obs_spec, obs_key=...), or use kind='mlp'.",
        )
    return layers.image_shape(spec.shape.as_list(), channels_first)


def flat_maps(y: tf.Tensor) -> tf.Tensor:
    """Returns feature maps `[..., H, W, C]` as `[..., H * W * C]`."""
    rank = y.shape.rank
    lead = [-1] if rank == 4 else [y.shape[0], -1]
    return tf.reshape(y, [*lead, y.shape[rank - 3 :].num_elements()])


@struct.logic_dataclass
class NatureCNN(Torso):
    """Three convolutions and one dense layer, each with the activation.

    Source: Mnih et al. 2015, methods, https://www.nature.com/articles/nature14236.

    uint8 pixels are scaled to 0..1 here; other dtypes are taken as they are.

    Attributes:
      hidden: The size of the dense layer.
      filters: (channels, kernel size, stride) of each convolution.
      channels_first: Whether images come as [C, H, W].
      activation: The name of the activation.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    input_rank: ClassVar[int] = 3

    hidden: int = 512
    filters: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    channels_first: bool = False
    activation: str = "relu"
    kernel_init: str = "orthogonal"
    kernel_scale: float = math.sqrt(2.0)

    def __post_init__(self) -> None:
        """Checks the names."""
        activation(self.activation)
        initializer(self.kernel_init)

    def output_size(self, spec: Nest) -> int:
        """Returns `hidden`."""
        return self.hidden

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"conv_0": {"kernel", "bias"}, ..., "dense": {"kernel", "bias"}}`."""
        height, width, channels = checked_image(spec, self.channels_first)
        params: Params = {}
        for i, (depth, size, stride) in enumerate(self.filters):
            name = f"conv_{i}"
            params[name] = layers.init_conv(
                seeding.stream(key, name),
                size,
                channels,
                depth,
                self.kernel_init,
                self.kernel_scale,
            )
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
            channels = depth
            if min(height, width) < 1:
                raise UserError(
                    "image",
                    expected="a size of at least 36 x 36 for the default filters",
                    got=f"shape {spec.shape}",
                    remedy="Give NatureCNN smaller filters, or use an MLP.",
                )
        params["dense"] = layers.init_dense(
            seeding.stream(key, "dense"),
            height * width * channels,
            self.hidden,
            self.kernel_init,
            self.kernel_scale,
        )
        return params

    def apply(self, params: Params, x: tf.Tensor) -> tf.Tensor:
        """Returns float32 `[..., hidden]`."""
        stacked = params["dense"]["kernel"].shape.rank == 3
        y, restore = fold(tf.convert_to_tensor(x), 3, stacked)
        y = layers.pixels(y, self.channels_first)
        act = activation(self.activation)
        for i, (_, _, stride) in enumerate(self.filters):
            y = act(layers.conv(params[f"conv_{i}"], y, stride, "VALID"))
        return restore(act(layers.dense(params["dense"], flat_maps(y))))
