"""Tests of the reductions over valid rows."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError

NAN = float("nan")


def data(seed=0, shape=(9, 4)):
    """Numbers, a mask, and the numbers with NaN where masked."""
    rng = np.random.default_rng(seed)
    x = rng.normal(3.0, 2.0, shape).astype(np.float32)
    mask = rng.random(shape) < 0.6
    return x, mask, np.where(mask, x, np.float32(NAN))


class ReduceTest(tf.test.TestCase, parameterized.TestCase):
    def test_equal_numpy_on_the_valid_rows(self):
        x, mask, spoilt = data()
        valid = x[mask]
        self.assertAllClose(ops.masked_sum(spoilt, mask), valid.sum(), 1e-5, 1e-5)
        self.assertAllClose(ops.masked_mean(spoilt, mask), valid.mean(), 1e-5, 1e-5)
        found = tuple(ops.masked_mean_std(spoilt, mask))
        self.assertAllClose(found, (valid.mean(), valid.std()), 1e-5, 1e-5)
        self.assertAllClose(ops.masked_mean(x), x.mean(), 1e-5)
        self.assertAllClose(tuple(ops.masked_mean_std(x)), (x.mean(), x.std()), 1e-5)
        self.assertAllClose(ops.valid_count(x, mask), mask.sum())
        self.assertAllClose(ops.valid_count(x), 36)

    def test_axes_behind_the_mask_all_count(self):
        x, mask, _ = data(1, (5, 3))
        wide = np.stack([x, 10 * x], axis=-1)
        spoilt = np.where(mask[..., None], wide, np.float32(NAN))
        self.assertAllClose(ops.masked_mean(spoilt, mask), wide[mask].mean(), 1e-5)
        got = ops.masked_mean_std(spoilt, mask)
        self.assertAllClose(tuple(got), (wide[mask].mean(), wide[mask].std()), 1e-5)
        self.assertAllClose(
            ops.masked_mean(spoilt, mask, denominator=2 * mask.sum()), wide[mask].mean() / 2, 1e-5
        )

    def test_without_valid_rows_everything_is_zero(self):
        x = tf.fill([3, 2], NAN)
        mask = tf.zeros([3, 2], tf.bool)
        found = [
            ops.masked_sum(x, mask),
            ops.masked_mean(x, mask),
            *ops.masked_mean_std(x, mask),
            ops.explained_variance(x, x, mask),
            tf.reduce_max(tf.abs(ops.normalize_advantage(x, mask))),
        ]
        self.assertAllEqual(found, [0.0] * 6)
        self.assertAllEqual(ops.masked_mean(tf.zeros([0, 2])), 0.0)

    def test_no_gradient_leaks_from_masked_rows(self):
        _, mask, spoilt = data(2)
        x = tf.constant(spoilt)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            mean = ops.masked_mean(x, mask)
            std = ops.masked_mean_std(x, mask).std
            normalized = tf.reduce_sum(ops.normalize_advantage(x, mask) ** 3)
            explained = ops.explained_variance(x, np.arange(36.0).reshape(9, 4), mask)
        self.assertAllClose(tape.gradient(mean, x), mask / mask.sum())
        for y in (std, normalized, explained):
            gradient = tape.gradient(y, x).numpy()
            self.assertAllEqual(gradient[~mask], np.zeros((~mask).sum()))
            self.assertTrue(np.isfinite(gradient).all() and np.abs(gradient[mask]).max() > 0)

    def test_denominator_shares_sum_to_the_global_mean(self):
        x, mask, _ = data(3, (10, 4))
        rows = mask.sum()
        shares = [
            ops.masked_mean(x[:, i : i + 2], mask[:, i : i + 2], denominator=rows) for i in (0, 2)
        ]
        self.assertAllClose(sum(shares), ops.masked_mean(x, mask), 1e-5)
        self.assertAllClose(
            ops.masked_mean(x, mask, denominator=tf.constant(rows, tf.int64)),
            ops.masked_mean(x, mask),
        )

    def test_all_reduce_gives_global_statistics(self):
        x, mask, _ = data(4, (10, 4))
        halves = [(x[:, :2], mask[:, :2]), (x[:, 2:], mask[:, 2:])]
        mean = x[mask].mean()
        # What a strategy would add from the other replica, in the order of the two calls.
        other, other_mask = halves[1]
        kept = other[other_mask]
        extra = iter([np.array([kept.sum(), kept.size]), np.array(((kept - mean) ** 2).sum())])

        def all_reduce(y):
            return y + tf.constant(next(extra), tf.float32)

        got = ops.normalize_advantage(*halves[0], all_reduce=all_reduce)
        self.assertAllClose(got, ops.normalize_advantage(x, mask)[:, :2], 1e-5, 1e-5)

    def test_normalized_advantage(self):
        x, mask, spoilt = data(5)
        got = ops.normalize_advantage(spoilt, mask).numpy()
        self.assertAllClose(got[mask], (x[mask] - x[mask].mean()) / x[mask].std(), 1e-4, 1e-5)
        self.assertAllEqual(got[~mask], np.zeros((~mask).sum()))

    def test_normalized_advantage_of_equal_or_single_rows_is_zero(self):
        self.assertAllEqual(ops.normalize_advantage(tf.fill([4, 2], 3.0)), np.zeros([4, 2]))
        self.assertAllEqual(ops.normalize_advantage([[7.0]]), [[0.0]])

    def test_explained_variance_by_hand(self):
        # Var[target] = 1.25; residuals (0, 0, 0, 1): variance 3 / 16; 1 - 0.1875 / 1.25 = 0.85.
        self.assertAllClose(ops.explained_variance([1.0, 2, 3, 3], [1.0, 2, 3, 4]), 0.85)
        self.assertAllClose(ops.explained_variance([1.0, 2, 3, 4], [1.0, 2, 3, 4]), 1.0)
        self.assertAllClose(ops.explained_variance([2.5] * 4, [1.0, 2, 3, 4]), 0.0)
        self.assertAllEqual(ops.explained_variance([1.0, 2], [5.0, 5.0]), 0.0)
        self.assertAllClose(
            ops.explained_variance([1.0, 2, 3, 3, NAN], [1.0, 2, 3, 4, NAN], [True] * 4 + [False]),
            0.85,
        )

    def test_gradient_of_zero_std_is_zero(self):
        x = tf.fill([4], 2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            std = ops.masked_mean_std(x).std
        self.assertAllEqual(tape.gradient(std, x), np.zeros(4))

    def test_messages(self):
        with self.assertRaisesRegex(UserError, r"x: expected the leading axes \[3\] of mask"):
            ops.masked_mean(tf.zeros([2]), [True] * 3)
        with self.assertRaisesRegex(UserError, "mask: expected dtype bool, got int32"):
            ops.masked_mean(tf.zeros([2]), [1, 0])


if __name__ == "__main__":
    tf.test.main()
