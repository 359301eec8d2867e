"""Tests of the running statistics."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl.errors import UserError
from tfrl.ops import statistics

VECTOR = tf.TensorSpec([3])


class StatisticsTest(tf.test.TestCase, parameterized.TestCase):
    def assert_moments(self, stats, rows, rtol=1e-5, weights=None):
        """Compares with NumPy over all rows, in float64."""
        rows = np.asarray(rows, np.float64)
        mean = np.average(rows, axis=0, weights=weights)
        variance = np.average((rows - mean) ** 2, axis=0, weights=weights)
        self.assertAllClose(stats.count, len(rows) if weights is None else np.sum(weights))
        self.assertAllClose(statistics.mean(stats), mean, rtol, 1e-5)
        self.assertAllClose(statistics.variance(stats), variance, rtol, 1e-7)

    def test_numbers_by_hand(self):
        # Rows 1, 2, then 6: mean 3, squared deviations 4 + 1 + 9 = 14.
        stats = statistics.init(tf.TensorSpec([]))
        stats = statistics.update(stats, tf.constant([1.0, 2.0]))
        self.assertAllClose((stats.count, stats.mean, stats.m2), (2, 1.5, 0.5))
        stats = statistics.update(stats, tf.constant(6.0))
        self.assertAllClose((stats.count, stats.mean, stats.m2), (3, 3, 14))
        self.assertAllClose(statistics.std(stats), np.sqrt(14 / 3))

    def test_any_split_into_batches(self):
        rows = np.random.default_rng(0).normal(2, 3, [60, 3]).astype(np.float32)
        stats = statistics.init(VECTOR)
        stats = statistics.update(stats, tf.reshape(rows[:40], [4, 10, 3]))
        stats = statistics.update(stats, rows[40])
        self.assert_moments(statistics.update(stats, rows[41:]), rows)

    def test_masked_rows_and_weights(self):
        rng = np.random.default_rng(1)
        rows = rng.normal(2, 3, [5, 8, 3]).astype(np.float32)
        mask = rng.random([5, 8]) < 0.5
        weights = rng.uniform(0, 4, [5, 8]).astype(np.float32)
        spoilt = np.where(mask[..., None], rows, np.float32("nan"))
        spoilt_weights = np.where(mask, weights, np.float32("nan"))
        stats = statistics.update(statistics.init(VECTOR), spoilt, mask=mask)
        self.assert_moments(stats, rows[mask])
        stats = statistics.update(stats, spoilt, mask=mask, weights=spoilt_weights)
        both = np.concatenate([np.ones(mask.sum()), weights[mask]])
        self.assert_moments(stats, np.tile(rows[mask], [2, 1]), weights=both)

    def test_nothing_valid_changes_nothing(self):
        stats = statistics.update(
            statistics.init(VECTOR), tf.random.stateless_normal([4, 3], [1, 2])
        )
        garbage = tf.fill([4, 3], float("nan"))
        after = statistics.update(stats, garbage, mask=tf.zeros([4], tf.bool))
        for x, y in zip(tf.nest.flatten(stats), tf.nest.flatten(after), strict=True):
            self.assertAllEqual(x, y)

    @parameterized.parameters(False, True)
    def test_large_mean_small_deviation(self, jit):
        # In one pass, float32 would lose the variance: 1e8 has a spacing of 8.
        rng = np.random.default_rng(2)
        rows = rng.normal(1e4, 1.0, [20_000, 2]).astype(np.float32)
        update = tf.function(statistics.update, jit_compile=jit)
        stats = statistics.init(tf.TensorSpec([2]))
        for part in np.split(rows, 2):
            stats = update(stats, tf.constant(part))
        exact = rows.astype(np.float64)
        self.assertAllClose(stats.mean, exact.mean(0), rtol=1e-7)
        self.assertAllClose(statistics.std(stats), exact.std(0), rtol=1e-3)
        normalized = statistics.normalize(stats, tf.constant(rows)).numpy()
        self.assertAllClose(normalized.mean(0), [0, 0], atol=2e-3)
        self.assertAllClose(normalized.std(0), [1, 1], rtol=1e-3)

    def test_ten_billion_rows(self):
        # 1e10 rows with mean 0 and variance 1; then batches of 128 must still be counted exactly,
        # and move mean and variance by what they are worth.
        stats = statistics.RunningStatistics(
            count=tf.constant(1e10, tf.float64),
            mean=tf.zeros([1], tf.float64),
            m2=tf.constant([1e10], tf.float64),
        )
        batch = tf.constant(np.tile([[5.0], [3.0]], [64, 1]), tf.float32)
        update = tf.function(statistics.update)
        for _ in range(100):
            stats = update(stats, batch)
        self.assertEqual(float(stats.count), 1e10 + 12_800)
        n, m = 1e10, 12_800
        self.assertAllClose(stats.mean, [4 * m / (n + m)], rtol=1e-9)
        gained = m * 1.0 + 16 * n * m / (n + m)  # Their own deviations, and those of the means.
        self.assertAllClose(stats.m2[0] - 1e10, gained, rtol=1e-6)

    def test_merge_and_merge_stacked_equal_all_rows_together(self):
        rng = np.random.default_rng(3)
        parts = [rng.normal(i, 1 + i, [n, 3]).astype(np.float32) for i, n in enumerate((5, 1, 30))]
        all_rows = np.concatenate(parts)
        empty = statistics.init(VECTOR)
        single = [statistics.update(empty, p) for p in parts] + [empty]
        merged = single[0]
        for other in single[1:]:
            merged = statistics.merge(merged, other)
        self.assert_moments(merged, all_rows)
        stacked = tf.nest.map_structure(lambda *x: tf.stack(x), *single)
        self.assert_moments(statistics.merge_stacked(stacked), all_rows)
        nothing = statistics.merge_stacked(tf.nest.map_structure(lambda x: x[None], empty))
        self.assertAllEqual(tf.concat(tf.nest.flatten(nothing)[1:], 0), np.zeros(6))

    def test_nests_and_leaves_that_pass_through(self):
        spec = {
            "image": tf.TensorSpec([4, 4, 1], tf.uint8),
            "index": tf.TensorSpec([], tf.int64),
            "flag": tf.TensorSpec([2], tf.bool),
            "speed": tf.TensorSpec([2]),
            "half": tf.TensorSpec([], tf.float16),
        }
        rng = np.random.default_rng(4)
        batch = {
            "image": rng.integers(0, 255, [6, 5, 4, 4, 1]).astype(np.uint8),
            "index": rng.integers(0, 9, [6, 5]),
            "flag": rng.random([6, 5, 2]) < 0.5,
            "speed": rng.normal(5, 2, [6, 5, 2]).astype(np.float32),
            "half": rng.normal(size=[6, 5]).astype(np.float16),
        }
        mask = rng.random([6, 5]) < 0.7
        stats = statistics.update(statistics.init(spec), batch, mask=mask)
        speed = batch["speed"][mask].astype(np.float64)
        self.assertAllClose(stats.mean["speed"], speed.mean(0), 1e-5)
        self.assertEqual(stats.mean["image"].shape.num_elements(), 0)
        normalized = statistics.normalize(stats, batch)
        for key, x in batch.items():
            self.assertEqual(normalized[key].dtype, spec[key].dtype)
            if key not in ("speed", "half"):
                self.assertAllEqual(normalized[key], x)
        expected = (batch["speed"] - speed.mean(0)) / speed.std(0)
        self.assertAllClose(normalized["speed"], expected, 1e-4, 1e-4)
        back = statistics.denormalize(stats, normalized)
        self.assertAllClose(back["speed"], batch["speed"], 1e-5, 1e-4)
        self.assertAllEqual(back["index"], batch["index"])

    def test_normalize_edge_cases(self):
        empty = statistics.init(VECTOR)
        x = tf.constant([[1.0, -2.0, 50.0]])
        self.assertAllEqual(statistics.normalize(empty, x), [[1, -2, 10]])
        self.assertAllEqual(statistics.normalize(empty, x, clip=None), x)
        constant = statistics.update(empty, tf.fill([100, 3], 1234.567))
        self.assertAllEqual(statistics.normalize(constant, tf.fill([3], 1234.567)), [0, 0, 0])
        self.assertAllEqual(statistics.normalize(constant, tf.fill([3], 1e9), clip=5.0), [5, 5, 5])
        with self.assertRaisesRegex(UserError, "clip: expected a number above 0 or None, got -1"):
            statistics.normalize(empty, x, clip=-1)

    def test_state_of_a_loop_and_one_trace(self):
        traces = []

        @tf.function
        def run(stats, rows):
            traces.append(1)
            return tf.while_loop(
                lambda i, stats: i < 3,
                lambda i, stats: (i + 1, statistics.update(stats, rows)),
                (0, stats),
            )[1]

        stats = run(statistics.init(VECTOR), tf.ones([2, 3]))
        stats = run(stats, tf.zeros([2, 3]))
        self.assertEqual((float(stats.count), len(traces)), (12.0, 1))
        self.assertAllClose(stats.mean, [0.5] * 3)

    def test_messages(self):
        stats = statistics.init({"a": VECTOR, "b": tf.TensorSpec([])})
        with self.assertRaisesRegex(UserError, r"batch: expected the leaves .* \(a, b\), got a\."):
            statistics.update(stats, {"a": tf.zeros([2, 3])})
        with self.assertRaisesRegex(UserError, r"leading axes of batch/b: .* \[2\] .* got \[4\]"):
            statistics.update(stats, {"a": tf.zeros([2, 3]), "b": tf.zeros([4])})
        batch = {"a": tf.zeros([2, 3]), "b": tf.zeros([2])}
        with self.assertRaisesRegex(UserError, r"mask: expected the shape \[2\] of leading axes"):
            statistics.update(stats, batch, mask=[True] * 3)
        with self.assertRaisesRegex(UserError, r"weights: expected the shape \[2\] of leading"):
            statistics.update(stats, batch, weights=[1.0] * 3)


SPEC = tf.TensorSpec([2])
WRONG = [1e20, 3e38, -3e38, -np.inf, np.inf, np.nan]


def limited(rows, count, mean, m2):
    """NumPy in float64 of what `update` documents: the rows that count, and how many are others."""
    x = np.asarray(rows, np.float64)
    finite = np.isfinite(x)
    offset = np.where(finite, x - mean, 0.0)
    size = np.maximum(np.abs(offset), 1.0)
    others = np.exp((np.log(size).sum(0) - np.log(size)) / max(len(x) - 1, 1))
    deviation = np.sqrt(m2 / max(count, 1))
    scale = np.maximum(np.maximum(deviation, 1.0), others)
    outlier = ~finite | (size > 30 * scale)
    return np.where(outlier, mean + np.sign(offset) * 5 * scale, x), outlier.sum()


def oracle(batches):
    """Count, mean, m2 and outliers of a stream, each batch merged into the ones before."""
    count, mean, m2, wrong = 0, np.zeros(2), np.zeros(2), 0
    for rows in batches:
        x, n = limited(rows, count, mean, m2)
        both = count + len(x)
        delta = x.mean(0) - mean
        m2 = m2 + ((x - x.mean(0)) ** 2).sum(0) + delta**2 * count * len(x) / both
        mean, count, wrong = mean + delta * len(x) / both, both, wrong + n
    return count, mean, m2, wrong


def stream(seed, batches=30, rows=16):
    rng = np.random.default_rng(seed)
    found = rng.normal([3.0, -40.0], [2.0, 0.1], [batches, rows, 2]).astype(np.float32)
    clean = found.copy()
    for value in [*WRONG, 1e-40, 1e-40]:
        found[rng.integers(batches), rng.integers(rows), rng.integers(2)] = value
    return found, clean


@tf.function(autograph=False)
def counted_and_updated(stats, rows):
    return statistics.count_outliers(stats, rows), statistics.update(stats, rows)


class OutliersTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*range(5))
    def test_wrong_values_at_random_places(self, seed):
        found, clean = stream(seed)
        count, mean, m2, wrong = oracle(found)
        stats, counted = statistics.init(SPEC), 0
        for rows in found:
            outliers, stats = counted_and_updated(stats, tf.constant(rows))
            counted += int(outliers)
        self.assertEqual(counted, wrong)
        self.assertAllClose(stats.count, count)
        self.assertAllClose(stats.mean, mean, 1e-4, 1e-4)
        self.assertAllClose(stats.m2, m2, 1e-3)
        # One in the first batch, whose mean was unknown, is as 5 times 40.
        deviation = np.sqrt(m2 / count)
        self.assertAllInRange(deviation, 0.08, 200 / np.sqrt(480) + 2)

    def test_one_value_among_many_is_hardly_seen(self):
        rows = np.random.default_rng(0).normal(size=[100, 64, 2]).astype(np.float32)
        stats = statistics.init(SPEC)
        for i, batch in enumerate(rows):
            if i == 50:
                batch[7, 1] = 1e20
            stats = statistics.update(stats, tf.constant(batch))
        self.assertAllClose(statistics.std(stats), [1.0, 1.0], atol=0.02)
        self.assertAllClose(statistics.mean(stats), [0.0, 0.0], atol=0.03)

    def test_values_of_1e38_alone(self):
        rows = np.random.default_rng(0).uniform(-3e38, 3e38, [64, 2]).astype(np.float32)
        stats = statistics.update(statistics.init(SPEC), rows)
        self.assertAllClose(stats.mean, rows.astype(np.float64).mean(0), 1e-3)
        variance = rows.astype(np.float64).var(0) * 64
        self.assertAllClose(stats.m2 / variance, [1.0, 1.0], 1e-3)
        self.assertAllInRange(statistics.normalize(stats, rows), -10.0, 10.0)

    @parameterized.parameters(1, 16)
    def test_another_scale_is_followed(self, rows):
        """A feature that was 0 begins to move by a million."""
        rng = np.random.default_rng(0)
        stats = statistics.update(statistics.init(SPEC), tf.zeros([100, 2]))
        update = tf.function(statistics.update)
        for _ in range(2000 // rows):
            stats = update(stats, tf.constant(rng.normal(0, 1e6, [rows, 2]), tf.float32))
        self.assertAllInRange(statistics.std(stats), 0.7e6, 1.1e6)

    def test_moments_that_were_ruined_begin_anew(self):
        ruined = statistics.RunningStatistics(
            count=tf.constant(100.0, tf.float64),
            mean=tf.constant([np.inf, 2.0], tf.float64),
            m2=tf.constant([np.nan, 100.0], tf.float64),
        )
        stats = statistics.update(ruined, tf.constant([[1.0, 2.0], [3.0, 2.0]]))
        self.assertAllEqual(tf.math.is_finite(statistics.std(stats)), [True, True])
        self.assertAllClose(stats.mean[1], 2.0)

    def test_masked_rows_count_for_no_bound(self):
        stats = statistics.init(SPEC)
        rows = tf.constant([[1.0, 2.0], [1e30, np.nan], [2.0, 1.0]])
        mask = tf.constant([True, False, True])
        self.assertEqual(int(statistics.count_outliers(stats, rows, mask)), 0)
        alone = statistics.update(stats, rows[::2])
        self.assertAllClose(statistics.update(stats, rows, mask).m2, alone.m2)
