"""RMSprop, with momentum and centring as options."""

from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.learning.optimizers.core import (
    Optimizer,
    check_decays,
    check_not_negative,
    fuses,
)


@struct.logic_dataclass
class RMSprop(Optimizer):
    """Hinton 2012, lecture 6e, https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf.

      v = rho v + (1 - rho) g^2,  a = rho a + (1 - rho) g
      b = momentum b + lr g / sqrt(v - [centered] a^2 + epsilon),  p = p - b

    Attributes:
      rho: Decay of the means.
      momentum: Fraction of the last step in the next one.
      epsilon: Under the root.
      centered: Whether to subtract the squared mean of gradients (Graves 2013,
        https://arxiv.org/abs/1308.0850, as in DQN).
    """

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    def __post_init__(self) -> None:
        """Checks every field."""
        check_decays(self, "rho", "momentum")
        check_not_negative(self, "epsilon")
        checks.boolean("RMSprop.centered", self.centered)

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The mean of squares, the last step and, if centred, the mean of gradients."""
        return ("velocity", "momentum", *(("average",) if self.centered else ()))

    def _step(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        velocity, step, *average = slots
        rho, momentum, epsilon = self._numbers(param)
        velocity += (tf.square(gradient) - velocity) * (1.0 - rho)
        denominator = velocity + epsilon
        if self.centered:
            average = [average[0] + (gradient - average[0]) * (1.0 - rho)]
            denominator -= tf.square(average[0])
        step = momentum * step + rate * gradient * tf.math.rsqrt(denominator)
        return param - step, (velocity, step, *average)

    def _step_in_place(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        if not fuses(rate):
            return super()._step_in_place(gradient, param, slots, rate, count)
        velocity, step, *average = slots
        rho, momentum, epsilon = self._numbers(param)
        numbers = {"lr": rate, "rho": rho, "momentum": momentum, "epsilon": epsilon}
        common = {"var": param.handle, "ms": velocity.handle, "mom": step.handle, **numbers}
        if self.centered:
            tf.raw_ops.ResourceApplyCenteredRMSProp(mg=average[0].handle, grad=gradient, **common)
        else:
            tf.raw_ops.ResourceApplyRMSProp(grad=gradient, **common)
        return param, tuple(slots)

    def _numbers(self, param: Any) -> tuple[tf.Tensor, ...]:
        numbers = (self.rho, self.momentum, self.epsilon)
        return tuple(tf.constant(x, param.dtype) for x in numbers)
