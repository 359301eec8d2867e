"""What the Q losses do with invalid actions; the losses themselves are in test_value_losses."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError


class MaskActionValuesTest(parameterized.TestCase):
    values = np.array([[1.0, 2.0, 3.0], [-5.0, 7.0, 1e8]], np.float32)

    @parameterized.parameters(tf.bool, tf.int8, tf.float32)
    def test_the_maximum_is_over_valid_actions(self, dtype):
        mask = tf.cast([[True, True, False], [True, False, False]], dtype)
        found = ops.mask_action_values(self.values, mask)
        np.testing.assert_array_equal(tf.reduce_max(found, -1), [2.0, -5.0])
        np.testing.assert_array_equal(tf.argmax(found, -1), [1, 0])
        self.assertTrue(np.all(np.isfinite(found)))

    def test_without_a_valid_action_a_row_stays(self):
        mask = tf.constant([[False] * 3, [True, True, False]])
        found = ops.mask_action_values(self.values, mask)
        np.testing.assert_array_equal(found[0], self.values[0])
        self.assertEqual(float(tf.reduce_max(found[1])), 7.0)

    def test_without_a_mask(self):
        np.testing.assert_array_equal(ops.mask_action_values(self.values, None), self.values)

    def test_no_gradient_through_what_is_replaced(self):
        values = tf.constant(self.values)
        mask = tf.constant([[True, True, False], [True, False, True]])
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = tf.reduce_sum(ops.mask_action_values(values, mask))
        np.testing.assert_array_equal(
            tape.gradient(total, values), [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
        )

    def test_a_mask_of_another_shape(self):
        with pytest.raises(UserError, match=r"mask: expected the shape \[2, 3\] of values, got"):
            ops.mask_action_values(self.values, tf.ones([2, 1], tf.bool))

    def test_take_action(self):
        np.testing.assert_array_equal(
            ops.take_action(tf.constant(self.values), [2, 0]), [3.0, -5.0]
        )
        # Several critics, one action a row.
        both = tf.stack([self.values, -self.values])
        found = ops.take_action(both, tf.constant([[1, 1]]))
        np.testing.assert_array_equal(found, [[2.0, 7.0], [-2.0, -7.0]])
