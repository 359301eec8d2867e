"""A policy and a value function: a torso each or a shared trunk, with or without memory."""

from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.networks.core import Nest, Network, Params, Torso, split_leaves

Carry = dict[str, Nest] | None


@struct.logic_dataclass
class ActorCriticNetwork(struct.Struct):
    """pi(a | o) and V(o), with separate parameter groups.

    A carry is `{group: carry}` of the recurrent groups, or None without memory.

    Attributes:
      policy: A network that outputs a distribution.
      value: A network that outputs a number.
      trunk: Observations to shared features; None if both take observations.
    """

    policy: Network
    value: Network
    trunk: Torso | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of parameters."""
        return tuple(self._networks())

    @property
    def recurrent(self) -> bool:
        """Whether any group has memory."""
        return any(n.recurrent for n in self._networks().values())

    def _networks(self) -> dict[str, Network]:
        trunk = {} if self.trunk is None else {"trunk": self.trunk}
        return {**trunk, "policy": self.policy, "value": self.value}

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{group: parameters}` for observations of `spec`."""
        keys = seeding.streams(key, list(self.groups))
        if self.trunk is None:
            inner, params = spec, {}
        else:
            inner = tf.TensorSpec([self.trunk.output_size(spec)], tf.float32)
            params = {"trunk": self.trunk.init(keys["trunk"], spec)}
        return {
            **params,
            "policy": self.policy.init(keys["policy"], inner),
            "value": self.value.init(keys["value"], inner),
        }

    def initial_carry(self, batch_size: int) -> Carry:
        """Returns the carry at the start of an episode."""
        if not self.recurrent:
            return None
        nets = self._networks().items()
        return {name: n.initial_carry(batch_size) for name, n in nets if n.recurrent}

    # One step of an episode.

    def act(
        self, params: Params, obs: Nest, carry: Carry = None, mask: Nest = None
    ) -> tuple[Any, Carry]:
        """Returns the policy at observations `[B, ...]`, and the carry after the step.

        Args:
          params: As from `init`.
          obs: Observations `[B, ...]`.
          carry: The carry before the step.
          mask: Mask of valid actions, or None.
        """
        features, after = self._features(params, obs, carry)
        distribution, own = self.policy.step(
            params["policy"], features, _of(carry, "policy"), **mask_argument(mask)
        )
        if self.policy.recurrent:
            after["policy"] = own
        if self.value.recurrent:
            _, after["value"] = self.value.step(params["value"], features, _of(carry, "value"))
        return distribution, after or None

    def values(self, params: Params, obs: Nest, carry: Carry = None) -> tuple[tf.Tensor, Carry]:
        """Returns V `[B]` at observations `[B, ...]`, and V's carry after the step."""
        features, after = self._features(params, obs, carry)
        value, own = self.value.step(params["value"], features, _of(carry, "value"))
        if self.value.recurrent:
            after["value"] = own
        return value, after or None

    def _features(self, params: Params, obs: Nest, carry: Carry) -> tuple[Nest, dict[str, Nest]]:
        if self.trunk is None:
            return obs, {}
        features, own = self.trunk.step(params["trunk"], obs, _of(carry, "trunk"))
        return features, {"trunk": own} if self.trunk.recurrent else {}

    # As a loss needs it.

    def train(
        self,
        params: Params,
        obs: Nest,
        key: tf.Tensor | None,
        *,
        carry: Carry = None,
        starts: tf.Tensor | None = None,
        mask: Nest = None,
    ) -> tuple[Any, tf.Tensor, Params]:
        """Returns policy and values, with layers in training mode.

        Args:
          params: As from `init`.
          obs: Observations `[..., *spec shape]`; with memory `[T, B, ...]`.
          key: int32 [2], for layers that draw random numbers; None, with memory only, for layers
            in inference mode.
          carry: The carry `[B, ...]` before the first step; None without memory.
          starts: bool `[T, B]`, where an observation is the first of an episode; with memory only.
          mask: Mask of valid actions, or None.

        Returns:
          The distribution, V `[...]`, and `{group: parameters}` of the groups with changes other
          than by gradients, such as moving averages.
        """
        keys: dict[str, Any] = dict.fromkeys(self.groups)
        if key is not None:
            keys = seeding.streams(key, list(self.groups))

        def run(name: str, x: Nest, **options: Any) -> tuple[Any, Params]:
            network = self._networks()[name]
            if starts is None:
                return network.apply_training(params[name], x, keys[name], **options)
            return network.unroll(params[name], x, _of(carry, name), starts, keys[name], **options)

        after = {}
        if self.trunk is not None:
            obs, after["trunk"] = run("trunk", obs)
        distribution, after["policy"] = run("policy", obs, **mask_argument(mask))
        value, after["value"] = run("value", obs)
        return distribution, value, {g: p for g, p in after.items() if split_leaves(p)[1]}


def _of(carry: Carry, name: str) -> Nest:
    return None if carry is None else carry.get(name)


def mask_argument(mask: Nest) -> dict[str, Nest]:
    """Returns the keyword argument `mask` of a policy network; empty without a mask.

    So a user's policy network need not support masks if the task has none.
    """
    return {} if mask is None else {"mask": mask}
