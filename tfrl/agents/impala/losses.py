"""The loss of IMPALA, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops, struct
from tfrl.agents.a2c.losses import policy_gradient_loss
from tfrl.agents.actor_critic.batch import PolicyBatch
from tfrl.types import Nest

_EPSILON = 1e-8  # as that of `ops.normalize_advantage`


@struct.dataclass
class ImpalaBatch(struct.Struct):
    """Sequences for IMPALA's loss; `[S, T, ...]` in a minibatch, `[T, S, ...]` in the loss.

    Attributes:
      obs: Observations, normalised by the behaviour statistics.
      action: Actions.
      log_prob: float32, under the behaviour policy (mu).
      reward: float32.
      termination: bool.
      truncation: bool.
      next_value: float32, V(o_{t+1}) at the true successor, with the behaviour parameters.
      mask: bool, the valid steps, or None for all.
      advantage: float32, the advantages by the behaviour parameters, or None.
      advantage_scale: float32, their root mean square in the minibatch, the same in all rows, by
        which the loss divides its own advantages; None for 1.
      state_in: The recurrent state before a sequence, leaves `[S, ...]`, or None.
      starts: bool, the first steps of episodes, or None without memory.
    """

    obs: Nest
    action: Nest
    log_prob: tf.Tensor
    reward: tf.Tensor
    termination: tf.Tensor
    truncation: tf.Tensor
    next_value: tf.Tensor
    mask: tf.Tensor | None = None
    advantage: tf.Tensor | None = None
    advantage_scale: tf.Tensor | None = None
    state_in: Nest = None
    starts: tf.Tensor | None = None


def impala_loss(
    distribution: Any,
    value: tf.Tensor,
    batch: ImpalaBatch,
    *,
    discount: float,
    lambda_: float,
    clip_rho: float,
    clip_pg_rho: float,
    value_coef: float,
    entropy_coef: Any,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The policy gradient with V-trace's targets and advantages.

      loss = -mean_t A_t log pi(a_t | o_t) + value_coef L_value - entropy_coef H,
      L_value = mean_t (vs_t - V(o_t))^2 / 2

    V(o_{t+1}) is the value of the next row; if that row belongs to another episode or does not
    exist, it is `batch.next_value`.

    Source: Espeholt et al. 2018, section 4.2, https://arxiv.org/abs/1802.01561.

    Args:
      distribution: The policy at `batch.obs`.
      value: float32 [T, S], the value function at `batch.obs`.
      batch: Time-major sequences.
      discount: gamma.
      lambda_: lambda of V-trace.
      clip_rho: Maximum weight of a temporal difference.
      clip_pg_rho: Maximum weight of an advantage.
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
        clip_pg_rho=clip_pg_rho,
    )
    loss, metrics = policy_gradient_loss(
        distribution, value, rows, value_coef=value_coef, entropy_coef=entropy_coef
    )
    return loss, {**metrics, "rho_mean": ops.masked_mean(rho, batch.mask)}


def vtrace_rows(
    distribution: Any,
    value: tf.Tensor,
    batch: ImpalaBatch,
    *,
    discount: float,
    lambda_: float,
    clip_rho: float,
    clip_pg_rho: float | None,
) -> tuple[PolicyBatch, tf.Tensor]:
    """Returns the rows of a batch with V-trace's targets and advantages.

    Args:
      distribution: As in `impala_loss`.
      value: As in `impala_loss`.
      batch: As in `impala_loss`.
      discount: As in `impala_loss`.
      lambda_: As in `impala_loss`.
      clip_rho: As in `impala_loss`.
      clip_pg_rho: As in `tfrl.ops.vtrace`.

    Returns:
      The rows, and rho, float32 [T, S].
    """
    log_prob = distribution.log_prob(batch.action)
    log_rho = ops.log_ratio(log_prob=log_prob, old_log_prob=batch.log_prob, mask=batch.mask)
    rho = tf.stop_gradient(tf.exp(log_rho))
    targets = ops.vtrace(
        value=value,
        next_value=successor_values(value, batch),
        reward=batch.reward,
        termination=batch.termination,
        truncation=batch.truncation,
        rho=rho,
        discount=discount,
        lambda_=lambda_,
        clip_rho=clip_rho,
        clip_pg_rho=clip_pg_rho,
        mask=batch.mask,
    )
    advantage = targets.pg_advantage
    if batch.advantage_scale is not None:
        advantage = advantage / (batch.advantage_scale + _EPSILON)
    rows = PolicyBatch(
        obs=batch.obs,
        action=batch.action,
        log_prob=batch.log_prob,
        advantage=advantage,
        value_target=targets.value_target,
        value=value,
        mask=batch.mask,
    )
    return rows, rho


def successor_values(value: tf.Tensor, batch: ImpalaBatch) -> tf.Tensor:
    """Returns V(o_{t+1}) at the true successor, float32 [T, S]; no gradient flows through it."""
    ends = tf.logical_or(batch.termination, batch.truncation)
    follows = tf.concat([~ends[:-1], tf.zeros_like(ends[-1:])], 0)
    shifted = tf.concat([value[1:], tf.zeros_like(value[-1:])], 0)
    return tf.stop_gradient(tf.where(follows, shifted, batch.next_value))
