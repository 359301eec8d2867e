"""SAC: critics, actor and temperature, for continuous and for discrete actions."""

import math
from typing import Any, ClassVar

import tensorflow as tf

from tfrl import checks, networks, ops, seeding, specs, struct
from tfrl.agents.core import PARAM_UPDATES, PolicyParameters, Update, algorithm
from tfrl.agents.off_policy.actor_critic import OffPolicyActorCritic
from tfrl.agents.sac import losses
from tfrl.agents.sac.networks import full_actor, make_actor
from tfrl.checks import Bound
from tfrl.envs.action_masks import split_mask
from tfrl.errors import UserError
from tfrl.networks.actor_critic import mask_argument
from tfrl.types import ActionOutput, AgentState, Nest

# Tolerance for a target computed in float32 above the logarithm.
_ROUNDING = 1e-6


@algorithm
@struct.logic_dataclass
class SAC(OffPolicyActorCritic):
    """Soft actor-critic, for Boxes with finite bounds or for one Discrete action.

    All networks see Boxes as one vector in [-1, 1], so log-probabilities, entropies and the
    temperature's target do not depend on the action's units.

    Source: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; discrete: Christodoulou 2019,
    https://arxiv.org/abs/1910.07207; many critics: Chen et al. 2021,
    https://arxiv.org/abs/2101.05982.

    Attributes:
      actor_network: A full actor, which replaces the torso: it outputs distributions of actions;
        for Boxes, squashed Gaussians within their bounds.
      critic_subset: Number of critics sampled for each target, as in REDQ, with the actor ascending
        the mean of all; None to use the minimum of all critics for both.
      temperature: alpha; initial value if it is learned.
      learn_temperature: Whether alpha is learned.
      target_entropy: Target entropy in nats, for n discrete actions from 0 to log n; None for minus
        the number of action elements, or for a Discrete action `entropy_scale` times the entropy of
        the uniform policy.
      entropy_scale: Fraction of the logarithm of the number of valid actions.
      min_log_std: The Gaussian's log_std is clipped from below.
      max_log_std: And from above.
      target_every: Learner steps between updates of the target critics.
    """

    critic_subset: int | None = None
    temperature: float = 1.0
    learn_temperature: bool = True
    target_entropy: float | None = None
    entropy_scale: float = 0.98
    min_log_std: float = -20.0
    max_log_std: float = 2.0
    target_every: int = 1

    in_state: ClassVar[tuple[str, ...]] = ("discount", "tau", "target_entropy")
    screen_metrics: ClassVar[tuple[str, ...]] = ("critic/q_mean", "actor/entropy", "actor/alpha")
    critic_keys: ClassVar[tuple[str, ...]] = ("action", "subset", "layers")
    takes_discrete: ClassVar[bool] = True

    def check_settings(self) -> None:
        """Checks counts, and that a discrete policy can reach its target entropy.

        Otherwise the temperature would diverge.
        """
        owner = type(self).__name__
        checks.at_least(f"{owner}.target_every", self.target_every, 1)
        checks.at_least(
            f"{owner}.critic_subset",
            self.critic_subset,
            1,
            maximum=self.num_critics,
            optional=True,
        )
        if not self.discrete or self.target_entropy is None:
            return
        number = specs.num_actions(self.action_spec)
        if not 0.0 <= self.target_entropy <= math.log(number) + _ROUNDING:
            raise UserError(
                f"{owner}.target_entropy",
                expected=f"an entropy of {number} discrete actions, from 0 to log {number} = "
                f"{math.log(number):.4f}",
                got=repr(self.target_entropy),
                remedy="Leave it out and set entropy_scale, the fraction of the uniform policy's "
                "entropy, from 0 to 1.",
            )

    def make_actor(self, input_spec: Nest, hidden: tuple[int, ...]) -> networks.Network:
        """Returns a categorical policy, or a squashed Gaussian over the unit vector."""
        if self.actor_network is not None:
            return full_actor(self, self.actor_network, input_spec)
        return make_actor(
            self.actor_torso,
            input_spec,
            self.action_spec if self.unit_actions is None else self.unit_actions.spec,
            hidden,
            self.obs_key,
            min_log_std=self.min_log_std,
            max_log_std=self.max_log_std,
        )

    def bounds(self) -> dict[str, Bound]:
        """Returns the bounds of every number."""
        return {
            **super().bounds(),
            # A learned temperature is stored as its logarithm.
            "temperature": Bound(0, closed=not self.learn_temperature),
            "target_entropy": Bound(-math.inf, optional=True),
            "entropy_scale": Bound(0, 1),
        }

    # State.

    @property
    def target_period(self) -> int:
        """`target_every`."""
        return self.target_every

    def extra_params(self) -> dict[str, tf.Tensor]:
        """Returns `log_alpha`, if the temperature is learned."""
        if not self.learn_temperature:
            return {}
        return {"log_alpha": tf.constant(math.log(self.temperature), tf.float32)}

    def start_of(self, name: str) -> float:
        """Returns the initial value of a hyperparameter."""
        return float(self.entropy_target() if name == "target_entropy" else super().start_of(name))

    def alpha(self, params: dict[str, Any]) -> tf.Tensor:
        """Returns the temperature, a float32 scalar; no gradient flows through it."""
        if not self.learn_temperature:
            return tf.constant(self.temperature, tf.float32)
        return tf.stop_gradient(tf.exp(params["log_alpha"]))

    # Acting.

    def _policy(self, state: AgentState, obs: Nest) -> Any:
        inputs, mask = split_mask(self.normalized(state, obs))
        return self.actor.apply(state.params["actor"], inputs, **mask_argument(mask))

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Samples actions from the policy."""
        action = self._policy(state, obs).sample(key)
        return ActionOutput(action=self._emitted(action), carry=carry)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Takes the mode of the policy; for a squashed Gaussian, its median."""
        return ActionOutput(action=self._emitted(self._policy(state, obs).mode()), carry=carry)

    def policy_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> tuple[PolicyParameters, Nest]:
        """Returns one distribution, of the vector of all Boxes or of the Discrete action."""
        return {".": self._policy(state, obs).parameters()}, carry

    # Learning.

    @property
    def updates(self) -> tuple[Update, ...]:
        """The critics; then the actor together with the temperature.

        Both share the actor's forward pass; a third update would need its own.
        """
        learnt = ("log_alpha",) if self.learn_temperature else ()
        return (
            Update(name="critic", groups=("critic",), loss=self.critic_loss),
            Update(name="actor", groups=("actor", *learnt), loss=self.actor_loss),
        )

    def target_value(
        self,
        params: dict[str, Any],
        target_params: dict[str, Any],
        batch: Nest,
        keys: dict[str, tf.Tensor],
    ) -> tf.Tensor:
        """Returns the soft value of the target critics, see `losses.soft_value`."""
        inputs, mask = split_mask(batch.next_obs)
        policy = self.actor.apply(params["actor"], inputs, **mask_argument(mask))
        critic, target = self._subset(target_params["critic"], keys["subset"])
        alpha = self.alpha(params)
        if self.discrete:
            q = self.target_q(critic.apply(target, inputs))
            return losses.expected_soft_value(q, policy.logits, alpha)
        action, log_prob = policy.sample_and_log_prob(keys["action"])
        q = self.target_q(critic.apply(target, inputs, action))
        return losses.soft_value(q, log_prob, alpha)

    def policy_q(self, q: tf.Tensor) -> tf.Tensor:
        """Returns the actor's objective `[N(, A)]`, float32, from all critics, `[n, N, ...]`."""
        reduce = tf.reduce_min if self.critic_subset is None else tf.reduce_mean
        return reduce(q, axis=0)

    def taken_values(self, q: tf.Tensor, batch: Nest) -> tf.Tensor:
        """Returns the critics' values of the taken actions, float32 `[n, N]`."""
        return ops.take_action(q, batch.action[tf.newaxis]) if self.discrete else q

    def _subset(self, target: Nest, key: tf.Tensor) -> tuple[networks.CriticEnsemble, Nest]:
        """The critics of a target."""
        if self.critic_subset is None:
            return self.critic, target
        draws = seeding.uniform(key, [self.num_critics])
        chosen = tf.math.top_k(draws, self.critic_subset).indices
        return self.critic.replace(num_critics=self.critic_subset), struct.take(target, chosen)

    def actor_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of the actor and of a learned temperature; see `losses`.

        The actor's part has no gradient to critics and temperature, and the temperature's part none
        to the actor. Arguments as `critic_loss`.
        """
        keys = seeding.streams(key, ("action", "layers"))
        inputs, mask = split_mask(batch.obs)
        policy, after = self.actor.apply_training(
            params["actor"], inputs, keys["layers"], **mask_argument(mask)
        )
        critic = tf.nest.map_structure(tf.stop_gradient, params["critic"])
        alpha = self.alpha(params)
        if self.discrete:
            q = self.policy_q(self.critic.apply(critic, inputs))
            value = losses.expected_soft_value(q, policy.logits, alpha)
            entropy = policy.entropy()
        else:
            action, log_prob = policy.sample_and_log_prob(keys["action"])
            q = self.policy_q(self.critic.apply(critic, inputs, action))
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
            if "target_entropy" in self.hyperparameters:
                target = self.setting(state, "target_entropy")
            own = losses.temperature_loss(params["log_alpha"], entropy, target, rows)
            loss, metrics["temperature_loss"] = loss + own, own
        if networks.split_leaves(after)[1]:
            metrics[PARAM_UPDATES] = {"actor": after}
        return loss, metrics

    def entropy_target(self, mask: Nest = None) -> Any:
        """Returns the target entropy of the temperature, in nats.

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
