"""The network protocol, and its leading axes."""

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.errors import UserError

Nest = Any
Params = dict[str, Any]


class Network(abc.ABC):
    """Static logic of a network. Subclasses are `struct.logic_dataclass`es.

    Attributes:
      input_rank: The rank of one input without its leading axes: 1 for features, 3 for images.
    """

    input_rank: ClassVar[int] = 1

    @abc.abstractmethod
    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes parameters.

        Args:
          key: int32 [2].
          spec: The spec of one input, without leading axes.

        Returns:
          A nested dict of float32 tensors. In a dict of exactly the items "params" and "state",
          gradients do not train "state", see `split_leaves`.
        """

    @abc.abstractmethod
    def apply(self, params: Params, x: Nest) -> Any:
        """Computes the output for inputs `[..., *spec shape]`.

        Args:
          params: As from `init`, tensors or Variables; or stacked on a leading axis P, which `x`
            then has too.
          x: The inputs.
        """

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[Any, Params]:
        """Computes the output as a loss needs it, and the parameters after the call.

        Layers such as BatchNormalization and Dropout are in training mode. Networks with such
        layers override this method.

        Args:
          params: As for `apply`.
          x: The inputs.
          key: int32 [2], for layers that draw random numbers.

        Returns:
          The output, and parameters like `params`, with changes only in untrained leaves.
        """
        return self.apply(params, x), params

    # Memory; the defaults are for networks without memory.

    @property
    def recurrent(self) -> bool:
        """Whether the network has memory and so a carry."""
        return False

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the carry `[B, ...]` at the start of an episode; None without memory."""
        return None

    def step(self, params: Params, x: Nest, carry: Nest = None) -> tuple[Any, Nest]:
        """Takes one step of an episode.

        Args:
          params: As for `apply`.
          x: The inputs `[B, ...]`.
          carry: The carry before the step, or None without memory.

        Returns:
          The output, and the carry after the step.
        """
        return self.apply(params, x), carry

    def unroll(
        self, params: Params, x: Nest, carry: Nest, starts: tf.Tensor, key: tf.Tensor | None
    ) -> tuple[Any, Params]:
        """Computes the outputs of sequences for a loss, see `apply_training`.

        Args:
          params: As for `apply`, not stacked.
          x: The inputs `[T, B, ...]`.
          carry: The carry `[B, ...]` before the first step, or None without memory.
          starts: bool `[T, B]`, where an input is the first of an episode.
          key: int32 [2], for layers that draw random numbers; None for layers in inference mode.

        Returns:
          The output `[T, B, ...]`, and the parameters after the call.
        """
        if key is None:
            return self.apply(params, x), params
        return self.apply_training(params, x, key)


class Torso(Network):
    """A network whose output is one axis of features `[..., output_size]`."""

    @abc.abstractmethod
    def output_size(self, spec: Nest) -> int:
        """Returns the number of output features for inputs of `spec`."""


def split_leaves(params: Nest) -> tuple[list[Any], list[Any]]:
    """Splits the leaves of parameters into trained and untrained ones.

    Untrained leaves are under "state" in a dict of exactly the items "params" and "state", such as
    the moving statistics of a `KerasNetwork`.

    Args:
      params: A nest of tensors or Variables.

    Returns:
      The trained and the untrained leaves, each in the order of `tf.nest.flatten`.
    """
    trains = tf.nest.flatten(_trains(params))
    pairs = list(zip(tf.nest.flatten(params), trains, strict=True))
    return [leaf for leaf, t in pairs if t], [leaf for leaf, t in pairs if not t]


def _trains(params: Nest) -> Nest:
    if isinstance(params, tuple | list):
        return [_trains(part) for part in params]
    if not isinstance(params, Mapping):
        return tf.nest.map_structure(lambda _: True, params)
    trains = {name: _trains(part) for name, part in params.items()}
    if set(params) == {"params", "state"}:
        trains["state"] = tf.nest.map_structure(lambda _: False, params["state"])
    return trains


def init_population(init: Callable[..., Params], key: tf.Tensor, num: int, *specs: Nest) -> Params:
    """Makes the stacked parameters of `num` members, leaves `[num, ...]`.

    Member i is `init(fold_in(key, i), *specs)`, whatever the number of members.

    Args:
      init: A network's `init`.
      key: int32 [2].
      num: Number of members.
      *specs: Arguments of `init` after the key.
    """
    return struct.stack([init(seeding.fold_in(key, i), *specs) for i in range(num)])


def fold(
    x: tf.Tensor, event_rank: int, stacked: bool
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Merges the leading axes into one, or into two if the first is a population's.

    Args:
      x: `[..., *event]`.
      event_rank: The rank of the event.
      stacked: Whether the first axis is that of a population.

    Returns:
      `[N, *event]` or `[P, N, *event]`, and a function that restores the leading axes of `x` in an
      output `[N, F]` or `[P, N, F]`.
    """
    lead = x.shape.rank - event_rank
    kept = 1 if stacked else 0
    if lead < kept:
        raise UserError(
            "network input",
            expected="a leading population axis, since the parameters are stacked",
            got=f"shape {x.shape}",
            remedy="Stack the inputs too, or use one member's parameters.",
        )
    if lead == kept + 1:
        return x, lambda y: y
    static, shape = x.shape[:lead], None
    if not static.is_fully_defined():
        shape = tf.shape(x)[:lead]
    head = [static[0]] if stacked else []
    flat = tf.reshape(x, [*head, -1, *x.shape[lead:]])

    def restore(y: tf.Tensor) -> tf.Tensor:
        rest = y.shape[kept + 1 :]
        if shape is None:
            return tf.reshape(y, static + rest)
        return tf.ensure_shape(tf.reshape(y, tf.concat([shape, rest], 0)), static + rest)

    return flat, restore
