"""Tests of V-trace."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops


def inputs(seed, length=14, batch=5, p_end=0.2):
    """Random rows with ends, masked rows after some of them, and consistent next values."""
    rng = np.random.default_rng(seed)
    shape = [length, batch]
    termination, truncation = rng.random(shape) < p_end, rng.random(shape) < p_end
    mask = np.ones(shape, bool)
    mask[1:] = ~((termination | truncation)[:-1] & (rng.random(shape) < 0.5)[1:])
    value = rng.normal(size=shape).astype(np.float32)
    next_value = rng.normal(size=shape).astype(np.float32)
    ends = termination | truncation
    goes_on = ~ends[:-1] & mask[1:]
    next_value[:-1] = np.where(goes_on, value[1:], next_value[:-1])
    row = {
        "value": value,
        "next_value": next_value,
        "reward": rng.normal(size=shape).astype(np.float32),
        "termination": termination,
        "truncation": truncation,
        "rho": np.exp(rng.normal(size=shape)).astype(np.float32),
    }
    return row, mask


def spoil(row, mask):
    """NaN in the masked rows."""
    return {
        k: v if v.dtype == bool else np.where(mask, v, np.float32("nan")) for k, v in row.items()
    }


def loop(row, discount, lambda_, clip_rho, clip_pg_rho, mask):
    """V-trace one row and one column at a time."""
    length, batch = mask.shape
    target, advantage = np.zeros(mask.shape), np.zeros(mask.shape)
    for b in range(batch):
        for t in reversed(range(length)):
            if not mask[t, b]:
                continue
            v, next_v = row["value"][t, b], row["next_value"][t, b]
            rho, reward = row["rho"][t, b], row["reward"][t, b]
            gamma = 0.0 if row["termination"][t, b] else discount
            last = row["termination"][t, b] or row["truncation"][t, b] or t == length - 1
            last = last or not mask[t + 1, b]
            error = 0.0 if last else target[t + 1, b] - row["value"][t + 1, b]
            delta = min(clip_rho, rho) * (reward + gamma * next_v - v)
            target[t, b] = v + delta + gamma * lambda_ * min(1.0, rho) * error
            ahead = next_v if last else lambda_ * target[t + 1, b] + (1 - lambda_) * next_v
            advantage[t, b] = min(clip_pg_rho, rho) * (reward + gamma * ahead - v)
    return target, advantage


class VTraceTest(tf.test.TestCase, parameterized.TestCase):
    def test_numbers_by_hand(self):
        # gamma = 0.5, lambda = 1, V = 1, V' = 1, r = 1: r + gamma V' - V = 0.5 in both rows.
        # rho = (0.5, 4). Row 1, the last: delta = min(1, 4) 0.5 = 0.5, vs = 1.5,
        #   pg = min(1, 4) 0.5 = 0.5.
        # Row 0: delta = 0.5 * 0.5 = 0.25, vs = 1 + 0.25 + 0.5 * 0.5 * 0.5 = 1.375,
        #   pg = 0.5 (1 + 0.5 * 1.5 - 1) = 0.375.
        # With clip_rho = clip_pg_rho = 2, row 1: vs = 2, pg = 1; row 0: 1 + 0.25 + 0.25 = 1.5,
        #   pg = 0.5 (0.5 * 2) = 0.5.
        row = {
            "value": [1.0, 1.0],
            "next_value": [1.0, 1.0],
            "reward": [1.0, 1.0],
            "termination": [False, False],
            "truncation": [False, False],
            "rho": [0.5, 4.0],
            "discount": 0.5,
        }
        got = ops.vtrace(**row)
        self.assertAllClose(got.value_target, [1.375, 1.5])
        self.assertAllClose(got.pg_advantage, [0.375, 0.5])
        got = ops.vtrace(**row, clip_rho=2.0, clip_pg_rho=2.0)
        self.assertAllClose(got.value_target, [1.5, 2.0])
        self.assertAllClose(got.pg_advantage, [0.5, 1.0])

    @parameterized.product(
        shape=[(1, 1), (14, 5)], setting=[(1.0, 1.0, 1.0), (0.7, 0.8, 1.5)], masked=[False, True]
    )
    def test_equals_a_loop(self, shape, setting, masked):
        row, mask = inputs(0, *shape)
        if not masked:
            mask = np.ones(shape, bool)
        lambda_, clip_rho, clip_pg_rho = setting
        expected = loop(row, 0.95, lambda_, clip_rho, clip_pg_rho, mask)
        got = ops.vtrace(
            **spoil(row, mask),
            discount=0.95,
            lambda_=lambda_,
            clip_rho=clip_rho,
            clip_pg_rho=clip_pg_rho,
            mask=mask,
        )
        self.assertAllClose(got.value_target, expected[0], 1e-5, 1e-5)
        self.assertAllClose(got.pg_advantage, expected[1], 1e-5, 1e-5)

    @parameterized.parameters(0.0, 0.6, 1.0)
    def test_on_policy_it_is_gae(self, lambda_):
        row, mask = inputs(1)
        rho = row.pop("rho")
        got = ops.vtrace(**row, rho=np.ones_like(rho), discount=0.95, lambda_=lambda_, mask=mask)
        advantage, target = ops.gae(**row, discount=0.95, lambda_=lambda_, mask=mask)
        self.assertAllClose(got.value_target, target, 1e-5, 1e-5)
        self.assertAllClose(got.pg_advantage, advantage, 1e-5, 1e-5)

    def test_extreme_weights_stay_finite(self):
        row, mask = inputs(2)
        row["rho"] = np.where(np.arange(14)[:, None] % 2, np.float32(1e38), 0).repeat(5, axis=1)
        row["rho"] = row["rho"].astype(np.float32)
        got = ops.vtrace(**row, discount=0.95, mask=mask)
        self.assertAllInRange(got.value_target, -1e3, 1e3)
        self.assertAllInRange(got.pg_advantage, -1e3, 1e3)
        # No weight, no learning: the target is the value itself.
        zero = ops.vtrace(**(row | {"rho": np.zeros([14, 5])}), discount=0.95, mask=mask)
        self.assertAllClose(zero.value_target, np.where(mask, row["value"], 0))
        self.assertAllEqual(zero.pg_advantage, np.zeros([14, 5]))

    def test_no_gradient_flows(self):
        row, mask = inputs(3)
        tensors = {k: tf.constant(v) for k, v in row.items()}
        floats = [tensors[k] for k in ("value", "next_value", "reward", "rho")]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            got = ops.vtrace(**tensors, discount=0.95, mask=mask)
            total = tf.reduce_sum(got.value_target) + tf.reduce_sum(got.pg_advantage)
        self.assertEqual(tape.gradient(total, floats), [None] * 4)


if __name__ == "__main__":
    tf.test.main()
