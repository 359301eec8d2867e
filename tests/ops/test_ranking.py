"""Tests of the centred ranks."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import stats

from tfrl import ops
from tfrl.errors import UserError

NAN, INF = float("nan"), float("inf")


class CenteredRanksTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        ([3.0, 1.0, 2.0], [0.5, -0.5, 0.0]),
        ([5.0], [0.0]),
        ([1.0, 1.0, 0.0, 1.0, 0.0], [0.0, 0.25, -0.5, 0.5, -0.25]),  # Ties: first come, lower.
        ([2.0, NAN, INF, -INF, 1e-30], [0.25, -0.5, 0.5, -0.25, 0.0]),
        ([-0.0, 0.0, -1.0], [0.0, 0.5, -0.5]),
    )
    def test_by_hand(self, fitness, expected):
        self.assertAllClose(ops.centered_ranks(tf.constant(fitness)), expected)

    def test_equals_scipy_with_many_ties_and_sums_to_zero(self):
        x = np.random.default_rng(0).integers(0, 20, 500).astype(np.float32)
        expected = (stats.rankdata(x, "ordinal") - 1) / 499 - 0.5
        got = ops.centered_ranks(tf.constant(x))
        self.assertAllClose(got, expected)
        self.assertAllClose(tf.reduce_sum(got), 0.0, atol=1e-4)

    def test_axes(self):
        x = np.random.default_rng(1).normal(size=[6, 2, 5]).astype(np.float32)
        for axis in (0, 1, 2, -1, -3):
            got = ops.centered_ranks(x, axis=axis)
            expected = np.apply_along_axis(
                lambda v: (stats.rankdata(v) - 1) / (len(v) - 1) - 0.5, axis, x
            )
            self.assertAllClose(got, expected)

    def test_mask_ranks_the_others_only(self):
        x = np.random.default_rng(2).normal(size=[4, 9]).astype(np.float32)
        mask = np.random.default_rng(3).random([4, 9]) < 0.6
        mask[3] = False
        mask[2] = np.arange(9) == 4
        spoilt = np.where(mask, x, np.float32(NAN))
        spoilt[0] = np.where(mask[0], x[0], np.float32(INF))
        expected = np.zeros([4, 9])
        for row in range(2):
            n = mask[row].sum()
            expected[row, mask[row]] = (stats.rankdata(x[row, mask[row]]) - 1) / (n - 1) - 0.5
        self.assertAllClose(ops.centered_ranks(spoilt, mask=mask), expected)
        got = ops.centered_ranks(spoilt.T, axis=0, mask=mask.T)
        self.assertAllClose(got, expected.T)

    def test_messages(self):
        with self.assertRaisesRegex(UserError, "mask: expected the shape .3. of fitness"):
            ops.centered_ranks(tf.zeros([3]), mask=[True])


if __name__ == "__main__":
    tf.test.main()
