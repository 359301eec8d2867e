"""Tests of the categorical, multi-categorical and Bernoulli distributions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import distributions, seeding
from tfrl.distributions import Bernoulli, Categorical, MultiCategorical

RNG = np.random.default_rng(0)
LOGITS = tf.constant(RNG.normal(size=(3, 4, 5)), tf.float32)
OTHER = tf.constant(RNG.normal(size=(3, 4, 5)), tf.float32)


def on_every_path(f, *args):
    return f(*args), tf.function(f)(*args), tf.function(f, jit_compile=True)(*args)


class CategoricalTest(parameterized.TestCase, tf.test.TestCase):
    def test_numbers_by_hand(self):
        # p = (1/2, 1/4, 1/4): entropy = 1.5 log 2.
        d = Categorical.from_logits(tf.math.log([2.0, 1.0, 1.0]))
        self.assertAllClose(d.log_prob(0), np.log(0.5))
        self.assertAllClose(d.entropy(), 1.5 * np.log(2))
        self.assertAllEqual(d.mode(), 0)
        # q uniform: KL = log 3 - 1.5 log 2.
        uniform = Categorical.from_logits(tf.zeros([3]))
        self.assertAllClose(d.kl_divergence(uniform), np.log(3) - 1.5 * np.log(2))

    def test_against_tensorflow_probability(self):
        d, q = Categorical.from_logits(LOGITS), Categorical.from_logits(OTHER)
        action = tf.constant(RNG.integers(0, 5, (3, 4)))
        self.assertAllClose(d.log_prob(action), d.to_tfp().log_prob(action), 1e-5)
        self.assertAllClose(d.entropy(), d.to_tfp().entropy(), 1e-5)
        self.assertAllClose(d.kl_divergence(q), d.to_tfp().kl_divergence(q.to_tfp()), 1e-5)

    def test_eager_graph_and_xla_agree(self):
        action = tf.constant(RNG.integers(0, 5, (3, 4)))

        def f(logits, action, key):
            d = Categorical.from_logits(logits)
            sample, log_prob = d.sample_and_log_prob(key)
            return d.log_prob(action), d.entropy(), d.mode(), sample, log_prob

        eager, graph, xla = on_every_path(f, LOGITS, action, seeding.key(1))
        for other in (graph, xla):
            for a, b in zip(eager, other, strict=True):
                self.assertAllClose(a, b, 1e-5)

    @parameterized.parameters(tf.int32, tf.int64, tf.uint8, tf.int8)
    def test_dtype_and_start(self, dtype):
        d = Categorical.from_logits(LOGITS, start=3, dtype=dtype)
        for action in (d.sample(seeding.key(0)), d.mode()):
            self.assertEqual(action.dtype, dtype)
            self.assertEqual(action.shape, [3, 4])
            self.assertAllInRange(tf.cast(action, tf.int32), 3, 7)
        self.assertAllClose(
            d.log_prob(d.mode()), tf.reduce_max(tf.nn.log_softmax(LOGITS), -1), 1e-5
        )

    def test_frequencies(self):
        p = np.array([0.5, 0.0, 0.2, 0.3])
        logits = tf.broadcast_to(tf.math.log(tf.constant(p, tf.float32)), [20000, 4])
        drawn = Categorical.from_logits(tf.maximum(logits, -1e9)).sample(seeding.key(0)).numpy()
        self.assertAllClose(np.bincount(drawn, minlength=4) / 20000, p, atol=0.015)
        self.assertEqual(np.sum(drawn == 1), 0)

    def test_extreme_logits(self):
        logits = tf.constant([[1e8, -1e8, 0.0], [-1e8, -1e8, -1e8], [1e30, 1e30, -1e30]])

        def f(logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                d = Categorical.from_logits(logits)
                out = tf.reduce_sum(d.log_prob([0, 1, 2])) + tf.reduce_sum(d.entropy())
            return out, d.entropy(), tape.gradient(out, logits), d.sample(seeding.key(0))

        for out, entropy, gradient, sample in on_every_path(f, logits):
            self.assertTrue(np.isfinite(out.numpy()))
            self.assertAllClose(entropy, [0.0, np.log(3), np.log(2)], 1e-5)
            self.assertAllInSet(np.isfinite(gradient), [True])
            self.assertEqual(int(sample[0]), 0)

    def test_masked_actions_are_never_drawn(self):
        for mask in itertools.product([False, True], repeat=3):
            if not any(mask):
                continue
            many = tf.broadcast_to(tf.constant(mask), [500, 3])
            # Invalid logits are the largest, and one of them is not finite.
            logits = tf.where(many, tf.constant([0.0, 1.0, -1.0]), tf.constant([50.0, 1e8, np.inf]))
            for sample in on_every_path(
                lambda logits, many: Categorical.from_logits(logits, many).sample(seeding.key(1)),
                logits,
                many,
            ):
                self.assertEqual(set(np.unique(sample)), set(np.flatnonzero(mask)))
            self.assertIn(
                int(Categorical.from_logits(logits, many).mode()[0]), np.flatnonzero(mask)
            )

    def test_masked_equals_the_distribution_without_those_actions(self):
        mask = tf.constant([True, False, True, True, False])
        kept = np.flatnonzero(mask)
        masked = Categorical.from_logits(LOGITS, mask)
        small = Categorical.from_logits(tf.gather(LOGITS, kept, axis=-1))
        self.assertAllClose(masked.entropy(), small.entropy(), 1e-5)
        for i, action in enumerate(kept):
            a, b = tf.fill([3, 4], int(action)), tf.fill([3, 4], i)
            self.assertAllClose(masked.log_prob(a), small.log_prob(b), 1e-5)
        other = Categorical.from_logits(OTHER, mask)
        other_small = Categorical.from_logits(tf.gather(OTHER, kept, axis=-1))
        self.assertAllClose(masked.kl_divergence(other), other_small_kl(small, other_small), 1e-4)

    def test_invalid_logits_have_no_effect_and_no_gradient(self):
        mask = tf.constant([True, False, True, False, True])
        garbage = tf.where(mask, LOGITS, np.nan)

        def f(logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                d = Categorical.from_logits(logits, mask)
                out = d.entropy() + d.log_prob(tf.fill([3, 4], 2))
            return out, tape.gradient(out, logits)

        clean, gradient = f(LOGITS)
        dirty, dirty_gradient = f(garbage)
        self.assertAllEqual(clean, dirty)
        self.assertAllEqual(gradient, dirty_gradient)
        self.assertAllEqual(gradient[..., 1], np.zeros((3, 4)))
        self.assertAllEqual(gradient[..., 3], np.zeros((3, 4)))
        self.assertNotAllEqual(gradient[..., 0], np.zeros((3, 4)))

    def test_a_row_without_valid_action_is_uniform_without_gradient(self):
        with tf.GradientTape() as tape:
            tape.watch(LOGITS)
            d = Categorical.from_logits(LOGITS, tf.zeros([3, 4, 5], tf.bool))
            entropy = d.entropy()
        self.assertAllClose(entropy, np.full((3, 4), np.log(5)), 1e-6)
        self.assertAllEqual(tape.gradient(entropy, LOGITS), tf.zeros_like(LOGITS))

    def test_is_a_nest(self):
        traces = []

        @tf.function
        def f(d):
            traces.append(1)
            return tf.nest.map_structure(lambda x: x[0], d)

        d = f(Categorical.from_logits(LOGITS, start=2))
        self.assertIsInstance(d, Categorical)
        self.assertEqual((d.start, d.logits.shape), (2, [4, 5]))
        f(Categorical.from_logits(OTHER, start=2))
        self.assertLen(traces, 1)


def other_small_kl(p, q):
    return p.to_tfp().kl_divergence(q.to_tfp())


class MultiCategoricalTest(parameterized.TestCase, tf.test.TestCase):
    def test_equals_a_loop_over_categoricals(self):
        nvec, start = [5, 2, 3, 1], [0, -1, 4, 7]
        d = MultiCategorical.from_logits(LOGITS, nvec, start=start)
        q = MultiCategorical.from_logits(OTHER, nvec, start=start)
        parts = [Categorical.from_logits(LOGITS[:, k, :n]) for k, n in enumerate(nvec)]
        others = [Categorical.from_logits(OTHER[:, k, :n]) for k, n in enumerate(nvec)]
        action = d.sample(seeding.key(0))
        self.assertEqual(action.dtype, tf.int64)
        expected = [p.log_prob(action[:, k] - start[k]) for k, p in enumerate(parts)]
        self.assertAllClose(d.log_prob(action), tf.add_n(expected), 1e-5)
        self.assertAllClose(d.entropy(), tf.add_n([p.entropy() for p in parts]), 1e-5)
        kl = [p.kl_divergence(o) for p, o in zip(parts, others, strict=True)]
        self.assertAllClose(d.kl_divergence(q), tf.add_n(kl), 1e-5)
        modes = [p.mode() + start[k] for k, p in enumerate(parts)]
        self.assertAllEqual(d.mode(), tf.stack(modes, -1))

    def test_padding_is_never_drawn(self):
        logits = tf.zeros([5000, 3, 4])
        drawn = MultiCategorical.from_logits(logits, [2, 4, 3], start=[1, 0, -1]).sample(
            seeding.key(0)
        )
        for k, (low, high) in enumerate(((1, 2), (0, 3), (-1, 1))):
            self.assertAllEqual(np.unique(drawn[:, k]), np.arange(low, high + 1))
        # The columns are independent.
        self.assertAllClose(np.corrcoef(drawn.numpy().T), np.eye(3), atol=0.05)

    def test_event_of_two_axes(self):
        nvec = np.array([[5, 5], [5, 5]])
        d = MultiCategorical.from_logits(LOGITS, nvec, dtype=tf.int32)
        flat = MultiCategorical.from_logits(LOGITS, [5] * 4, dtype=tf.int32)
        action = d.sample(seeding.key(3))
        self.assertEqual((action.shape, action.dtype), ([3, 2, 2], tf.int32))
        self.assertAllEqual(tf.reshape(action, [3, 4]), flat.sample(seeding.key(3)))
        self.assertAllClose(d.log_prob(action), flat.log_prob(tf.reshape(action, [3, 4])))

    def test_mask(self):
        mask = np.ones((4, 5), bool)
        mask[0, 2:] = False
        d = MultiCategorical.from_logits(LOGITS, [5] * 4, mask)
        narrow = MultiCategorical.from_logits(LOGITS, [2, 5, 5, 5])
        self.assertAllClose(d.entropy(), narrow.entropy(), 1e-6)

    def test_against_tensorflow_probability_on_every_path(self):
        f = lambda x, a: MultiCategorical.from_logits(x, [5] * 4).log_prob(a)  # noqa: E731
        action = tf.constant(RNG.integers(0, 5, (3, 4)))
        oracle = MultiCategorical.from_logits(LOGITS, [5] * 4).to_tfp().log_prob(action)
        for value in on_every_path(f, LOGITS, action):
            self.assertAllClose(value, oracle, 1e-5)


class BernoulliTest(tf.test.TestCase):
    def test_numbers_by_hand(self):
        # sigmoid(log 3) = 3/4.
        d = Bernoulli.from_logits(tf.math.log([3.0, 1.0]))
        self.assertAllClose(d.log_prob(tf.constant([1, 0], tf.int8)), np.log(3 / 4) + np.log(1 / 2))
        expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25)) + np.log(2)
        self.assertAllClose(d.entropy(), expected)
        self.assertAllEqual(d.mode(), [1, 0])

    def test_against_tensorflow_probability(self):
        d, q = Bernoulli.from_logits(LOGITS), Bernoulli.from_logits(OTHER)
        action = d.sample(seeding.key(0))
        self.assertEqual(action.dtype, tf.int8)
        self.assertAllClose(d.log_prob(action), d.to_tfp().log_prob(action), 1e-5)
        self.assertAllClose(d.entropy(), d.to_tfp().entropy(), 1e-5)
        self.assertAllClose(d.kl_divergence(q), d.to_tfp().kl_divergence(q.to_tfp()), 1e-4)

    def test_extreme_logits(self):
        logits = tf.constant([1e8, -1e8, 0.0])

        def f(logits):
            with tf.GradientTape() as tape:
                tape.watch(logits)
                d = Bernoulli.from_logits(logits)
                out = d.entropy() + d.log_prob(tf.constant([1, 0, 1], tf.int8))
            return out, tape.gradient(out, logits), d.sample(seeding.key(0))

        for out, gradient, sample in on_every_path(f, logits):
            self.assertAllClose(out, 0.0, atol=1e-6)
            self.assertAllClose(gradient, [0.0, 0.0, 0.5], atol=1e-6)
            self.assertAllEqual(sample[:2], [1, 0])

    def test_mask_fixes_bits_at_zero(self):
        d = Bernoulli.from_logits(tf.fill([100, 2], 3.0), mask=tf.constant([True, False]))
        self.assertAllEqual(d.sample(seeding.key(0))[:, 1], np.zeros(100))
        free = Bernoulli.from_logits(tf.fill([100, 1], 3.0))
        self.assertAllClose(d.entropy(), free.entropy())
        action = tf.zeros([100, 2], tf.int8)
        self.assertAllClose(d.log_prob(action), free.log_prob(action[:, :1]))

    def test_event_of_two_axes(self):
        d = Bernoulli.from_logits(LOGITS[:, 0, :4], (2, 2))
        action = d.sample(seeding.key(0))
        self.assertEqual(action.shape, [3, 2, 2])
        self.assertAllClose(
            d.log_prob(action),
            Bernoulli.from_logits(LOGITS[:, 0, :4]).log_prob(tf.reshape(action, [3, 4])),
        )


def test_joint_has_no_twin():
    d = distributions.Joint(parts=(Bernoulli.from_logits(LOGITS),), spec=None)
    with pytest.raises(NotImplementedError, match="Joint has no TensorFlow Probability equivalent"):
        d.to_tfp()
