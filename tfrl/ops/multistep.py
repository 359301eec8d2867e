"""Multistep returns and advantages of time-major rows with terminations and truncations.

All functions take `[T, ...]`, usually `[T, B]`. `termination` and `truncation` give the leading
axes; the other inputs may have more trailing axes (several critics, several rewards), which
broadcast against each other. `next_value` is V(o_{t+1}) at the true successor: at a truncation it
is the value of the episode's last observation, never of the reset one.

A row with `mask` False never affects other rows, even if it contains NaN; its results are 0, and
the previous row counts as the last of its episode. Gradients flow
through every result: use `tf.stop_gradient` for a target.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows
from tfrl.ops._rows import expand, take_action


def gae(
    *,
    reward: Any,
    value: Any,
    next_value: Any,
    termination: Any,
    truncation: Any,
    discount: Any,
    lambda_: Any,
    mask: Any = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Generalised advantage estimation.

      delta_t = r_t + gamma (1 - termination_t) V(o_{t+1}) - V(o_t)
      A_t = delta_t + gamma lambda A_{t+1}, the second term cut at a termination or a truncation
      value_target_t = A_t + V(o_t)

    Source: Schulman et al. 2015, equation 16, https://arxiv.org/abs/1506.02438; the treatment of
    time limits: Pardo et al. 2018, https://arxiv.org/abs/1712.00378.

    Args:
      reward: float32 [T, B], r_t.
      value: float32 [T, B], V(o_t).
      next_value: float32 [T, B], V(o_{t+1}) at the true successor.
      termination: bool [T, B].
      truncation: bool [T, B].
      discount: gamma, a float or float32 broadcastable to [T, B].
      lambda_: A float or float32 broadcastable to [T, B].
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      (advantage, value_target), float32 [T, B] each, 0 in masked rows.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    row = _rows.rows(termination, truncation, discount, mask)
    reward, value, next_value = _rows.columns(
        row, reward=reward, value=value, next_value=next_value
    )
    rank = reward.shape.rank
    gamma = expand(row.discount, rank)
    delta = reward + gamma * _rows.select(row.bootstraps, next_value) - value
    decay = _rows.select(row.follows, _rows.per_row(lambda_, row.follows))
    advantage = _rows.linear_recurrence(gamma * expand(decay, rank), delta)
    return advantage, advantage + value


def lambda_returns(
    *,
    reward: Any,
    next_value: Any,
    termination: Any,
    truncation: Any,
    discount: Any,
    lambda_: Any,
    mask: Any = None,
) -> tf.Tensor:
    """Lambda-returns.

      G_t = r_t + gamma (1 - termination_t) [(1 - lambda) V(o_{t+1}) + lambda G_{t+1}]

    At a truncation and in the last row V(o_{t+1}) replaces G_{t+1}.

    Source: Sutton and Barto 2018, section 12.8, http://incompleteideas.net/book/the-book.html;
    with function approximation as in rlax, https://github.com/google-deepmind/rlax.

    Args:
      reward: float32 [T, B], r_t.
      next_value: float32 [T, B], V(o_{t+1}) at the true successor.
      termination: bool [T, B].
      truncation: bool [T, B].
      discount: gamma, a float or float32 broadcastable to [T, B].
      lambda_: A float or float32 broadcastable to [T, B].
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      float32 [T, B], 0 in masked rows.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    row = _rows.rows(termination, truncation, discount, mask)
    reward, next_value = _rows.columns(row, reward=reward, next_value=next_value)
    rank = reward.shape.rank
    gamma = expand(row.discount, rank)
    # lambda is 0 where the recursion is cut, so that all the weight is on V(o_{t+1}).
    weight = _rows.select(row.follows, _rows.per_row(lambda_, row.follows))
    weight = expand(weight, rank)
    one_step = reward + gamma * (1.0 - weight) * _rows.select(row.bootstraps, next_value)
    return _rows.linear_recurrence(gamma * weight, one_step)


def n_step_returns(
    *,
    reward: Any,
    next_value: Any,
    termination: Any,
    truncation: Any,
    discount: Any,
    n: int,
    mask: Any = None,
) -> tf.Tensor:
    """n-step returns.

      G_t = sum_{k < m} gamma^k r_{t+k} + gamma^m (1 - termination_{t+m-1}) V(o_{t+m})

    where m is n, or less if the episode or the rows end earlier: a tail shorter than n, or an end,
    bootstraps from its last `next_value`.

    Source: Sutton and Barto 2018, equation 7.1, http://incompleteideas.net/book/the-book.html.

    Args:
      reward: float32 [T, B], r_t.
      next_value: float32 [T, B], V(o_{t+1}) at the true successor.
      termination: bool [T, B].
      truncation: bool [T, B].
      discount: gamma, a float or float32 broadcastable to [T, B].
      n: Number of rewards, at least 1 (static).
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      float32 [T, B], 0 in masked rows.

    Raises:
      UserError: When n is less than 1, or shapes or dtypes do not fit.
    """
    checks.at_least("n", n, 1, remedy="Use n=1 for TD(0).")
    row = _rows.rows(termination, truncation, discount, mask)
    reward, next_value = _rows.columns(row, reward=reward, next_value=next_value)
    gamma = expand(row.discount, reward.shape.rank)
    follows = expand(row.follows, reward.shape.rank)
    bootstrap = gamma * _rows.select(row.bootstraps, next_value)
    if reward.shape[0] is not None and n >= reward.shape[0]:
        carries_on = tf.where(follows, gamma, tf.zeros_like(gamma))
        return _rows.linear_recurrence(
            carries_on, reward + tf.where(follows, tf.zeros_like(bootstrap), bootstrap)
        )
    returns = reward + bootstrap
    for _ in range(n - 1):
        returns = reward + tf.where(follows, gamma * _rows.shift(returns), bootstrap)
    return returns


def discounted_returns(
    *,
    reward: Any,
    termination: Any,
    truncation: Any,
    discount: Any,
    next_value: Any = None,
    mask: Any = None,
) -> tf.Tensor:
    """Discounted returns to the end of the episode or of the rows.

      G_t = r_t + gamma G_{t+1}

    where the second term is gamma V(o_{t+1}) at a truncation and in the last row (0 without
    `next_value`), and 0 at a termination.

    Source: Sutton and Barto 2018, equation 3.9, http://incompleteideas.net/book/the-book.html.

    Args:
      reward: float32 [T, B], r_t.
      termination: bool [T, B].
      truncation: bool [T, B].
      discount: gamma, a float or float32 broadcastable to [T, B].
      next_value: float32 [T, B], V(o_{t+1}) at the true successor, or None to sum rewards only.
      mask: bool [T, B], True for valid rows, or None.

    Returns:
      float32 [T, B], 0 in masked rows.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    reward = _rows.floats("reward", reward)
    return lambda_returns(
        reward=reward,
        next_value=tf.zeros_like(reward) if next_value is None else next_value,
        termination=termination,
        truncation=truncation,
        discount=discount,
        lambda_=1.0,
        mask=mask,
    )


class VTrace(NamedTuple):
    """Results of `vtrace`, without gradients.

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
    """V-trace: off-policy corrected value targets and advantages.

      delta_t = min(clip_rho, rho_t) (r_t + gamma V(o_{t+1}) - V(o_t))
      vs_t = V(o_t) + e_t,  e_t = delta_t + gamma lambda min(1, rho_t) e_{t+1}
      pg_advantage_t = min(clip_pg_rho, rho_t)
                       (r_t + gamma (lambda vs_{t+1} + (1 - lambda) V(o_{t+1})) - V(o_t))

    with gamma (1 - termination_t) for gamma. e_{t+1} is cut at a termination, at a truncation and
    in the last row, where V(o_{t+1}) replaces vs_{t+1}. A masked row never affects other rows; its
    results are 0.

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
      clip_rho: Maximum weight of a temporal difference.
      clip_pg_rho: Maximum weight of an advantage; None for unweighted advantages.
      mask: bool [T, B], True for valid rows, or None.

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
    advantage = reward + gamma * bootstrap - value
    if clip_pg_rho is not None:
        advantage = tf.minimum(clip_pg_rho, rho) * advantage
    return VTrace(value_target=tf.stop_gradient(target), pg_advantage=tf.stop_gradient(advantage))


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
    No gradient flows through G_t. A masked row never affects other rows; its result is 0.
    `next_action` and `next_mu` are ignored in the last row of an episode or of the rows.

    Source: Munos et al. 2016, section 3, https://arxiv.org/abs/1606.02647; computed as
    https://github.com/google-deepmind/rlax (`retrace`).

    Args:
      q: float32 [T, B, A], Q(o_t, .) with gradient.
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
      mask: bool [T, B], True for valid rows, or None.

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
