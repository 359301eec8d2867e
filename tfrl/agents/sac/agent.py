"""SAC: critics, actor and temperature, for continuous and for discrete actions."""

import math
from typing import Any

import tensorflow as tf

from tfrl import distributions, networks, ops, seeding, specs, struct
from tfrl.agents.actor_critic.numbers import Bound
from tfrl.agents.core import PARAM_UPDATES, Update
from tfrl.agents.off_policy.agent import OffPolicy
from tfrl.agents.off_policy.losses import critic_loss
from tfrl.agents.off_policy.networks import DEFAULT_HIDDEN, make_critic
from tfrl.agents.off_policy.unit_actions import UnitActions
from tfrl.agents.sac import losses
from tfrl.agents.sac.checks import check_settings
from tfrl.agents.sac.networks import check_critic, make_actor, whole_actor
from tfrl.envs.action_masks import split_mask
from tfrl.networks.actor_critic import mask_argument
from tfrl.ops import TDExtra
from tfrl.types import ActionOutput, AgentState, Nest


@struct.logic_dataclass
class SAC(OffPolicy):
    """Soft actor-critic, for Boxes with finite bounds or for one Discrete action.

    Boxes are seen by all networks as one vector in [-1, 1], so that log-probabilities, entropies
    and the target of the temperature do not depend on the action's units.

    Source: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; discrete: Christodoulou 2019,
    https://arxiv.org/abs/1910.07207; many critics: Chen et al. 2021,
    https://arxiv.org/abs/2101.05982.

    Attributes:
      actor_torso: The actor's torso; None for a ReLU MLP of `hidden` units (the Nature-CNN for an
        image).
      critic_torso: The critics' torso, which takes the tuple (observation, action vector), or for
        a Discrete action the observation; None for the same.
      actor_network: The actor whole, in the place of a torso: it gives distributions of actions, of
        Boxes squashed Gaussians within their bounds.
      critic_network: One critic whole, likewise: the tuple to one number, or for a Discrete action
        the observation to a value for each. Each critic has parameters of its own.
      num_critics: How many critics.
      critic_subset: Critics drawn at random for each target, as in REDQ, whose actor then ascends
        the mean of all; None for all of them, whose least value both take.
      temperature: alpha, at the start if it is learnt.
      learn_temperature: Whether alpha is learnt.
      target_entropy: What it is learnt towards, nats, for n discrete actions from 0 to log n; None
        for minus the number of action elements, or for a Discrete action `entropy_scale` times the
        entropy of uniform play.
      entropy_scale: That share, of the logarithm of the number of valid actions.
      min_log_std: The Gaussian's log_std is clipped from below.
      max_log_std: And from above.
      target_every: Learner steps between moves of the target critics.
      apply_rule: How the critics are computed, see `CriticEnsemble`.
    """

    actor_torso: networks.Torso | None = None
    critic_torso: networks.Torso | None = None
    actor_network: networks.Network | None = None
    critic_network: networks.Network | None = None
    num_critics: int = 2
    critic_subset: int | None = None
    temperature: float = 1.0
    learn_temperature: bool = True
    target_entropy: float | None = None
    entropy_scale: float = 0.98
    min_log_std: float = -20.0
    max_log_std: float = 2.0
    target_every: int = 1
    apply_rule: str = "auto"
    actor: networks.Network = struct.derived()
    critic: networks.CriticEnsemble = struct.derived()
    unit_actions: UnitActions | None = struct.derived()

    def __post_init__(self) -> None:
        """Checks the settings and makes the networks."""
        super().__post_init__()
        seen, mask = split_mask(self.obs_spec)
        spec = self.action_spec
        if specs.is_spec(spec) and specs.is_discrete(spec) and spec.shape.rank == 0:
            self.unit_actions, action_spec, num = None, spec, specs.num_actions(spec)
        else:
            self.unit_actions = UnitActions(action_spec=spec, owner=type(self).__name__)
            action_spec, num = self.unit_actions.spec, None
        check_settings(self, seen)
        distributions.make_distribution(action_spec).check_mask(mask)
        hidden = DEFAULT_HIDDEN if self.hidden is None else tuple(self.hidden)
        if self.actor_network is not None:
            self.actor = whole_actor(self, self.actor_network, seen)
        else:
            self.actor = make_actor(
                self.actor_torso,
                seen,
                action_spec,
                hidden,
                self.obs_key,
                min_log_std=self.min_log_std,
                max_log_std=self.max_log_std,
            )
        if self.critic_network is not None:
            check_critic(self, self.critic_network, seen)
        self.critic = make_critic(
            self.critic_torso,
            seen,
            num,
            hidden,
            self.obs_key,
            self.critic_network,
            num_critics=self.num_critics,
            apply_rule=self.apply_rule,
        )

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            **super().bounds(),
            # A learnt one is kept as its logarithm.
            "temperature": Bound(0, closed=not self.learn_temperature),
            "target_entropy": Bound(-math.inf, optional=True),
            "entropy_scale": Bound(0, 1),
        }

    # State.

    @property
    def discrete(self) -> bool:
        """Whether the action is Discrete."""
        return self.unit_actions is None

    @property
    def target_period(self) -> int:
        """`target_every`."""
        return self.target_every

    def init(self, key: tf.Tensor) -> AgentState:
        """Makes fresh parameters and target critics like them.

        The groups are `actor` and `critic`, and `log_alpha` of a temperature that is learnt.
        """
        seen, _ = split_mask(self.obs_spec)
        keys = seeding.streams(key, ("actor", "critic"))
        critic_spec = seen if self.unit_actions is None else (seen, self.unit_actions.spec)
        params = {
            "actor": self.actor.init(keys["actor"], seen),
            "critic": self.critic.init(keys["critic"], critic_spec),
        }
        if self.learn_temperature:
            params["log_alpha"] = tf.constant(math.log(self.temperature), tf.float32)
        return self.made_state(params, ("critic",))

    def alpha(self, params: dict[str, Any]) -> tf.Tensor:
        """Returns the temperature, a float32 scalar; no gradient flows through it."""
        if not self.learn_temperature:
            return tf.constant(self.temperature, tf.float32)
        return tf.stop_gradient(tf.exp(params["log_alpha"]))

    # Acting.

    def _policy(self, state: AgentState, obs: Nest) -> Any:
        seen, mask = split_mask(self.normalized(state, obs))
        actor: Any = self.actor
        return actor.apply(state.params["actor"], seen, **mask_argument(mask))

    def _emitted(self, action: tf.Tensor) -> Nest:
        return action if self.unit_actions is None else self.unit_actions.from_unit(action)

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Samples actions from the policy."""
        action = self._policy(state, obs).sample(key)
        return ActionOutput(action=self._emitted(action), carry=carry)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the mode of the policy; of a squashed Gaussian, its median."""
        return ActionOutput(action=self._emitted(self._policy(state, obs).mode()), carry=carry)

    # Learning.

    @property
    def updates(self) -> tuple[Update, ...]:
        """The critics; then the actor, and with it the temperature.

        The actor's forward pass serves both: a third update would take a pass of its own.
        """
        learnt = ("log_alpha",) if self.learn_temperature else ()
        return (
            Update(name="critic", groups=("critic",), loss=self.critic_loss),
            Update(name="actor", groups=("actor", *learnt), loss=self.actor_loss),
        )

    def network_action(self, action: Nest) -> tf.Tensor:
        """Returns the action vector, float32 `[N, D]`, or the index of an action, int32 `[N]`."""
        if self.unit_actions is not None:
            return self.unit_actions.to_unit(action)
        action = tf.convert_to_tensor(action)
        return tf.cast(action - tf.cast(int(self.action_spec.minimum), action.dtype), tf.int32)

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
        keys = seeding.streams(key, ("action", "subset", "layers"))
        seen, _ = split_mask(batch.obs)
        next_seen, next_mask = split_mask(batch.next_obs)
        actor: Any = self.actor
        policy = actor.apply(params["actor"], next_seen, **mask_argument(next_mask))
        critic, target = self._subset(state.target_params["critic"], keys["subset"])
        alpha = self.alpha(params)
        if self.discrete:
            next_q = tf.reduce_min(critic.apply(target, next_seen), axis=0)
            next_value = losses.expected_soft_value(next_q, policy.logits, alpha)
            q, after = self.critic.apply_training(params["critic"], seen, keys["layers"])
            q = ops.take_action(q, batch.action[tf.newaxis])
        else:
            action, log_prob = policy.sample_and_log_prob(keys["action"])
            next_q = tf.reduce_min(critic.apply(target, next_seen, action), axis=0)
            next_value = losses.soft_value(next_q, log_prob, alpha)
            taken = (seen, batch.action)
            q, after = self.critic.apply_training(params["critic"], taken, keys["layers"])
        return *critic_loss(q, next_value, batch), after

    def _subset(self, target: Nest, key: tf.Tensor) -> tuple[networks.CriticEnsemble, Nest]:
        """The critics that a target is made of."""
        if self.critic_subset is None:
            return self.critic, target
        draws = seeding.uniform(key, [self.num_critics])
        chosen = tf.math.top_k(draws, self.critic_subset).indices
        return self.critic.replace(num_critics=self.critic_subset), struct.take(target, chosen)

    def actor_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of the actor, and of a temperature that is learnt; see `losses`.

        No gradient of the actor's part reaches critics and temperature, nor one of the
        temperature's part the actor. Arguments as `critic_loss`.
        """
        keys = seeding.streams(key, ("action", "layers"))
        seen, mask = split_mask(batch.obs)
        actor: Any = self.actor
        policy, after = actor.apply_training(
            params["actor"], seen, keys["layers"], **mask_argument(mask)
        )
        critic = tf.nest.map_structure(tf.stop_gradient, params["critic"])
        reduce = tf.reduce_min if self.critic_subset is None else tf.reduce_mean
        alpha = self.alpha(params)
        if self.discrete:
            q = reduce(self.critic.apply(critic, seen), axis=0)
            value = losses.expected_soft_value(q, policy.logits, alpha)
            entropy = policy.entropy()
        else:
            action, log_prob = policy.sample_and_log_prob(keys["action"])
            q = reduce(self.critic.apply(critic, seen, action), axis=0)
            value, entropy = losses.soft_value(q, log_prob, alpha), -log_prob
        rows = getattr(batch, "mask", None)
        loss = losses.actor_loss(value, rows)
        metrics: dict[str, Any] = {
            "actor_loss": loss,
            "entropy": ops.masked_mean(entropy, rows),
            "alpha": alpha,
        }
        if self.learn_temperature:
            target = self.entropy_target(mask)
            own = losses.temperature_loss(params["log_alpha"], entropy, target, rows)
            loss, metrics["temperature_loss"] = loss + own, own
        if networks.split_leaves(after)[1]:
            metrics[PARAM_UPDATES] = {"actor": after}
        return loss, metrics

    def entropy_target(self, mask: Nest = None) -> Any:
        """Returns the entropy that the temperature is learnt towards, nats.

        Args:
          mask: bool `[N, A]`, the valid actions; then one target for each row.
        """
        if self.target_entropy is not None:
            return self.target_entropy
        if self.unit_actions is not None:
            return -float(self.unit_actions.size)
        if mask is None:
            return self.entropy_scale * math.log(specs.num_actions(self.action_spec))
        valid = tf.reduce_sum(tf.cast(tf.cast(mask, tf.bool), tf.float32), axis=-1)
        return self.entropy_scale * tf.math.log(tf.maximum(valid, 1.0))

    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns the mean |target - Q_i(o, a)| over the critics; see `OffPolicy.td_errors`."""
        batch = self._prepared(state, batch)
        _, extra, _, _ = self._critic_loss(state.params, state, batch, key)
        return tf.reduce_mean(tf.abs(extra.td_error), axis=-1)
