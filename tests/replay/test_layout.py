"""Rows of mixed dtypes, and frames of stacked observations, come back as they were."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl.replay.frames import Frames
from tfrl.replay.packing import Packer


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


class PackerTest(parameterized.TestCase):
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
        packer = Packer(spec)
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
        packer = Packer({"a": tf.TensorSpec([3], tf.float32), "b": tf.TensorSpec([], tf.int64)})
        nest = {
            "a": tf.bitcast(tf.constant(bits), tf.float32),
            "b": tf.constant([2**62 + 1], tf.int64),
        }
        back = packer.unpack(packer.pack(nest))
        np.testing.assert_array_equal(tf.bitcast(back["a"], tf.int32), bits)
        self.assertEqual(int(back["b"][0]), 2**62 + 1)


class FramesTest(parameterized.TestCase):
    @parameterized.parameters(
        ([5, 6, 4], 4, -1), ([5, 6, 12], 4, -1), ([4, 5, 6], 4, 0), ([8], 2, 0)
    )
    def test_join_is_the_inverse_of_split(self, shape, stack, axis):
        spec = tf.TensorSpec(shape, tf.uint8)
        frames = Frames(spec, stack, axis, None)
        obs = random(spec, [3])
        parts = frames.split(obs)
        self.assertEqual(parts.shape[:2], [3, stack])
        np.testing.assert_array_equal(frames.join(parts), obs)
        np.testing.assert_array_equal(frames.newest(obs), parts[:, -1])
        oldest = np.split(obs.numpy(), stack, axis=-1 if axis == -1 else 1)[0]
        np.testing.assert_array_equal(parts[:, 0], oldest)

    def test_leaves_that_are_not_stacked(self):
        spec = {
            "image": tf.TensorSpec([4, 4, 2], tf.uint8),
            "speed": tf.TensorSpec([3], tf.float32),
        }
        frames = Frames(spec, 2, -1, ("image",))
        self.assertEqual(frames.spec["image"].shape, [4, 4, 1])
        self.assertEqual(frames.spec["speed"].shape, [3])
        obs = random(spec, [5])
        back = frames.join(frames.split(obs))
        for name, x in obs.items():
            np.testing.assert_array_equal(back[name], x)
        np.testing.assert_array_equal(frames.newest(obs)["speed"], obs["speed"])
