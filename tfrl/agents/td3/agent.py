"""TD3: critics, and an actor that follows them more slowly; DDPG is its plain case."""

from typing import Any

import tensorflow as tf

from tfrl import distributions, networks, ops, seeding, struct
from tfrl.agents import roles
from tfrl.agents.actor_critic.numbers import Bound
from tfrl.agents.core import PARAM_UPDATES, Update
from tfrl.agents.off_policy.agent import OffPolicy
from tfrl.agents.off_policy.checks import check_count, check_torsos
from tfrl.agents.off_policy.losses import critic_loss
from tfrl.agents.off_policy.networks import DEFAULT_HIDDEN, default_torso, make_critic
from tfrl.agents.off_policy.unit_actions import UnitActions
from tfrl.agents.td3 import losses
from tfrl.agents.td3.networks import DeterministicPolicy, WholePolicy
from tfrl.envs.action_masks import split_mask
from tfrl.ops import TDExtra
from tfrl.types import ActionOutput, AgentState, Nest


@struct.logic_dataclass
class TD3(OffPolicy):
    """Twin delayed deep deterministic policy gradient, for Boxes with finite bounds.

    All networks see actions as one vector in [-1, 1]; the scales of the noise are in its units,
    half the range of each action element.

    Source: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477.

    Attributes:
      actor_torso: The actor's torso; None for a ReLU MLP of `hidden` units (the Nature-CNN for an
        image).
      critic_torso: The critics' torso, which takes the tuple (observation, action vector); None
        for the same.
      actor_network: The actor whole, in the place of a torso: it gives actions within their bounds.
      critic_network: One critic whole, likewise: the tuple to one number. Each critic has
        parameters of its own.
      num_critics: How many critics; targets take the least of all, the actor ascends the first.
      policy_delay: Learner steps for one of the actor and one move of the target networks.
      exploration_noise: Standard deviation of the noise of `compute_actions`.
      target_noise: Standard deviation of the noise of the target actor; 0 for none.
      target_noise_clip: Its largest size.
      apply_rule: How the critics are computed, see `CriticEnsemble`.
    """

    actor_torso: networks.Torso | None = None
    critic_torso: networks.Torso | None = None
    actor_network: networks.Network | None = None
    critic_network: networks.Network | None = None
    num_critics: int = 2
    policy_delay: int = 2
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    apply_rule: str = "auto"
    actor: DeterministicPolicy | WholePolicy = struct.derived()
    critic: networks.CriticEnsemble = struct.derived()
    unit_actions: UnitActions = struct.derived()

    def __post_init__(self) -> None:
        """Checks the settings and makes the networks."""
        super().__post_init__()
        owner = type(self).__name__
        for name in ("num_critics", "policy_delay"):
            check_count(owner, name, getattr(self, name))
        check_torsos(self)
        self.unit_actions = UnitActions(action_spec=self.action_spec, owner=owner)
        seen, mask = split_mask(self.obs_spec)
        distributions.make_distribution(self.action_spec).check_mask(mask)
        hidden = DEFAULT_HIDDEN if self.hidden is None else tuple(self.hidden)
        self.actor = self._made_actor(seen, hidden)
        if self.critic_network is not None:
            given = (owner, self.critic_network, seen, self.normalize_obs, "critic_network")
            roles.check_value(*given, self.unit_actions.spec)
        self.critic = make_critic(
            self.critic_torso,
            seen,
            None,
            hidden,
            self.obs_key,
            self.critic_network,
            num_critics=self.num_critics,
            apply_rule=self.apply_rule,
        )

    def _made_actor(self, seen: Nest, hidden: tuple[int, ...]) -> DeterministicPolicy | WholePolicy:
        network = self.actor_network
        if network is None:
            torso = self.actor_torso or default_torso(seen, hidden, self.obs_key)
            return DeterministicPolicy(torso=torso, size=self.unit_actions.size)
        owner = type(self).__name__
        roles.check_actions(owner, network, seen, self.action_spec, self.normalize_obs)
        return WholePolicy(network=network, unit_actions=self.unit_actions)

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            **super().bounds(),
            "exploration_noise": Bound(0),
            "target_noise": Bound(0),
            "target_noise_clip": Bound(0),
        }

    # State.

    @property
    def target_period(self) -> int:
        """`policy_delay`."""
        return self.policy_delay

    def targets_due(self, learner_steps: tf.Tensor) -> tf.Tensor:
        """Whether the last was a step of the actor: the Learner takes these at 0, d, 2 d, ..."""
        return tf.equal((learner_steps - 1) % self.policy_delay, 0)

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters, the groups `actor` and `critic`, and target networks of both."""
        seen, _ = split_mask(self.obs_spec)
        keys = seeding.streams(key, ("actor", "critic"))
        params = {
            "actor": self.actor.init(keys["actor"], seen),
            "critic": self.critic.init(keys["critic"], (seen, self.unit_actions.spec)),
        }
        return self.made_state(params, ("actor", "critic"))

    # Acting.

    def _unit(self, state: AgentState, obs: Nest) -> tf.Tensor:
        return self.actor.apply(state.params["actor"], self.normalized(state, obs))

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Adds Gaussian noise to the policy's actions, within the bounds."""
        unit = self._unit(state, obs)
        unit += self.exploration_noise * seeding.normal(key, tf.shape(unit))
        action = self.unit_actions.from_unit(tf.clip_by_value(unit, -1.0, 1.0))
        return ActionOutput(action=action, carry=carry)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the policy's actions as they are."""
        action = self.unit_actions.from_unit(self._unit(state, obs))
        return ActionOutput(action=action, carry=carry)

    # Learning.

    @property
    def updates(self) -> tuple[Update, ...]:
        """The critics; then the actor, in every `policy_delay`-th step."""
        delay = self.policy_delay
        return (
            Update(name="critic", groups=("critic",), loss=self.critic_loss),
            Update(name="actor", groups=("actor",), loss=self.actor_loss, every=delay),
        )

    def network_action(self, action: Nest) -> tf.Tensor:
        """Returns the action vector, float32 `[N, D]` in [-1, 1]."""
        return self.unit_actions.to_unit(action)

    def critic_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of the critics, see `off_policy.losses.critic_loss`.

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
        keys = seeding.streams(key, ("noise", "layers"))
        target = state.target_params
        action = self.actor.apply(target["actor"], batch.next_obs)
        action = losses.smoothed(action, keys["noise"], self.target_noise, self.target_noise_clip)
        next_q = self.critic.apply(target["critic"], batch.next_obs, action)
        next_value = tf.reduce_min(next_q, axis=0)
        taken = (batch.obs, batch.action)
        q, after = self.critic.apply_training(params["critic"], taken, keys["layers"])
        return *critic_loss(q, next_value, batch), after

    def actor_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.actor_loss`; no gradient reaches the critic. As `critic_loss`."""
        action, after = self.actor.apply_training(params["actor"], batch.obs, key)
        # One critic is enough: the others would be computed for nothing.
        first = tf.nest.map_structure(lambda p: tf.stop_gradient(p[:1]), params["critic"])
        q = self.critic.replace(num_critics=1).apply(first, batch.obs, action)[0]
        rows = getattr(batch, "mask", None)
        metrics: dict[str, Any] = {"action_size": ops.masked_mean(_size(action), rows)}
        if networks.split_leaves(after)[1]:
            metrics[PARAM_UPDATES] = {"actor": after}
        return losses.actor_loss(q, rows), metrics

    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns the mean |target - Q_i(o, a)| over the critics; see `OffPolicy.td_errors`."""
        batch = self._prepared(state, batch)
        _, extra, _, _ = self._critic_loss(state.params, state, batch, key)
        return tf.reduce_mean(tf.abs(extra.td_error), axis=-1)


def _size(action: tf.Tensor) -> tf.Tensor:
    """The mean |u| of each action vector, float32 [N]."""
    return tf.reduce_mean(tf.abs(tf.stop_gradient(action)), axis=-1)


@struct.logic_dataclass
class DDPG(TD3):
    """Deep deterministic policy gradient: TD3 with one critic, without delay and smoothing.

    Source: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, with Gaussian noise in place
    of an Ornstein-Uhlenbeck process, as Fujimoto et al. 2018 compare it.
    """

    num_critics: int = 1
    policy_delay: int = 1
    target_noise: float = 0.0
