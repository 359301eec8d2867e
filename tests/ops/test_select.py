import math

import numpy as np
import tensorflow as tf

from tfrl.ops._rows import where


def _kinds(fn, *args):
    """The operations of a function's graph."""
    graph = tf.function(fn, autograph=False).get_concrete_function(*args).graph
    return {op.type for op in graph.get_operations()}


class WhereTest(tf.test.TestCase):
    def test_a_condition_of_the_same_shape(self):
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        found = where(tf.constant([[True, False], [False, True]]), x, -x)
        self.assertAllEqual(found, [[1.0, -2.0], [-3.0, 4.0]])

    def test_a_condition_is_of_rows_where_columns_are_as_many(self):
        x = tf.constant([[1, 2], [3, 4]])
        self.assertAllEqual(where(tf.constant([True, False]), x, 0), [[1, 2], [0, 0]])

    def test_a_condition_of_two_leading_axes(self):
        x = tf.reshape(tf.range(8), [2, 2, 2])
        found = where(tf.constant([[True, False], [False, True]]), x, -1)
        self.assertAllEqual(found, [[[0, 1], [-1, -1]], [[-1, -1], [6, 7]]])

    def test_a_scalar_condition(self):
        x = tf.constant([1.0, 2.0])
        self.assertAllEqual(where(tf.constant(True), x, math.nan), [1.0, 2.0])
        self.assertAllEqual(where(tf.constant(False), x, 5.0), [5.0, 5.0])

    def test_an_array_of_conditions(self):
        self.assertAllEqual(where(np.array([True, False]), tf.constant([3, 4]), 0), [3, 0])

    def test_neither_value_nor_gradient_passes_from_what_is_not_chosen(self):
        for keep, x, expected in (
            ([False, True], [math.nan, 3.0], [0.0, 6.0]),
            ([False, True], [[math.nan, 2.0], [3.0, 4.0]], [[0.0, 0.0], [6.0, 8.0]]),
            (False, [math.nan, 3.0], [0.0, 0.0]),
        ):
            keep, x = tf.constant(keep), tf.constant(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                kept = where(keep, x, 0.0)
                y = tf.reduce_sum(kept * kept)
            self.assertAllEqual(tape.gradient(y, x), expected)
            self.assertFalse(bool(tf.math.is_nan(y)))

    def test_unknown_shapes(self):
        spec = tf.TensorSpec([None, 2], tf.float32)
        fn = tf.function(
            lambda keep, x: where(keep, x, 0.0),
            input_signature=[tf.TensorSpec([None], tf.bool), spec],
        )
        found = fn(tf.constant([True, False]), tf.ones([2, 2]))
        self.assertAllEqual(found, [[1.0, 1.0], [0.0, 0.0]])

    def test_the_fast_kernel_is_taken_where_shapes_allow(self):
        x, keep = tf.ones([3, 2]), tf.constant([True, False, True])
        self.assertIn("Select", _kinds(lambda keep, x: where(keep, x, 0.0), keep, x))
        self.assertIn("SelectV2", _kinds(lambda k, x: where(k, x, 0.0), keep, tf.ones([3, 5000])))


if __name__ == "__main__":
    tf.test.main()
