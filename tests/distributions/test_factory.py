"""Tests of the factory from an action spec to a distribution."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from gymnasium import spaces

from tfrl import distributions, seeding, specs
from tfrl.errors import UserError

BOX = specs.BoundedTensorSpec([3], tf.float32, [-1, -2, 0], [1, 2, 5])
NESTED = {
    "move": specs.DiscreteSpec(4, start=1),
    "aim": (BOX, specs.BinarySpec([2])),
    "keys": specs.MultiDiscreteSpec([2, 3], start=[0, 5]),
}

CASES = {
    "discrete": (specs.DiscreteSpec(5, start=-2), 5, distributions.Categorical),
    "int_box_scalar": (
        specs.BoundedTensorSpec([], tf.int32, 1, 3),
        3,
        distributions.Categorical,
    ),
    "multi_discrete": (specs.MultiDiscreteSpec([2, 3]), 6, distributions.MultiCategorical),
    "multi_discrete_matrix": (
        specs.MultiDiscreteSpec([[2, 3], [1, 2]], dtype=tf.int32),
        12,
        distributions.MultiCategorical,
    ),
    "int_box": (
        specs.BoundedTensorSpec([2], tf.uint8, [0, 1], 2),
        6,
        distributions.MultiCategorical,
    ),
    "binary": (specs.BinarySpec([2, 2]), 4, distributions.Bernoulli),
    "box": (BOX, 3, distributions.DiagonalGaussian),
    "box_scalar": (
        specs.BoundedTensorSpec([], tf.float32, -1, 1),
        1,
        distributions.DiagonalGaussian,
    ),
    "box_float64": (tf.TensorSpec([2, 2], tf.float64), 4, distributions.DiagonalGaussian),
    "nested": (NESTED, 4 + 3 + 2 + 6, distributions.Joint),
}


def _named(cases):
    return [(name, *case) for name, case in cases.items()]


class FactoryTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(_named(CASES))
    def test_actions_match_the_spec(self, spec, num_outputs, kind):
        factory = distributions.make_distribution(spec)
        self.assertEqual(factory.num_outputs, num_outputs)
        params = factory.init_params(seeding.key(0))
        outputs = seeding.normal(seeding.key(1), [50, 2, num_outputs])
        d = factory.build(outputs, params)
        self.assertIsInstance(d, kind)
        sampled, log_prob = d.sample_and_log_prob(seeding.key(2))
        for action in (d.sample(seeding.key(2)), d.mode(), sampled):
            tf.nest.assert_same_structure(action, spec)

            def check(a, s):
                self.assertEqual(a.dtype, s.dtype)
                self.assertEqual(a.shape, [50, 2, *s.shape])
                if specs.is_discrete(s):
                    self.assertTrue(np.all((a.numpy() >= s.minimum) & (a.numpy() <= s.maximum)))

            tf.nest.map_structure(check, action, spec)
            for value in (d.log_prob(action), d.entropy(), d.kl_divergence(d)):
                self.assertEqual((value.dtype, value.shape), (tf.float32, [50, 2]))
        self.assertAllClose(d.log_prob(sampled), log_prob, 1e-4, 1e-4)
        self.assertAllClose(d.kl_divergence(d), tf.zeros([50, 2]), atol=1e-5)

    @parameterized.named_parameters(_named(CASES))
    def test_graph_and_xla_agree_with_eager(self, spec, num_outputs, kind):
        factory = distributions.make_distribution(spec)
        params = factory.init_params(seeding.key(0))

        def f(outputs, params, key):
            d = factory.build(outputs, params)
            action = d.sample(key)
            return action, d.log_prob(action), d.entropy(), d

        args = (seeding.normal(seeding.key(1), [7, num_outputs]), params, seeding.key(3))
        eager = f(*args)
        for jit in (False, True):
            other = tf.function(f, jit_compile=jit)(*args)
            self.assertIsInstance(other[3], kind)
            for a, b in zip(tf.nest.flatten(eager), tf.nest.flatten(other), strict=True):
                self.assertAllClose(a, b, 1e-4, 1e-5)

    def test_samples_lie_in_a_gymnasium_space(self):
        space = spaces.Dict(
            a=spaces.Discrete(3, start=5),
            b=spaces.MultiBinary([2, 2]),
            c=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 4])]),
        )
        factory = distributions.make_distribution(specs.to_spec(space), squash=True)
        outputs = 3 * seeding.normal(seeding.key(0), [20, factory.num_outputs])
        action = factory.build(outputs, factory.init_params(seeding.key(0))).sample(seeding.key(1))
        for i in range(20):
            one = tf.nest.map_structure(lambda x, i=i: x.numpy()[i], action)
            self.assertTrue(space.contains(one))

    def test_joint_is_the_sum_of_its_leaves(self):
        factory = distributions.make_distribution(NESTED)
        outputs = seeding.normal(seeding.key(0), [6, factory.num_outputs])
        d = factory.build(outputs, factory.init_params(seeding.key(0)))
        action = d.sample(seeding.key(1))
        # tf.nest order: aim/0 (3 outputs), aim/1 (2), keys (6), move (4).
        pieces = tf.split(outputs, [3, 2, 6, 4], -1)
        leaves = [NESTED["aim"][0], NESTED["aim"][1], NESTED["keys"], NESTED["move"]]
        total, entropy = 0.0, 0.0
        for spec, piece, a in zip(leaves, pieces, tf.nest.flatten(action), strict=True):
            leaf = distributions.make_distribution(spec)
            part = leaf.build(piece, leaf.init_params(seeding.key(0)))
            total += part.log_prob(a)
            entropy += part.entropy()
        self.assertAllClose(d.log_prob(action), total, 1e-5)
        self.assertAllClose(d.entropy(), entropy, 1e-5)

    def test_joint_mask(self):
        factory = distributions.make_distribution(NESTED)
        outputs = tf.zeros([200, factory.num_outputs])
        mask = {
            "move": tf.constant([False, True, False, False]),
            "aim": (None, tf.constant([True, False])),
            "keys": None,
        }
        d = factory.build(outputs, factory.init_params(seeding.key(0)), mask)
        action = d.sample(seeding.key(0))
        self.assertAllEqual(action["move"], np.full(200, 2))
        self.assertAllEqual(action["aim"][1][:, 1], np.zeros(200))

    def test_log_std_parameter(self):
        factory = distributions.make_distribution(BOX, init_log_std=-0.5)
        params = factory.init_params(seeding.key(0))
        self.assertAllClose(params["log_std"], [-0.5] * 3)
        d = factory.build(tf.zeros([2, 3]), params)
        self.assertAllClose(d.entropy(), [3 * (-0.5 + 0.5 * (1 + np.log(2 * np.pi)))] * 2)
        nested = distributions.make_distribution(NESTED)
        self.assertEqual(list(nested.init_params(seeding.key(0))), ["aim/0"])

    def test_state_dependent_std(self):
        factory = distributions.make_distribution(
            BOX, state_dependent_std=True, init_log_std=-1.0, min_log_std=-2.0, max_log_std=0.5
        )
        self.assertEqual(factory.num_outputs, 6)
        self.assertEqual(factory.init_params(seeding.key(0)), {})
        d = factory.build(tf.constant([[1.0, 2.0, 3.0, 0.25, -9.0, 9.0]]))
        self.assertAllClose(d.loc, [[1.0, 2.0, 3.0]])
        self.assertAllClose(d.log_std, [[-0.75, -2.0, 0.5]])

    def test_parameters_of_a_population(self):
        factory = distributions.make_distribution(BOX)
        log_std = tf.constant([[0.0, 0.1, 0.2], [1.0, 1.1, 1.2]])
        for lead in ([2, 4], [2, 5, 4]):
            outputs = seeding.normal(seeding.key(0), [*lead, 3])
            d = factory.build(outputs, {"log_std": log_std})
            action = d.sample(seeding.key(1))
            for p in range(2):
                member = factory.build(outputs[p], {"log_std": log_std[p]})
                self.assertAllClose(d.log_prob(action)[p], member.log_prob(action[p]), 1e-5)
                self.assertAllClose(d.entropy()[p], member.entropy(), 1e-5)

    def test_squash(self):
        factory = distributions.make_distribution(BOX, squash=True)
        d = factory.build(tf.zeros([2, 3]), factory.init_params(seeding.key(0)))
        self.assertIsInstance(d, distributions.SquashedGaussian)
        self.assertAllClose(d.mode(), [[0.0, 0.0, 2.5]] * 2)

    def test_equal_factories_share_traces(self):
        make = lambda: distributions.make_distribution(NESTED, squash=True)  # noqa: E731
        self.assertEqual(make(), make())
        self.assertNotEqual(make(), make().replace(init_log_std=-1.0))
        traces = []

        @tf.function
        def f(factory, x):
            traces.append(1)
            return x

        f(make(), tf.zeros([]))
        f(make(), tf.ones([]))
        self.assertLen(traces, 1)


class ErrorsTest(tf.test.TestCase):
    def test_squash_needs_bounds(self):
        with pytest.raises(UserError) as error:
            distributions.make_distribution({"a": tf.TensorSpec([2])}, squash=True)
        self.assertEqual(
            str(error.value),
            "action spec a: expected finite bounds with low < high, since squash=True, got "
            "TensorSpec(shape=(2,), dtype=tf.float32, name=None). Use squash=False, or rescale the "
            "action with a wrapper.",
        )

    def test_leaf_without_distribution(self):
        for bad in (tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.string)):
            with pytest.raises(
                UserError, match="action spec a/0: expected a float spec, or a disc"
            ):
                distributions.make_distribution({"a": (bad,)})
        with pytest.raises(UserError, match="at most 65536 values"):
            distributions.make_distribution(specs.DiscreteSpec(65537))
        with pytest.raises(UserError, match="at least one leaf"):
            distributions.make_distribution({})

    def test_outputs_of_the_wrong_size(self):
        factory = distributions.make_distribution(specs.DiscreteSpec(3))
        with pytest.raises(
            UserError, match="network outputs: expected 3 for this action spec, got 4"
        ):
            factory.build(tf.zeros([2, 4]))

    def test_masks_that_do_not_fit(self):
        factory = distributions.make_distribution(BOX)
        with pytest.raises(
            UserError, match=r"action mask \.: expected None for a continuous action"
        ):
            factory.build(
                tf.zeros([2, 3]), factory.init_params(seeding.key(0)), tf.ones([3], tf.bool)
            )
        nested = distributions.make_distribution(NESTED)
        with pytest.raises(
            UserError,
            match="action mask fly: expected a mask for an action among aim/0, aim/1, keys, move, "
            "got",
        ):
            nested.build(tf.zeros([2, 15]), {}, {"fly": tf.ones([2, 4], tf.bool)})

    def test_init_log_std_outside_of_its_clip(self):
        with pytest.raises(UserError, match=r"init_log_std: expected a number in \[-20.0, 2.0\]"):
            distributions.make_distribution(BOX, init_log_std=3.0)
