"""The loss of DQN, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops
from tfrl.ops import TDExtra


def dqn_loss(
    q: tf.Tensor,
    next_q: tf.Tensor,
    batch: Any,
    *,
    next_q_selector: tf.Tensor | None,
    next_mask: tf.Tensor | None,
    huber_delta: float | None,
) -> tuple[tf.Tensor, TDExtra]:
    """Q-learning on replayed items, double or not.

      y = R + d Q_target(o', argmax_a Q(o', a))      double
      y = R + d max_a Q_target(o', a)                else
      loss = mean w f(y - Q(o, a)),  f the half square, or Huber's function

    R is the n-step sum and d the item's discount, 0 after a termination. Maxima are over the valid
    actions of o'.

    Source: Mnih et al. 2015, https://doi.org/10.1038/nature14236; double: van Hasselt et al. 2016,
    equation 4, https://arxiv.org/abs/1509.06461; w: Schaul et al. 2016, section 3.4,
    https://arxiv.org/abs/1511.05952.

    Args:
      q: float32 [N, A], Q(o, .) with gradient.
      next_q: float32 [N, A], Q_target(o', .).
      batch: The rows, a `Transition` with the index of the taken action, int32 [N].
      next_q_selector: float32 [N, A], Q(o', .) of the online network; None to select by `next_q`
        itself.
      next_mask: bool [N, A], the valid actions at o'; None for all.
      huber_delta: Error beyond which Huber's function is linear; None for the half square.

    Returns:
      The loss, a float32 scalar, and the errors and targets of the rows.
    """
    common = {
        "q": q,
        "action": batch.action,
        "next_q": next_q,
        "reward": batch.reward,
        # With discount 0, values of next_obs have no effect, NaN included.
        "termination": tf.equal(batch.discount, 0.0),
        "discount": batch.discount,
        "mask": getattr(batch, "mask", None),
        "weights": getattr(batch, "weight", None),
        "huber_delta": huber_delta,
    }
    if next_q_selector is None:
        common["next_q"] = ops.mask_action_values(next_q, next_mask)
        return ops.q_learning_loss(**common)
    selector = ops.mask_action_values(next_q_selector, next_mask)
    return ops.double_q_learning_loss(**common, next_q_selector=selector)
