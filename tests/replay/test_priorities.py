"""Sums of priorities, draws in proportion to them, and what an update of them changes."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import stats

from tests.replay import oracle
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.replay import InGraphReplay
from tfrl.replay.items import PriorityTree, highest_of_equal

P_VALUE = 1e-4  # the keys are fixed, so it is decided whether a test passes


def variable(name, shape, dtype):
    return tf.Variable(tf.zeros(shape, dtype))


def filled(per_env=40, steps=30, num_envs=2, **options):
    replay = InGraphReplay(
        obs_spec=tf.TensorSpec([1], tf.float32),
        action_spec=tf.TensorSpec([], tf.int64),
        capacity=per_env * num_envs,
        num_envs=num_envs,
        **options,
    )
    buffer = replay.init()
    streams = [
        oracle.script([(9, "term"), (4, "trunc")], "SAME_STEP", 400, 1000 * b)
        for b in range(num_envs)
    ]
    buffer.add(oracle.trajectory(streams, 0, steps))
    return buffer, streams


def draw(buffer, batch_size, seed=0, beta=1.0):
    fn = tf.function(lambda: buffer.sample(seeding.key(seed), batch_size, beta), autograph=False)
    return fn()


class TreeTest(parameterized.TestCase):
    @parameterized.parameters(1, 5, 4095, 4096, 5000, 70_000, 1_100_000)
    def test_finds_where_the_running_sum_passes_the_target(self, size):
        tree = PriorityTree(size, variable)
        rng = np.random.default_rng(size)
        values = np.zeros(size, np.int64)
        for _ in range(3):
            leaves = rng.choice(size, min(size, 500), replace=False)
            new = rng.integers(0, 2**40, len(leaves))
            tree.set((tf.constant(leaves), tf.constant(new)))
            values[leaves] = new
        np.testing.assert_array_equal(tree.values(tf.range(size, dtype=tf.int64)), values)
        sums = np.cumsum(values)
        self.assertEqual(int(tree.total()), sums[-1])
        targets = np.concatenate([rng.integers(0, sums[-1], 300), [0, sums[-1] - 1]])
        edges = sums[values > 0][:100]  # the first target behind each leaf
        targets = np.concatenate([targets, edges[edges < sums[-1]], edges - 1])
        leaves, priorities = tree.find(tf.constant(targets))
        np.testing.assert_array_equal(leaves, np.searchsorted(sums, targets, side="right"))
        np.testing.assert_array_equal(priorities, values[leaves.numpy()])

    def test_a_masked_write_changes_nothing(self):
        tree = PriorityTree(5000, variable)
        tree.set((tf.constant([3, 5000], tf.int64), tf.constant([7, 0], tf.int64)))
        self.assertEqual(int(tree.total()), 7)
        # One change after the other.
        three = tf.constant([3], tf.int64)
        tree.set((three, three), (three, 3 * three))
        self.assertEqual(int(tree.total()), 9)

    def test_quantized(self):
        tree = PriorityTree(1_000_000, variable)
        one = 2**24
        given = tf.constant([1.0, 0.5, 0.0, 1e-9, 2.0**18, 1e30], tf.float64)
        highest = 2**42  # a million of them stay below 2^62
        np.testing.assert_array_equal(
            tree.quantized(given), [one, one // 2, 1, 1, highest, highest]
        )

    def test_highest_of_equal(self):
        leaves = tf.constant([4, 2, 4, 9, 2, 4], tf.int64)
        found = highest_of_equal(leaves, tf.constant([1, 5, 3, 0, 2, 2], tf.int64))
        np.testing.assert_array_equal(found, [3, 5, 3, 0, 5, 3])


class SamplingTest(parameterized.TestCase):
    @parameterized.parameters("uniform", "prioritized")
    def test_new_items_are_drawn_equally_often(self, kind):
        buffer, _ = filled(kind=kind)
        size = int(buffer.size())
        self.assertEqual(size, 60)
        if kind == "uniform":
            index = draw(buffer, 4000).index
        else:  # one draw out of each of many parts would be more even than chance
            keys = seeding.split(seeding.key(1), 4000)
            one = lambda key: buffer.sample(key, 1).index[0]  # noqa: E731
            index = tf.function(lambda: tf.map_fn(one, keys, tf.int64), autograph=False)()
        _, counts = np.unique(index, return_counts=True)
        self.assertLen(counts, size)
        self.assertGreater(stats.chisquare(counts).pvalue, P_VALUE)

    def test_in_proportion_to_priorities(self):
        buffer, _ = filled(kind="prioritized", alpha=0.5)
        index = np.unique(draw(buffer, 2000).index)
        self.assertLen(index, 60)
        priorities = np.arange(60, dtype=np.float32) ** 2
        buffer.update_priorities(tf.constant(index), tf.constant(priorities))
        drawn = draw(buffer, 20_000, seed=5)
        found = np.bincount(np.searchsorted(index, drawn.index), minlength=60)
        expected = np.arange(60) / np.arange(60).sum() * 20_000  # p^0.5 = 0, 1, 2, ...
        # One out of each part: counts are within one or two of what is expected.
        np.testing.assert_allclose(found, expected, atol=2.0)
        self.assertLessEqual(found[0], 1)  # priority 0 is the least there is, not none

    def test_importance_weights(self):
        buffer, _ = filled(kind="prioritized", alpha=0.5)
        index = np.unique(draw(buffer, 2000).index)
        buffer.update_priorities(tf.constant(index), tf.constant([4.0] * 30 + [16.0] * 30))
        drawn = draw(buffer, 64, beta=0.4)
        chance = np.where(np.searchsorted(index, drawn.index) < 30, 2.0, 4.0) / (30 * 2 + 30 * 4)
        raw = (60 * chance) ** -0.4
        np.testing.assert_allclose(drawn.weight, raw / raw.max(), rtol=1e-6)
        np.testing.assert_array_equal(draw(buffer, 64, beta=0.0).weight, np.ones(64))
        self.assertIsNone(draw(filled()[0], 4).weight)

    def test_new_items_have_the_highest_priority_so_far(self):
        buffer, streams = filled(kind="prioritized", alpha=1.0)
        first = draw(buffer, 500)
        one = np.unique(first.index)[:1]
        buffer.update_priorities(tf.constant(one), tf.constant([8.0]))
        buffer.update_priorities(tf.constant(one), tf.constant([1.0]))
        buffer.add(oracle.trajectory(streams, 30, 35))
        index = draw(buffer, 6000).index.numpy()
        is_new = index >= 60
        # 10 new ones of priority 8, 60 others of 1.
        self.assertAlmostEqual(is_new.mean(), 80 / 140, delta=0.01)

    def test_an_update_of_what_is_gone_changes_nothing(self):
        buffer, streams = filled(per_env=20, steps=15, kind="prioritized")
        stale = np.unique(draw(buffer, 500).index)
        buffer.add(oracle.trajectory(streams, 15, 35))
        before = {path: np.array(v) for path, v in buffer.state_values().items()}
        buffer.update_priorities(tf.constant(stale), tf.fill([len(stale)], 9.0))
        bad = tf.constant([np.nan, np.inf, np.nan], tf.float32)
        buffer.update_priorities(draw(buffer, 3).index, bad)
        for path, value in buffer.state_values().items():
            np.testing.assert_array_equal(value, before[path], err_msg=path)

    def test_of_an_item_that_occurs_twice_the_highest_counts(self):
        buffer, _ = filled(kind="prioritized", alpha=1.0)
        index = np.unique(draw(buffer, 2000).index)
        buffer.update_priorities(tf.constant(index), tf.zeros([60]))
        twice = tf.constant([index[7]] * 3)
        buffer.update_priorities(twice, tf.constant([2.0, 5.0, 1.0]))
        total = sum(int(x) for x in buffer.state_values()["priorities/level_0"].numpy().ravel())
        self.assertEqual(total, 59 + 5 * 2**24)

    def test_the_same_key_draws_the_same_rows(self):
        for kind in ("uniform", "prioritized"):
            buffer, _ = filled(kind=kind)
            a, b, c = (draw(buffer, 32, seed=s).index.numpy() for s in (1, 1, 2))
            np.testing.assert_array_equal(a, b)
            self.assertFalse(np.array_equal(a, c))


class MistakesTest(parameterized.TestCase):
    def test_more_than_there_is(self):
        buffer, _ = filled(steps=2)
        message = (
            "batch_size: expected at most the 4 items that can be sampled, got 5. Add more steps "
            "first (ask can_sample), or draw a smaller batch."
        )
        self.assertTrue(bool(buffer.can_sample(4)))
        self.assertFalse(bool(buffer.can_sample(5)))
        with self.assertRaises(UserError) as caught:
            buffer.sample(seeding.key(0), 5)
        self.assertEqual(str(caught.exception), message)
        self.assertEqual(buffer.sample(seeding.key(0), np.int64(2)).index.shape, [2])
        with self.assertRaisesRegex(
            UserError, "^batch_size: expected a whole number of at least 1, got 0"
        ):
            buffer.sample(seeding.key(0), 0)

    def test_priorities_of_a_uniform_buffer(self):
        for options in ({}, {"sequence_length": 2}):
            buffer, _ = filled(**options)
            with self.assertRaises(UserError) as caught:
                buffer.update_priorities(tf.constant([0], tf.int64), tf.constant([1.0]))
            self.assertEqual(
                str(caught.exception),
                "update_priorities: expected a buffer of kind=\"prioritized\", got kind='uniform'. "
                'Create it with InGraphReplay(kind="prioritized").',
            )

    def test_arguments_that_do_not_do(self):
        buffer, _ = filled(kind="prioritized")
        index = tf.constant([1, 1], tf.int64)
        for given, wanted in (((None, index), "index"), ((index, None), "priorities")):
            with self.assertRaisesRegex(
                UserError, f"^{wanted}: expected one number for each item of a batch, .*, got None"
            ):
                buffer.update_priorities(*given)
        for i, p in (((2,), (1,)), ((1, 1), (1,)), ((2,), (2, 1)), ((1, 1), (1, 1))):
            with self.assertRaises(UserError) as caught:
                buffer.update_priorities(tf.ones(i, tf.int64), tf.ones(p))
            self.assertStartsWith(
                str(caught.exception),
                "priorities: expected the sampled index [N], and one priority for each of its N "
                f"items, got index of shape {tf.TensorShape(i)}, priorities of shape "
                f"{tf.TensorShape(p)}. ",
            )

    def test_negative_priorities(self):
        buffer, _ = filled(kind="prioritized")
        with self.assertRaises(UserError) as caught:
            buffer.update_priorities(tf.constant([0, 1], tf.int64), tf.constant([1.0, -2.0]))
        self.assertEqual(
            str(caught.exception),
            "priorities: expected non-negative numbers, got -2. Pass absolute TD errors.",
        )
