"""Rows of metrics are reduced alike in TensorFlow and in NumPy."""

import numpy as np
import tensorflow as tf

from tfrl.metrics.accumulator import MetricAccumulator


class MetricAccumulatorTest(tf.test.TestCase):
    def test_sums_means_and_the_last_value(self):
        names = ["episode_return", "gradient_steps", "loss", "unused"]
        accumulator = MetricAccumulator(names, size=5)
        sums, nan = accumulator.start(), np.nan
        for row in ([7.0, 2.0, 1.0, nan, 0.0], [9.0, 3.0, 5.0, nan, 0.0]):
            sums = accumulator.add(sums, tf.constant(row))
        want = [9.0, 5.0, 3.0, nan, 0.0]
        np.testing.assert_array_equal(accumulator.result(sums), want)
        got = accumulator.result_of(sums.numpy())
        np.testing.assert_array_equal(got, want)
        self.assertEqual(got.dtype, np.float32)
