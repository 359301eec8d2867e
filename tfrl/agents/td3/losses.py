"""The terms of TD3's losses, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops, seeding


def smoothed(action: tf.Tensor, key: tf.Tensor, sigma: float, clip: float) -> tf.Tensor:
    """Target policy smoothing: the target actor's action with clipped noise.

      clip(u + clip(sigma z, -clip, clip), -1, 1),  z ~ N(0, I)

    Source: Fujimoto et al. 2018, equation 14 and algorithm 1, https://arxiv.org/abs/1802.09477.

    Args:
      action: float32 [N, D] in [-1, 1].
      key: int32 [2].
      sigma: Standard deviation of the noise; 0 for none.
      clip: Clipping bound of the noise.

    Returns:
      float32 [N, D] in [-1, 1].
    """
    if sigma == 0:
        return action
    noise = sigma * seeding.normal(key, tf.shape(action))
    return tf.clip_by_value(action + tf.clip_by_value(noise, -clip, clip), -1.0, 1.0)


def actor_loss(q: tf.Tensor, mask: Any = None) -> tf.Tensor:
    """The deterministic policy gradient's loss.

      loss = -mean Q_1(o, mu(o))

    Source: Silver et al. 2014, theorem 1, https://proceedings.mlr.press/v32/silver14.html; with the
    first of several critics: Fujimoto et al. 2018, algorithm 1.

    Args:
      q: float32 [N], as a function of the actor's parameters.
      mask: bool [N], True for valid rows, or None.

    Returns:
      float32 scalar.
    """
    return -ops.masked_mean(q, mask)
