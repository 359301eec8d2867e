"""A2C: one gradient step on every rollout."""

from typing import ClassVar

import tensorflow as tf

from tfrl import struct
from tfrl.agents.a2c.losses import policy_gradient_loss
from tfrl.agents.actor_critic.agent import ActorCritic
from tfrl.agents.actor_critic.batch import PolicyBatch
from tfrl.agents.core import algorithm
from tfrl.distributions import Distribution
from tfrl.types import AgentState


@algorithm
@struct.logic_dataclass
class A2C(ActorCritic):
    """Advantage actor-critic, the synchronous form of A3C.

    Use one epoch with one minibatch, the default of `OnPolicyWorkflow` for this agent. With
    `gae_lambda = 1`, the default, advantages are n-step returns minus the value, with n up to the
    end of the rollout.

    Source: Mnih et al. 2016, https://arxiv.org/abs/1602.01783; synchronous:
    https://openai.com/index/openai-baselines-acktr-a2c/.
    """

    screen_metrics: ClassVar[tuple[str, ...]] = ("entropy", "explained_variance")
    epochs_and_minibatches = (1, 1)

    gae_lambda: float = 1.0
    normalize_advantage: bool = False

    def policy_loss(
        self, policy: Distribution, value: tf.Tensor, batch: PolicyBatch, state: AgentState
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss of `losses.policy_gradient_loss`."""
        return policy_gradient_loss(
            policy,
            value,
            batch,
            value_coef=self.setting(state, "value_coef"),
            entropy_coef=state.extra["entropy_coef"],
        )
