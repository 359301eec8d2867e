"""The loss of APPO, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops
from tfrl.agents.impala.losses import ImpalaBatch, vtrace_rows
from tfrl.agents.ppo.losses import ppo_loss


def appo_loss(
    distribution: Any,
    value: tf.Tensor,
    batch: ImpalaBatch,
    *,
    clip: float,
    discount: float,
    lambda_: float,
    clip_rho: float,
    value_coef: float,
    entropy_coef: Any,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """PPO's clipped surrogate with V-trace's targets and advantages.

      A_t = r_t + gamma (lambda vs_{t+1} + (1 - lambda) V(o_{t+1})) - V(o_t)
      loss = L_clip(A) + value_coef mean_t (vs_t - V(o_t))^2 / 2 - entropy_coef H

    The advantages have no V-trace weight, since the surrogate's ratio is an importance weight.

    Source: Petrenko et al. 2020, section 3.4, https://arxiv.org/abs/2006.11751.

    Args:
      distribution: The policy at `batch.obs`.
      value: float32 [T, S], the value function at `batch.obs`.
      batch: Time-major sequences.
      clip: Half width of the ratio's interval.
      discount: gamma.
      lambda_: lambda of V-trace.
      clip_rho: Maximum weight of a temporal difference.
      value_coef: Weight of the value loss.
      entropy_coef: Weight of the entropy bonus, a number or a scalar.

    Returns:
      The loss and `{name: scalar}` metrics.
    """
    rows, rho = vtrace_rows(
        distribution,
        value,
        batch,
        discount=discount,
        lambda_=lambda_,
        clip_rho=clip_rho,
        clip_pg_rho=None,
    )
    loss, metrics = ppo_loss(
        distribution,
        value,
        rows,
        clip=clip,
        value_clip=None,
        value_coef=value_coef,
        entropy_coef=entropy_coef,
    )
    return loss, {**metrics, "rho_mean": ops.masked_mean(rho, batch.mask)}
