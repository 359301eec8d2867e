"""Adam, and Adam with decoupled weight decay."""

from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.learning.optimizers.core import (
    Optimizer,
    check_decays,
    check_not_negative,
    fuses,
)


@struct.logic_dataclass
class Adam(Optimizer):
    """Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, with epsilon as in their section 2.

      m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
      p = p - lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon)

    Attributes:
      beta_1: Decay of the mean of gradients.
      beta_2: Decay of the mean of their squares.
      epsilon: Added to the root; 1e-5 as in the PPO baselines.
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Checks every field."""
        check_decays(self, "beta_1", "beta_2")
        check_not_negative(self, "epsilon")

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The means of gradients and of their squares."""
        return ("m", "v")

    def _step(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        m, v = slots
        beta_1, beta_2, epsilon = self._numbers(param)
        alpha = rate * tf.sqrt(1.0 - tf.pow(beta_2, count)) / (1.0 - tf.pow(beta_1, count))
        m += (gradient - m) * (1.0 - beta_1)
        v += (tf.square(gradient) - v) * (1.0 - beta_2)
        return param - alpha * m / (tf.sqrt(v) + epsilon), (m, v)

    def _step_in_place(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        if not fuses(rate, count):
            return super()._step_in_place(gradient, param, slots, rate, count)
        m, v = slots
        beta_1, beta_2, epsilon = self._numbers(param)
        tf.raw_ops.ResourceApplyAdam(
            var=param.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=tf.pow(beta_1, count),
            beta2_power=tf.pow(beta_2, count),
            lr=rate,
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=gradient,
        )
        return param, (m, v)

    def _numbers(self, param: Any) -> tuple[tf.Tensor, ...]:
        numbers = (self.beta_1, self.beta_2, self.epsilon)
        return tuple(tf.constant(x, param.dtype) for x in numbers)


@struct.logic_dataclass
class AdamW(Adam):
    """Adam after `p = p - lr weight_decay p`.

    Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101, algorithm 2.

    Attributes:
      weight_decay: Relative decay of each parameter per step at a learning rate of 1.
    """

    weight_decay: float = 4e-3

    def __post_init__(self) -> None:
        """Checks every field."""
        super().__post_init__()
        check_not_negative(self, "weight_decay")

    def _step(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        return super()._step(gradient, self._decayed(param, rate), slots, rate, count)

    def _step_in_place(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        if fuses(rate, count):  # otherwise `_step` does it
            param.assign(self._decayed(param, rate))
        return super()._step_in_place(gradient, param, slots, rate, count)

    def _decayed(self, param: Any, rate: tf.Tensor) -> tf.Tensor:
        return param - rate * tf.constant(self.weight_decay, param.dtype) * param
