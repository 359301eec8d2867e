"""Retrace: off-policy multistep temporal differences of action values."""

from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows
from tfrl.ops._rows import take_action

# Keeps pi / mu finite where mu is 0 to float precision.
_EPSILON = 1e-8


def retrace(
    *,
    q: Any,
    next_q: Any,
    action: Any,
    next_action: Any,
    reward: Any,
    termination: Any,
    truncation: Any,
    next_pi: Any,
    next_mu: Any,
    discount: Any,
    lambda_: Any,
    mask: Any = None,
) -> tf.Tensor:
    """Temporal differences of the taken actions towards Retrace targets.

      c_{t+1} = lambda min(1, pi(a_{t+1} | o_{t+1}) / mu(a_{t+1} | o_{t+1}))
      G_t = r_t + gamma (E_pi Q(o_{t+1}, .) - c_{t+1} Q(o_{t+1}, a_{t+1}) + c_{t+1} G_{t+1})
      error_t = G_t - Q(o_t, a_t)

    with gamma (1 - termination_t) for gamma; c_{t+1} is 0 at a truncation and in the last row.
    No gradient flows through G_t. A masked row has no influence on any other row; its result is 0.
    `next_action` and `next_mu` are not looked at in the last row of an episode or of the rows.

    Source: Munos et al. 2016, section 3, https://arxiv.org/abs/1606.02647; computed as
    https://github.com/google-deepmind/rlax (`retrace`).

    Args:
      q: float32 [T, B, A], Q(o_t, .) that learns.
      next_q: float32 [T, B, A], Q(o_{t+1}, .) at the true successor, usually of a target network.
      action: integer [T, B], a_t.
      next_action: integer [T, B], a_{t+1}.
      reward: float32 [T, B], r_t.
      termination: bool [T, B].
      truncation: bool [T, B].
      next_pi: float32 [T, B, A], probabilities pi(. | o_{t+1}) of the target policy.
      next_mu: float32 [T, B], probability mu(a_{t+1} | o_{t+1}) of the behaviour policy.
      discount: gamma, a float or float32 broadcastable to [T, B].
      lambda_: A float or float32 broadcastable to [T, B].
      mask: bool [T, B], True where a row counts, or None.

    Returns:
      float32 [T, B], 0 in masked rows.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    row = _rows.rows(termination, truncation, discount, mask)
    rank = row.discount.shape.rank
    for name, x in (("q", q), ("next_q", next_q), ("next_pi", next_pi)):
        checks.rank(name, x, rank + 1)
    for name, x in (("action", action), ("next_action", next_action), ("next_mu", next_mu)):
        checks.leading_shape(name, x, row.discount.shape, "termination")
    q, next_q, next_pi = _rows.columns(row, q=q, next_q=next_q, next_pi=next_pi)
    reward = _rows.column("reward", reward, row)
    next_mu = _rows.select(row.follows, _rows.floats("next_mu", next_mu))
    next_q = _rows.select(row.bootstraps, next_q)
    next_pi = _rows.select(row.bootstraps, next_pi)

    ratio = take_action(next_pi, next_action) / (next_mu + _EPSILON)
    trace = _rows.per_row(lambda_, row.follows) * tf.minimum(1.0, ratio)
    trace = _rows.select(row.follows, trace)
    expected = tf.reduce_sum(next_pi * next_q, axis=-1) - trace * take_action(next_q, next_action)
    target = _rows.linear_recurrence(row.discount * trace, reward + row.discount * expected)
    return _rows.select(row.valid, tf.stop_gradient(target) - take_action(q, action))
