"""A hand-written single-file DQN on CartPole: the reference of `benchmarks.dqn`.

Double Q-learning with the Huber loss, batches of 64, networks of 2x64, a target network
copied every 500 steps, random actions in 5 of 100 steps. `MODES` are its compile modes.
"""

from typing import Any

import tensorflow as tf

from benchmarks import reference_off_policy as base

MODES = {"xla, fused Adam": True, "graph, fused Adam": False}
BATCH, HIDDEN, RATE, EVERY, EPSILON, MAX_NORM = 64, 64, 1e-3, 500, 0.05, 10.0


class ReferenceDQN(base.OffPolicyLoop):
    """One env step and one update per iteration."""

    batch_size = BATCH

    def __init__(self, mode: str = "xla, fused Adam", capacity: int = 100_000, seed: int = 0):
        """Makes the networks and the optimizer."""
        super().__init__(base.CartPole(), capacity, MODES[mode], seed)
        self.online = base.network(seed, [4, HIDDEN, HIDDEN, 2])
        self.target = [tf.Variable(v) for v in self.online]
        self.adam = base.Adam(self.online, RATE)

    def act(self, obs: tf.Tensor, keys: Any) -> tf.Tensor:
        """Returns the epsilon-greedy action, float32 [1, 1]."""
        q = base.apply(base.values(self.online), obs)
        draws = base.uniform(keys[2], [2])
        best = tf.cast(q[:, 1:] > q[:, :1], tf.float32)
        return tf.where(draws[0] < EPSILON, tf.round(draws[1]), best)

    def update(self, i: tf.Tensor, rows: list[tf.Tensor], keys: Any) -> list[tf.Tensor]:
        """Updates the network, and periodically its target."""
        obs, action, discount, successor = rows
        online = base.values(self.online)
        best = tf.one_hot(tf.argmax(base.apply(online, successor), axis=1), 2)
        future = tf.reduce_sum(base.apply(base.values(self.target), successor) * best, axis=1)
        goal = 1.0 + discount[:, 0] * future
        taken = tf.concat([1.0 - action, action], axis=1)

        def loss(params: Any) -> tuple[tf.Tensor, tf.Tensor]:
            q = tf.reduce_sum(base.apply(params, obs) * taken, axis=1)
            size = tf.abs(q - goal)
            huber = tf.where(size < 1.0, 0.5 * size**2, size - 0.5)
            return tf.reduce_mean(huber), tf.reduce_mean(q)

        gradients, loss_value, mean_q = base.grad(loss, self.online)
        gradients, norm = tf.clip_by_global_norm(gradients, MAX_NORM)
        self.adam.apply(gradients)
        due = tf.equal(i % EVERY, 0)
        for t, p in zip(self.target, self.online, strict=True):
            t.assign(tf.where(due, p, t))
        return [loss_value, mean_q, norm]
