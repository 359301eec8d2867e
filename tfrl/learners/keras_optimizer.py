"""Keras optimizers, new, legacy and of Keras 3, with the interface of `BoundOptimizer`."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import keras
from tfrl.learning.optimizers.bound import Slot

# The attribute by which the count of a Keras optimizer refers to it.
_OWNER = "_tfrl_keras_optimizer"


class KerasOptimizer:
    """A Keras optimizer, built for the variables that it trains.

    Attributes:
      optimizer: The Keras optimizer.
      slots: Its slots of each parameter.
    """

    def __init__(self, optimizer: Any, params: Sequence[tf.Variable]):
        """Creates the slots, before tracing; under a strategy, in its scope."""
        self.optimizer = optimizer = keras.converted(optimizer)
        self.slots = [Slot(*slot) for slot in keras.build_slots(optimizer, params)]
        # Keras' slots need the optimizer that holds them: `iterations` refers to it, see `over`.
        setattr(optimizer.iterations, _OWNER, self)

    def over(self, own: Mapping[str, tf.Variable]) -> "KerasOptimizer":
        """Returns the optimizer that owns the variable "iterations" in `own`."""
        return getattr(own["iterations"], _OWNER, self)

    @property
    def learning_rate(self) -> tf.Variable:
        """The variable that holds the rate of the next step."""
        return self.optimizer.learning_rate

    def logic(self) -> Any:
        """Returns everything except variables that its steps depend on."""
        return keras.optimizer_logic(self.optimizer)

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        """Takes one step with unmodified gradients; see `BoundOptimizer.apply`."""
        keras.apply_gradients(self.optimizer, list(zip(gradients, variables, strict=True)))

    def own_variables(self) -> dict[str, tf.Variable]:
        """Returns the variables that are not slots: counts, caches, the learning rate."""
        optimizer = self.optimizer
        listed = keras.optimizer_variables(optimizer)
        taken = {s.variable.ref() for s in self.slots}
        variables = {"iterations": optimizer.iterations, "learning_rate": optimizer.learning_rate}
        taken |= {v.ref() for v in variables.values()}
        # Some keep variables only as attributes, which `variables` does not list.
        attributes = vars(optimizer).items()
        named = [(k.lstrip("_"), v) for k, v in attributes if isinstance(v, tf.Variable)]
        for name, variable in [*named, *((v.name.rsplit(":", 1)[0], v) for v in listed)]:
            if variable.ref() not in taken:
                taken.add(variable.ref())
                variables[name] = variable
        return variables

    def unbound(self) -> Any:
        """Returns a Keras optimizer of the same settings, for other variables."""
        return keras.fresh(self.optimizer)
