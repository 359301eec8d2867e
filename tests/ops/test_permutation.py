"""Tests of the keyed permutation: bijection, equal bits, uniformity."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from scipy import stats

from tfrl import ops, seeding
from tfrl.errors import UserError
from tfrl.ops.permutation import _domain, _feistel_permutation

# The chance that a right permutation fails a test below; the keys are fixed, so it is decided.
P_VALUE = 1e-4


def permutations(n, count, feistel=False, seed=0):
    """`count` permutations of n, of different keys, [count, n]."""

    def one(key):
        return (
            tf.cast(_feistel_permutation(key, n), tf.int32) if feistel else ops.permutation(key, n)
        )

    @tf.function
    def many(keys):
        results = tf.TensorArray(tf.int32, count, element_shape=[n])
        for i in tf.range(count):
            results = results.write(i, one(keys[i]))
        return results.stack()

    return many(seeding.split(seeding.key(seed), count)).numpy()


class PermutationTest(tf.test.TestCase, parameterized.TestCase):
    def test_bijection_of_every_small_size(self):
        key = seeding.key(3)
        for n in range(1, 301):
            self.assertAllEqual(np.sort(ops.permutation(key, n)), np.arange(n))

    @parameterized.parameters(2, 3, 5, 7, 11, 13, 23, 31)
    @pytest.mark.variants(4)
    def test_the_walk_ends_in_small_domains(self, n):
        # Many keys: cycles that lie beyond n altogether are common here.
        for one in permutations(n, 300, feistel=True):
            self.assertAllEqual(np.sort(one), np.arange(n))

    @parameterized.parameters(257, 511, 4096, 8191, 32768, 65537, 100_003, 131_072, 999_983)
    @pytest.mark.variants(5)
    def test_bijection(self, n):
        found = ops.permutation(seeding.key(n), n)
        self.assertEqual((found.dtype, found.shape), (tf.int32, [n]))
        self.assertAllEqual(np.sort(found), np.arange(n))

    def test_domain_is_tight(self):
        for n in (257, 1000, 4096, 4097, 100_003, 131_072, 2**31 - 1):
            a, b = _domain(n)
            self.assertBetween(a * b, n, n + a)
        self.assertEqual(np.prod(_domain(131_072)), 131_072)

    def test_keys_give_different_permutations_with_few_fixed_points(self):
        many = permutations(1000, 200)
        self.assertLen({p.tobytes() for p in many}, 200)
        # The number of agreements of two random permutations is Poisson with mean 1.
        agreements = (many[1:] == many[:-1]).sum(1)
        fixed = (many == np.arange(1000)).sum(1)
        for counts in (agreements, fixed):
            self.assertBetween(counts.mean(), 0.7, 1.3)
            self.assertLess(counts.max(), 9)

    @parameterized.parameters(1, 2, 3, 4)
    def test_every_order_of_few_is_as_likely(self, n):
        count = 3000
        seen = collections.Counter(map(tuple, permutations(n, count)))
        orders = list(itertools.permutations(range(n)))
        self.assertLen(seen, len(orders))
        if n > 1:
            self.assertGreater(stats.chisquare([seen[o] for o in orders]).pvalue, P_VALUE)

    @parameterized.parameters((37, False), (256, False), (257, True), (300, True), (512, True))
    def test_every_place_and_pair_is_as_likely(self, n, feistel):
        many = permutations(n, 2000, feistel)
        bins = 16
        binned = many * bins // n  # Bins of nearly equal sizes.
        share = np.bincount(np.arange(n) * bins // n, minlength=bins) / n
        for place in (0, 1, n // 2, n - 1):
            seen = np.bincount(binned[:, place], minlength=bins)
            self.assertGreater(stats.chisquare(seen, 2000 * share).pvalue, P_VALUE)
        both = np.outer(share, share)
        coarse = both.reshape(4, 4, 4, 4).sum((1, 3)).ravel()
        for i, j in ((0, 1), (0, n // 2), (n - 2, n - 1)):
            seen = np.bincount(binned[:, i] // 4 * 4 + binned[:, j] // 4, minlength=16)
            self.assertGreater(stats.chisquare(seen, 2000 * coarse).pvalue, P_VALUE)

    def test_order_of_neighbours_and_parity_are_fair_coins(self):
        many = permutations(300, 2000)
        for i, j in ((0, 1), (150, 151), (0, 299)):
            ups = int((many[:, i] < many[:, j]).sum())
            self.assertGreater(stats.binomtest(ups, 2000).pvalue, P_VALUE)

    def test_serial_correlation_of_a_large_one(self):
        x = ops.permutation(seeding.key(5), 100_003).numpy().astype(np.float64)
        for lag in (1, 2, 317, 50_000):
            self.assertLess(abs(np.corrcoef(x[:-lag], x[lag:])[0, 1]), 0.02)

    @parameterized.parameters(0, -3, 2.0, True, 2**31)
    def test_bad_sizes(self, n):
        with self.assertRaisesRegex(UserError, "n: expected a whole number of at least 1 and"):
            ops.permutation(seeding.key(0), n)


if __name__ == "__main__":
    tf.test.main()
