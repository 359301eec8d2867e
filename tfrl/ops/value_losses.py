"""Losses of state values: regression on targets, and one-step temporal differences."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfrl import checks
from tfrl.ops import _rows, reduce
from tfrl.ops._rows import expand
from tfrl.ops.reduce import masked_mean


class TDExtra(NamedTuple):
    """Extra results of the temporal-difference losses, without gradients.

    Attributes:
      td_error: float32 [...], target - prediction, for priorities; 0 in masked rows.
      target: float32 [...]; 0 in masked rows.
    """

    td_error: tf.Tensor
    target: tf.Tensor


def huber(x: Any, delta: float = 1.0, mask: Any = None) -> tf.Tensor:
    """Huber's function: quadratic near 0, linear beyond.

      x^2 / 2 where |x| <= delta, delta (|x| - delta / 2) elsewhere

    Source: Huber 1964, https://doi.org/10.1214/aoms/1177703732.

    Args:
      x: float32 [...].
      delta: Where it becomes linear, above 0.
      mask: bool, leading axes of x, True for valid rows, or None.

    Returns:
      float32 [...], 0 in masked rows.
    """
    x = _rows.floats("x", x)
    if mask is not None:
        x = _rows.select(_rows.flag("mask", mask), x)
    size = tf.abs(x)
    # The quadratic part is clipped, so that its gradient is finite for any x.
    inside = tf.minimum(size, delta)
    return 0.5 * tf.square(inside) + delta * (size - inside)


def _weighted_loss(
    error: tf.Tensor, mask: Any, weights: Any, huber_delta: float | None, denominator: Any
) -> tf.Tensor:
    """Weighted mean of halved squared or Huber errors; masked weights may be garbage."""
    loss = 0.5 * tf.square(error) if huber_delta is None else huber(error, huber_delta)
    if weights is not None:
        weights = tf.stop_gradient(_rows.floats("weights", weights))
        if mask is not None:
            weights = _rows.select(_rows.flag("mask", mask), weights)
        loss = expand(weights, loss.shape.rank) * loss
    return reduce.masked_mean(loss, mask, denominator=denominator)


def _inputs(mask: Any, **tensors: Any) -> list[tf.Tensor]:
    """Converts float inputs and puts 0 in masked rows."""
    converted = [_rows.floats(name, x) for name, x in tensors.items()]
    if mask is None:
        return converted
    mask = _rows.flag("mask", mask)
    for name, x in zip(tensors, converted, strict=True):
        checks.leading_shape(name, x, mask.shape, "mask")
    return [_rows.select(mask, x) for x in converted]


def value_loss(*, value: Any, target: Any, mask: Any = None, denominator: Any = None) -> tf.Tensor:
    """Half the mean squared error.

      loss = mean_t (V(o_t) - target_t)^2 / 2

    Source: Schulman et al. 2017, equation 9, https://arxiv.org/abs/1707.06347.

    Args:
      value: float32 [T, B], V(o_t).
      target: float32 [T, B]; no gradient flows through it.
      mask: bool [T, B], True for valid rows, or None.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    value, target = _inputs(mask, value=value, target=target)
    checks.same_shape(("value", "target"), (value, target))
    return _weighted_loss(value - tf.stop_gradient(target), mask, None, None, denominator)


def clipped_value_loss(
    *,
    value: Any,
    old_value: Any,
    target: Any,
    clip: Any,
    mask: Any = None,
    denominator: Any = None,
) -> tf.Tensor:
    """The value loss of PPO's reference code, which clips the change of the values.

      loss = mean_t max((V - target)^2, (V_old + clip(V - V_old, -clip, clip) - target)^2) / 2

    Source: https://github.com/openai/baselines (ppo2/model.py); its effect: Engstrom et al. 2020,
    https://arxiv.org/abs/2005.12729.

    Args:
      value: float32 [T, B], V(o_t).
      old_value: float32 [T, B], V(o_t) when the rows were collected; no gradient.
      target: float32 [T, B]; no gradient flows through it.
      clip: Largest change of the value that is not clipped; a float or a float32 scalar.
      mask: bool [T, B], True for valid rows, or None.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    value, old_value, target = _inputs(mask, value=value, old_value=old_value, target=target)
    checks.same_shape(("value", "old_value", "target"), (value, old_value, target))
    old_value, target = tf.stop_gradient(old_value), tf.stop_gradient(target)
    held = old_value + tf.clip_by_value(value - old_value, -clip, clip)
    squares = tf.maximum(tf.square(value - target), tf.square(held - target))
    return 0.5 * reduce.masked_mean(squares, mask, denominator=denominator)


def td_loss(
    *,
    value: Any,
    next_value: Any,
    reward: Any,
    termination: Any,
    discount: Any,
    mask: Any = None,
    weights: Any = None,
    huber_delta: float | None = None,
    denominator: Any = None,
) -> tuple[tf.Tensor, TDExtra]:
    """TD(0), and the critic's loss of actor-critics with `value` = Q(o, a).

      target = r + gamma (1 - termination) V(o'),  loss = mean weights (target - V(o))^2 / 2

    Source: Sutton and Barto 2018, section 6.1, http://incompleteideas.net/book/the-book.html.

    Args:
      value: float32 [..., *critics], of one or several critics.
      next_value: float32 [..., *critics or 1], at the true successor; no gradient.
      reward: float32 [...].
      termination: bool [...].
      discount: gamma, a float or float32 broadcastable to [...].
      mask: bool [...], True for valid rows, or None.
      weights: float32 [...], of each row, as for prioritised sampling, or None.
      huber_delta: Use Huber's function with this delta instead of the half square.
      denominator: Number of valid rows to divide by; None counts them in the mask.

    Returns:
      (loss, extra), the loss a float32 scalar.

    Raises:
      UserError: When shapes or dtypes do not fit.
    """
    value, next_value = _inputs(mask, value=value, next_value=next_value)
    (reward,) = _inputs(mask, reward=reward)
    termination = _rows.flag("termination", termination)
    checks.same_shape(("termination", "reward"), (termination, reward))
    checks.leading_shape("value", value, termination.shape, "termination")
    rank = max(value.shape.rank, next_value.shape.rank)
    value, next_value, reward = (expand(x, rank) for x in (value, next_value, reward))
    bootstraps = tf.logical_not(termination)
    if mask is not None:
        bootstraps = tf.logical_and(bootstraps, mask)
    gamma = _rows.select(bootstraps, _rows.per_row(discount, termination))
    target = reward + expand(gamma, rank) * _rows.select(bootstraps, next_value)
    target = tf.stop_gradient(target)
    error = target - value
    loss = _weighted_loss(error, mask, weights, huber_delta, denominator)
    return loss, TDExtra(td_error=tf.stop_gradient(error), target=target)


def quantile_huber_loss(
    quantiles: tf.Tensor, targets: tf.Tensor, mask: Any = None, weights: Any = None
) -> tf.Tensor:
    """Quantile regression with the Huber loss.

      tau_i = (i + 1/2) / M
      loss = mean_{n, j} sum_i |tau_i - 1{delta < 0}| huber(delta),  delta = targets_j - quantiles_i

    Source: Dabney et al. 2018, equation 10, https://arxiv.org/abs/1710.10044, with kappa = 1.

    Args:
      quantiles: float32 [N, M], with gradient.
      targets: float32 [N, K], samples or quantiles of the target; no gradient.
      mask: bool [N], True for valid rows, or None.
      weights: float32 [N], importance weights, or None.

    Returns:
      float32 scalar.

    Raises:
      UserError: For other ranks or different numbers of rows.
    """
    checks.rank("quantiles", quantiles, 2)
    checks.rank("targets", targets, 2)
    checks.leading_shape("targets", targets, quantiles.shape[:1], "quantiles")
    number = quantiles.shape[1]
    tau = (tf.range(number, dtype=tf.float32) + 0.5) / float(number)
    delta = tf.stop_gradient(targets)[:, tf.newaxis, :] - quantiles[:, :, tf.newaxis]
    below = tf.cast(tf.stop_gradient(delta) < 0.0, tf.float32)
    pinball = tf.abs(tau[:, tf.newaxis] - below) * huber(delta)
    rows = tf.reduce_mean(tf.reduce_sum(pinball, axis=1), axis=1)
    return masked_mean(rows if weights is None else rows * weights, mask)
