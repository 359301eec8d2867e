"""Tests of the KL estimators."""

import numpy as np
import tensorflow as tf

from tfrl import ops
from tfrl.errors import UserError

ESTIMATORS = (ops.kl_k1, ops.kl_k2, ops.kl_k3)


class DivergenceTest(tf.test.TestCase):
    def test_numbers_by_hand(self):
        # r = 2 and 1/2: k1 = -log r = -+ 0.6931, k2 = 0.6931^2 / 2 = 0.2402,
        # k3 = (2 - 1) - 0.6931 = 0.3069 and (0.5 - 1) + 0.6931 = 0.1931.
        inputs = {"log_prob": np.log([0.5, 0.25]), "old_log_prob": np.log([0.25, 0.5])}
        self.assertAllClose(ops.kl_k1(**inputs), [-0.693147, 0.693147])
        self.assertAllClose(ops.kl_k2(**inputs), [0.240227, 0.240227])
        self.assertAllClose(ops.kl_k3(**inputs), [0.306853, 0.193147])

    def test_expectation_under_the_sampling_policy(self):
        # k1 and k3 are unbiased: exact expectations over a categorical.
        old, new = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
        kl = np.sum(old * np.log(old / new))
        inputs = {"log_prob": np.log(new), "old_log_prob": np.log(old)}
        for estimator in (ops.kl_k1, ops.kl_k3):
            self.assertAllClose(np.sum(old * estimator(**inputs).numpy()), kl, 1e-5)

    def test_equal_policies_give_exactly_zero(self):
        x = tf.constant([-30.0, -1e-3, 0.0])
        for estimator in ESTIMATORS:
            self.assertAllEqual(estimator(log_prob=x, old_log_prob=x), [0, 0, 0])

    def test_k3_is_accurate_and_never_negative_near_zero(self):
        log_r = np.float32([1e-8, -1e-8, 1e-4, -1e-4, 1e-2])
        got = ops.kl_k3(log_prob=log_r, old_log_prob=np.zeros(5)).numpy()
        self.assertAllGreaterEqual(got, 0.0)
        self.assertAllClose(got[2:], log_r[2:] ** 2 / 2 * (1 + log_r[2:] / 3), 2e-3, 1e-11)

    def test_extremes_stay_finite(self):
        x = tf.constant([1e8, -1e8, float("inf"), -float("inf")])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            results = [f(log_prob=x, old_log_prob=tf.zeros([4])) for f in ESTIMATORS]
        for y in results:
            self.assertTrue(np.isfinite(y).all())
            self.assertTrue(np.isfinite(tape.gradient(y, x)).all())

    def test_masked_garbage_changes_nothing(self):
        mask = tf.constant([True, False, True])
        x, y = tf.constant([-1.0, float("nan"), -2.0]), tf.constant([-2.0, 3.0, -2.5])
        for estimator in ESTIMATORS:
            expected = estimator(log_prob=[-1.0, 0.0, -2.0], old_log_prob=[-2.0, 0.0, -2.5])
            self.assertAllClose(estimator(log_prob=x, old_log_prob=y, mask=mask), expected)
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(estimator(log_prob=x, old_log_prob=y, mask=mask))
            gradient = tape.gradient(total, x).numpy()
            self.assertEqual(gradient[1], 0)
            self.assertTrue(np.isfinite(gradient).all())

    def test_shapes_must_be_equal(self):
        with self.assertRaisesRegex(UserError, "old_log_prob: expected the shape .2. of log_prob"):
            ops.kl_k3(log_prob=tf.zeros([2]), old_log_prob=tf.zeros([2, 1]))


if __name__ == "__main__":
    tf.test.main()
