"""A2C: loss and gradient by hand, n-step advantages, masks."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tfrl import seeding, specs, struct
from tfrl.agents import A2C
from tfrl.agents.a2c.losses import policy_gradient_loss
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.distributions import make_distribution
from tfrl.learners import Learner, ModuleConfig
from tfrl.rollout import rollout
from tfrl.types import Trajectory

KEY = seeding.key(7)
NAN = float("nan")


def column(*numbers):
    return tf.constant(numbers)[:, tf.newaxis]


class LossTest(parameterized.TestCase):
    # Two rows with two actions. Row 0: probabilities (3/4, 1/4), action 0, advantage 2. Row 1:
    # (1/2, 1/2), action 1, advantage -1.
    logits = tf.math.log([[0.75, 0.25], [0.5, 0.5]])

    def run_loss(self, logits, value, batch):
        policy = make_distribution(specs.DiscreteSpec(2))
        with tf.GradientTape() as tape:
            tape.watch((logits, value))
            loss, metrics = policy_gradient_loss(
                policy.build(logits), value, batch, value_coef=0.5, entropy_coef=0.1
            )
        return loss, metrics, tape.gradient(loss, (logits, value))

    def batch(self, **changes):
        batch = PolicyBatch(
            obs=tf.zeros([2, 1]),
            action=tf.constant([0, 1], tf.int64),
            log_prob=tf.math.log([0.75, 0.5]),
            advantage=tf.constant([2.0, -1.0]),
            value_target=tf.constant([2.0, 0.0]),
            value=tf.constant([1.0, 0.0]),
        )
        return batch.replace(**changes)

    def test_by_hand(self):
        # -(2 ln 0.75 - ln 0.5) / 2 = -(-0.5753641 + 0.6931472) / 2 = -0.0588915.
        # Value errors 0.5 and -1: (0.25 + 1) / 4 = 0.3125.
        # Entropies 0.5623351 and 0.6931472, mean 0.6277412.
        # Loss -0.0588915 + 0.15625 - 0.0627741 = 0.0345844.
        loss, metrics, gradient = self.run_loss(self.logits, tf.constant([1.5, 1.0]), self.batch())
        self.assertAlmostEqual(float(loss), 0.0345844, places=6)
        self.assertAlmostEqual(float(metrics["policy_loss"]), -0.0588915, places=6)
        self.assertAlmostEqual(float(metrics["value_loss"]), 0.3125, places=6)
        self.assertAlmostEqual(float(metrics["entropy"]), 0.6277412, places=6)
        self.assertAlmostEqual(float(metrics["approx_kl"]), 0.0, places=6)
        # Of the policy: -A (1[a] - p) / 2. Of the entropy: -p (ln p + H); its weight is -0.1 / 2.
        # Row 0: -(1/4, -1/4) and -p (ln p + H) = 0.75 (0.2876821 - 0.5623351) = -0.2059898:
        # -0.25 + 0.05 * 0.2059898 = -0.2397005. Row 1: (1/2) (-1/2, 1/2); the entropy is greatest.
        np.testing.assert_allclose(gradient[0], [[-0.2397005, 0.2397005], [-0.25, 0.25]], rtol=1e-5)
        # 0.5 * (V - target) / 2.
        np.testing.assert_allclose(gradient[1], [-0.125, 0.25], rtol=1e-6)

    def test_masked_rows_change_nothing(self):
        loss, metrics, gradient = self.run_loss(self.logits, tf.constant([1.5, 1.0]), self.batch())
        more = lambda x, y: tf.concat([x, tf.constant([y], x.dtype)], 0)  # noqa: E731
        batch = self.batch()
        padded = batch.replace(
            obs=tf.zeros([3, 1]),
            action=more(batch.action, 1),
            log_prob=more(batch.log_prob, NAN),
            advantage=more(batch.advantage, NAN),
            value_target=more(batch.value_target, NAN),
            mask=tf.constant([True, True, False]),
        )
        found = self.run_loss(more(self.logits, [9.0, 9.0]), tf.constant([1.5, 1.0, NAN]), padded)
        self.assertAlmostEqual(float(found[0]), float(loss), places=6)
        for name, value in metrics.items():
            self.assertAlmostEqual(float(found[1][name]), float(value), places=6, msg=name)
        for ours, theirs in zip(found[2], gradient, strict=True):
            np.testing.assert_allclose(ours[:2], theirs, rtol=1e-6)
            np.testing.assert_array_equal(ours[2:], tf.zeros_like(ours[2:]))

    def test_columns_do_as_well(self):
        batch = self.batch()
        names = ("obs", "action", "log_prob", "advantage", "value_target")
        columns = struct.TensorDict({n: getattr(batch, n) for n in names})
        value = tf.constant([1.5, 1.0])
        loss, _, _ = self.run_loss(self.logits, value, columns)
        self.assertEqual(float(loss), float(self.run_loss(self.logits, value, batch)[0]))


class AgentTest(parameterized.TestCase):
    def agent(self, **options):
        return A2C(
            obs_spec=tf.TensorSpec([2]), action_spec=specs.DiscreteSpec(2), hidden=(4,), **options
        )

    def test_advantages_are_n_step_returns_minus_the_value(self):
        # gamma 0.5, rewards 1 2 4 8, an end after the second step. From the back: the last return
        # bootstraps from V = 6: 8 + 3 = 11, then 4 + 5.5 = 9.5; of the first episode 2 and 2.
        agent = self.agent(discount=0.5)
        trajectory = Trajectory(
            obs=None,
            action=None,
            reward=column(1.0, 2.0, 4.0, 8.0),
            next_obs=None,
            termination=column(False, True, False, False),
            truncation=column(False, False, False, False),
            valid=None,
        )
        value, next_value = column(1.0, 1.0, 1.0, 1.0), column(1.0, 50.0, 1.0, 6.0)
        advantage, target = agent.advantages(trajectory, value, next_value)
        np.testing.assert_allclose(target[:, 0], [2.0, 2.0, 9.5, 11.0])
        np.testing.assert_allclose(advantage[:, 0], [1.0, 1.0, 8.5, 10.0])

    def test_they_weigh_as_they_are(self):
        agent = self.agent()
        self.assertIs(agent.prepare_minibatch(None, "batch", None), "batch")
        self.assertEqual([u.name for u in agent.updates], ["a2c"])
        self.assertEqual(agent.updates[0].groups, ("policy", "value"))

    def test_the_learner_steps_by_that_loss(self):
        agent = self.agent(entropy_coef=0.01)
        learner = Learner(agent, config=ModuleConfig(lr=1e-2))
        learner.build(KEY)
        before = struct.values(learner.state)
        env = tfrl.make_env(
            "testing:Scripted", rewards=(1.0, 0.0, 2.0), num_envs=4, max_episode_steps=5
        )
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), before, KEY, 8)
        batch, _ = agent.learner_batch(before, trajectory)
        with tf.GradientTape() as tape:
            tape.watch(before.params)
            loss, _ = agent.loss(before.params, before, batch, KEY)
        gradient = struct.paths(tape.gradient(loss, before.params))
        results = learner.update_from_batch(batch)["default_policy"]
        self.assertAlmostEqual(float(results["loss"]), float(loss), places=5)
        after = struct.paths(struct.values(learner.state).params)
        for path, old in struct.paths(before.params).items():
            # Adam's first step is the learning rate against the sign.
            moved, g = (after[path] - old).numpy(), gradient[path].numpy()
            clear = np.abs(g) > 1e-2
            np.testing.assert_allclose(moved[clear], -1e-2 * np.sign(g[clear]), rtol=0.05)
