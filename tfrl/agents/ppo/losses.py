"""The losses of PPO, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops
from tfrl.agents.actor_critic.batch import PolicyBatch


def ppo_loss(
    distribution: Any,
    value: tf.Tensor,
    batch: PolicyBatch,
    *,
    clip: float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: Any,
    kl_coef: Any = 0.0,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The clipped surrogate, plus value loss, minus entropy bonus, plus KL penalty.

      loss = L_clip + value_coef L_value - entropy_coef H + kl_coef KL[old || new]

    The KL is the mean k3 estimate over the taken actions; its gradient is an unbiased estimate of
    the KL's gradient. An infinite clip with a penalty is PPO-penalty.

    Source: Schulman et al. 2017, equations 8 and 9, https://arxiv.org/abs/1707.06347; k3: Schulman
    2020, http://joschu.net/blog/kl-approx.html.

    Args:
      distribution: The policy at `batch.obs`.
      value: float32 [N], the value function at `batch.obs`.
      batch: The rows, a `PolicyBatch` or a `TensorDict` with the same names.
        `PPO.prepare_minibatch` has already normalised the advantages.
      clip: Half width of the ratio's interval.
      value_clip: Half width of the interval around the old value, or None for the plain loss.
      value_coef: Weight of the value loss.
      entropy_coef: Weight of the entropy bonus, a number or a scalar.
      kl_coef: Weight of the KL penalty, a number or a scalar.

    Returns:
      The loss and `{name: scalar}` metrics.
    """
    mask = getattr(batch, "mask", None)
    log_prob = distribution.log_prob(batch.action)
    policy_loss, extra = ops.ppo_clip_loss(
        log_prob=log_prob,
        old_log_prob=batch.log_prob,
        advantage=batch.advantage,
        clip=clip,
        mask=mask,
    )
    if value_clip is None:
        value_loss = ops.value_loss(value=value, target=batch.value_target, mask=mask)
    else:
        value_loss = ops.clipped_value_loss(
            value=value,
            old_value=batch.value,
            target=batch.value_target,
            clip=value_clip,
            mask=mask,
        )
    entropy = ops.masked_mean(distribution.entropy(), mask)
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": extra.approx_kl,
        "clip_fraction": extra.clip_fraction,
    }
    if not tf.is_tensor(kl_coef) and kl_coef == 0:
        return loss, metrics
    kl = ops.masked_mean(ops.kl_k3(log_prob=log_prob, old_log_prob=batch.log_prob, mask=mask), mask)
    kl_coef = tf.cast(kl_coef, tf.float32)
    return loss + kl_coef * kl, {**metrics, "kl_coef": kl_coef}
