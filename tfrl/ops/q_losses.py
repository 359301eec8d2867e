"""One-step temporal-difference losses of action values over discrete actions.

Each is `td_loss` of the taken action's value, with a different bootstrap value. The other keyword
arguments (`reward`, `termination`, `discount`, `mask`, `weights`, `huber_delta`, `denominator`)
match `td_loss`.
"""

from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows
from tfrl.ops._rows import take_action
from tfrl.ops.value_losses import TDExtra, td_loss

# The value of invalid actions: below all real values, and finite, so that a discount of 0 gives 0.
_INVALID = -1e30


def q_learning_loss(
    *,
    q: Any,
    action: Any,
    next_q: Any,
    reward: Any,
    termination: Any,
    discount: Any,
    mask: Any = None,
    weights: Any = None,
    huber_delta: float | None = None,
    denominator: Any = None,
) -> tuple[tf.Tensor, TDExtra]:
    """Q-learning.

      target = r + gamma (1 - termination) max_a Q_target(o', a)

    Source: Mnih et al. 2015, https://doi.org/10.1038/nature14236.

    Args:
      q: float32 [..., A], Q(o, .) with gradient.
      action: integer [...], the action taken.
      next_q: float32 [..., A], Q_target(o', .) at the true successor; no gradient.
      reward: float32 [...].
      termination: bool [...].
      discount: gamma, a float or float32 broadcastable to [...].
      mask: bool [...], True for valid rows, or None.
      weights: float32 [...], of each row, or None.
      huber_delta: Use Huber's function with this delta instead of the half square.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      (loss, extra), the loss a float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    q, next_q = _action_values(q=q, next_q=next_q)
    return td_loss(
        value=take_action(q, action),
        next_value=tf.reduce_max(next_q, axis=-1),
        reward=reward,
        termination=termination,
        discount=discount,
        mask=mask,
        weights=weights,
        huber_delta=huber_delta,
        denominator=denominator,
    )


def double_q_learning_loss(
    *,
    q: Any,
    action: Any,
    next_q: Any,
    next_q_selector: Any,
    reward: Any,
    termination: Any,
    discount: Any,
    mask: Any = None,
    weights: Any = None,
    huber_delta: float | None = None,
    denominator: Any = None,
) -> tuple[tf.Tensor, TDExtra]:
    """Double Q-learning.

      target = r + gamma (1 - termination) Q_target(o', argmax_a Q(o', a))

    Source: van Hasselt et al. 2016, equation 4, https://arxiv.org/abs/1509.06461.

    Args:
      q: float32 [..., A], Q(o, .) with gradient.
      action: integer [...], the action taken.
      next_q: float32 [..., A], Q_target(o', .) at the true successor; no gradient.
      next_q_selector: float32 [..., A], Q(o', .) of the online network; no gradient.
      reward: float32 [...].
      termination: bool [...].
      discount: gamma, a float or float32 broadcastable to [...].
      mask: bool [...], True for valid rows, or None.
      weights: float32 [...], of each row, or None.
      huber_delta: Use Huber's function with this delta instead of the half square.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      (loss, extra), the loss a float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    q, next_q, next_q_selector = _action_values(q=q, next_q=next_q, next_q_selector=next_q_selector)
    best = tf.argmax(next_q_selector, axis=-1, output_type=tf.int32)
    return td_loss(
        value=take_action(q, action),
        next_value=take_action(next_q, best),
        reward=reward,
        termination=termination,
        discount=discount,
        mask=mask,
        weights=weights,
        huber_delta=huber_delta,
        denominator=denominator,
    )


def expected_sarsa_loss(
    *,
    q: Any,
    action: Any,
    next_q: Any,
    next_pi: Any,
    reward: Any,
    termination: Any,
    discount: Any,
    mask: Any = None,
    weights: Any = None,
    huber_delta: float | None = None,
    denominator: Any = None,
) -> tuple[tf.Tensor, TDExtra]:
    """Expected SARSA.

      target = r + gamma (1 - termination) sum_a pi(a | o') Q_target(o', a)

    Source: Sutton and Barto 2018, equation 6.9, http://incompleteideas.net/book/the-book.html.

    Args:
      q: float32 [..., A], Q(o, .) with gradient.
      action: integer [...], the action taken.
      next_q: float32 [..., A], Q_target(o', .) at the true successor; no gradient.
      next_pi: float32 [..., A], probabilities pi(. | o'); no gradient.
      reward: float32 [...].
      termination: bool [...].
      discount: gamma, a float or float32 broadcastable to [...].
      mask: bool [...], True for valid rows, or None.
      weights: float32 [...], of each row, or None.
      huber_delta: Use Huber's function with this delta instead of the half square.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      (loss, extra), the loss a float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    q, next_q, next_pi = _action_values(q=q, next_q=next_q, next_pi=next_pi)
    expected = tf.reduce_sum(tf.stop_gradient(next_pi * next_q), axis=-1)
    return td_loss(
        value=take_action(q, action),
        next_value=expected,
        reward=reward,
        termination=termination,
        discount=discount,
        mask=mask,
        weights=weights,
        huber_delta=huber_delta,
        denominator=denominator,
    )


def mask_action_values(values: Any, mask: Any) -> tf.Tensor:
    """Replaces the values of invalid actions with a very low value, for a maximum over actions.

    A row without valid actions keeps its values, so that its unused maximum stays finite and of
    normal size.

    Args:
      values: float32 [..., A].
      mask: bool (or numbers) [..., A], True for the valid actions; None for all.

    Returns:
      float32 [..., A]; no gradient flows through replaced values.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    values = _rows.floats("values", values)
    if mask is None:
        return values
    valid = tf.cast(tf.convert_to_tensor(mask), tf.bool)
    checks.same_shape(("values", "mask"), (values, valid))
    valid = valid | ~tf.reduce_any(valid, axis=-1, keepdims=True)
    return tf.where(valid, values, tf.constant(_INVALID))


def _action_values(**tensors: Any) -> list[tf.Tensor]:
    """Converts inputs over actions, which must have one shape."""
    converted = [_rows.floats(name, x) for name, x in tensors.items()]
    checks.same_shape(tuple(tensors), converted)
    return converted
