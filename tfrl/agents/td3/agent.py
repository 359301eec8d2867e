"""TD3: critics, and an actor with delayed updates; DDPG is a special case."""

from typing import Any, ClassVar

import tensorflow as tf

from tfrl import checks, networks, ops, seeding, struct
from tfrl.agents import network_checks
from tfrl.agents.core import PARAM_UPDATES, PolicyParameters, Update, algorithm
from tfrl.agents.default_networks import default_torso
from tfrl.agents.off_policy.actor_critic import OffPolicyActorCritic
from tfrl.agents.td3 import losses
from tfrl.agents.td3.networks import DeterministicPolicy, WholePolicy
from tfrl.checks import Bound
from tfrl.types import ActionOutput, AgentState, Nest


@algorithm
@struct.logic_dataclass
class TD3(OffPolicyActorCritic):
    """Twin delayed deep deterministic policy gradient, for Boxes with finite bounds.

    All networks see actions as one vector in [-1, 1]; noise scales are in its units, half the range
    of each action element.

    Source: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477.

    Attributes:
      actor_network: A full actor, which replaces the torso: it outputs actions within their bounds.
      num_critics: Number of critics; targets use their minimum, the actor ascends the first.
      policy_delay: Learner steps per update of the actor and of the target networks.
      exploration_noise: Standard deviation of the noise of `compute_actions`.
      target_noise: Standard deviation of the noise of the target actor; 0 for none.
      target_noise_clip: Clipping bound of the target noise.
    """

    policy_delay: int = 2
    exploration_noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5

    screen_metrics: ClassVar[tuple[str, ...]] = ("critic/q_mean", "actor/action_size")
    target_groups: ClassVar[tuple[str, ...]] = ("actor", "critic")
    critic_keys: ClassVar[tuple[str, ...]] = ("noise", "layers")

    def check_settings(self) -> None:
        """Checks the delay."""
        checks.at_least(f"{type(self).__name__}.policy_delay", self.policy_delay, 1)

    def make_actor(self, input_spec: Nest, hidden: tuple[int, ...]) -> networks.Network:
        """Returns a policy that outputs vectors in [-1, 1]."""
        unit_actions: Any = self.unit_actions
        network = self.actor_network
        if network is None:
            torso = self.actor_torso or default_torso(input_spec, hidden, self.obs_key, "relu")
            return DeterministicPolicy(torso=torso, size=unit_actions.size)
        name = f"{type(self).__name__}.actor_network"
        network_checks.check_actions(
            name, network, input_spec, self.action_spec, self.normalize_obs
        )
        return WholePolicy(network=network, unit_actions=unit_actions)

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
        """Whether the last step updated the actor: the Learner does so at 0, d, 2 d, ..."""
        return tf.equal((learner_steps - 1) % self.policy_delay, 0)

    # Acting.

    def _unit(self, state: AgentState, obs: Nest) -> tf.Tensor:
        return self.actor.apply(state.params["actor"], self.normalized(state, obs))

    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Adds Gaussian noise to the policy's actions, within the bounds."""
        unit = self._unit(state, obs)
        unit += self.exploration_noise * seeding.normal(key, tf.shape(unit))
        action = self._emitted(tf.clip_by_value(unit, -1.0, 1.0))
        return ActionOutput(action=action, carry=carry)

    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns the policy's actions without noise."""
        action = self._emitted(self._unit(state, obs))
        return ActionOutput(action=action, carry=carry)

    def policy_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> tuple[PolicyParameters, Nest]:
        """Returns the action of each leaf."""
        leaves = struct.paths(self._emitted(self._unit(state, obs)))
        return {path: ("deterministic", {"loc": x}) for path, x in leaves.items()}, carry

    def exploration_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> PolicyParameters | None:
        """Returns None: clipped noise has point masses at the bounds and so no density."""
        return None

    # Learning.

    @property
    def updates(self) -> tuple[Update, ...]:
        """The critics; then the actor, in every `policy_delay`-th step."""
        delay = self.policy_delay
        return (
            Update(name="critic", groups=("critic",), loss=self.critic_loss),
            Update(name="actor", groups=("actor",), loss=self.actor_loss, every=delay),
        )

    def target_value(
        self,
        params: dict[str, Any],
        target_params: dict[str, Any],
        batch: Nest,
        keys: dict[str, tf.Tensor],
    ) -> tf.Tensor:
        """Returns the target critics' minimum at the target actor's smoothed action."""
        action = self.actor.apply(target_params["actor"], batch.next_obs)
        action = losses.smoothed(action, keys["noise"], self.target_noise, self.target_noise_clip)
        return self.target_q(self.critic.apply(target_params["critic"], batch.next_obs, action))

    def policy_q(self, q: tf.Tensor) -> tf.Tensor:
        """Returns the actor's objective `[N]`, float32, from the first critic's, `[1, N, ...]`."""
        return q[0]

    def actor_loss(
        self, params: dict[str, Any], state: AgentState, batch: Nest, key: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.actor_loss`; no gradient reaches the critic. As `critic_loss`."""
        action, after = self.actor.apply_training(params["actor"], batch.obs, key)
        # Only the first critic is needed.
        first = tf.nest.map_structure(lambda p: tf.stop_gradient(p[:1]), params["critic"])
        q = self.policy_q(self.critic.replace(num_critics=1).apply(first, batch.obs, action))
        rows = getattr(batch, "mask", None)
        metrics: dict[str, Any] = {"action_size": ops.masked_mean(_size(action), rows)}
        if networks.split_leaves(after)[1]:
            metrics[PARAM_UPDATES] = {"actor": after}
        return losses.actor_loss(q, rows), metrics


def _size(action: tf.Tensor) -> tf.Tensor:
    """The mean |u| of each action vector, float32 [N]."""
    return tf.reduce_mean(tf.abs(tf.stop_gradient(action)), axis=-1)


@algorithm
@struct.logic_dataclass
class DDPG(TD3):
    """Deep deterministic policy gradient: TD3 with one critic, without delay and smoothing.

    Source: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, with Gaussian noise instead of
    an Ornstein-Uhlenbeck process, as in Fujimoto et al. 2018.
    """

    num_critics: int = 1
    policy_delay: int = 1
    target_noise: float = 0.0
