"""n-fold critics with stacked parameters."""

from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.networks.core import Nest, Network, Params, Torso, split_leaves
from tfrl.networks.heads import HeadedNetwork, QNetwork, ValueNetwork

_RULES = ("auto", "batched", "unstacked")


def resolve_rule(rule: str) -> str:
    """Returns "batched" or "unstacked"; "auto" is unstacked unless there is a GPU or TPU.

    On a CPU n plain matmuls are a quarter to a third faster than one batched matmul; on
    accelerators one large operation is. It is decided while tracing.
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
      torso: Takes the tuple (observation, action), or with `num_actions` the observation; an MLP
        concatenates vectors, make_torso with the tuple of specs takes all else. None if there is
        a `network`.
      num_critics: n.
      num_actions: How many discrete actions each critic has a value of; None for critics that take
        the action.
      head_scale: The gain of the heads' orthogonal kernels.
      apply_rule: "unstacked" (n plain networks), "batched" (one network of batched matmuls), which
        give the same values up to rounding, or "auto" (the faster on the device).
      network: A full critic, which replaces the torso, such as a `QNetwork` of quantiles. Others
        than torsos with linear heads are unstacked, and not for populations.
    """

    torso: Torso | None = None
    num_critics: int = 2
    num_actions: int | None = None
    head_scale: float = 1.0
    apply_rule: str = "auto"
    network: Network | None = None

    def __post_init__(self) -> None:
        """Checks the rule, and that there is either a torso or a network."""
        if (self.torso is None) == (self.network is None):
            raise UserError(
                "CriticEnsemble",
                expected="a torso, or a whole network",
                got="both" if self.network else "neither",
                remedy="Give CriticEnsemble(torso=MLP(hidden=(256, 256))).",
            )
        if self.apply_rule not in _RULES:
            raise UserError(
                "apply_rule",
                expected=f"one of {', '.join(_RULES)}",
                got=repr(self.apply_rule),
                remedy=did_you_mean(str(self.apply_rule), _RULES),
            )

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
          spec: The input of the torso: the tuple (observation spec, action spec), or with
            `num_actions` the observation spec.
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
        found = [self.member.apply_training(p, x, k) for p, k in members]
        values = tf.stack([y for y, _ in found])
        # What only gradients train is as it was.
        return values, struct.stack([p for _, p in found]) if split_leaves(params)[1] else params

    def _unstacked(self) -> bool:
        whole = self.network is not None and not isinstance(self.network, HeadedNetwork)
        return whole or resolve_rule(self.apply_rule) == "unstacked"

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
