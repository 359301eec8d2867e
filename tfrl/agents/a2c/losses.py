"""The loss of A2C and REINFORCE, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops
from tfrl.agents.actor_critic.batch import PolicyBatch


def policy_gradient_loss(
    distribution: Any,
    value: tf.Tensor,
    batch: PolicyBatch,
    *,
    value_coef: float,
    entropy_coef: Any,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The policy gradient, plus value loss, minus entropy bonus.

      loss = -mean_t A_t log pi(a_t | o_t) + value_coef L_value - entropy_coef H

    Source: Mnih et al. 2016, section 4, https://arxiv.org/abs/1602.01783.

    Args:
      distribution: The policy at `batch.obs`.
      value: float32 [N], the value function at `batch.obs`.
      batch: The rows, a `PolicyBatch` or a `TensorDict` with the same names. Advantages are not
        normalised here, and no gradient flows through them.
      value_coef: Weight of the value loss.
      entropy_coef: Weight of the entropy bonus, a number or a scalar.

    Returns:
      The loss and `{name: scalar}` metrics.
    """
    mask = getattr(batch, "mask", None)
    log_prob = distribution.log_prob(batch.action)
    policy_loss = ops.policy_gradient_loss(log_prob=log_prob, advantage=batch.advantage, mask=mask)
    value_loss = ops.value_loss(value=value, target=batch.value_target, mask=mask)
    entropy = ops.masked_mean(distribution.entropy(), mask)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    kl = ops.kl_k3(log_prob=log_prob, old_log_prob=batch.log_prob, mask=mask)
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": ops.masked_mean(tf.stop_gradient(kl), mask),
    }
