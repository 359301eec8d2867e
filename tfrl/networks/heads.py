"""Policies and values: a torso and a linear head."""

import abc
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distributions import ActionDistribution, Distribution
from tfrl.networks import layers
from tfrl.networks.core import Nest, Network, Params, Torso, fold


def _init_head(key: tf.Tensor, name: str, size_in: int, size_out: int, scale: float) -> Params:
    return layers.init_dense(seeding.stream(key, name), size_in, size_out, "orthogonal", scale)


def _head(params: Params, x: tf.Tensor) -> tf.Tensor:
    flat, restore = fold(x, 1, params["kernel"].shape.rank == 3)
    return restore(layers.dense(params, flat))


class HeadedNetwork(Network):
    """A network whose output is computed from the features of a torso."""

    torso: Torso

    @staticmethod
    def head_rank(params: Params) -> int:
        """Returns the axes of a head's kernel: 2, and one for each axis of stacked parameters."""
        heads = (own for name, own in params.items() if name != "torso" and "kernel" in own)
        return next(heads)["kernel"].shape.rank  # type: ignore[no-any-return]

    @abc.abstractmethod
    def _output(self, params: Params, hidden: tf.Tensor) -> Any:
        """The output from features `[..., F]`."""

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[Any, Params]:
        """Returns the output with the torso in training mode, and the parameters after the call."""
        hidden, torso = self.torso.apply_training(params["torso"], x, key)
        return self._output(params, hidden), {**params, "torso": torso}

    @property
    def recurrent(self) -> bool:
        """Whether the torso is."""
        return self.torso.recurrent

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns that of the torso."""
        return self.torso.initial_carry(batch_size)

    def step(self, params: Params, x: Nest, carry: Nest = None) -> tuple[Any, Nest]:
        """Takes one step of an episode; see `Network.step`."""
        hidden, carry = self.torso.step(params["torso"], x, carry)
        return self._output(params, hidden), carry

    def unroll(
        self, params: Params, x: Nest, carry: Nest, starts: tf.Tensor, key: tf.Tensor | None
    ) -> tuple[Any, Params]:
        """Goes over sequences; see `Network.unroll`."""
        hidden, torso = self.torso.unroll(params["torso"], x, carry, starts, key)
        return self._output(params, hidden), {**params, "torso": torso}


@struct.logic_dataclass
class PolicyNetwork(HeadedNetwork):
    """pi(a | o): observations to a distribution over actions.

    Attributes:
      torso: Observations to features.
      distribution: Outputs to a distribution, see `tfrl.distributions.make_distribution`.
      head_scale: The gain of the head's orthogonal kernel; small, so that the first policy is
        nearly uniform.
    """

    torso: Torso
    distribution: ActionDistribution
    head_scale: float = 0.01

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"torso", "head", ["distribution"]}`."""
        size = self.torso.output_size(spec)
        params = {
            "torso": self.torso.init(seeding.stream(key, "torso"), spec),
            "head": _init_head(key, "head", size, self.distribution.num_outputs, self.head_scale),
        }
        own = self.distribution.init_params(seeding.stream(key, "distribution"))
        return {**params, "distribution": own} if own else params

    def apply(self, params: Params, x: Nest, mask: Nest = None) -> Distribution:
        """Returns the distribution at observations `[..., *spec shape]`.

        Args:
          params: As from `init`.
          x: A nest of observations.
          mask: Which actions are valid, see `ActionDistribution.build`.
        """
        return self._output(params, self.torso.apply(params["torso"], x), mask)

    def apply_training(
        self, params: Params, x: Nest, key: tf.Tensor, mask: Nest = None
    ) -> tuple[Distribution, Params]:
        """Returns the distribution with the torso in training mode; see `Network`."""
        hidden, torso = self.torso.apply_training(params["torso"], x, key)
        return self._output(params, hidden, mask), {**params, "torso": torso}

    def step(
        self, params: Params, x: Nest, carry: Nest = None, mask: Nest = None
    ) -> tuple[Distribution, Nest]:
        """Takes one step of an episode; see `Network.step`."""
        hidden, carry = self.torso.step(params["torso"], x, carry)
        return self._output(params, hidden, mask), carry

    def unroll(
        self,
        params: Params,
        x: Nest,
        carry: Nest,
        starts: tf.Tensor,
        key: tf.Tensor | None,
        mask: Nest = None,
    ) -> tuple[Distribution, Params]:
        """Goes over sequences; see `Network.unroll`."""
        hidden, torso = self.torso.unroll(params["torso"], x, carry, starts, key)
        return self._output(params, hidden, mask), {**params, "torso": torso}

    def _output(self, params: Params, hidden: tf.Tensor, mask: Nest = None) -> Distribution:
        outputs = _head(params["head"], hidden)
        return self.distribution.build(outputs, params.get("distribution"), mask)


@struct.logic_dataclass
class ValueNetwork(HeadedNetwork):
    """V(o): observations to one number, float32 `[...]`.

    Attributes:
      torso: Observations to features.
      head_scale: The gain of the head's orthogonal kernel.
    """

    torso: Torso
    head_scale: float = 1.0

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"torso", "head"}`."""
        return {
            "torso": self.torso.init(seeding.stream(key, "torso"), spec),
            "head": _init_head(key, "head", self.torso.output_size(spec), 1, self.head_scale),
        }

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns values `[...]`; there is no last axis of size 1."""
        return self._output(params, self.torso.apply(params["torso"], x))

    def _output(self, params: Params, hidden: tf.Tensor) -> tf.Tensor:
        return tf.squeeze(_head(params["head"], hidden), axis=-1)


@struct.logic_dataclass
class QNetwork(HeadedNetwork):
    """Q(o, .): observations to one value per discrete action, float32 `[..., num_actions]`.

    Attributes:
      torso: Observations to features.
      num_actions: How many actions.
      head_scale: The gain of the head's orthogonal kernel.
    """

    torso: Torso
    num_actions: int
    head_scale: float = 1.0

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"torso", "head"}`."""
        size = self.torso.output_size(spec)
        return {
            "torso": self.torso.init(seeding.stream(key, "torso"), spec),
            "head": _init_head(key, "head", size, self.num_actions, self.head_scale),
        }

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns values `[..., num_actions]`."""
        return self._output(params, self.torso.apply(params["torso"], x))

    def _output(self, params: Params, hidden: tf.Tensor) -> tf.Tensor:
        return _head(params["head"], hidden)


@struct.logic_dataclass
class DuelingQNetwork(HeadedNetwork):
    """Q(o, a) = V(o) + A(o, a) - mean_b A(o, b), float32 `[..., num_actions]`.

    Source: Wang et al. 2016, equation 9, https://arxiv.org/abs/1511.06581.

    Attributes:
      torso: Observations to features.
      num_actions: How many actions.
      head_scale: The gain of the heads' orthogonal kernels.
    """

    torso: Torso
    num_actions: int
    head_scale: float = 1.0

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"torso", "value", "advantage"}`."""
        size = self.torso.output_size(spec)
        return {
            "torso": self.torso.init(seeding.stream(key, "torso"), spec),
            "value": _init_head(key, "value", size, 1, self.head_scale),
            "advantage": _init_head(key, "advantage", size, self.num_actions, self.head_scale),
        }

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Returns values `[..., num_actions]`, whose mean over actions is V(o)."""
        return self._output(params, self.torso.apply(params["torso"], x))

    def _output(self, params: Params, hidden: tf.Tensor) -> tf.Tensor:
        value, advantage = _head(params["value"], hidden), _head(params["advantage"], hidden)
        return value + advantage - tf.reduce_mean(advantage, axis=-1, keepdims=True)
