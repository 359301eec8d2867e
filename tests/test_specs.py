"""Tests of specs: spaces there and back, equality, helpers."""

import collections
import copy

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from gymnasium import spaces
from tensorflow.python.framework import tensor_spec as tf_tensor_spec

from tfrl import seeding, specs, struct
from tfrl.errors import UserError

INF = np.inf
SPACES = {
    "box": spaces.Box(-1, 1, (3,)),
    "box_scalar": spaces.Box(np.float32(-2), np.float32(2), ()),
    "box_unbounded": spaces.Box(-INF, INF, (2,)),
    "box_half_infinite": spaces.Box(
        np.array([-1, -INF, 0, -INF]), np.array([1, 2, INF, INF]), dtype=np.float64
    ),
    "box_per_element": spaces.Box(np.array([[-1, -2], [-3, 0]]), np.ones((2, 2)), dtype=np.float32),
    "box_half": spaces.Box(-1, 1, (2,), np.float16),
    "box_pixels": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "box_bits": spaces.Box(0, 1, (4,), np.int8),
    "box_bool": spaces.Box(0, 1, (2,), np.bool_),
    "box_int64": spaces.Box(-(2**63), 2**63 - 2, (2,), np.int64),
    "box_uint64": spaces.Box(0, 2**63, (1,), np.uint64),
    "discrete": spaces.Discrete(4),
    "discrete_start": spaces.Discrete(3, start=-1),
    "discrete_int32": spaces.Discrete(5, dtype=np.int32),
    "multi_discrete": spaces.MultiDiscrete([3, 2]),
    "multi_discrete_start": spaces.MultiDiscrete([3, 2], start=[1, -1]),
    "multi_discrete_matrix": spaces.MultiDiscrete([[3, 2], [4, 5]], dtype=np.int32),
    "multi_binary": spaces.MultiBinary(4),
    "multi_binary_tuple": spaces.MultiBinary((4,)),
    "multi_binary_matrix": spaces.MultiBinary([2, 3]),
    "dict": spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(-1, 1, (1,))}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(1)]),
    "nested": spaces.Dict(
        z=spaces.Tuple([spaces.Dict(q=spaces.Discrete(2, start=7))]), a=spaces.MultiDiscrete([2])
    ),
}


def _named():
    return [(name, space) for name, space in SPACES.items()]


class RoundTripTest(parameterized.TestCase):
    @parameterized.named_parameters(_named())
    def test_space_and_spec_come_back_equal(self, space):
        spec = specs.to_spec(space)
        again = specs.to_space(spec)
        self.assertEqual(space, again)
        self.assertIs(type(space), type(again))
        self.assertEqual(space.dtype, again.dtype)
        self.assertEqual(spec, specs.to_spec(again))
        for bound in ("low", "high"):
            if hasattr(space, bound):  # Box.__eq__ allows for 1e-5
                np.testing.assert_array_equal(getattr(space, bound), getattr(again, bound))

    def test_all_spaces_give_different_specs(self):
        made = [specs.to_spec(s) for s in SPACES.values()]
        for i, a in enumerate(made):
            self.assertEqual([a == b for b in made], [i == j for j in range(len(made))], i)

    @parameterized.named_parameters(_named())
    def test_samples_lie_in_the_space(self, space):
        drawn = specs.sample(specs.to_spec(space), seeding.key(3), (20,))
        for i in range(20):
            self.assertTrue(
                space.contains(tf.nest.map_structure(lambda x, i=i: x.numpy()[i, ...][()], drawn))
            )

    def test_order_of_a_dict_space_is_kept(self):
        leaves = [("b", spaces.Discrete(2)), ("a", spaces.Discrete(3)), ("c", spaces.Discrete(4))]
        for space in (
            SPACES["dict"],  # sorted by gymnasium
            spaces.Dict(collections.OrderedDict(leaves)),
            spaces.Dict(leaves),
            spaces.Dict(spaces.Dict(leaves).spaces),
        ):
            spec = specs.to_spec(space)
            again = specs.to_space(spec)
            self.assertEqual(list(spec), list(space.spaces))
            self.assertEqual(list(again.spaces), list(space.spaces))
            self.assertEqual(again, space)

    def test_binary_keeps_the_form_of_n(self):
        self.assertEqual(specs.to_space(specs.BinarySpec(3)).n, 3)
        self.assertEqual(specs.to_space(specs.BinarySpec([3])).n, (3,))
        self.assertEqual(specs.to_space(specs.BinarySpec((2, 3))).n, (2, 3))
        self.assertNotEqual(specs.BinarySpec(3), specs.BinarySpec([3]))
        self.assertEqual(specs.BinarySpec([3]), specs.BinarySpec(tf.TensorShape([3])))
        self.assertEqual(hash(specs.BinarySpec(3)), hash(specs.BinarySpec(np.int64(3))))
        self.assertNotEqual(specs.BinarySpec(3), specs.BinarySpec(3, tf.int32))

    def test_unbounded_float_is_a_plain_spec(self):
        spec = specs.to_spec(SPACES["box_unbounded"])
        self.assertIs(type(spec), tf.TensorSpec)
        self.assertEqual(spec, tf.TensorSpec([2], tf.float32))

    def test_specs_made_by_hand(self):
        self.assertEqual(specs.to_space(tf.TensorSpec([2], tf.float32)), SPACES["box_unbounded"])
        self.assertEqual(
            specs.to_space(tf_tensor_spec.BoundedTensorSpec([3], tf.float32, -1, 1)), SPACES["box"]
        )

    def test_unsupported_space_is_named_by_its_path(self):
        space = spaces.Dict(a=spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]))
        with pytest.raises(UserError) as error:
            specs.to_spec(space)
        self.assertEqual(
            str(error.value),
            "space a/1: expected a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space, "
            f"got {space['a'][1]!r}.",
        )

    def test_spec_without_a_space_is_named_by_its_path(self):
        with pytest.raises(UserError, match="spec a/0: expected a TensorSpec of a float"):
            specs.to_space({"a": (tf.TensorSpec([], tf.string),)})
        with pytest.raises(UserError, match="spec .: expected a TensorSpec"):
            specs.to_space(3)


class EqualityTest(tf.test.TestCase):
    def test_bounds_are_compared_exactly(self):
        a = specs.BoundedTensorSpec([2], tf.float32, 0.0, 1.0)
        self.assertNotEqual(a, specs.BoundedTensorSpec([2], tf.float32, 0.0, 1.0 + 1e-6))
        self.assertEqual(a, specs.BoundedTensorSpec([2], tf.float32, [0.0, 0.0], [1.0, 1.0]))
        self.assertEqual(hash(a), hash(specs.BoundedTensorSpec([2], tf.float32, 0.0, [1.0, 1.0])))

    def test_bounds_of_other_shapes_are_unequal(self):
        a = specs.BoundedTensorSpec([2], tf.float32, [0, 0], 1)
        self.assertNotEqual(a, specs.BoundedTensorSpec([3], tf.float32, [0, 0, 0], 1))

    def test_plain_tensorflow_specs_equal_ours_of_kind_box(self):
        theirs = tf_tensor_spec.BoundedTensorSpec([], tf.int64, 0, 1)
        ours = specs.BoundedTensorSpec([], tf.int64, 0, 1)
        self.assertTrue(ours == theirs and theirs == ours)
        discrete = specs.DiscreteSpec(2)
        self.assertFalse(discrete == theirs or theirs == discrete)
        self.assertFalse(ours == discrete or discrete == ours)

    def test_copies_are_equal(self):
        for space in SPACES.values():
            spec = specs.to_spec(space)
            self.assertEqual(copy.deepcopy(spec), spec)

    def test_static_field_retraces_only_for_another_spec(self):
        @struct.dataclass
        class Holder(struct.Struct):
            x: tf.Tensor
            spec: object = struct.field(static=True)

        traces = []

        @tf.function
        def f(holder):
            traces.append(1)
            return holder.x

        f(Holder(x=tf.zeros([]), spec={"a": specs.DiscreteSpec(3)}))
        f(Holder(x=tf.ones([]), spec={"a": specs.DiscreteSpec(3)}))
        self.assertLen(traces, 1)
        f(Holder(x=tf.ones([]), spec={"a": specs.DiscreteSpec(3, start=1)}))
        self.assertLen(traces, 2)

    def test_argument_specs_of_a_function(self):
        spec = {"a": specs.DiscreteSpec(3), "b": specs.MultiDiscreteSpec([2, 2])}

        @tf.function(input_signature=[specs.add_batch(spec, None)])
        def f(x):
            return tf.cast(x["a"], tf.int32)

        x = {"a": tf.zeros([4], tf.int64), "b": tf.zeros([4, 2], tf.int64)}
        self.assertEqual(f(x).shape, [4])
        concrete = tf.function(lambda x: x + 1).get_concrete_function(specs.DiscreteSpec(3))
        self.assertAllEqual(concrete(tf.constant(2, tf.int64)), 3)


class HelpersTest(parameterized.TestCase, tf.test.TestCase):
    def test_num_actions(self):
        self.assertEqual(specs.num_actions(specs.DiscreteSpec(5, start=2)), 5)
        self.assertEqual(specs.num_actions(specs.BoundedTensorSpec([], tf.int32, 1, 3)), 3)
        with pytest.raises(UserError, match="action spec: expected one scalar discrete spec"):
            specs.num_actions(specs.BoundedTensorSpec([], tf.float32, 0, 1))
        with pytest.raises(UserError, match="action spec: expected one scalar discrete spec"):
            specs.num_actions({"a": specs.DiscreteSpec(2)})

    def test_is_discrete(self):
        self.assertTrue(specs.is_discrete(specs.MultiDiscreteSpec([2])))
        self.assertTrue(specs.is_discrete(specs.BinarySpec([2])))
        self.assertFalse(specs.is_discrete(tf.TensorSpec([], tf.int32)))
        self.assertFalse(specs.is_discrete(specs.BoundedTensorSpec([], tf.float32, 0, 1)))

    def test_zeros_flat_dim_and_add_batch(self):
        spec = specs.to_spec(SPACES["nested"])
        zeros = specs.zeros(spec, (2, 3))
        self.assertEqual(zeros["a"].shape, [2, 3, 1])
        self.assertEqual(zeros["z"][0]["q"].dtype, tf.int64)
        self.assertEqual(specs.flat_dim(spec), 2)
        batched = specs.add_batch(spec, 4)
        self.assertEqual(batched["a"].shape, [4, 1])
        self.assertEqual(int(batched["z"][0]["q"].minimum), 7)
        self.assertEqual(specs.add_batch(tf.TensorSpec([2]), 4), tf.TensorSpec([4, 2]))

    def test_samples_cover_the_range(self):
        spec = specs.DiscreteSpec(3, start=-1)
        drawn = specs.sample(spec, seeding.key(0), (300,)).numpy()
        self.assertAllEqual(np.unique(drawn), [-1, 0, 1])
        box = specs.BoundedTensorSpec([2], tf.float32, [-2.0, 5.0], [2.0, 5.0])
        drawn = specs.sample(box, seeding.key(0), (2000,)).numpy()
        self.assertAllClose(drawn[:, 0].mean(), 0.0, atol=0.1)
        self.assertAllClose(drawn[:, 0].std(), 4 / 12**0.5, atol=0.1)
        self.assertAllEqual(drawn[:, 1], np.full(2000, 5.0))

    def test_half_bounded_and_unbounded_samples(self):
        spec = specs.BoundedTensorSpec([3], tf.float32, [1.0, -INF, -INF], [INF, 1.0, INF])
        drawn = specs.sample(spec, seeding.key(0), (2000,)).numpy()
        self.assertAllClose(drawn.mean(0), [2.0, 0.0, 0.0], atol=0.1)
        self.assertAllClose(drawn.std(0), [1.0, 1.0, 1.0], atol=0.1)

    def test_samples_are_the_same_on_every_path(self):
        names = ("box", "box_half_infinite", "box_pixels", "box_int64", "discrete_start")
        spec = specs.to_spec(spaces.Tuple([SPACES[n] for n in names]))
        f = lambda key: specs.sample(spec, key, (5,))  # noqa: E731
        eager = f(seeding.key(1))
        tf.nest.map_structure(self.assertAllEqual, eager, tf.function(f)(seeding.key(1)))
        xla = tf.function(f, jit_compile=True)(seeding.key(1))
        for name, a, b in zip(names, eager, xla, strict=True):
            if name == "box_half_infinite":  # logarithms and normals differ in the last places
                self.assertAllClose(a, b, 1e-4, 1e-5)
            else:
                self.assertAllEqual(a, b)

    def test_leaves_draw_independently(self):
        spec = (specs.BoundedTensorSpec([8], tf.float32, 0, 1),) * 2
        a, b = specs.sample(spec, seeding.key(0))
        self.assertNotAllClose(a, b)

    def test_floats_are_clipped_to_their_bounds(self):
        for dtype in (tf.float32, tf.float64, tf.float16):
            spec = specs.BoundedTensorSpec([3], dtype, [1.0, -INF, -INF], [2.0, 1.0, INF])
            x = tf.constant([[0.0, 5.0, 9.0], [np.nan, -5.0, -9.0]], dtype)
            self.assertAllEqual(specs.clip(x, spec), [[1.0, 1.0, 9.0], [np.nan, -5.0, -9.0]])
        x = tf.constant([7.0])
        self.assertIs(specs.clip(x, tf.TensorSpec([])), x)
        whole = tf.constant([7])
        self.assertIs(specs.clip(whole, specs.DiscreteSpec(3, dtype=tf.int32)), whole)

    def test_env_spec(self):
        a = specs.EnvSpec(observation=tf.TensorSpec([2]), action=specs.DiscreteSpec(2))
        self.assertEqual(a, a.replace(action=specs.DiscreteSpec(2)))
        self.assertNotEqual(a, a.replace(max_episode_steps=3))
        self.assertEqual(a.reward, tf.TensorSpec([], tf.float32))
