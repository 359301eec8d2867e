"""Nests come back from rows, bytes and lists of leaves as they were."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tfrl import seeding
from tfrl.agents import PPO
from tfrl.nest_packing import HostPacker, RowPacker, builder, leaves_of


def random(spec, lead, seed=0):
    rng = np.random.default_rng(seed)

    def one(s):
        shape = [*lead, *s.shape]
        if s.dtype == tf.bool:
            return tf.constant(rng.integers(0, 2, shape), tf.bool)
        if s.dtype.is_floating:
            return tf.cast(tf.constant(rng.normal(size=shape)), s.dtype)
        return tf.cast(tf.constant(rng.integers(0, 100, shape)), s.dtype)

    return tf.nest.map_structure(one, spec)


class RowPackerTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("floats", {"a": ([3], tf.float32), "b": ([], tf.float32)}, tf.float32, 4),
        ("pixels", {"a": ([4, 4, 1], tf.uint8)}, tf.uint8, 16),
        # 8 + 4 + 1 bytes are two words.
        ("mixed", {"a": ([], tf.int64), "b": ([], tf.float32), "c": ([], tf.bool)}, tf.int64, 2),
        ("int32", {"a": ([3], tf.int32)}, tf.int64, 2),
        ("bools", {"a": ([2, 5], tf.bool)}, tf.int64, 2),
        ("half", {"a": ([3], tf.float16), "b": ([2], tf.int8), "c": ([], tf.float64)}, tf.int64, 2),
    )
    def test_comes_back_to_the_bit(self, spec, dtype, width):
        spec = {name: tf.TensorSpec(*s) for name, s in spec.items()}
        packer = RowPacker(spec)
        self.assertEqual((packer.dtype, packer.width), (dtype, width))
        self.assertEqual(packer.row_bytes, width * dtype.size)
        nest = random(spec, [6])

        def there_and_back(nest):
            rows = packer.pack(nest)
            return rows, packer.unpack(tf.reshape(rows, [2, 3, packer.width]))

        for mode in ("eager", "graph", "xla"):
            fn = there_and_back
            if mode != "eager":
                fn = tf.function(fn, autograph=False, jit_compile=mode == "xla")
            rows, back = fn(nest)
            self.assertEqual(rows.shape, [6, width])
            for name, x in nest.items():
                np.testing.assert_array_equal(np.reshape(back[name], x.shape), x)

    def test_odd_bits_survive(self):
        bits = np.array([[0x7FC00001, -1, 0x7F800001]], np.int32)
        packer = RowPacker({"a": tf.TensorSpec([3], tf.float32), "b": tf.TensorSpec([], tf.int64)})
        nest = {
            "a": tf.bitcast(tf.constant(bits), tf.float32),
            "b": tf.constant([2**62 + 1], tf.int64),
        }
        back = packer.unpack(packer.pack(nest))
        np.testing.assert_array_equal(tf.bitcast(back["a"], tf.int32), bits)
        self.assertEqual(int(back["b"][0]), 2**62 + 1)


class HostPackerTest(parameterized.TestCase):
    def test_small_arrays_travel_as_one_tensor(self):
        nest = {
            "a": np.arange(6, dtype=np.int64).reshape(2, 3),
            "b": (np.array([True, False]), np.float32([[1.5]])),
            "large": np.zeros(2**14, np.float32),
            "tensor": tf.constant([7.0]),
        }
        packer = HostPacker(nest)
        tensors = packer.tensors(nest)
        self.assertLen(tensors, 3)
        back = tf.function(packer.nest)(tensors)
        for x, y in zip(tf.nest.flatten(nest), tf.nest.flatten(back), strict=True):
            np.testing.assert_array_equal(x, y)


class BuilderTest(parameterized.TestCase):
    @parameterized.parameters(
        ((),),
        (1,),
        ({"b": 1, "a": (2, [3, {"z": 4, "y": 5}])},),
        ((1, None, ()),),
        (tf.TensorSpec([2]),),
    )
    def test_it_builds_what_tf_nest_builds(self, form):
        leaves = [f"leaf {i}" for i in range(len(tf.nest.flatten(form)))]
        got = builder(form)(leaves)
        want = tf.nest.pack_sequence_as(form, leaves)
        self.assertEqual(repr(got), repr(want))  # also the order of the keys

    @parameterized.parameters(
        (np.zeros(2),),
        ({"b": np.zeros(1), "a": (np.ones(2), [np.ones(3), {"z": 1.0, "y": 2}])},),
        ((1, None, ()),),
    )
    def test_leaves_are_those_of_tf_nest(self, nest):
        for a, b in zip(leaves_of(nest), tf.nest.flatten(nest), strict=True):
            self.assertIs(a, b)

    def test_other_nests_are_left_to_tensorflow(self):
        env = Scripted((2,))
        agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec)
        state = agent.init(seeding.key(0))
        leaves = tf.nest.flatten(state)
        again = builder(state)(leaves)
        self.assertEqual(type(again), type(state))
        self.assertLen(tf.nest.flatten(again), len(leaves))
