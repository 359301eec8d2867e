"""An optimizer bound to its variables."""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learning.optimizers.core import Optimizer


@dataclasses.dataclass(frozen=True)
class Slot:
    """One variable that an optimizer keeps for one parameter.

    Attributes:
      name: Such as "m" and "v" of Adam.
      param: The parameter.
      variable: The optimizer's variable.
    """

    name: str
    param: tf.Variable
    variable: tf.Variable


class BoundOptimizer:
    """An `Optimizer` over some variables, with slots, a count and a learning rate as variables.

    Attributes:
      optimizer: The functions.
      learning_rate: float32 scalar, the rate of the next step.
      iterations: int64 scalar, the steps so far.
      slots: The variables of each parameter.
    """

    def __init__(
        self, optimizer: Optimizer, params: Sequence[tf.Variable], learning_rate: float = 3e-4
    ):
        """Makes the variables; under a strategy, in its scope.

        Args:
          optimizer: The functions.
          params: The variables that are trained.
          learning_rate: The rate of the first step.
        """
        self.optimizer = optimizer
        self._places = {p.ref(): i for i, p in enumerate(params)}
        start = optimizer.init(list(params))
        known = {"iterations", *optimizer.slot_names}
        if start.keys() != known:
            raise UserError(
                f"what {type(optimizer).__name__}.init returns",
                expected=f"exactly {sorted(known)}: iterations, and each of `slot_names`",
                got=sorted(start),
            )
        self.iterations = _variable("iterations", start["iterations"])
        self.learning_rate = _variable("learning_rate", tf.constant(learning_rate, tf.float32))
        self._slots = {
            name: [
                _variable(f"{name}/{_name(p)}", x) for p, x in zip(params, start[name], strict=True)
            ]
            for name in optimizer.slot_names
        }
        self.slots = [
            Slot(name, p, variables[i])
            for i, p in enumerate(params)
            for name, variables in self._slots.items()
        ]

    @classmethod
    def over(
        cls,
        optimizer: Optimizer,
        params: Sequence[tf.Variable],
        slots: Sequence[Slot],
        own: Mapping[str, tf.Variable],
    ) -> "BoundOptimizer":
        """Returns an optimizer over existing variables.

        Args:
          optimizer: The functions.
          params: The variables that are trained.
          slots: The slots of each variable.
          own: The variables "iterations" and "learning_rate".
        """
        bound = object.__new__(cls)
        bound.optimizer, bound.slots = optimizer, list(slots)
        bound.iterations, bound.learning_rate = own["iterations"], own["learning_rate"]
        bound._places = {p.ref(): i for i, p in enumerate(params)}
        by_name = {(s.name, s.param.ref()): s.variable for s in slots}
        bound._slots = {
            name: [by_name[name, p.ref()] for p in params] for name in optimizer.slot_names
        }
        return bound

    def logic(self) -> Optimizer:
        """Returns the logic of its steps, without values of variables."""
        return self.optimizer

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        """Takes one step with gradients of some or all of the variables.

        Under a strategy, call it in replica context with the same gradients on every replica.
        """
        places = [self._places[v.ref()] for v in variables]
        own = {name: [slots[i] for i in places] for name, slots in self._slots.items()}
        self.optimizer.update(
            list(gradients),
            {"iterations": self.iterations, **own},
            list(variables),
            self.learning_rate,
        )

    def own_variables(self) -> dict[str, tf.Variable]:
        """Returns the variables that are not slots, by name."""
        return {"iterations": self.iterations, "learning_rate": self.learning_rate}

    def unbound(self) -> Optimizer:
        """Returns the functions, for other variables."""
        return self.optimizer


def _variable(name: str, value: tf.Tensor) -> tf.Variable:
    return tf.Variable(
        value,
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _name(param: tf.Variable) -> str:
    return param.name.rsplit(":", 1)[0]
