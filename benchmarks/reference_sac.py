"""A hand-written single-file SAC on Pendulum: the reference of `benchmarks.sac`.

Twin critics with stacked parameters, unstacked for the products, a learned temperature, soft
target networks, batches of 256, networks of 2x256; metrics of every step are summed.
`MODES` are its compile modes and variants of Adam.
"""

import math
from typing import Any

import tensorflow as tf

from benchmarks import reference_off_policy as base

MODES = {"graph, fused Adam": (False, "fused"), "graph, Keras Adam": (False, "keras"),
         "xla, fused Adam": (True, "fused")}  # fmt: skip
HIDDEN, RATE, TAU, TARGET_ENTROPY = 256, 3e-4, 0.005, -1.0


class ReferenceSAC(base.OffPolicyLoop):
    """One env step and one update of all parts per iteration."""

    _width = 6

    def __init__(self, mode: str = "graph, fused Adam", capacity: int = 100_000, seed: int = 0):
        """Makes networks, target networks and optimizers."""
        jit, adam = MODES[mode]
        super().__init__(base.Pendulum(), capacity, jit, seed)
        self.actor = base.network(seed, [3, HIDDEN, HIDDEN, 2])
        self.critic = base.network(seed + 1, [4, HIDDEN, HIDDEN, 1], copies=2)
        self.target = [tf.Variable(v) for v in self.critic]
        self.log_alpha = tf.Variable(0.0)
        self.critic_adam = base.Adam(self.critic, RATE, adam)
        self.actor_adam = base.Adam([*self.actor, self.log_alpha], RATE, adam)

    def act(self, obs: tf.Tensor, keys: Any) -> tf.Tensor:
        """Samples the policy."""
        return self._policy(base.values(self.actor), obs, keys[2])[0]

    def _policy(self, params: Any, obs: tf.Tensor, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """A squashed Gaussian's action `[N, 1]` in [-1, 1] and its log-probability `[N, 1]`."""
        mean, log_std = tf.split(base.apply(params, obs), 2, axis=1)
        log_std = tf.clip_by_value(log_std, -20.0, 2.0)
        noise = base.normal(key, mean.shape)
        raw = mean + tf.exp(log_std) * noise
        squash = 2.0 * (math.log(2.0) - raw - tf.nn.softplus(-2.0 * raw))
        gauss = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
        return tf.tanh(raw), gauss - squash

    def update(self, i: tf.Tensor, rows: list[tf.Tensor], keys: Any) -> list[tf.Tensor]:
        """Updates critics, actor, temperature and target networks."""
        obs, action, reward, successor = rows
        alpha = tf.exp(self.log_alpha)
        actor = base.values(self.actor)
        next_action, log_prob = self._policy(actor, successor, keys[3])
        joint = tf.concat([successor, next_action], axis=1)
        q = tf.minimum(*[base.apply(p, joint) for p in base.each(base.values(self.target))])
        goal = reward + base.GAMMA * (q - alpha * log_prob)
        taken = tf.concat([obs, action], axis=1)

        def critic_loss(params: Any) -> tuple[tf.Tensor, tf.Tensor]:
            qs = [base.apply(p, taken) for p in base.each(params)]
            return sum(0.5 * tf.reduce_mean((q - goal) ** 2) for q in qs), tf.reduce_mean(qs[0])

        gradients, loss, mean_q = base.grad(critic_loss, self.critic)
        self.critic_adam.apply(gradients)
        critics = base.each(base.values(self.critic))

        def actor_loss(params: Any) -> tuple[tf.Tensor, tf.Tensor]:
            chosen, log_prob = self._policy(params, obs, keys[4])
            pair = tf.concat([obs, chosen], axis=1)
            q = tf.minimum(*[base.apply(p, pair) for p in critics])
            return tf.reduce_mean(alpha * log_prob - q), tf.reduce_mean(log_prob)

        gradients, policy_loss, log_prob = base.grad(actor_loss, self.actor)
        # The gradient of the loss -log_alpha (log_prob + target entropy).
        self.actor_adam.apply([*gradients, -(log_prob + TARGET_ENTROPY)])
        base.follow(self.target, self.critic, TAU)
        return [loss, policy_loss, mean_q, log_prob]


if __name__ == "__main__":
    import time

    for name in MODES:
        sac = ReferenceSAC(name)
        sac.run(300)
        start, cpu = time.perf_counter(), time.process_time()
        sums = sac.run(1500)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(f"{name:18s} {1500 / wall:6.1f} updates/s, {cpu / 1.5:.2f} ms of CPU an update", sums)
