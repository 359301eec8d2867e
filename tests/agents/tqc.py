"""TQC as a user would add it: SAC's hooks, a head of quantiles, a decorator."""

import tensorflow as tf

from tfrl import networks, ops, struct
from tfrl.agents import SAC, algorithm


@algorithm
@struct.logic_dataclass
class TQC(SAC):
    """Truncated quantile critics: each critic gives quantiles, targets drop the largest of them.

    Source: Kuznetsov et al. 2020, https://arxiv.org/abs/2005.04269.

    Attributes:
      num_quantiles: M, of each critic.
      top_quantiles_to_drop: Of each critic, in the target.
    """

    num_critics: int = 5
    num_quantiles: int = 25
    top_quantiles_to_drop: int = 2

    takes_discrete = False

    def make_critic_head(self, torso):
        """Returns one critic of M outputs."""
        return networks.QNetwork(torso=torso, num_actions=self.num_quantiles)

    def target_q(self, q):
        """Returns the least of all quantiles, float32 [N, n (M - dropped)], of [n, N, M]."""
        n, m = q.shape[0], q.shape[2]
        pooled = tf.reshape(tf.transpose(q, [1, 0, 2]), [-1, n * m])
        return tf.sort(pooled, axis=-1)[:, : n * (m - self.top_quantiles_to_drop)]

    def policy_q(self, q):
        """Returns the mean of all quantiles, float32 [N]."""
        return tf.reduce_mean(q, axis=(0, 2))

    def regression(self, q, next_value, batch):
        """Quantile regression of each critic on the quantiles of the target."""
        going = tf.cast(tf.not_equal(batch.discount, 0.0), tf.float32)[:, tf.newaxis]
        bootstrap = tf.where(going > 0.0, batch.discount[:, tf.newaxis] * next_value, 0.0)
        target = tf.stop_gradient(batch.reward[:, tf.newaxis] + bootstrap)
        mask, weight = getattr(batch, "mask", None), getattr(batch, "weight", None)
        losses = [ops.quantile_huber_loss(z, target, mask, weight) for z in tf.unstack(q)]
        mean, mean_target = tf.reduce_mean(q, axis=2), tf.reduce_mean(target, axis=1)
        error = tf.transpose(tf.stop_gradient(mean_target - mean))
        extra = ops.TDExtra(
            td_error=error, target=tf.broadcast_to(mean_target[:, None], error.shape)
        )
        metrics = {
            "q_mean": ops.masked_mean(tf.stop_gradient(tf.transpose(mean)), mask),
            "td_error": ops.masked_mean(tf.abs(error), mask),
        }
        return tf.add_n(losses), extra, metrics
