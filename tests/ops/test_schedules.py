"""Tests of the schedules."""

import math
import re

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError

CASES = (
    ("constant", ops.ConstantSchedule(0.3), {0: 0.3, 10**12: 0.3}),
    ("linear", ops.LinearSchedule(1, 3, 10), {0: 1, 5: 2, 10: 3, 99: 3}),
    ("linear_down", ops.LinearSchedule(3e-4, 0, 4), {0: 3e-4, 1: 2.25e-4, 4: 0, 5: 0}),
    (
        "piecewise",
        ops.PiecewiseLinearSchedule([[0, 1.0], [10, 0.5], [20, 2.5]]),
        {0: 1, 5: 0.75, 10: 0.5, 15: 1.5, 20: 2.5, 10**15: 2.5},
    ),
    ("exponential", ops.ExponentialSchedule(8, 0.5, 10), {0: 8, 10: 4, 5: 8 * 0.5**0.5, 30: 1}),
    ("exponential_end", ops.ExponentialSchedule(8, 0.5, 10, 3), {10: 4, 20: 3, 10**9: 3}),
    ("exponential_up", ops.ExponentialSchedule(1, 2, 1, 5), {0: 1, 2: 4, 3: 5, 1000: 5}),
    ("cosine", ops.CosineSchedule(1, 0.2, 10), {0: 1, 5: 0.6, 10: 0.2, 11: 0.2}),
)


class SchedulesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*CASES)
    def test_values_by_hand(self, schedule, expected):
        for step, value in expected.items():
            got = schedule(tf.constant(step, tf.int64))
            self.assertEqual((got.dtype, got.shape), (tf.float32, []))
            self.assertAllClose(got, value, 1e-6)
        self.assertAllClose(schedule(list(expected)), list(expected.values()), 1e-6)
        self.assertAllClose(schedule(next(iter(expected))), next(iter(expected.values())), 1e-6)

    def test_end_is_exact(self):
        self.assertEqual(float(ops.LinearSchedule(0.7, 0.1, 3)(3)), np.float32(0.1))
        piecewise = ops.make_schedule([[0, 0.7], [3, 0.1]])
        self.assertEqual(float(piecewise(3)), np.float32(0.1))

    def test_steps_beyond_float32_are_told_apart(self):
        schedule = ops.PiecewiseLinearSchedule([[0, 0], [2**40, 0], [2**40 + 4, 4]])
        got = [float(schedule(tf.constant(2**40 + i, tf.int64))) for i in range(5)]
        self.assertEqual(got, [0, 1, 2, 3, 4])

    def test_compared_by_value_and_hashable(self):
        a = ops.make_schedule([[0, 1], [10, 0]])
        b = ops.make_schedule(((0.0, 1.0), (10.0, 0.0)))
        self.assertEqual(a, b)
        self.assertEqual(hash(a), hash(b))
        self.assertNotEqual(a, ops.make_schedule([[0, 1], [11, 0]]))
        self.assertEqual(ops.LinearSchedule(1, 0, 5), ops.LinearSchedule(1.0, 0.0, 5.0))
        self.assertNotEqual(ops.LinearSchedule(1, 0, 5), ops.CosineSchedule(1, 0, 5))
        self.assertLen({a, b, ops.make_schedule(1), ops.make_schedule(1.0)}, 2)
        with self.assertRaises(AttributeError):
            a.points = ()

    def test_make_schedule(self):
        self.assertEqual(ops.make_schedule(2), ops.ConstantSchedule(2.0))
        cosine = ops.CosineSchedule(1, 0, 5)
        self.assertIs(ops.make_schedule(cosine), cosine)
        for bad in ("0.1", None, True, {"a": 1}):
            with self.assertRaisesRegex(UserError, "schedule: expected a number, a list"):
                ops.make_schedule(bad)

    @parameterized.parameters(
        ([[0, 1]], "expected at least two points"),
        ([], "expected at least two points"),
        ([[1, 1], [2, 0]], "expected the first point at step 0"),
        ([[0, 1], [5, 0], [5, 1]], "expected strictly increasing steps"),
        ([[0, 1], [5, 0], [3, 1]], "expected strictly increasing steps"),
        ([0, 1], r"expected a list of \[step, value\] pairs"),
        ([[0, 1], [5]], r"expected a list of \[step, value\] pairs"),
        ([[0, 1], [5, "a"]], r"expected a list of \[step, value\] pairs"),
        ([[0, 1], [5, float("nan")]], "expected a finite number, got nan"),
    )
    def test_bad_points(self, points, message):
        with self.assertRaisesRegex(UserError, "PiecewiseLinearSchedule.points: " + message):
            ops.make_schedule(points)

    @parameterized.parameters(
        (ops.ConstantSchedule(0.3), (0.3,)),
        (ops.LinearSchedule(1, 3, 10), (1, 3)),
        (ops.CosineSchedule(1, 0.2, 10), (1, 0.2)),
        (ops.PiecewiseLinearSchedule([[0, 1], [10, -0.5], [20, 2.5]]), (1, -0.5, 2.5)),
        (ops.ExponentialSchedule(8, 0.5, 10), (8, 0)),
        (ops.ExponentialSchedule(8, 0.5, 10, 3), (8, 3)),
        (ops.ExponentialSchedule(8, 0.5, 10, -3), (8, 0)),
        (ops.ExponentialSchedule(8, 0.5, 10, 9), (9, 9)),
        (ops.ExponentialSchedule(1, 2, 1), (1, math.inf)),
        (ops.ExponentialSchedule(1, 2, 1, 5), (1, 5)),
        (ops.ExponentialSchedule(-1, 2, 1), (-1, -math.inf)),
        (ops.ExponentialSchedule(-1, 2, 1, -5), (-1, -5)),
        (ops.ExponentialSchedule(-8, 0.5, 10, -3), (-8, -3)),
        (ops.ExponentialSchedule(2, 1, 1), (2, 2)),
        (ops.ExponentialSchedule(0, 0.5, 1, 1), (1, 1)),
    )
    def test_extremes_are_where_the_values_stay(self, schedule, expected):
        self.assertEqual(schedule.extremes(), expected)
        values = schedule(np.arange(0, 100, dtype=np.int64)).numpy()
        self.assertAllGreaterEqual(values, min(expected) - 1e-6)
        self.assertAllLessEqual(values, max(expected) + 1e-6)
        self.assertAllClose(values[0], expected[0], 1e-6)

    @parameterized.parameters(
        (5, 5.0),
        (-0.1, -0.1),
        ([[0, 1], [10, 0.1], [20, -0.5]], -0.5),
        ([[0, 100], [1000, 5]], 100.0),
        (ops.LinearSchedule(1, 1.5, 10), 1.5),
        (ops.CosineSchedule(-1, 0, 10), -1.0),
        (ops.ExponentialSchedule(0.1, 2, 10), math.inf),
        (ops.ExponentialSchedule(0.1, 2, 10, 3), 3.0),
    )
    def test_values_outside_of_bounds(self, value, got):
        message = f"A.x: expected values from 0 to 1, got {got}. Mend it."
        with self.assertRaisesRegex(UserError, re.escape(message)):
            ops.check_schedule("A.x", value, 0, 1, "Mend it.")

    @parameterized.parameters(
        0,
        1.0,
        [[[0, 1.0], [10, 0.0]]],
        ops.LinearSchedule(0, 1, 3),
        ops.CosineSchedule(1, 0, 3),
        ops.ExponentialSchedule(1, 0.5, 3),
        ops.ExponentialSchedule(0.1, 2, 3, 1),
    )
    def test_values_within_bounds(self, value):
        found = ops.check_schedule("A.x", value, 0, 1, "Mend it.")
        self.assertEqual(found, ops.make_schedule(value))

    def test_a_schedule_of_a_users_own_is_not_checked(self):
        class Own(ops.Schedule):
            def value(self, step):
                return step

        own = Own()
        self.assertEqual(own.extremes(), ())
        self.assertIs(ops.check_schedule("A.x", own, 0, 1, "Mend it."), own)

    @parameterized.parameters(
        ("high", "A.x: expected a number, a list"),
        (None, "A.x: expected a number, a list"),
        ([[0, 1]], "A.x: expected at least two points"),
        ([[0, 1], [5, "a"]], r"A.x: expected a list of \[step, value\] pairs"),
        (float("nan"), "A.x: expected a finite number, got nan"),
    )
    def test_check_schedule_names_the_setting(self, value, message):
        with self.assertRaisesRegex(UserError, "^" + message):
            ops.check_schedule("A.x", value, 0, 1, "Mend it.")

    def test_bad_fields(self):
        with self.assertRaisesRegex(UserError, "LinearSchedule.steps: expected a number above 0"):
            ops.LinearSchedule(1, 0, 0)
        with self.assertRaisesRegex(UserError, "ExponentialSchedule.rate: expected a number above"):
            ops.ExponentialSchedule(1, -1, 5)
        with self.assertRaisesRegex(UserError, "CosineSchedule.end: expected a finite number"):
            ops.CosineSchedule(1, "0", 5)
        with self.assertRaisesRegex(UserError, "ConstantSchedule.constant: expected a finite"):
            ops.ConstantSchedule(float("inf"))


if __name__ == "__main__":
    tf.test.main()
