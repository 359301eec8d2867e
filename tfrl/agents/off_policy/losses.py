"""The loss of n critics, for TD3 and SAC."""

from typing import Any

import tensorflow as tf

from tfrl import ops
from tfrl.ops import TDExtra


def critic_loss(
    q: tf.Tensor, next_value: tf.Tensor, batch: Any
) -> tuple[tf.Tensor, TDExtra, dict[str, tf.Tensor]]:
    """Regression of every critic on a common target.

      y = R + d V(o')
      loss = sum_i mean w (y - Q_i(o, a))^2 / 2

    R is the n-step sum and d the item's discount, 0 after a termination. With the sum over critics,
    each has the gradient of a single critic.

    Source: Fujimoto et al. 2018, algorithm 1, https://arxiv.org/abs/1802.09477; the half: Haarnoja
    et al. 2018, equation 5, https://arxiv.org/abs/1812.05905; w: Schaul et al. 2016, section 3.4,
    https://arxiv.org/abs/1511.05952.

    Args:
      q: float32 [n, N], Q_i(o, a) with gradient.
      next_value: float32 [N], the estimate of V(o'); no gradient.
      batch: The rows, a `Transition`.

    Returns:
      The loss, a float32 scalar; errors and targets `[N, n]`; and the metrics `q_mean` and
      `td_error`.
    """
    mask = getattr(batch, "mask", None)
    value = tf.stack(tf.unstack(q), axis=-1)  # not a transpose, whose kernel is slow on a CPU
    loss, extra = ops.td_loss(
        value=value,
        next_value=next_value,
        reward=batch.reward,
        # With discount 0, values of next_obs have no effect, NaN included.
        termination=tf.equal(batch.discount, 0.0),
        discount=batch.discount,
        mask=mask,
        weights=getattr(batch, "weight", None),
    )
    metrics = {
        "q_mean": ops.masked_mean(tf.stop_gradient(value), mask),
        "td_error": ops.masked_mean(tf.abs(extra.td_error), mask),
    }
    return loss * float(q.shape[0]), extra, metrics
