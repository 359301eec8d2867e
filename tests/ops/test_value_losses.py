"""Tests of the value, temporal-difference and Q losses."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError

NAN = float("nan")
LOSSES = {
    "q_learning": ops.q_learning_loss,
    "double_q_learning": ops.double_q_learning_loss,
    "expected_sarsa": ops.expected_sarsa_loss,
}


def gradients_of(fn, inputs, names):
    """The loss and its gradients by the named inputs."""
    tensors = {k: tf.convert_to_tensor(v) for k, v in inputs.items()}
    with tf.GradientTape() as tape:
        tape.watch([tensors[n] for n in names])
        result = fn(**tensors)
        loss = result[0] if isinstance(result, tuple) else result
    return result, tape.gradient(loss, [tensors[n] for n in names])


class ValueLossTest(tf.test.TestCase, parameterized.TestCase):
    def test_huber_by_hand(self):
        # delta 1: 0.5 x^2 inside; |x| - 0.5 outside. delta 2 at 3: 2 (3 - 1) = 4.
        x = tf.constant([-3.0, -1.0, 0.0, 0.5, 1e30])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.huber(x)
        self.assertAllClose(y, [2.5, 0.5, 0.0, 0.125, 1e30])
        self.assertAllClose(tape.gradient(y, x), [-1, -1, 0, 0.5, 1])
        self.assertAllClose(ops.huber([3.0], 2.0), [4.0])

    def test_value_loss_by_hand(self):
        # Errors -1 and 3: (1 + 9) / 2 / 2 = 2.5, gradient (v - target) / 2.
        loss, gradients = gradients_of(
            ops.value_loss, {"value": [1.0, 5.0], "target": [2.0, 2.0]}, ["value", "target"]
        )
        self.assertAllClose(loss, 2.5)
        self.assertAllClose(gradients[0], [-0.5, 1.5])
        self.assertIsNone(gradients[1])

    def test_clipped_value_loss_by_hand(self):
        # Old values 0, clip 1. Value 2, target 4: max(4, (1 - 4)^2) = 9, no gradient.
        # Value 2, target 0: max(4, 1) = 4, gradient 2. Value 0.5, target 0: 0.25.
        loss, gradients = gradients_of(
            lambda **k: ops.clipped_value_loss(**k, clip=1.0),
            {"value": [2.0, 2.0, 0.5], "old_value": [0.0, 0, 0], "target": [4.0, 0, 0]},
            ["value", "old_value", "target"],
        )
        self.assertAllClose(loss, 0.5 * 13.25 / 3)
        self.assertAllClose(gradients[0], np.array([0, 2, 0.5]) / 3)
        self.assertEqual(gradients[1:], [None, None])

    def test_a_wide_clip_is_the_plain_loss(self):
        rng = np.random.default_rng(0)
        value, old, target = rng.normal(size=[3, 7])
        self.assertAllClose(
            ops.clipped_value_loss(value=value, old_value=old, target=target, clip=100.0),
            ops.value_loss(value=value, target=target),
            1e-5,
        )

    def test_masked_garbage_changes_nothing(self):
        names = ["value", "old_value", "target"]
        clean = dict(zip(names, np.random.default_rng(1).normal(size=[3, 4, 2]), strict=True))
        clean = {k: v.astype(np.float32) for k, v in clean.items()}
        spoilt = {k: np.concatenate([v, np.full([1, 2], NAN)]) for k, v in clean.items()}
        spoilt = {k: v.astype(np.float32) for k, v in spoilt.items()}
        mask = np.arange(5)[:, None] < np.full([1, 2], 4)

        def both(old_value, **inputs):
            clipped = ops.clipped_value_loss(old_value=old_value, clip=0.3, **inputs)
            return clipped + ops.value_loss(**inputs)

        expected, wanted = gradients_of(both, clean, ["value"])
        loss, got = gradients_of(both, spoilt | {"mask": mask}, ["value"])
        self.assertAllClose(loss, expected, 1e-5)
        self.assertAllClose(got[0][:4], wanted[0], 1e-5)
        self.assertAllEqual(got[0][4:], [[0, 0]])

    def test_shapes_must_be_equal(self):
        with self.assertRaisesRegex(UserError, "target: expected the shape .2. of value, got"):
            ops.value_loss(value=tf.zeros([2]), target=tf.zeros([2, 1]))


def q_inputs(name):
    """Numbers for the Q losses: two rows, three actions."""
    inputs = {
        "q": np.float32([[1, 2, 3], [4, 5, 6]]),
        "action": np.array([2, 0]),
        "next_q": np.float32([[10, 20, 30], [5, 6, 7]]),
        "reward": np.float32([1, 2]),
        "termination": np.array([False, True]),
    }
    if name == "double_q_learning":
        inputs["next_q_selector"] = np.float32([[9, 1, 1], [0, 0, 1]])
    if name == "expected_sarsa":
        inputs["next_pi"] = np.float32([[0.5, 0.5, 0], [1, 0, 0]])
    return inputs


class TDLossTest(tf.test.TestCase, parameterized.TestCase):
    def test_td_by_hand(self):
        # Targets 1 + 0.5 * 4 = 3 and, terminated, 2; errors 2 and -2; loss (4 + 4) / 2 / 2 = 2.
        (loss, extra), gradients = gradients_of(
            lambda **k: ops.td_loss(**k, discount=0.5),
            {
                "value": [1.0, 4.0],
                "next_value": [4.0, NAN],
                "reward": [1.0, 2.0],
                "termination": [False, True],
            },
            ["value", "next_value", "reward"],
        )
        self.assertAllClose(loss, 2.0)
        self.assertAllClose(extra.target, [3, 2])
        self.assertAllClose(extra.td_error, [2, -2])
        self.assertAllClose(gradients[0], [-1, 1])
        self.assertEqual(gradients[1:], [None, None])

    def test_weights_huber_and_denominator(self):
        inputs = {
            "value": [1.0, 4.0],
            "next_value": [4.0, 0.0],
            "reward": [1.0, 2.0],
            "termination": [False, True],
            "discount": 0.5,
        }
        self.assertAllClose(ops.td_loss(**inputs, weights=[1.0, 0.5])[0], (2 + 1) / 2)
        self.assertAllClose(ops.td_loss(**inputs, huber_delta=1.0)[0], 1.5)
        self.assertAllClose(ops.td_loss(**inputs, denominator=4)[0], 1.0)

    def test_several_critics_share_targets(self):
        value = np.float32([[1, 0], [4, 2]])
        loss, extra = ops.td_loss(
            value=value,
            next_value=np.float32([4, 9]),
            reward=[1.0, 2.0],
            termination=[False, True],
            discount=0.5,
            weights=[1.0, 2.0],
        )
        self.assertAllClose(extra.td_error, np.array([[3], [2]]) - value)
        # 0.5 ((2^2 + 3^2) + 2 (2^2 + 0)) / 4
        self.assertAllClose(loss, 0.5 * (13 + 8) / 4)

    @parameterized.parameters(
        # gamma = 0.1. The second row terminates: target 2, q 4. q of the first is 3.
        ("q_learning", 1 + 3.0),  # max = 30
        ("double_q_learning", 1 + 1.0),  # the selector takes action 0: 10
        ("expected_sarsa", 1 + 1.5),  # (10 + 20) / 2
    )
    def test_q_losses_by_hand(self, name, target):
        """The errors are those of rlax's functions, the loss is half their mean square.

        rlax.q_learning:        r_t + discount_t max q_t - q_tm1[a_tm1]
        rlax.double_q_learning: r_t + discount_t q_t_value[argmax q_t_selector] - q_tm1[a_tm1]
        rlax.expected_sarsa:    r_t + discount_t q_t . probs_a_t - q_tm1[a_tm1]
        """
        inputs = q_inputs(name)
        floats = [k for k, v in inputs.items() if v.dtype == np.float32]
        (loss, extra), gradients = gradients_of(
            lambda **k: LOSSES[name](**k, discount=0.1), inputs, floats
        )
        error = np.array([target - 3, 2 - 4])
        self.assertAllClose(extra.target, [target, 2])
        self.assertAllClose(extra.td_error, error)
        self.assertAllClose(loss, np.mean(error**2) / 2)
        expected = np.zeros([2, 3])
        expected[0, 2], expected[1, 0] = -error / 2
        self.assertAllClose(gradients[0], expected)
        self.assertEqual(gradients[1:], [None] * (len(floats) - 1))

    @parameterized.parameters(*LOSSES)
    def test_masked_garbage_changes_nothing(self, name):
        clean = q_inputs(name)
        (expected, extra), wanted = gradients_of(
            lambda **k: LOSSES[name](**k, discount=0.1), clean, ["q"]
        )
        spoilt = {}
        for k, v in clean.items():
            garbage = NAN if v.dtype == np.float32 else v[0] * 0 - (k == "action") * 7
            spoilt[k] = np.concatenate([v, np.full_like(v[:1], garbage)])
        weights = np.float32([1, 1, NAN])
        (loss, got_extra), got = gradients_of(
            lambda **k: LOSSES[name](**k, discount=0.1, mask=[True, True, False], weights=weights),
            spoilt,
            ["q"],
        )
        self.assertAllClose(loss, expected)
        self.assertAllClose(got[0], np.concatenate([wanted[0], np.zeros([1, 3])]))
        self.assertAllClose(got_extra.td_error, [*extra.td_error, 0])
        self.assertAllClose(got_extra.target, [*extra.target, 0])

    def test_messages(self):
        inputs = q_inputs("q_learning")
        with self.assertRaisesRegex(UserError, "next_q: expected the shape .2, 3. of q"):
            ops.q_learning_loss(**(inputs | {"next_q": tf.zeros([2, 4])}), discount=0.9)
        with self.assertRaisesRegex(UserError, "termination: expected dtype bool"):
            ops.q_learning_loss(**(inputs | {"termination": [0, 1]}), discount=0.9)


if __name__ == "__main__":
    tf.test.main()
