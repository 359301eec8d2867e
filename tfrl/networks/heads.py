"""Policies and values: a torso and a linear head."""

import abc
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.distributions import ActionDistribution, Distribution
from tfrl.errors import UserError
from tfrl.networks import layers
from tfrl.networks.core import Nest, Network, Params, Torso, fold, split_leaves


def _init_head(key: tf.Tensor, name: str, size_in: int, size_out: int, scale: float) -> Params:
    return layers.init_dense(seeding.stream(key, name), size_in, size_out, "orthogonal", scale)


def _head(params: Params, x: tf.Tensor) -> tf.Tensor:
    flat, restore = fold(x, 1, params["kernel"].shape.rank == 3)
    return restore(layers.dense(params, flat))


class HeadedNetwork(Network):
    """A network with an output head on the features of a torso."""

    torso: Torso

    @staticmethod
    def head_rank(params: Params) -> int:
        """Returns the rank of a head's kernel: 2, plus the axes of stacked parameters."""
        heads = (own for name, own in params.items() if name != "torso" and "kernel" in own)
        return next(heads)["kernel"].shape.rank

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
      head_scale: The gain of the head's orthogonal kernel; small, for a nearly uniform initial
        policy.
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
          mask: Mask of valid actions, see `ActionDistribution.build`.
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
      num_actions: Number of actions.
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
      num_actions: Number of actions.
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


_RULES = ("auto", "batched", "unstacked")


def resolve_rule(rule: str) -> str:
    """Returns "batched" or "unstacked"; "auto" is unstacked unless there is a GPU or TPU.

    On a CPU n plain matmuls are a quarter to a third faster than one batched matmul; on
    accelerators one large operation is faster. The choice is made at tracing.
    """
    if rule != "auto":
        return rule
    accelerators = [*tf.config.list_physical_devices("GPU"), *tf.config.list_logical_devices("TPU")]
    return "batched" if accelerators else "unstacked"


@struct.logic_dataclass
class CriticEnsemble(Network, struct.Struct):
    """n independent Q(o, a), float32 `[n, ...]`, with parameters stacked `[n, ...]`.

    With `num_actions` they are n independent Q(o, .), float32 `[n, ..., num_actions]`.

    With a population, parameters are `[P, n, ...]`, inputs `[P, ...]` and values `[P, n, ...]`.

    Attributes:
      torso: Takes the tuple (observation, action), or with `num_actions` the observation. An MLP
        concatenates vectors; use make_torso with the tuple of specs for other inputs. None if there
        is a `network`.
      num_critics: n.
      num_actions: The number of discrete actions of each critic; None for critics with the action
        as input.
      head_scale: The gain of the heads' orthogonal kernels.
      apply_rule: "unstacked" (n plain networks), "batched" (one network of batched matmuls), with
        equal values up to rounding, or "auto" (the faster on the device).
      network: A whole critic instead of a torso, such as a `QNetwork` of quantiles. It is applied
        unstacked and does not support populations.
    """

    torso: Torso | None = None
    num_critics: int = 2
    num_actions: int | None = None
    head_scale: float = 1.0
    apply_rule: str = "auto"
    network: Network | None = None

    def __post_init__(self) -> None:
        """Checks the rule, and that exactly one of torso and network is set."""
        if (self.torso is None) == (self.network is None):
            raise UserError(
                "CriticEnsemble",
                expected="a torso, or a whole network",
                got="both" if self.network else "neither",
                remedy="Pass CriticEnsemble(torso=MLP(hidden=(256, 256))).",
            )
        checks.one_of("apply_rule", self.apply_rule, _RULES)

    @property
    def member(self) -> Network:
        """The network of one critic."""
        if self.network is not None:
            return self.network
        torso: Any = self.torso
        if self.num_actions is None:
            return ValueNetwork(torso=torso, head_scale=self.head_scale)
        return QNetwork(torso=torso, num_actions=self.num_actions, head_scale=self.head_scale)

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes stacked parameters, critic i from `fold_in(key, i)`.

        Args:
          key: int32 [2].
          spec: The tuple (observation spec, action spec), or with `num_actions` the observation
            spec.
        """
        keys = [seeding.fold_in(key, i) for i in range(self.num_critics)]
        return struct.stack([self.member.init(k, spec) for k in keys])

    def apply(self, params: Params, x: Nest, action: Nest = None) -> tf.Tensor:
        """Returns values `[n, ...]`, or `[P, n, ...]` for a population.

        Args:
          params: As from `init`.
          x: The observations; or the tuple (observations, actions), without `action`.
          action: The actions.
        """
        x = x if action is None else (x, action)
        # Of the critics.
        axis = self.member.head_rank(params) - 3 if isinstance(self.member, HeadedNetwork) else 0
        if self._unstacked():
            members = _unstack(params, axis, self.num_critics)
            return tf.stack([self.member.apply(p, x) for p in members], axis=axis)
        return self._batched(params, x, axis)

    def apply_training(
        self, params: Params, x: Nest, key: tf.Tensor, action: Nest = None
    ) -> tuple[tf.Tensor, Params]:
        """Returns values with the torsos in training mode, and the parameters after the call.

        Not for populations. Critic i draws from `fold_in(key, i)`.
        """
        x = x if action is None else (x, action)
        if not self._unstacked():
            return self.member.apply_training(params, self._copies(x, 0), key)
        keys = [seeding.fold_in(key, i) for i in range(self.num_critics)]
        members = zip(_unstack(params, 0, self.num_critics), keys, strict=True)
        outputs = [self.member.apply_training(p, x, k) for p, k in members]
        values = tf.stack([y for y, _ in outputs])
        # Leaves trained only by gradients are unchanged.
        return values, struct.stack([p for _, p in outputs]) if split_leaves(params)[1] else params

    def _unstacked(self) -> bool:
        has_network = self.network is not None and not isinstance(self.network, HeadedNetwork)
        return has_network or resolve_rule(self.apply_rule) == "unstacked"

    def _copies(self, x: Nest, axis: int) -> Nest:
        """The inputs of n critics, `[n, ...]`, or for a population `[P * n, ...]`."""

        def copies(leaf: Any) -> tf.Tensor:
            leaf = tf.convert_to_tensor(leaf)
            shape = tf.shape(leaf)
            many = tf.broadcast_to(
                tf.expand_dims(leaf, axis),
                tf.concat([shape[:axis], [self.num_critics], shape[axis:]], 0),
            )
            return tf.reshape(many, tf.concat([[-1], shape[axis:]], 0)) if axis else many

        return tf.nest.map_structure(copies, x)

    def _batched(self, params: Params, x: Nest, axis: int) -> tf.Tensor:
        x = self._copies(x, axis)
        if not axis:
            return self.member.apply(params, x)
        merged = tf.nest.map_structure(lambda p: tf.reshape(p, [-1, *p.shape[2:]]), params)
        value = self.member.apply(merged, x)  # [P * n, ...]
        return tf.reshape(value, tf.concat([[-1, self.num_critics], tf.shape(value)[1:]], 0))


def _unstack(params: Params, axis: int, num: int) -> list[Params]:
    leaves = [tf.unstack(p, num, axis=axis) for p in tf.nest.flatten(params)]
    members = zip(*leaves, strict=True)
    return [tf.nest.pack_sequence_as(params, list(member)) for member in members]
