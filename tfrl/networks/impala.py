"""The residual convolutional network of the IMPALA paper."""

import math
from typing import ClassVar

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.networks import layers
from tfrl.networks.conv import checked_image, flat_maps
from tfrl.networks.core import Nest, Params, Torso, fold
from tfrl.networks.layers import activation, initializer


@struct.logic_dataclass
class ImpalaCNN(Torso):
    """Sections of a convolution, a max-pooling and residual blocks; then one dense layer.

    Source: Espeholt et al. 2018, figure 3 (right), https://arxiv.org/abs/1802.01561.

    uint8 pixels are scaled to 0..1 here; other dtypes are taken as they are.

    Attributes:
      hidden: The size of the dense layer.
      depths: The channels of each section.
      blocks: Residual blocks in a section.
      channels_first: Whether images come as [C, H, W].
      activation: The name of the activation.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    input_rank: ClassVar[int] = 3

    hidden: int = 256
    depths: tuple[int, ...] = (16, 32, 32)
    blocks: int = 2
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

    def _init_conv(self, key: tf.Tensor, name: str, channels: int, depth: int) -> Params:
        key = seeding.stream(key, name)
        return layers.init_conv(key, 3, channels, depth, self.kernel_init, self.kernel_scale)

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"section_0": {"conv": ..., "block_0": {"conv_0", "conv_1"}}, "dense": ...}`."""
        height, width, channels = checked_image(spec, self.channels_first)
        params: Params = {}
        for i, depth in enumerate(self.depths):
            name = f"section_{i}"
            section = {"conv": self._init_conv(key, f"{name}/conv", channels, depth)}
            for j in range(self.blocks):
                section[f"block_{j}"] = {
                    part: self._init_conv(key, f"{name}/block_{j}/{part}", depth, depth)
                    for part in ("conv_0", "conv_1")
                }
            params[name] = section
            height, width, channels = -(-height // 2), -(-width // 2), depth
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
        for i in range(len(self.depths)):
            section = params[f"section_{i}"]
            y = layers.max_pool(layers.conv(section["conv"], y, 1, "SAME"), 3, 2)
            for j in range(self.blocks):
                block = section[f"block_{j}"]
                inner = layers.conv(block["conv_0"], act(y), 1, "SAME")
                y += layers.conv(block["conv_1"], act(inner), 1, "SAME")
        return restore(act(layers.dense(params["dense"], flat_maps(act(y)))))
