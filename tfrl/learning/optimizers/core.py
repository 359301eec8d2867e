"""The interface of optimizers: `init` and `update` over nests of parameters."""

import abc
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.types import Nest

# {"iterations": int64, slot name: nest like the parameters}
Slots = dict[str, Any]


@struct.logic_dataclass
class Optimizer(struct.Struct, abc.ABC):
    """Steps of gradient descent as functions of parameters and slots.

    tf.Variables are updated in place, by TensorFlow's fused kernel if there is one; for tensors new
    values are returned. Results equal those of the Keras optimizers of the same names to 1e-6, for
    Adam those of Keras' legacy class, since the newer one rounds 1 - beta_2 otherwise.

    A population has a leading axis: parameters `[P, ...]`, with a learning rate `[P]` and
    `iterations` `[P]` if they differ between members.

    A subclass names its slots and defines one leaf's step.
    """

    @property
    @abc.abstractmethod
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots of each leaf, of the leaf's shape."""

    def init(self, params: Nest) -> Slots:
        """Returns the slots before the first step.

        Args:
          params: Tensors or tf.Variables of floating point.

        Returns:
          `{"iterations": int64 scalar, slot name: zeros with the structure of params}`, tensors.
        """
        zeros = {
            name: tf.nest.map_structure(lambda p: tf.zeros(p.shape, p.dtype), params)
            for name in self.slot_names
        }
        return {"iterations": tf.constant(0, tf.int64), **zeros}

    def update(
        self, gradients: Nest, slots: Slots, params: Nest, learning_rate: Any
    ) -> tuple[Nest, Slots]:
        """Takes one step.

        Args:
          gradients: A nest like params.
          slots: As from `init`; variables if params are variables.
          params: Tensors, or tf.Variables, which change in place.
          learning_rate: float32 scalar, or `[P]` for params of a leading axis P.

        Returns:
          `(params, slots)` after the step; the same objects if they are variables.

        Raises:
          UserError: For gradients of another structure than params, and for None among them.
        """
        leaves = tf.nest.flatten(params)
        grads = _checked(gradients, params)
        own = [tf.nest.flatten(slots[name]) for name in self.slot_names]
        count = tf.convert_to_tensor(slots["iterations"]) + 1
        learning_rate = tf.convert_to_tensor(learning_rate)
        stepped, kept = [], []
        for i, (param, gradient) in enumerate(zip(leaves, grads, strict=True)):
            of_leaf = tuple(s[i] for s in own)
            step = self._step_in_place if isinstance(param, tf.Variable) else self._step
            rate = _beside(tf.cast(learning_rate, param.dtype), param)
            number = _beside(tf.cast(count, param.dtype), param)
            param, of_leaf = step(gradient, param, of_leaf, rate, number)
            stepped.append(param)
            kept.append(of_leaf)
        after = {
            name: tf.nest.pack_sequence_as(slots[name], [k[j] for k in kept])
            for j, name in enumerate(self.slot_names)
        }
        iterations = slots["iterations"]
        if isinstance(iterations, tf.Variable):
            iterations.assign(count)
        else:
            iterations = count
        return tf.nest.pack_sequence_as(params, stepped), {"iterations": iterations, **after}

    @abc.abstractmethod
    def _step(
        self,
        gradient: tf.Tensor,
        param: tf.Tensor,
        slots: Sequence[tf.Tensor],
        rate: tf.Tensor,
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Returns a leaf and its slots after a step.

        Args:
          gradient: The gradient of the leaf.
          param: The leaf.
          slots: In the order of `slot_names`.
          rate: The learning rate, a scalar or `[P, 1, ...]`.
          count: The number of this step, from 1; a scalar or `[P, 1, ...]`.
        """

    def _step_in_place(
        self,
        gradient: tf.Tensor,
        param: tf.Variable,
        slots: Sequence[tf.Variable],
        rate: tf.Tensor,
        count: tf.Tensor,
    ) -> tuple[tf.Variable, tuple[tf.Variable, ...]]:
        """Changes a variable and its slots; a subclass may have a fused kernel."""
        values = tuple(map(tf.convert_to_tensor, slots))
        stepped, after = self._step(gradient, tf.convert_to_tensor(param), values, rate, count)
        for variable, value in zip((param, *slots), (stepped, *after), strict=True):
            variable.assign(value)
        return param, tuple(slots)


def check_decays(optimizer: Optimizer, *names: str) -> None:
    """Raises a UserError unless fields are at least 0 and below 1."""
    for name in names:
        what = f"{type(optimizer).__name__}.{name}"
        checks.number(what, getattr(optimizer, name), 0, 1, below=True)


def check_not_negative(optimizer: Optimizer, *names: str) -> None:
    """Raises a UserError unless fields are at least 0."""
    for name in names:
        checks.number(f"{type(optimizer).__name__}.{name}", getattr(optimizer, name), 0)


def fuses(*numbers: tf.Tensor) -> bool:
    """Whether a fused kernel supports these rates and counts, i.e. all are scalars."""
    return all(number.shape.rank == 0 for number in numbers)


def _checked(gradients: Nest, params: Nest) -> list[Any]:
    """Returns the leaves of gradients that fit params."""
    wanted, given = struct.paths(params), struct.paths(gradients)
    if wanted.keys() != given.keys():
        raise UserError(
            "gradients",
            expected=f"a nest like params, with the leaves {', '.join(wanted)}",
            got=", ".join(given) or "none",
            remedy="Instead of None for params that a loss does not use, compute them with "
            "unconnected_gradients=tf.UnconnectedGradients.ZERO.",
        )
    return tf.nest.flatten(gradients)


def _beside(number: tf.Tensor, param: Any) -> tf.Tensor:
    """A number `[P]` as `[P, 1, ...]`, to multiply a leaf `[P, ...]`; a scalar unchanged."""
    if number.shape.rank == 0:
        return number
    return tf.reshape(number, [-1] + [1] * (param.shape.rank - 1))
