"""Frames of stacked observations come back as they were."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.test_nest_packing import random
from tfrl.replay.ring_reader import Frames


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
