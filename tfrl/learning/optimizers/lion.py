"""Lion: steps by the sign of an average of gradients."""

from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.learning.optimizers.core import Optimizer, check_decays, check_not_negative


@struct.logic_dataclass
class Lion(Optimizer):
    """Chen et al. 2023, https://arxiv.org/abs/2302.06675, algorithm 2.

      p = p - lr (sign(b1 m + (1 - b1) g) + weight_decay p),  m = b2 m + (1 - b2) g

    Attributes:
      beta_1: Weight of the average in the step direction.
      beta_2: Decay of the average.
      weight_decay: Relative decay of each parameter per step at a learning rate of 1.
    """

    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Checks every field."""
        check_decays(self, "beta_1", "beta_2")
        check_not_negative(self, "weight_decay")

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The average of gradients."""
        return ("m",)

    def _step(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        (m,) = slots
        beta_1, beta_2 = (tf.constant(x, param.dtype) for x in (self.beta_1, self.beta_2))
        direction = tf.sign(beta_1 * m + (1.0 - beta_1) * gradient)
        if self.weight_decay:
            direction += tf.constant(self.weight_decay, param.dtype) * param
        return param - rate * direction, (beta_2 * m + (1.0 - beta_2) * gradient,)
