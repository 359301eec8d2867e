"""Multiplies rewards by a number."""

import tensorflow as tf

from tfrl import struct
from tfrl.envs.wrappers.base import RewardWrapper, require_number


@struct.logic_dataclass
class RewardScale(RewardWrapper):
    """Multiplies every reward by `scale`; on either side of the autoreset.

    Attributes:
      env: An environment.
      scale: The factor.
    """

    scale: float

    def __post_init__(self) -> None:
        """Checks the factor."""
        require_number("RewardScale.scale", self.scale)

    def pay(self, reward: tf.Tensor) -> tf.Tensor:
        """Scales rewards [B]."""
        return reward * self.scale
