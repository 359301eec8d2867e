"""Tests of the PPO surrogate and the entropy loss."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError

NAN = float("nan")


class PPOClipLossTest(tf.test.TestCase, parameterized.TestCase):
    def test_numbers_by_hand(self):
        # clip 0.2. Ratios 1.5, 1.5, 0.5, 0.5, 1.1 with advantages 1, -1, 1, -1, 2:
        # min(1.5, 1.2), min(-1.5, -1.2), min(0.5, 0.8), min(-0.5, -0.8), 2.2
        #   = 1.2 - 1.5 + 0.5 - 0.8 + 2.2 = 1.6, mean 0.32. Four of five are outside.
        # The gradient by log r is -r A / 5 where the ratio is the smaller one, else 0.
        ratio = np.float32([1.5, 1.5, 0.5, 0.5, 1.1])
        advantage = np.float32([1, -1, 1, -1, 2])
        log_prob = tf.constant(np.log(ratio) - 1)
        with tf.GradientTape() as tape:
            tape.watch(log_prob)
            loss, extra = ops.ppo_clip_loss(
                log_prob=log_prob, old_log_prob=-np.ones(5), advantage=advantage, clip=0.2
            )
        self.assertAllClose(loss, -0.32)
        self.assertAllClose(tape.gradient(loss, log_prob), [0, 0.3, -0.1, 0, -0.44], 1e-5)
        self.assertAllClose(extra.ratio, ratio)
        self.assertAllClose(extra.clip_fraction, 0.8)
        self.assertAllClose(extra.approx_kl, np.mean(ratio - 1 - np.log(ratio)), 1e-5)

    def test_ratio_1_gives_no_divergence_and_the_policy_gradient(self):
        rng = np.random.default_rng(0)
        log_prob = tf.constant(rng.normal(size=[6, 3]), tf.float32)
        advantage = rng.normal(size=[6, 3])
        with tf.GradientTape() as tape:
            tape.watch(log_prob)
            loss, extra = ops.ppo_clip_loss(
                log_prob=log_prob, old_log_prob=log_prob, advantage=advantage, clip=0.2
            )
        self.assertAllClose(tape.gradient(loss, log_prob), -advantage / 18)
        self.assertEqual((float(extra.approx_kl), float(extra.clip_fraction)), (0.0, 0.0))

    def test_masked_garbage_changes_nothing(self):
        rng = np.random.default_rng(1)
        clean = {
            k: rng.normal(size=[5, 3]).astype(np.float32)
            for k in ("log_prob", "old_log_prob", "advantage")
        }
        spoilt = {
            k: tf.constant(np.concatenate([x, np.full([2, 3], NAN, np.float32)]))
            for k, x in clean.items()
        }
        mask = tf.constant(np.arange(7)[:, None] < np.full([1, 3], 5))

        def fn(log_prob, old_log_prob, advantage, mask=None):
            inputs = {"old_log_prob": old_log_prob, "advantage": advantage, "mask": mask}
            with tf.GradientTape() as tape:
                tape.watch([log_prob, old_log_prob, advantage])
                loss, extra = ops.ppo_clip_loss(log_prob=log_prob, clip=tf.constant(0.2), **inputs)
            gradients = tape.gradient(loss, [log_prob, old_log_prob, advantage])
            assert gradients[1:] == [None, None]
            return loss, extra.clip_fraction, extra.approx_kl, gradients[0]

        expected = fn(**{k: tf.constant(v) for k, v in clean.items()})
        got = fn(**spoilt, mask=mask)
        self.assertAllClose(got[:3], expected[:3], 1e-5, 1e-6)
        self.assertAllClose(got[3][:5], expected[3], 1e-5, 1e-6)
        self.assertAllEqual(got[3][5:], tf.zeros([2, 3]))

    def test_denominator_and_no_valid_rows(self):
        inputs = {
            "log_prob": tf.zeros([4]),
            "old_log_prob": tf.zeros([4]),
            "advantage": tf.ones([4]),
            "clip": 0.2,
        }
        self.assertAllClose(ops.ppo_clip_loss(**inputs, denominator=8)[0], -0.5)
        none = tf.zeros([4], tf.bool)
        self.assertAllClose(ops.ppo_clip_loss(**inputs, mask=none)[0], 0.0)

    @parameterized.parameters(1.0, -1.0)
    def test_extreme_log_probs_stay_finite(self, advantage):
        log_prob = tf.constant([1e8, -1e8, 200.0, -200.0])
        with tf.GradientTape() as tape:
            tape.watch(log_prob)
            loss, extra = ops.ppo_clip_loss(
                log_prob=log_prob,
                old_log_prob=tf.zeros([4]),
                advantage=tf.fill([4], advantage),
                clip=0.2,
            )
        for x in (loss, *extra, tape.gradient(loss, log_prob)):
            self.assertTrue(np.isfinite(x).all())

    def test_shapes_must_be_equal(self):
        with self.assertRaisesRegex(UserError, "advantage: expected the shape .2. of log_prob"):
            ops.ppo_clip_loss(
                log_prob=tf.zeros([2]),
                old_log_prob=tf.zeros([2]),
                advantage=tf.zeros([2, 2]),
                clip=0.2,
            )


class EntropyLossTest(tf.test.TestCase):
    def test_negative_mean_of_valid_rows(self):
        self.assertAllClose(ops.entropy_loss(entropy=[1.0, 3.0]), -2.0)
        got = ops.entropy_loss(entropy=[1.0, NAN], mask=[True, False])
        self.assertAllClose(got, -1.0)
        self.assertAllClose(ops.entropy_loss(entropy=[1.0, 3.0], denominator=4), -1.0)


if __name__ == "__main__":
    tf.test.main()
