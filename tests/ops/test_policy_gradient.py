"""Tests of the policy-gradient loss."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError

NAN = float("nan")


class PolicyGradientLossTest(tf.test.TestCase, parameterized.TestCase):
    def test_numbers_by_hand(self):
        # -(2 * -1 + -1 * -3 + 0.5 * -2) / 3 = -(-2 + 3 - 1) / 3 = 0; with the last advantage 2:
        # -(-2 + 3 - 4) / 3 = 1. The gradient by log_prob is -A / 3.
        log_prob = tf.constant([-1.0, -3.0, -2.0])
        self.assertAllClose(
            ops.policy_gradient_loss(log_prob=log_prob, advantage=[2.0, -1.0, 0.5]), 0.0
        )
        advantage = tf.constant([2.0, -1.0, 2.0])
        with tf.GradientTape() as tape:
            tape.watch((log_prob, advantage))
            loss = ops.policy_gradient_loss(log_prob=log_prob, advantage=advantage)
        self.assertAllClose(loss, 1.0)
        gradient = tape.gradient(loss, (log_prob, advantage))
        self.assertAllClose(gradient[0], [-2 / 3, 1 / 3, -2 / 3])
        self.assertIsNone(gradient[1])

    def test_a_denominator_stands_in_for_the_number_of_rows(self):
        loss = ops.policy_gradient_loss(
            log_prob=[-1.0, -3.0], advantage=[2.0, 4.0], mask=[True, False], denominator=8.0
        )
        self.assertAllClose(loss, 0.25)

    def test_masked_garbage_changes_nothing(self):
        rng = np.random.default_rng(1)
        log_prob, advantage = rng.normal(size=[2, 5, 3]).astype(np.float32)
        expected = -np.mean(log_prob * advantage)
        garbage = np.full([2, 3], NAN, np.float32)
        spoilt, weights = (tf.constant(np.concatenate([x, garbage])) for x in (log_prob, advantage))
        mask = np.arange(7)[:, None] < np.full([1, 3], 5)
        with tf.GradientTape() as tape:
            tape.watch(spoilt)
            loss = ops.policy_gradient_loss(log_prob=spoilt, advantage=weights, mask=mask)
        gradient = tape.gradient(loss, spoilt)
        self.assertAllClose(loss, expected, 1e-5)
        self.assertAllClose(gradient[:5], -advantage / 15, 1e-5)
        self.assertAllEqual(gradient[5:], np.zeros([2, 3]))

    def test_no_row_gives_zero(self):
        loss = ops.policy_gradient_loss(
            log_prob=[-1.0, NAN], advantage=[2.0, 1.0], mask=[False, False]
        )
        self.assertEqual(float(loss), 0.0)

    @parameterized.parameters(
        ({"advantage": [1.0]}, "log_prob"),
        ({"mask": [1.0, 0.0]}, "mask: expected dtype bool, got float32."),
    )
    def test_messages(self, changes, message):
        arguments = {"log_prob": [-1.0, -2.0], "advantage": [1.0, 1.0], **changes}
        with self.assertRaises(UserError) as caught:
            ops.policy_gradient_loss(**arguments)
        self.assertIn(message, str(caught.exception))
