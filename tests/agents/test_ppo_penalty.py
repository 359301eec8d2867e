"""PPO with a penalty on the KL: its gradient against the analytic one, its weight by hand."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.agents.ppo.losses import ppo_loss
from tfrl.distributions import make_distribution
from tfrl.errors import UserError
from tfrl.learners import Learner

KEY = seeding.key(3)
pytestmark = pytest.mark.usefixtures("_eager_updates")
POLICY = make_distribution(specs.DiscreteSpec(3))


def made(**options):
    options = {"clip": None, "kl_coef": 1.0, "kl_target": 0.01, **options}
    return PPO(
        obs_spec=tf.TensorSpec([2]), action_spec=specs.DiscreteSpec(3), hidden=(4,), **options
    )


def rows(action, log_prob, advantage):
    n = len(action)
    return PolicyBatch(
        obs=tf.zeros([n, 2]),
        action=tf.constant(action, tf.int64),
        log_prob=tf.constant(log_prob, tf.float32),
        advantage=tf.constant(advantage, tf.float32),
        value_target=tf.zeros([n]),
        value=tf.zeros([n]),
    )


class LossTest(parameterized.TestCase):
    def test_the_gradient_is_that_of_the_kl(self):
        # Every action as often as the old policy takes it: 20 rows for (0.5, 0.3, 0.2). The
        # gradient of KL[old || new] by the logits of new is new - old.
        old, logits = np.array([0.5, 0.3, 0.2]), tf.constant([0.3, -0.4, 0.9])
        actions = np.repeat(np.arange(3), (20 * old).round().astype(int))
        batch = rows(actions, np.log(old[actions]), np.zeros(20))

        def loss(kl_coef, clip=np.inf):
            policy = POLICY.build(tf.broadcast_to(logits, [20, 3]))
            return ppo_loss(
                policy, tf.zeros([20]), batch, clip=clip, value_clip=None, value_coef=0.5,
                entropy_coef=0.0, kl_coef=kl_coef,
            )  # fmt: skip

        with tf.GradientTape() as tape:
            tape.watch(logits)
            total, metrics = loss(2.0)
        new = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(tape.gradient(total, logits), 2.0 * (new - old), rtol=1e-5)
        # In expectation k3 is the KL itself.
        kl = np.sum(old * np.log(old / new))
        self.assertAlmostEqual(float(metrics["approx_kl"]), kl, places=6)
        self.assertAlmostEqual(float(total), 2.0 * kl, places=5)
        self.assertAlmostEqual(float(metrics["kl_coef"]), 2.0)
        for weight in (tf.constant(2.0), 2, np.float32(2.0)):
            again, metrics = loss(weight)
            self.assertAlmostEqual(float(again), float(total), places=6)
            self.assertEqual(metrics["kl_coef"].dtype, tf.float32)

    @parameterized.parameters(0.0, 0)
    def test_without_a_weight_there_is_no_penalty(self, kl_coef):
        batch = rows([0], [-1.0], [1.0])
        loss, metrics = ppo_loss(
            POLICY.build(tf.zeros([1, 3])), tf.zeros([1]), batch, clip=0.2, value_clip=None,
            value_coef=0.5, entropy_coef=0.0, kl_coef=kl_coef,
        )  # fmt: skip
        self.assertNotIn("kl_coef", metrics)
        # The ratio is e / 3 = 0.9060939, within the interval.
        self.assertAlmostEqual(float(loss), -0.9060939, places=6)

    def test_without_a_clip_the_ratio_is_not_bounded(self):
        # The ratio is 1/3 over 1/30; A = 1: surrogate 10, and k3 = 9 - ln 10 = 6.6974149.
        agent = made(kl_coef=0.5, kl_target=None)
        state = agent.init(KEY)
        batch = rows([1], [-np.log(30.0)], [1.0])
        loss, metrics = agent.policy_loss(
            POLICY.build(tf.zeros([1, 3])), tf.zeros([1]), batch, state
        )
        self.assertAlmostEqual(float(metrics["policy_loss"]), -10.0, places=4)
        self.assertAlmostEqual(float(loss), -10.0 + 0.5 * 6.6974149, places=4)
        self.assertEqual(float(metrics["clip_fraction"]), 0.0)

    def test_masked_garbage_changes_nothing(self):
        def run(batch):
            logits = tf.zeros([2, 3])
            with tf.GradientTape() as tape:
                tape.watch(logits)
                loss, _ = ppo_loss(
                    POLICY.build(logits), tf.zeros([2]), batch, clip=np.inf, value_clip=None,
                    value_coef=0.5, entropy_coef=0.0, kl_coef=1.0,
                )  # fmt: skip
            return loss, tape.gradient(loss, logits)

        mask = tf.constant([True, False])
        clean = run(rows([0, 1], [-2.0, -1.0], [1.0, 0.0]).replace(mask=mask))
        dirty = run(rows([0, 1], [-2.0, np.nan], [1.0, np.nan]).replace(mask=mask))
        for x, y in zip(clean, dirty, strict=True):
            self.assertTrue(np.all(np.isfinite(y)))
            np.testing.assert_array_equal(x, y)


class WeightTest(parameterized.TestCase):
    def test_it_begins_as_given_and_weighs_in_the_loss(self):
        agent = made(kl_coef=3.0)
        state = agent.init(KEY)
        self.assertEqual(float(state.extra["kl_coef"]), 3.0)
        batch = rows([1], [-np.log(30.0)], [1.0])
        policy, value = POLICY.build(tf.zeros([1, 3])), tf.zeros([1])
        loss, metrics = agent.policy_loss(policy, value, batch, state)
        self.assertAlmostEqual(float(loss), -10.0 + 3.0 * 6.6974149, places=4)
        self.assertEqual(float(metrics["kl_coef"]), 3.0)
        self.assertNotIn("kl_coef", made(kl_target=None).init(KEY).extra)

    @parameterized.parameters(
        # Target 0.01: up above 0.015, down below 0.0066667.
        (0.0151, 2.0),
        (0.0149, 1.0),
        (0.01, 1.0),
        (0.0067, 1.0),
        (0.0066, 0.5),
        (0.0, 0.5),
    )
    def test_it_adapts(self, kl, expected):
        agent = made()
        state = agent.on_update_metrics(agent.init(KEY), {"approx_kl": tf.constant(kl)})
        self.assertEqual(float(state.extra["kl_coef"]), expected)
        self.assertIn("entropy_coef", state.extra)

    @parameterized.parameters((1.0, 1e8), (0.0, 1e-8))
    def test_it_stays_within_float32(self, kl, bound):
        agent = made()
        state = agent.init(KEY)
        for _ in range(60):
            state = agent.on_update_metrics(state, {"approx_kl": tf.constant(kl)})
        np.testing.assert_allclose(state.extra["kl_coef"], bound, rtol=1e-6)

    def test_a_fixed_weight_stays(self):
        agent = made(kl_target=None)
        state = agent.init(KEY)
        self.assertIs(agent.on_update_metrics(state, {"approx_kl": tf.constant(1.0)}), state)

    @parameterized.parameters(1, 1.5, np.float64(2.0))
    def test_a_learner_takes_any_number(self, kl_coef):
        agent = made(kl_coef=kl_coef, kl_target=None)
        learner = Learner(agent)
        learner.build(KEY)
        batch = rows([0, 1, 2, 1], [-1.0] * 4, [1.0, -1.0, 0.5, 0.0])
        results = learner.update_from_batch(batch, num_epochs=2)["default_policy"]
        self.assertEqual(float(results["kl_coef"]), float(kl_coef))
        self.assertTrue(np.isfinite(results["loss"]))

    def test_schedules_leave_it_alone(self):
        agent = made(entropy_coef=[[0, 0.2], [100, 0.0]])
        state = agent.before_update(agent.init(KEY), tf.constant(50, tf.int64))
        self.assertEqual(float(state.extra["kl_coef"]), 1.0)
        self.assertAlmostEqual(float(state.extra["entropy_coef"]), 0.1, places=6)

    @parameterized.parameters(
        (
            {"kl_coef": 0.0, "kl_target": None},
            "PPO.clip: expected a number, since there is no KL penalty, got None. Set clip=0.2, "
            "or kl_coef=1.0 and kl_target=0.01 for PPO-penalty.",
        ),
        ({"kl_coef": 0.0}, "PPO.kl_coef: expected a number above 0, got 0.0"),
        ({"kl_coef": -1.0, "kl_target": None}, "PPO.kl_coef: expected a number of at least 0, got"),
        ({"kl_target": 0.0}, "PPO.kl_target: expected a number above 0 or None, got 0.0"),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            made(**changes)
        self.assertIn(message, str(error.value))
