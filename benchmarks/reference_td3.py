"""A hand-written single-file TD3 on Pendulum: the reference of `benchmarks.td3`.

Twin critics with stacked parameters, unstacked for the products, target policy smoothing, updates
of actor and target networks in every second step, batches of 256, networks of 2x256. `MODES` are
its compile modes and variants of Adam.
"""

from typing import Any

import tensorflow as tf

from benchmarks import reference_off_policy as base

MODES = {"graph, fused Adam": (False, "fused"), "graph, Keras Adam": (False, "keras"),
         "xla, fused Adam": (True, "fused")}  # fmt: skip
HIDDEN, RATE, TAU, DELAY = 256, 3e-4, 0.005, 2
EXPLORATION, SMOOTHING, SMOOTHING_CLIP = 0.1, 0.2, 0.5


class ReferenceTD3(base.OffPolicyLoop):
    """One env step and one update per iteration; actor updates in every second iteration."""

    def __init__(self, mode: str = "graph, fused Adam", capacity: int = 100_000, seed: int = 0):
        """Makes networks, target networks and optimizers."""
        jit, adam = MODES[mode]
        super().__init__(base.Pendulum(), capacity, jit, seed)
        self.actor = base.network(seed, [3, HIDDEN, HIDDEN, 1])
        self.critic = base.network(seed + 1, [4, HIDDEN, HIDDEN, 1], copies=2)
        self.target_actor = [tf.Variable(v) for v in self.actor]
        self.target_critic = [tf.Variable(v) for v in self.critic]
        self.critic_adam = base.Adam(self.critic, RATE, adam)
        self.actor_adam = base.Adam(self.actor, RATE, adam)

    def act(self, obs: tf.Tensor, keys: Any) -> tf.Tensor:
        """Returns the policy's action with noise."""
        action = tf.tanh(base.apply(base.values(self.actor), obs))
        return tf.clip_by_value(action + EXPLORATION * base.normal(keys[2], [1, 1]), -1.0, 1.0)

    def update(self, i: tf.Tensor, rows: list[tf.Tensor], keys: Any) -> list[tf.Tensor]:
        """Updates the critics, and in every second step the actor and the target networks."""
        obs, action, reward, successor = rows
        next_action = tf.tanh(base.apply(base.values(self.target_actor), successor))
        noise = SMOOTHING * base.normal(keys[3], next_action.shape)
        noise = tf.clip_by_value(noise, -SMOOTHING_CLIP, SMOOTHING_CLIP)
        next_action = tf.clip_by_value(next_action + noise, -1.0, 1.0)
        joint = tf.concat([successor, next_action], axis=1)
        targets = base.each(base.values(self.target_critic))
        goal = reward + base.GAMMA * tf.minimum(*[base.apply(p, joint) for p in targets])
        taken = tf.concat([obs, action], axis=1)

        def critic_loss(params: Any) -> tuple[tf.Tensor, tf.Tensor]:
            qs = [base.apply(p, taken) for p in base.each(params)]
            return sum(0.5 * tf.reduce_mean((q - goal) ** 2) for q in qs), tf.reduce_mean(qs[0])

        gradients, loss, mean_q = base.grad(critic_loss, self.critic)
        self.critic_adam.apply(gradients)

        def delayed() -> tf.Tensor:
            first = [p[0] for p in base.values(self.critic)]

            def actor_loss(params: Any) -> tuple[tf.Tensor, None]:
                chosen = tf.tanh(base.apply(params, obs))
                pair = tf.concat([obs, chosen], axis=1)
                return -tf.reduce_mean(base.apply(first, pair)), None

            gradients, loss, _ = base.grad(actor_loss, self.actor)
            self.actor_adam.apply(gradients)
            base.follow(self.target_actor, self.actor, TAU)
            base.follow(self.target_critic, self.critic, TAU)
            return loss

        policy_loss = tf.cond(tf.equal(i % DELAY, 0), delayed, lambda: 0.0)
        return [loss, policy_loss, mean_q]
