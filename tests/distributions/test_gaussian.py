"""Tests of the diagonal Gaussian, plain and squashed."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from scipy import integrate

from tfrl import seeding
from tfrl.distributions import DiagonalGaussian, SquashedGaussian

RNG = np.random.default_rng(0)
LOC = tf.constant(RNG.normal(size=(4, 3)), tf.float32)
LOG_STD = tf.constant(RNG.normal(size=(4, 3)) * 0.5, tf.float32)
LOW, HIGH = (-2.0, 0.0, -1.0), (2.0, 5.0, 0.5)


def on_every_path(f, *args):
    return f(*args), tf.function(f)(*args), tf.function(f, jit_compile=True)(*args)


def squashed(loc=LOC, log_std=LOG_STD, low=LOW, high=HIGH, **options):
    return SquashedGaussian(loc=loc, log_std=log_std, low=low, high=high, **options)


class DiagonalGaussianTest(parameterized.TestCase, tf.test.TestCase):
    def test_numbers_by_hand(self):
        d = DiagonalGaussian(loc=tf.constant([0.0, 1.0]), log_std=tf.math.log([1.0, 2.0]))
        # z = (1, 1): -1/2 - 1/2 - log 2 - log(2 pi).
        self.assertAllClose(d.log_prob([1.0, 3.0]), -1 - np.log(2) - np.log(2 * np.pi))
        self.assertAllClose(d.entropy(), 1 + np.log(2 * np.pi) + np.log(2))
        q = DiagonalGaussian(loc=tf.zeros([2]), log_std=tf.zeros([2]))
        # Second element: (4 + 1 - 1) / 2 - log 2.
        self.assertAllClose(d.kl_divergence(q), 2 - np.log(2))

    def test_against_tensorflow_probability(self):
        for log_std in (LOG_STD, LOG_STD[0]):  # of the state, or a parameter
            d = DiagonalGaussian(loc=LOC, log_std=log_std)
            q = DiagonalGaussian(loc=LOC + 1, log_std=log_std * 0.5)
            action = d.sample(seeding.key(0))
            self.assertAllClose(d.log_prob(action), d.to_tfp().log_prob(action), 1e-5)
            self.assertAllClose(d.entropy(), d.to_tfp().entropy(), 1e-5)
            self.assertAllClose(d.kl_divergence(q), d.to_tfp().kl_divergence(q.to_tfp()), 1e-4)
            self.assertEqual(d.entropy().shape, [4])
            self.assertEqual(d.kl_divergence(q).shape, [4])

    def test_samples(self):
        loc = tf.broadcast_to(tf.constant([1.0, -2.0]), [20000, 2])
        d = DiagonalGaussian(loc=loc, log_std=tf.math.log([0.5, 2.0]))
        drawn = d.sample(seeding.key(0)).numpy()
        self.assertAllClose(drawn.mean(0), [1.0, -2.0], atol=0.06)
        self.assertAllClose(drawn.std(0), [0.5, 2.0], atol=0.05)
        action, log_prob = d.sample_and_log_prob(seeding.key(0))
        self.assertAllEqual(action, drawn)
        self.assertAllClose(log_prob, d.log_prob(action), atol=1e-4)

    @parameterized.parameters(tf.float32, tf.float64, tf.float16)
    def test_dtype_and_event_shape(self, dtype):
        d = DiagonalGaussian(
            loc=tf.zeros([5, 2, 6]), log_std=tf.zeros([6]), event_shape=(2, 3), dtype=dtype
        )
        for action in (d.sample(seeding.key(0)), d.mode()):
            self.assertEqual((action.dtype, action.shape), (dtype, [5, 2, 2, 3]))
            self.assertEqual(d.log_prob(action).dtype, tf.float32)
            self.assertEqual(d.log_prob(action).shape, [5, 2])

    def test_scalar_action(self):
        d = DiagonalGaussian(loc=tf.zeros([5, 1]), log_std=tf.zeros([1]), event_shape=())
        self.assertEqual(d.sample(seeding.key(0)).shape, [5])
        self.assertAllClose(d.log_prob(tf.zeros([5])), [-0.5 * np.log(2 * np.pi)] * 5)

    def test_eager_graph_and_xla_agree(self):
        def f(loc, log_std, key):
            d = DiagonalGaussian(loc=loc, log_std=log_std)
            return *d.sample_and_log_prob(key), d.log_prob(loc + 1.0), d.entropy()

        eager, graph, xla = on_every_path(f, LOC, LOG_STD, seeding.key(1))
        for other in (graph, xla):
            for a, b in zip(eager, other, strict=True):
                self.assertAllClose(a, b, 1e-5, 1e-5)

    def test_pathwise_gradient(self):
        # a = loc + std z: da/dloc = 1, da/dlog_std = std z = a - loc.
        with tf.GradientTape(persistent=True) as tape:
            tape.watch((LOC, LOG_STD))
            action, log_prob = DiagonalGaussian(loc=LOC, log_std=LOG_STD).sample_and_log_prob(
                seeding.key(0)
            )
        self.assertAllEqual(tape.gradient(action, LOC), tf.ones_like(LOC))
        self.assertAllClose(tape.gradient(action, LOG_STD), action - LOC, 1e-5)
        # The noise is fixed along the path: only -sum log std depends on the parameters.
        self.assertAllEqual(tape.gradient(log_prob, LOG_STD), -tf.ones_like(LOC))


class SquashedGaussianTest(parameterized.TestCase, tf.test.TestCase):
    def test_numbers_by_hand(self):
        # u = 0: a = mid, density N(0) / (half * 1).
        d = squashed(tf.zeros([1, 1]), tf.zeros([1]), (-2.0,), (4.0,))
        self.assertAllClose(d.log_prob([[1.0]]), [-0.5 * np.log(2 * np.pi) - np.log(3.0)])
        self.assertAllClose(d.mode(), [[1.0]])

    def test_against_tensorflow_probability(self):
        d = squashed()
        action = d.sample(seeding.key(0))
        self.assertAllClose(d.log_prob(action), d.to_tfp().log_prob(action), 1e-4)
        q = squashed(LOC + 0.5, LOG_STD * 0.5)
        base = DiagonalGaussian(loc=LOC, log_std=LOG_STD)
        other = DiagonalGaussian(loc=q.loc, log_std=q.log_std)
        self.assertAllClose(d.kl_divergence(q), base.kl_divergence(other))

    def test_density_integrates_to_one(self):
        d = squashed(tf.constant([[0.7]]), tf.constant([[-0.3]]), (-2.0,), (5.0,))
        grid = np.linspace(-2, 5, 20001)[1:-1]
        density = np.exp(d.log_prob(tf.constant(grid[:, None], tf.float32)))
        self.assertAllClose(np.sum(density) * (grid[1] - grid[0]), 1.0, atol=1e-4)

    def test_samples_and_their_log_probs(self):
        loc = tf.broadcast_to(tf.constant([0.5, -0.5, 0.0]), [5000, 3])
        d = squashed(loc, tf.zeros([3]))
        action, log_prob = d.sample_and_log_prob(seeding.key(0))
        self.assertAllEqual(action, d.sample(seeding.key(0)))
        self.assertAllClose(log_prob, d.log_prob(action), atol=5e-3)
        self.assertAllInSet(tf.reduce_all((action >= LOW) & (action <= HIGH)), [True])

    @parameterized.parameters(tf.float32, tf.float64, tf.float16)
    def test_saturated_samples_stay_within_awkward_bounds(self, dtype):
        low, high = (-0.1, 0.3), (0.7, 0.9)
        d = squashed(tf.constant([[50.0, -50.0]]), tf.zeros([2]), low, high, dtype=dtype)
        action = d.sample(seeding.key(0))
        self.assertEqual(action.dtype, dtype)
        low, high = (np.asarray(b, dtype.as_numpy_dtype) for b in (low, high))
        self.assertAllClose(action, [[high[0], low[1]]], 1e-3)
        self.assertTrue(np.all((action.numpy() >= low) & (action.numpy() <= high)))

    def test_finite_at_the_bounds_and_for_huge_parameters(self):
        at = tf.constant([LOW, HIGH, LOW, HIGH])

        def f(loc, log_std, at):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch((loc, log_std, at))
                d = squashed(loc, log_std)
                log_prob = d.log_prob(at)
                action, sampled = d.sample_and_log_prob(seeding.key(0))
                entropy = d.entropy()
            gradients = tape.gradient([log_prob, sampled, entropy, action], [loc, log_std])
            return log_prob, sampled, entropy, tape.gradient(log_prob, at), *gradients

        for path in (f, tf.function(f), tf.function(f, jit_compile=True)):
            for loc in (LOC, tf.fill([4, 3], 1e8), tf.fill([4, 3], -1e8)):
                for log_std in (tf.fill([4, 3], -5.0), tf.fill([4, 3], 2.0)):
                    for result in path(loc, log_std, at):
                        self.assertTrue(np.all(np.isfinite(result)))

    def test_entropy_against_numerical_integration(self):
        cases = [(0.0, 0.0), (1.5, -1.0), (-3.0, 0.0), (0.5, np.log(3.0)), (0.0, np.log(7.0))]
        for (loc, log_std), tolerance in zip(cases, (1e-4, 1e-4, 1e-4, 5e-3, 0.1), strict=True):
            std = np.exp(log_std)

            def integrand(u, loc=loc, std=std):
                log_n = -0.5 * ((u - loc) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
                log_slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
                return -np.exp(log_n) * (log_n - log_slope - np.log(2.0))

            exact, _ = integrate.quad(
                integrand, loc - 12 * std, loc + 12 * std, limit=500, points=[0.0]
            )
            d = squashed(
                tf.constant([loc], tf.float32), tf.constant([log_std], tf.float32), (-1.0,), (3.0,)
            )
            self.assertAllClose(d.entropy(), exact, atol=tolerance)

    def test_eager_graph_and_xla_agree(self):
        def f(loc, log_std, key):
            d = squashed(loc, log_std)
            return *d.sample_and_log_prob(key), d.log_prob(tf.zeros([4, 3]) + 0.2), d.entropy()

        eager, graph, xla = on_every_path(f, LOC, LOG_STD, seeding.key(1))
        for other in (graph, xla):
            for a, b in zip(eager, other, strict=True):
                self.assertAllClose(a, b, 1e-4, 1e-5)
