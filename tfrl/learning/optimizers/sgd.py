"""Gradient descent, with momentum and Nesterov momentum as options."""

from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.learning.optimizers.core import Optimizer, check_decays, fuses


@struct.logic_dataclass
class SGD(Optimizer):
    """Stochastic gradient descent.

      b = momentum b - lr g,  p = p + b  (Nesterov: p = p + momentum b - lr g)

    Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13.html, equations 1 to 4.

    Attributes:
      momentum: Fraction of the last step in the next one.
      nesterov: Whether to use Nesterov momentum.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Checks every field."""
        check_decays(self, "momentum")
        if checks.boolean("SGD.nesterov", self.nesterov) and not self.momentum:
            raise UserError(
                "SGD.nesterov",
                expected="False without momentum",
                got="True with momentum 0",
                remedy="Set both: SGD(momentum=0.9, nesterov=True).",
            )

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The last step, if there is momentum."""
        return ("momentum",) if self.momentum else ()

    def _step(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        if not self.momentum:
            return param - rate * gradient, ()
        (step,) = slots
        momentum = tf.constant(self.momentum, param.dtype)
        step = momentum * step - rate * gradient
        moved = momentum * step - rate * gradient if self.nesterov else step
        return param + moved, (step,)

    def _step_in_place(self, gradient: Any, param: Any, slots: Any, rate: Any, count: Any) -> Any:
        if not fuses(rate):
            return super()._step_in_place(gradient, param, slots, rate, count)
        if not self.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=param.handle, alpha=rate, delta=gradient)
            return param, ()
        (step,) = slots
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=param.handle,
            accum=step.handle,
            lr=rate,
            grad=gradient,
            momentum=tf.constant(self.momentum, param.dtype),
            use_nesterov=self.nesterov,
        )
        return param, (step,)
