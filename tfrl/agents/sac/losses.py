"""The terms of SAC's losses, without networks and loops."""

from typing import Any

import tensorflow as tf

from tfrl import ops


def soft_value(q: tf.Tensor, log_prob: tf.Tensor, alpha: Any) -> tf.Tensor:
    """The soft value of a sampled action.

      V(o) = Q(o, a) - alpha log pi(a | o),  a ~ pi(. | o)

    Source: Haarnoja et al. 2018, equation 3, https://arxiv.org/abs/1812.05905.

    Args:
      q: float32 [N], the minimum (or mean) of the critics' values; or [N, M], several estimates.
      log_prob: float32 [N].
      alpha: The temperature, a number or a scalar.

    Returns:
      float32 of the shape of q.
    """
    return q - alpha * (log_prob if q.shape.rank == 1 else log_prob[:, tf.newaxis])


def expected_soft_value(q: tf.Tensor, log_probs: tf.Tensor, alpha: Any) -> tf.Tensor:
    """The soft value of discrete actions, an expectation without sampling.

      V(o) = sum_a pi(a | o) (Q(o, a) - alpha log pi(a | o))

    Source: Christodoulou 2019, equation 10, https://arxiv.org/abs/1910.07207.

    Args:
      q: float32 [N, A], the minimum (or mean) of the critics' values.
      log_probs: float32 [N, A]; very low for invalid actions, which then have no effect.
      alpha: The temperature, a number or a scalar.

    Returns:
      float32 [N].
    """
    return tf.reduce_sum(tf.exp(log_probs) * (q - alpha * log_probs), axis=-1)


def actor_loss(value: tf.Tensor, mask: Any = None) -> tf.Tensor:
    """The actor's loss: the soft value at its own actions, negated.

      loss = mean (alpha log pi(a | o) - Q(o, a))

    Source: Haarnoja et al. 2018, equation 9, https://arxiv.org/abs/1812.05905; discrete:
    Christodoulou 2019, equation 12, https://arxiv.org/abs/1910.07207.

    Args:
      value: float32 [N], as a function of the actor's parameters.
      mask: bool [N], True for valid rows, or None.

    Returns:
      float32 scalar.
    """
    return -ops.masked_mean(value, mask)


def temperature_loss(
    log_alpha: tf.Tensor, entropy: tf.Tensor, target_entropy: Any, mask: Any = None
) -> tf.Tensor:
    """Raises the temperature if the policy's entropy is below its target.

      loss = mean log_alpha (H - H_target)

    Source: Haarnoja et al. 2018, equation 18, https://arxiv.org/abs/1812.05905, with alpha instead
    of log alpha; the authors' and Stable-Baselines3's code use the logarithm, whose steps do not
    shrink with alpha.

    Args:
      log_alpha: float32 scalar.
      entropy: float32 [N], or minus the log-probability of a sampled action; no gradient.
      target_entropy: Nats, a number or float32 [N].
      mask: bool [N], True for valid rows, or None.

    Returns:
      float32 scalar.
    """
    return log_alpha * ops.masked_mean(tf.stop_gradient(entropy) - target_entropy, mask)
