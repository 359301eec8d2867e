"""Tests of Retrace."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError


def inputs(seed, length=12, batch=4, actions=3, p_end=0.2):
    """Random rows with ends and masked rows after some of them."""
    rng = np.random.default_rng(seed)
    shape = [length, batch]
    termination, truncation = rng.random(shape) < p_end, rng.random(shape) < p_end
    mask = np.ones(shape, bool)
    mask[1:] = ~((termination | truncation)[:-1] & (rng.random(shape) < 0.5)[1:])
    pi = rng.random([*shape, actions])
    row = {
        "q": rng.normal(size=[*shape, actions]).astype(np.float32),
        "next_q": rng.normal(size=[*shape, actions]).astype(np.float32),
        "action": rng.integers(actions, size=shape),
        "next_action": rng.integers(actions, size=shape),
        "reward": rng.normal(size=shape).astype(np.float32),
        "termination": termination,
        "truncation": truncation,
        "next_pi": (pi / pi.sum(-1, keepdims=True)).astype(np.float32),
        "next_mu": rng.uniform(0.1, 1, shape).astype(np.float32),
    }
    return row, mask


def loop(row, discount, lambda_, mask):
    """Retrace one row and one column at a time."""
    target = np.zeros(mask.shape)
    error = np.zeros(mask.shape)
    length = len(mask)
    for b in range(mask.shape[1]):
        for t in reversed(range(length)):
            if not mask[t, b]:
                continue
            x = {k: v[t, b] for k, v in row.items()}
            gamma = 0.0 if x["termination"] else discount
            last = x["termination"] or x["truncation"] or t == length - 1 or not mask[t + 1, b]
            ahead = np.dot(x["next_pi"], x["next_q"])
            if not last:
                a = x["next_action"]
                c = lambda_ * min(1.0, x["next_pi"][a] / x["next_mu"])
                ahead += c * (target[t + 1, b] - x["next_q"][a])
            target[t, b] = x["reward"] + gamma * ahead
            error[t, b] = target[t, b] - x["q"][x["action"]]
    return error


class RetraceTest(tf.test.TestCase, parameterized.TestCase):
    def test_numbers_by_hand(self):
        # Two rows, two actions, gamma = 0.5, lambda = 1, rewards 1.
        # Row 1, the last: pi' = (0.5, 0.5), q' = (2, 4): target 1 + 0.5 * 3 = 2.5; q(a=1) = 1.
        # Row 0: pi' = (0.25, 0.75), q' = (4, 0), E = 1; next action 0 with mu = 0.5:
        #   c = 0.25 / 0.5 = 0.5; target 1 + 0.5 (1 - 0.5 * 4 + 0.5 * 2.5) = 1.125; q(a=0) = 0.
        row = {
            "q": [[0.0, 9.0], [9.0, 1.0]],
            "next_q": [[4.0, 0.0], [2.0, 4.0]],
            "action": [0, 1],
            "next_action": [0, 7],
            "reward": [1.0, 1.0],
            "termination": [False, False],
            "truncation": [False, False],
            "next_pi": [[0.25, 0.75], [0.5, 0.5]],
            "next_mu": [0.5, float("nan")],
            "discount": 0.5,
            "lambda_": 1.0,
        }
        self.assertAllClose(ops.retrace(**row), [1.125, 1.5])
        # Truncated in row 0: target 1 + 0.5 E = 1.5. Terminated: 1.
        self.assertAllClose(ops.retrace(**(row | {"truncation": [True, False]})), [1.5, 1.5])
        self.assertAllClose(ops.retrace(**(row | {"termination": [True, False]})), [1.0, 1.5])

    @parameterized.product(shape=[(1, 1), (12, 4)], masked=[False, True])
    def test_equals_a_loop(self, shape, masked):
        row, mask = inputs(0, *shape)
        if not masked:
            mask = np.ones(shape, bool)
        expected = loop(row, 0.95, 0.9, mask)
        given = {}
        for name, x in row.items():
            valid = mask[..., None] if x.ndim == 3 else mask
            garbage = np.float32("nan") if x.dtype == np.float32 else np.array(-5).astype(x.dtype)
            given[name] = np.where(valid, x, garbage)
        found = ops.retrace(**given, discount=0.95, lambda_=0.9, mask=mask)
        self.assertAllClose(found, expected, 1e-5, 1e-5)

    def test_lambda_0_is_expected_sarsa(self):
        row, mask = inputs(1)
        error = ops.retrace(**row, discount=0.95, lambda_=0.0, mask=mask)
        names = ("q", "next_q", "action", "reward", "termination", "next_pi")
        _, extra = ops.expected_sarsa_loss(**{k: row[k] for k in names}, discount=0.95, mask=mask)
        self.assertAllClose(error, extra.td_error, 1e-5, 1e-5)

    def test_gradient_reaches_the_taken_actions_only(self):
        row, mask = inputs(2)
        tensors = {k: tf.constant(v) for k, v in row.items()}
        names = ("q", "next_q", "reward", "next_pi", "next_mu")
        with tf.GradientTape() as tape:
            tape.watch([tensors[n] for n in names])
            total = tf.reduce_sum(ops.retrace(**tensors, discount=0.95, lambda_=0.9, mask=mask))
        gradients = tape.gradient(total, [tensors[n] for n in names])
        expected = -np.eye(3)[row["action"]] * mask[..., None]
        self.assertAllClose(gradients[0], expected)
        self.assertEqual(gradients[1:], [None] * 4)

    def test_no_probability_of_the_behaviour_stays_finite(self):
        row, mask = inputs(3)
        row["next_mu"] = np.zeros_like(row["next_mu"])
        self.assertAllInRange(ops.retrace(**row, discount=0.95, lambda_=1.0, mask=mask), -1e4, 1e4)

    def test_messages(self):
        row, _ = inputs(4)
        with self.assertRaisesRegex(UserError, "next_pi: expected rank 3, got rank 2"):
            ops.retrace(**(row | {"next_pi": row["next_mu"]}), discount=0.9, lambda_=1.0)
        with self.assertRaisesRegex(UserError, "next_mu: expected the leading axes"):
            ops.retrace(**(row | {"next_mu": row["next_mu"][:2]}), discount=0.9, lambda_=1.0)


if __name__ == "__main__":
    tf.test.main()
