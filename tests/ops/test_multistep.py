"""Tests of the multistep returns and of the linear recurrence under them."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import ops
from tfrl.errors import UserError
from tfrl.ops import _rows

NAN = float("nan")
NAMES = ("reward", "value", "next_value", "termination", "truncation")


def random_rows(rng, length, batch, p_end=0.2):
    """Random time-major rows with ends and masked rows after some of the ends."""
    shape = [length, batch]
    value = rng.normal(size=shape).astype(np.float32)
    row = {
        "reward": rng.normal(size=shape).astype(np.float32),
        "value": value,
        "next_value": rng.normal(size=shape).astype(np.float32),
        "termination": rng.random(shape) < p_end,
        "truncation": rng.random(shape) < p_end,
    }
    mask = np.ones(shape, bool)
    ended = row["termination"] | row["truncation"]
    mask[1:] = ~(ended[:-1] & (rng.random(shape) < 0.5)[1:])
    return row, mask


def with_garbage(row, mask):
    """NaN and ends of all kinds in the masked rows."""
    spoilt = dict(row)
    for name in ("reward", "value", "next_value"):
        spoilt[name] = np.where(mask, row[name], np.float32(NAN))
    spoilt["termination"] = np.where(mask, row["termination"], ~row["truncation"])
    spoilt["truncation"] = np.where(mask, row["truncation"], row["termination"])
    return spoilt


def last(row, mask, t, b):
    """Whether the episode or what is known of it ends at row t."""
    length = len(mask)
    end = row["termination"][t, b] or row["truncation"][t, b]
    return end or t == length - 1 or not mask[t + 1, b]


def gae_loop(row, discount, lambda_, mask):
    """GAE one row and one column at a time."""
    advantage = np.zeros(mask.shape)
    for b in range(mask.shape[1]):
        for t in reversed(range(len(mask))):
            if not mask[t, b]:
                continue
            bootstrap = 0.0 if row["termination"][t, b] else row["next_value"][t, b]
            delta = row["reward"][t, b] + discount * bootstrap - row["value"][t, b]
            rest = 0.0 if last(row, mask, t, b) else advantage[t + 1, b]
            advantage[t, b] = delta + discount * lambda_ * rest
    return advantage, np.where(mask, advantage + row["value"], 0.0)


def lambda_loop(row, discount, lambda_, mask):
    """Lambda-returns one row and one column at a time."""
    returns = np.zeros(mask.shape)
    for b in range(mask.shape[1]):
        for t in reversed(range(len(mask))):
            if not mask[t, b]:
                continue
            v = row["next_value"][t, b]
            g = v if last(row, mask, t, b) else returns[t + 1, b]
            rest = 0.0 if row["termination"][t, b] else (1 - lambda_) * v + lambda_ * g
            returns[t, b] = row["reward"][t, b] + discount * rest
    return returns


def n_step_loop(row, discount, n, mask):
    """n-step returns, forwards from every row."""
    returns = np.zeros(mask.shape)
    for b in range(mask.shape[1]):
        for t in range(len(mask)):
            if not mask[t, b]:
                continue
            for k in range(n):
                returns[t, b] += discount**k * row["reward"][t + k, b]
                if k == n - 1 or last(row, mask, t + k, b):
                    if not row["termination"][t + k, b]:
                        returns[t, b] += discount ** (k + 1) * row["next_value"][t + k, b]
                    break
    return returns


def without_value(row):
    """The inputs of the functions that take no value."""
    return {k: v for k, v in row.items() if k != "value"}


class LinearRecurrenceTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(1, 2, 7, 8, 9, 63, 64, 65, 130)
    def test_equals_a_loop(self, length):
        rng = np.random.default_rng(length)
        a = rng.uniform(-1, 1, [length, 3]).astype(np.float32)
        b = rng.normal(size=[length, 3]).astype(np.float32)
        expected, x = np.zeros([length, 3]), np.zeros(3)
        for t in reversed(range(length)):
            x = b[t] + a[t] * x
            expected[t] = x
        found = _rows.linear_recurrence(tf.constant(a), tf.constant(b))
        self.assertAllClose(found, expected, 1e-5, 1e-5)

    def test_trailing_axes_broadcast_and_may_be_unknown(self):
        a, b = tf.fill([3, 2, 1], 0.5), tf.ones([3, 2, 4])
        expected = np.broadcast_to(np.reshape([1.75, 1.5, 1.0], [3, 1, 1]), [3, 2, 4])
        self.assertAllClose(_rows.linear_recurrence(a, b), expected)
        unknown = tf.TensorSpec([3, None, None])
        fn = tf.function(_rows.linear_recurrence, input_signature=[unknown, unknown])
        self.assertAllClose(fn(a, b), expected)

    def test_unknown_length_is_an_error(self):
        spec = tf.TensorSpec([None, 2])
        fn = tf.function(_rows.linear_recurrence, input_signature=[spec, spec], autograph=False)
        with self.assertRaisesRegex(UserError, "number of rows T: expected a static size"):
            fn.get_concrete_function()


class GaeTest(tf.test.TestCase, parameterized.TestCase):
    def test_numbers_by_hand(self):
        # gamma = 0.5, lambda = 0.5, so gamma lambda = 0.25. Values 1 everywhere, next values 2.
        # An ongoing or truncated row: delta = 1 + 0.5 * 2 - 1 = 1; a terminated one: 1 - 1 = 0.
        # Column 0, no end:              A = [1 + 0.25 * 1.25, 1 + 0.25 * 1, 1]
        # Column 1, row 1 terminated:    A = [1 + 0.25 * 0, 0, 1]
        # Column 2, row 1 truncated:     A = [1 + 0.25 * 1, 1, 1]
        # Column 3, row 0 both:          A = [0, 1.25, 1]
        ones = np.ones([3, 4], np.float32)
        termination, truncation = np.zeros([3, 4], bool), np.zeros([3, 4], bool)
        termination[1, 1] = truncation[1, 2] = termination[0, 3] = truncation[0, 3] = True
        advantage, target = ops.gae(
            reward=ones,
            value=ones,
            next_value=2 * ones,
            termination=termination,
            truncation=truncation,
            discount=0.5,
            lambda_=0.5,
        )
        expected = np.array([[1.3125, 1, 1.25, 0], [1.25, 0, 1, 1.25], [1, 1, 1, 1]])
        self.assertAllClose(advantage, expected)
        self.assertAllClose(target, expected + 1)

    @parameterized.product(shape=[(1, 1), (1, 5), (13, 1), (40, 6)], masked=[False, True])
    def test_equals_a_loop(self, shape, masked):
        row, mask = random_rows(np.random.default_rng(0), *shape)
        if not masked:
            mask = np.ones(shape, bool)
        expected = gae_loop(row, 0.95, 0.9, mask)
        given = with_garbage(row, mask)
        extra = {"mask": mask} if masked else {}
        got = ops.gae(**given, **extra, discount=0.95, lambda_=0.9)
        self.assertAllClose(got[0], expected[0], 1e-5, 1e-5)
        self.assertAllClose(got[1], expected[1], 1e-5, 1e-5)
        self.assertEqual([x.dtype for x in got], [tf.float32] * 2)

    def test_discount_and_lambda_as_tensors(self):
        row, mask = random_rows(np.random.default_rng(1), 6, 3)
        number = ops.gae(**row, discount=0.9, lambda_=0.8, mask=mask)
        for shape in ([], [3], [6, 1], [6, 3]):
            tensor = ops.gae(
                **row, discount=tf.fill(shape, 0.9), lambda_=tf.fill(shape, 0.8), mask=mask
            )
            self.assertAllClose(tensor, number)
        spoilt = np.where(mask, np.float32(0.9), np.float32(NAN))
        self.assertAllClose(ops.gae(**row, discount=spoilt, lambda_=0.8, mask=mask), number)

    def test_more_axes_and_no_batch_axis(self):
        row, _ = random_rows(np.random.default_rng(2), 9, 4)
        flat = ops.gae(**row, discount=0.9, lambda_=0.8)
        first = ops.gae(**{k: v[:, 0] for k, v in row.items()}, discount=0.9, lambda_=0.8)
        self.assertAllClose(first[0], flat[0][:, 0])
        critics = dict(row)
        for name in ("value", "next_value"):
            critics[name] = np.stack([row[name], -row[name]], axis=-1)
        negated = ops.gae(
            **(row | {"value": -row["value"], "next_value": -row["next_value"]}),
            discount=0.9,
            lambda_=0.8,
        )
        both = ops.gae(**critics, discount=0.9, lambda_=0.8)
        self.assertAllClose(both[0], tf.stack([flat[0], negated[0]], -1), 1e-5, 1e-5)
        self.assertAllClose(both[1], tf.stack([flat[1], negated[1]], -1), 1e-5, 1e-5)

    def test_a_termination_ignores_its_next_value(self):
        row, mask = random_rows(np.random.default_rng(3), 9, 4)
        clean = ops.gae(**row, discount=0.9, lambda_=0.8, mask=mask)
        row["next_value"] = np.where(row["termination"], np.float32(NAN), row["next_value"])
        self.assertAllEqual(ops.gae(**row, discount=0.9, lambda_=0.8, mask=mask)[0], clean[0])

    def test_lambda_0_is_the_temporal_difference_and_1_the_return(self):
        row, mask = random_rows(np.random.default_rng(4), 20, 4)
        td = ops.n_step_returns(**without_value(row), discount=0.9, n=1, mask=mask)
        value = np.where(mask, row["value"], 0)
        advantage, target = ops.gae(**row, discount=0.9, lambda_=0.0, mask=mask)
        self.assertAllClose(advantage, td - value, 1e-5, 1e-5)
        self.assertAllClose(target, td, 1e-5, 1e-5)
        _, target = ops.gae(**consistent(row, mask), discount=0.9, lambda_=1.0, mask=mask)
        full = ops.n_step_returns(
            **without_value(consistent(row, mask)), discount=0.9, n=20, mask=mask
        )
        self.assertAllClose(target, full, 1e-5, 1e-5)

    def test_masked_rows_change_neither_values_nor_gradients(self):
        row, _ = random_rows(np.random.default_rng(5), 7, 3)
        padded = {k: np.concatenate([v, np.zeros_like(v[:2])]) for k, v in row.items()}
        for name in ("reward", "value", "next_value"):
            padded[name][7:] = NAN
        mask = np.arange(9)[:, None] < 7 * np.ones([1, 3], int)
        names = ("reward", "value", "next_value")

        def run(inputs, mask):
            tensors = {k: tf.constant(inputs[k]) for k in NAMES}
            with tf.GradientTape() as tape:
                tape.watch([tensors[n] for n in names])
                result = ops.gae(**tensors, discount=0.9, lambda_=0.8, mask=mask)
                total = tf.reduce_sum(result[0] ** 2 + result[1])
            return result, tape.gradient(total, [tensors[n] for n in names])

        clean, clean_gradients = run(row, None)
        got, gradients = run(padded, mask)
        for x, y in zip([*clean, *clean_gradients], [*got, *gradients], strict=True):
            self.assertAllClose(x, y[:7], 1e-5, 1e-5)
            self.assertAllEqual(y[7:], tf.zeros([2, 3]))

    def test_all_masked_is_zero(self):
        row, mask = random_rows(np.random.default_rng(6), 4, 2)
        mask = np.zeros_like(mask)
        for x in ops.gae(**with_garbage(row, mask), discount=0.9, lambda_=0.8, mask=mask):
            self.assertAllEqual(x, np.zeros([4, 2]))

    def test_messages(self):
        row, mask = random_rows(np.random.default_rng(7), 4, 2)
        fixed = {"discount": 0.9, "lambda_": 0.8}
        with self.assertRaisesRegex(UserError, "value: expected the leading axes .4, 2. of term"):
            ops.gae(**(row | {"value": row["value"][:3]}), **fixed)
        with self.assertRaisesRegex(UserError, "truncation: expected dtype bool, got float32"):
            ops.gae(**(row | {"truncation": row["reward"]}), **fixed)
        with self.assertRaisesRegex(UserError, r"mask: expected the shape \[4, 2\] of termination"):
            ops.gae(**row, **fixed, mask=mask[:, :1])
        with self.assertRaisesRegex(UserError, "reward: expected dtype float32, got int32"):
            ops.gae(**(row | {"reward": tf.zeros([4, 2], tf.int32)}), **fixed)


def consistent(row, mask):
    """Rows in which V(o_{t+1}) is the value of the next row wherever the episode goes on."""
    row = {k: v.copy() for k, v in row.items()}
    for t in range(len(mask) - 1):
        for b in range(mask.shape[1]):
            if not last(row, mask, t, b):
                row["next_value"][t, b] = row["value"][t + 1, b]
    return row


class ReturnsTest(tf.test.TestCase, parameterized.TestCase):
    def test_lambda_returns_by_hand(self):
        # gamma = 0.5, lambda = 0.5, rewards 1, next values 2; row 2 is the last: 1 + 0.5 * 2 = 2.
        # Row 1: 1 + 0.5 (0.5 * 2 + 0.5 * 2) = 2, row 0 the same; terminated in row 1: [1.75, 1, 2]
        # since row 0 then is 1 + 0.5 (1 + 0.5 * 1).
        termination = np.array([[False, False], [False, True], [False, False]])
        got = ops.lambda_returns(
            reward=np.ones([3, 2]),
            next_value=np.full([3, 2], 2.0),
            termination=termination,
            truncation=np.zeros([3, 2], bool),
            discount=0.5,
            lambda_=0.5,
        )
        self.assertAllClose(got, [[2, 1.75], [2, 1], [2, 2]])

    def test_n_step_by_hand(self):
        """The formula of `rlax.n_step_bootstrapped_returns`, lambda_t 1.

        r_1 + discount_1 (r_2 + discount_2 (... (r_n + discount_n v_n))), discounts of 0 at
        terminations; a truncation, which rlax does not know, stops the sum and bootstraps.
        """
        # Rewards 1, 2, 4, next values 8, gamma 0.5, n = 2.
        # Row 0: 1 + 1 + 8 / 4 = 4; row 1: 2 + 2 + 8 / 4 = 6; row 2 (tail): 4 + 4 = 8.
        # Truncated in row 0: 1 + 4 = 5; terminated in row 1: row 0 = 1 + 1, row 1 = 2.
        truncation, termination = np.zeros([3, 3], bool), np.zeros([3, 3], bool)
        truncation[0, 1] = termination[1, 2] = True
        got = ops.n_step_returns(
            reward=np.repeat([[1.0], [2.0], [4.0]], 3, axis=1),
            next_value=np.full([3, 3], 8.0),
            termination=termination,
            truncation=truncation,
            discount=0.5,
            n=2,
        )
        self.assertAllClose(got, [[4, 5, 2], [6, 6, 2], [8, 8, 8]])

    @parameterized.product(shape=[(1, 1), (13, 1), (30, 6)], masked=[False, True])
    def test_equal_loops(self, shape, masked):
        row, mask = random_rows(np.random.default_rng(10), *shape)
        if not masked:
            mask = np.ones(shape, bool)
        given = without_value(with_garbage(row, mask))
        inputs = {**given, "mask": mask}
        expected = [lambda_loop(row, 0.95, lambda_, mask) for lambda_ in (0.0, 0.7, 1.0)]
        steps = (1, 2, 5, shape[0], shape[0] + 3)
        expected += [n_step_loop(row, 0.95, n, mask) for n in steps]
        found = [ops.lambda_returns(**inputs, discount=0.95, lambda_=x) for x in (0.0, 0.7, 1.0)]
        found += [ops.n_step_returns(**inputs, discount=0.95, n=n) for n in steps]
        for i, (got, wanted) in enumerate(zip(found, expected, strict=True)):
            with self.subTest(i):
                self.assertAllClose(got, wanted, 1e-5, 1e-5)

    def test_discounted_returns_equal_the_loop_at_lambda_1(self):
        row, mask = random_rows(np.random.default_rng(11), 12, 3)
        row = without_value(row)
        expected = lambda_loop(row, 0.9, 1.0, mask)
        self.assertAllClose(
            ops.discounted_returns(**row, discount=0.9, mask=mask), expected, 1e-5, 1e-5
        )
        expected = lambda_loop(row | {"next_value": np.zeros([12, 3])}, 0.9, 1.0, mask)
        del row["next_value"]
        self.assertAllClose(
            ops.discounted_returns(**row, discount=0.9, mask=mask), expected, 1e-5, 1e-5
        )

    def test_discounted_returns_by_hand(self):
        # Rewards 1, 2, 4, gamma 0.5: 4; 2 + 2 = 4; 1 + 2 = 3. With V(o_3) = 8: 8; 6; 4.
        inputs = {
            "reward": [1.0, 2.0, 4.0],
            "termination": [False] * 3,
            "truncation": [False] * 3,
            "discount": 0.5,
        }
        self.assertAllClose(ops.discounted_returns(**inputs), [3, 4, 4])
        self.assertAllClose(ops.discounted_returns(**inputs, next_value=[8.0] * 3), [4, 6, 8])

    @parameterized.parameters(0, -1, 1.5, True)
    def test_bad_n(self, n):
        row, _ = random_rows(np.random.default_rng(12), 3, 1)
        with self.assertRaisesRegex(UserError, "n: expected a whole number of at least 1, got"):
            ops.n_step_returns(**without_value(row), discount=0.9, n=n)


if __name__ == "__main__":
    tf.test.main()
