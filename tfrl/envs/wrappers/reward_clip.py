"""Clips rewards to a range."""

import tensorflow as tf

from tfrl import struct
from tfrl.envs.wrappers.base import RewardWrapper, require_number


@struct.logic_dataclass
class RewardClip(RewardWrapper):
    """Clips every reward to [low, high]; on either side of the autoreset.

    Attributes:
      env: An environment.
      low: Smallest reward.
      high: Largest reward.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        """Checks the range."""
        require_number("RewardClip.low", self.low)
        require_number("RewardClip.high", self.high, above=self.low)

    def pay(self, reward: tf.Tensor) -> tf.Tensor:
        """Clips rewards [B]."""
        return tf.clip_by_value(reward, self.low, self.high)
