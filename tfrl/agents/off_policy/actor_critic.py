"""The common parts of SAC and TD3: an actor, n critics, and the critics' loss."""

import abc
from typing import Any, ClassVar

import tensorflow as tf

from tfrl import checks, distributions, networks, seeding, specs, struct
from tfrl.agents import network_checks
from tfrl.agents.core import PARAM_UPDATES
from tfrl.agents.default_networks import make_critic
from tfrl.agents.off_policy.agent import OffPolicy
from tfrl.agents.off_policy.losses import critic_loss
from tfrl.agents.off_policy.unit_actions import UnitActions
from tfrl.envs.action_masks import split_mask
from tfrl.ops import TDExtra
from tfrl.types import AgentState, Nest


@struct.logic_dataclass
class OffPolicyActorCritic(OffPolicy):
    """An actor and n critics that learn from replayed transitions; subclasses define the losses.

    A subclass defines the actor (`make_actor`), the value in the critics' target (`target_value`)
    and the actor's loss. It may change a critic's head (`make_critic_head`) and the critics' loss
    (`regression`).

    Attributes:
      actor_torso: The actor's torso; None for a ReLU MLP of `hidden` units (the Nature-CNN for an
        image).
      critic_torso: The critics' torso, which takes the tuple (observation, action vector), or for a
        Discrete action the observation; None for the default, as above.
      actor_network: A full actor, which replaces the torso.
      critic_network: A full critic, which replaces the torso: the tuple to one number, or for a
        Discrete action the observation to one value per action. Each critic has its own parameters.
      num_critics: Number of critics.
      apply_rule: How to compute the critics, see `CriticEnsemble`.
    """

    actor_torso: networks.Torso | None = None
    critic_torso: networks.Torso | None = None
    actor_network: networks.Network | None = None
    critic_network: networks.Network | None = None
    num_critics: int = 2
    apply_rule: str = "auto"
    actor: Any = struct.derived()
    critic: networks.CriticEnsemble = struct.derived()
    unit_actions: UnitActions | None = struct.derived()

    # Parameter groups with target networks.
    target_groups: ClassVar[tuple[str, ...]] = ("critic",)
    # Streams of the key in the critics' loss.
    critic_keys: ClassVar[tuple[str, ...]] = ("layers",)
    takes_discrete: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Checks the settings and makes the networks."""
        super().__post_init__()
        input_spec, mask = split_mask(self.obs_spec)
        spec, owner = self.action_spec, type(self).__name__
        one = specs.is_spec(spec) and specs.is_discrete(spec) and spec.shape.rank == 0
        self.unit_actions = (
            None if one and self.takes_discrete else UnitActions(action_spec=spec, owner=owner)
        )
        checks.at_least(f"{owner}.num_critics", self.num_critics, 1)
        self._check_networks()
        self.check_settings()
        hidden = (256, 256) if self.hidden is None else tuple(self.hidden)
        distributions.make_distribution(spec).check_mask(mask)
        self.actor = self.make_actor(input_spec, hidden)
        if self.critic_network is not None:
            self._check_critic(self.critic_network, input_spec)
        self.critic = make_critic(
            self.critic_torso,
            input_spec,
            specs.num_actions(spec) if self.unit_actions is None else None,
            hidden,
            self.obs_key,
            self.critic_network,
            head=self.make_critic_head,
            num_critics=self.num_critics,
            apply_rule=self.apply_rule,
        )

    def _check_critic(self, network: networks.Network, input_spec: Nest) -> None:
        """Raises a UserError for a critic network with a wrong output."""
        name, normalize = f"{type(self).__name__}.critic_network", self.normalize_obs
        if self.unit_actions is None:
            number = specs.num_actions(self.action_spec)
            network_checks.check_value(name, network, input_spec, normalize, number)
        else:
            unit = self.unit_actions.spec
            network_checks.check_value(name, network, input_spec, normalize, action_spec=unit)

    def _check_networks(self) -> None:
        owner, torso = type(self).__name__, "make_torso(env.obs_spec, hidden=(256, 256))"
        examples = {
            "actor": torso,
            "critic": f"StateActionTorso(encoder={torso}, body=MLP(hidden=(256,)))",
        }
        for part, example in examples.items():
            name = f"{owner}.{part}"
            network_checks.check_torso(f"{name}_torso", getattr(self, f"{part}_torso"), example)
            network = getattr(self, f"{part}_network")
            if network is not None:
                network_checks.check_network(
                    f"{name}_network",
                    network,
                    "a tfrl.networks network, or None",
                    "See docs/custom_network.md.",
                    torso=True,
                    memory=False,
                    discrete=self.discrete,
                )

    # Hooks of subclasses.

    def check_settings(self) -> None:
        """Raises a UserError for settings that do not fit."""

    @abc.abstractmethod
    def make_actor(self, input_spec: Nest, hidden: tuple[int, ...]) -> networks.Network:
        """Returns the actor.

        Args:
          input_spec: The nest of specs of its input.
          hidden: Units of the default network's layers.
        """

    def make_critic_head(self, torso: networks.Torso) -> networks.Network | None:
        """Returns one critic on a torso; None for a single value (per action)."""
        return None

    @abc.abstractmethod
    def target_value(
        self,
        params: dict[str, Any],
        target_params: dict[str, Any],
        batch: Nest,
        keys: dict[str, tf.Tensor],
    ) -> tf.Tensor:
        """Returns the estimate of V(o') in the critics' target, float32 `[N]`.

        Args:
          params: The online parameters, values.
          target_params: The target networks' parameters.
          batch: Transitions from `prepare_minibatch`.
          keys: `{stream: int32 [2]}` for `critic_keys`.
        """

    def target_q(self, q: tf.Tensor) -> tf.Tensor:
        """Returns the target's value, float32 `[N, ...]`, from all critics, `[n, N, ...]`."""
        return tf.reduce_min(q, axis=0)

    def policy_q(self, q: tf.Tensor) -> tf.Tensor:
        """Returns the actor's objective `[N(, A)]`, float32, from all critics, `[n, N, ...]`."""
        return tf.reduce_min(q, axis=0)

    def taken_values(self, q: tf.Tensor, batch: Nest) -> tf.Tensor:
        """Returns the critics' values of the taken actions, float32 `[n, N]`."""
        return q

    def regression(
        self, q: tf.Tensor, next_value: tf.Tensor, batch: Nest
    ) -> tuple[tf.Tensor, TDExtra, dict[str, tf.Tensor]]:
        """Returns the loss of the critics, errors and metrics, see `losses.critic_loss`."""
        return critic_loss(q, next_value, batch)

    # State.

    @property
    def discrete(self) -> bool:
        """Whether the action is Discrete."""
        return self.unit_actions is None

    def extra_params(self) -> dict[str, tf.Tensor]:
        """Returns parameter groups in addition to the networks'."""
        return {}

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters, the groups `actor` and `critic`, and target networks."""
        input_spec, _ = split_mask(self.obs_spec)
        keys = seeding.streams(key, ("actor", "critic"))
        critic_spec = (
            input_spec if self.unit_actions is None else (input_spec, self.unit_actions.spec)
        )
        params = {
            "actor": self.actor.init(keys["actor"], input_spec),
            "critic": self.critic.init(keys["critic"], critic_spec),
        }
        return self.made_state({**params, **self.extra_params()}, self.target_groups)

    def network_action(self, action: Nest) -> tf.Tensor:
        """Returns the action vector, float32 `[N, D]`, or the index of an action, int32 `[N]`."""
        if self.unit_actions is not None:
            return self.unit_actions.to_unit(action)
        action = tf.convert_to_tensor(action)
        return tf.cast(action - tf.cast(int(self.action_spec.minimum), action.dtype), tf.int32)

    def _emitted(self, action: tf.Tensor) -> Nest:
        """Maps the actor's output to an action of the spec."""
        return action if self.unit_actions is None else self.unit_actions.from_unit(action)

    # Learning.

    def critic_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of the critics, see `regression`.

        Args:
          params: Values that gradients flow to.
          state: The agent's state, values.
          batch: Transitions from `prepare_minibatch`.
          key: int32 [2].
        """
        loss, _, metrics, after = self._critic_loss(params, state, batch, key)
        if networks.split_leaves(after)[1]:
            return loss, {**metrics, PARAM_UPDATES: {"critic": after}}
        return loss, metrics

    def _critic_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, TDExtra, dict[str, tf.Tensor], Nest]:
        keys = seeding.streams(key, self.critic_keys)
        next_value = self.target_value(params, state.target_params, batch, keys)
        inputs, _ = split_mask(batch.obs)
        taken = inputs if self.unit_actions is None else (inputs, batch.action)
        q, after = self.critic.apply_training(params["critic"], taken, keys["layers"])
        return *self.regression(self.taken_values(q, batch), next_value, batch), after

    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns the mean |target - Q_i(o, a)| over the critics; see `OffPolicy.td_errors`."""
        batch = self._prepared(state, batch)
        _, extra, _, _ = self._critic_loss(state.params, state, batch, key)
        return tf.reduce_mean(tf.abs(extra.td_error), axis=-1)
