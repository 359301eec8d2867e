"""The convolutional network of the DQN paper."""

import abc
import math
from collections.abc import Callable
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


class ImageTorso(Torso):
    """Convolutions over an image, and one dense layer; subclasses have the fields below.

    uint8 pixels are scaled to 0..1 here; other dtypes are not scaled.

    Attributes:
      hidden: The size of the dense layer.
      channels_first: Whether images come as [C, H, W].
      activation: The name of the activation.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    input_rank: ClassVar[int] = 3

    hidden: int
    channels_first: bool
    activation: str
    kernel_init: str
    kernel_scale: float

    def __post_init__(self) -> None:
        """Checks the names."""
        activation(self.activation)
        initializer(self.kernel_init)

    def output_size(self, spec: Nest) -> int:
        """Returns `hidden`."""
        return self.hidden

    def _init_conv(self, key: tf.Tensor, name: str, size: int, inputs: int, depth: int) -> Params:
        key = seeding.stream(key, name)
        return layers.init_conv(key, size, inputs, depth, self.kernel_init, self.kernel_scale)

    def _init_dense(self, key: tf.Tensor, inputs: int) -> Params:
        key = seeding.stream(key, "dense")
        return layers.init_dense(key, inputs, self.hidden, self.kernel_init, self.kernel_scale)

    @abc.abstractmethod
    def maps(
        self, params: Params, y: tf.Tensor, act: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the last feature maps `[..., H, W, C]` of scaled images `[..., H, W, C]`."""

    def apply(self, params: Params, x: tf.Tensor) -> tf.Tensor:
        """Returns float32 `[..., hidden]`."""
        stacked = params["dense"]["kernel"].shape.rank == 3
        y, restore = fold(tf.convert_to_tensor(x), 3, stacked)
        act = activation(self.activation)
        y = self.maps(params, layers.pixels(y, self.channels_first), act)
        return restore(act(layers.dense(params["dense"], flat_maps(y))))


@struct.logic_dataclass
class NatureCNN(ImageTorso):
    """Three convolutions and one dense layer, each with the activation.

    Source: Mnih et al. 2015, methods, https://www.nature.com/articles/nature14236.

    Attributes:
      hidden: The size of the dense layer.
      filters: (channels, kernel size, stride) of each convolution.
      channels_first: Whether images come as [C, H, W].
      activation: The name of the activation.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    hidden: int = 512
    filters: tuple[tuple[int, int, int], ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
    channels_first: bool = False
    activation: str = "relu"
    kernel_init: str = "orthogonal"
    kernel_scale: float = math.sqrt(2.0)

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"conv_0": {"kernel", "bias"}, ..., "dense": {"kernel", "bias"}}`."""
        height, width, channels = checked_image(spec, self.channels_first)
        params: Params = {}
        for i, (depth, size, stride) in enumerate(self.filters):
            name = f"conv_{i}"
            params[name] = self._init_conv(key, name, size, channels, depth)
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
            channels = depth
            if min(height, width) < 1:
                raise UserError(
                    "image",
                    expected="a size of at least 36 x 36 for the default filters",
                    got=f"shape {spec.shape}",
                    remedy="Give NatureCNN smaller filters, or use an MLP.",
                )
        params["dense"] = self._init_dense(key, height * width * channels)
        return params

    def maps(
        self, params: Params, y: tf.Tensor, act: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the last feature maps."""
        for i, (_, _, stride) in enumerate(self.filters):
            y = act(layers.conv(params[f"conv_{i}"], y, stride, "VALID"))
        return y


@struct.logic_dataclass
class ImpalaCNN(ImageTorso):
    """Sections of a convolution, a max-pooling and residual blocks; then one dense layer.

    Source: Espeholt et al. 2018, figure 3 (right), https://arxiv.org/abs/1802.01561.

    Attributes:
      hidden: The size of the dense layer.
      depths: The channels of each section.
      blocks: Residual blocks in a section.
      channels_first: Whether images come as [C, H, W].
      activation: The name of the activation.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    hidden: int = 256
    depths: tuple[int, ...] = (16, 32, 32)
    blocks: int = 2
    channels_first: bool = False
    activation: str = "relu"
    kernel_init: str = "orthogonal"
    kernel_scale: float = math.sqrt(2.0)

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"section_0": {"conv": ..., "block_0": {"conv_0", "conv_1"}}, "dense": ...}`."""
        height, width, channels = checked_image(spec, self.channels_first)
        params: Params = {}
        for i, depth in enumerate(self.depths):
            name = f"section_{i}"
            section = {"conv": self._init_conv(key, f"{name}/conv", 3, channels, depth)}
            for j in range(self.blocks):
                section[f"block_{j}"] = {
                    part: self._init_conv(key, f"{name}/block_{j}/{part}", 3, depth, depth)
                    for part in ("conv_0", "conv_1")
                }
            params[name] = section
            height, width, channels = -(-height // 2), -(-width // 2), depth
        params["dense"] = self._init_dense(key, height * width * channels)
        return params

    def maps(
        self, params: Params, y: tf.Tensor, act: Callable[[tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        """Returns the last feature maps."""
        for i in range(len(self.depths)):
            section = params[f"section_{i}"]
            y = layers.max_pool(layers.conv(section["conv"], y, 1, "SAME"), 3, 2)
            for j in range(self.blocks):
                block = section[f"block_{j}"]
                inner = layers.conv(block["conv_0"], act(y), 1, "SAME")
                y += layers.conv(block["conv_1"], act(inner), 1, "SAME")
        return act(y)
