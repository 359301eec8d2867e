"""V-trace: off-policy value targets and policy-gradient advantages."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfrl.ops import _rows
from tfrl.ops.select import expand


class VTrace(NamedTuple):
    """What `vtrace` returns; no gradient flows through either.

    Attributes:
      value_target: float32 [T, B], vs_t.
      pg_advantage: float32 [T, B], weight of the gradient of log pi(a_t | o_t).
    """

    value_target: tf.Tensor
    pg_advantage: tf.Tensor


def vtrace(
    *,
    value: Any,
    next_value: Any,
    reward: Any,
    termination: Any,
    truncation: Any,
    rho: Any,
    discount: Any,
    lambda_: Any = 1.0,
    clip_rho: Any = 1.0,
    clip_pg_rho: Any = 1.0,
    mask: Any = None,
) -> VTrace:
    """Corrects values and advantages of another policy's rows by clipped importance weights.

      delta_t = min(clip_rho, rho_t) (r_t + gamma V(o_{t+1}) - V(o_t))
      vs_t = V(o_t) + e_t,  e_t = delta_t + gamma lambda min(1, rho_t) e_{t+1}
      pg_advantage_t = min(clip_pg_rho, rho_t)
                       (r_t + gamma (lambda vs_{t+1} + (1 - lambda) V(o_{t+1})) - V(o_t))

    with gamma (1 - termination_t) for gamma. e_{t+1} is cut at a termination, at a truncation and
    in the last row, and there V(o_{t+1}) stands in place of vs_{t+1}. A masked row has no
    influence on any other row; its results are 0.

    Source: Espeholt et al. 2018, equation 1 and remark 2, https://arxiv.org/abs/1802.01561; where
    lambda enters the advantage: https://github.com/google-deepmind/rlax (rlax/_src/vtrace.py).

    Args:
      value: float32 [T, B], V(o_t).
      next_value: float32 [T, B], V(o_{t+1}) at the true successor.
      reward: float32 [T, B], r_t.
      termination: bool [T, B].
      truncation: bool [T, B].
      rho: float32 [T, B], pi(a_t | o_t) / mu(a_t | o_t), not its logarithm.
      discount: gamma, a float or float32 broadcastable to [T, B].
      lambda_: A float or float32 broadcastable to [T, B].
      clip_rho: Largest weight of a temporal difference.
      clip_pg_rho: Largest weight of an advantage.
      mask: bool [T, B], True where a row counts, or None.

    Returns:
      The targets and advantages.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    row = _rows.rows(termination, truncation, discount, mask)
    value, next_value, reward, rho = _rows.columns(
        row, value=value, next_value=next_value, reward=reward, rho=rho
    )
    rank = value.shape.rank
    gamma = expand(row.discount, rank)
    next_value = _rows.select(row.bootstraps, next_value)
    # lambda is 0 where the recursion is cut, which also leaves V(o_{t+1}) in the advantage.
    weight = _rows.select(row.follows, _rows.per_row(lambda_, row.follows))
    weight = expand(weight, rank)

    delta = tf.minimum(clip_rho, rho) * (reward + gamma * next_value - value)
    error = _rows.linear_recurrence(gamma * weight * tf.minimum(1.0, rho), delta)
    target = value + error
    bootstrap = weight * _rows.shift(target) + (1.0 - weight) * next_value
    advantage = tf.minimum(clip_pg_rho, rho) * (reward + gamma * bootstrap - value)
    return VTrace(value_target=tf.stop_gradient(target), pg_advantage=tf.stop_gradient(advantage))
