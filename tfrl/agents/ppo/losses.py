"""The losses of PPO, apart from networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops, struct
from tfrl.types import Nest


@struct.dataclass
class PPOBatch(struct.Struct):
    """Rows that PPO's loss takes.

    Attributes:
      obs: Observations as the networks see them, normalised by the statistics that acted,
        `[N, ...]`.
      action: Actions, `[N, ...]`.
      log_prob: float32 `[N]`, under the policy and normaliser that acted.
      advantage: float32 `[N]`.
      value_target: float32 `[N]`.
      value: float32 `[N]`, V(o_t) when the rows were collected.
      mask: bool `[N]`, the rows that count, or None for all.
    """

    obs: Nest
    action: Nest
    log_prob: tf.Tensor
    advantage: tf.Tensor
    value_target: tf.Tensor
    value: tf.Tensor
    mask: tf.Tensor | None = None


def ppo_loss(
    distribution: Any,
    value: tf.Tensor,
    batch: PPOBatch,
    *,
    clip: float,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: Any,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The clipped surrogate, plus value loss, minus entropy bonus.

      loss = L_clip + value_coef L_value - entropy_coef H

    Source: Schulman et al. 2017, equation 9, https://arxiv.org/abs/1707.06347.

    Args:
      distribution: The policy at `batch.obs`.
      value: float32 [N], the value function at `batch.obs`.
      batch: The rows, a `PPOBatch` or a `TensorDict` with the same names. Advantages weigh as they
        are: `PPO.prepare_minibatch` has normalised them.
      clip: Half width of the ratio's interval.
      value_clip: Half width of the interval around the old value, or None for the plain loss.
      value_coef: Weight of the value loss.
      entropy_coef: Weight of the entropy bonus, a number or a scalar.

    Returns:
      The loss and `{name: scalar}` metrics.
    """
    mask = getattr(batch, "mask", None)
    policy_loss, extra = ops.ppo_clip_loss(
        log_prob=distribution.log_prob(batch.action),
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
    return loss, {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": extra.approx_kl,
        "clip_fraction": extra.clip_fraction,
    }
