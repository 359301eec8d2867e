"""Keras optimizers, new and legacy, behind the names of `BoundOptimizer`.

The only module that knows how they keep their variables.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl.learning.optimizers.bound import Slot

_LEGACY = tf.keras.optimizers.legacy.Optimizer
# The attribute by which the count of a Keras optimizer refers to it.
_OWNER = "_tfrl_keras_optimizer"


class KerasOptimizer:
    """A Keras optimizer, built for the variables that it trains.

    Attributes:
      optimizer: Keras' own.
      slots: What it keeps for each parameter.
    """

    def __init__(self, optimizer: Any, params: Sequence[tf.Variable]):
        """Makes the slots, before anything is traced; under a strategy, in its scope."""
        self.optimizer = optimizer
        self.slots = _build(optimizer, params)
        # Keras' slots are of no use without the object that holds them: a state of variables leads
        # back to it, see `over`.
        setattr(optimizer.iterations, _OWNER, self)

    def over(self, own: Mapping[str, tf.Variable]) -> "KerasOptimizer":
        """Returns the optimizer of these settings that "iterations" among `own` belongs to."""
        return getattr(own["iterations"], _OWNER, self)

    @property
    def learning_rate(self) -> tf.Variable:
        """The variable that holds the rate of the next step."""
        return self.optimizer.learning_rate

    def logic(self) -> Any:
        """Returns what its steps depend on beside the values of variables."""
        config = self.optimizer.get_config()
        return type(self.optimizer), {k: v for k, v in config.items() if k != "learning_rate"}

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        """Takes one step with gradients as they are; see `BoundOptimizer.apply`."""
        pairs = list(zip(gradients, variables, strict=True))
        if is_legacy(self.optimizer):
            self.optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
        else:
            self.optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)

    def own_variables(self) -> dict[str, tf.Variable]:
        """Returns the variables that are no slots: counts, caches, the learning rate."""
        optimizer = self.optimizer
        listed = optimizer.variables
        listed = listed() if callable(listed) else listed
        taken = {s.variable.ref() for s in self.slots}
        found = {"iterations": optimizer.iterations, "learning_rate": optimizer.learning_rate}
        taken |= {v.ref() for v in found.values()}
        # Some keep variables as attributes only, which `variables` does not list.
        attributes = vars(optimizer).items()
        named = [(k.lstrip("_"), v) for k, v in attributes if isinstance(v, tf.Variable)]
        for name, variable in [*named, *((v.name.rsplit(":", 1)[0], v) for v in listed)]:
            if variable.ref() not in taken:
                taken.add(variable.ref())
                found[name] = variable
        return found

    def unbound(self) -> Any:
        """Returns a Keras optimizer of the same settings, for other variables."""
        return fresh(self.optimizer)


def is_keras(optimizer: Any) -> bool:
    """Whether something is a Keras optimizer, new or legacy."""
    return isinstance(optimizer, _LEGACY | tf.keras.optimizers.Optimizer)


def is_legacy(optimizer: Any) -> bool:
    """Whether a Keras optimizer is of the class before Keras 2.11."""
    return isinstance(optimizer, _LEGACY)


def fresh(optimizer: Any) -> Any:
    """Returns a Keras optimizer of the same settings that has not been used."""
    return type(optimizer).from_config(optimizer.get_config())


def is_used(optimizer: Any) -> bool:
    """Whether a Keras optimizer has been built for variables."""
    if is_legacy(optimizer):
        return bool(optimizer.variables())
    return bool(getattr(optimizer, "_built", False))


def own_rate(optimizer: Any) -> Any:
    """Returns what a Keras optimizer holds as its rate: a number, a variable or a schedule."""
    if is_legacy(optimizer):
        return optimizer._hyper.get("learning_rate")
    return optimizer._learning_rate


def _build(optimizer: Any, params: Sequence[tf.Variable]) -> list[Slot]:
    if is_legacy(optimizer):
        optimizer._create_all_weights(params)  # the legacy class's own name for build
        names = optimizer.get_slot_names()
        return [Slot(n, p, optimizer.get_slot(p, n)) for p in params for n in names]
    with _recorded(optimizer) as slots:
        optimizer.build(list(params))
    return slots


@contextlib.contextmanager
def _recorded(optimizer: Any) -> Iterator[list[Slot]]:
    """Takes notes of `add_variable_from_reference`, by which every new optimizer adds slots."""
    add = optimizer.add_variable_from_reference
    slots: list[Slot] = []

    def add_and_note(model_variable: Any, variable_name: str, *args: Any, **kwargs: Any) -> Any:
        variable = add(model_variable, variable_name, *args, **kwargs)
        slots.append(Slot(variable_name, model_variable, variable))
        return variable

    optimizer.__dict__["add_variable_from_reference"] = add_and_note
    try:
        yield slots
    finally:
        del optimizer.__dict__["add_variable_from_reference"]
