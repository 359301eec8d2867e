"""The torsos that agents make."""

import tensorflow as tf
from absl.testing import parameterized

from tfrl import networks, specs
from tfrl.agents.default_networks import default_torso

VECTOR = tf.TensorSpec([3])
IMAGE = specs.BoundedTensorSpec([36, 36, 1], tf.uint8, 0, 255)
BOTH = {"camera": IMAGE, "state": VECTOR}


class DefaultTorsoTest(parameterized.TestCase):
    @parameterized.parameters(((8,), (8,)), ((), ()))
    def test_an_mlp_has_the_sizes(self, hidden, expected):
        torso = default_torso(VECTOR, hidden)
        self.assertIsInstance(torso.body, networks.MLP)
        self.assertEqual(torso.body.hidden, expected)
        self.assertEqual(torso.output_size(VECTOR), expected[-1] if expected else 3)

    def test_an_image_has_those_of_its_network(self):
        for torso in (default_torso(IMAGE, (8,)), default_torso(BOTH, (8,), "camera")):
            self.assertEqual(torso.body, networks.make_torso(IMAGE).body)
            self.assertIsInstance(torso.body, networks.NatureCNN)
        self.assertEqual(default_torso(BOTH, (8,), "state").body.hidden, (8,))

    def test_an_image_network_takes_one_size(self):
        torso = networks.make_torso(IMAGE, hidden=(256,))
        self.assertEqual(torso.output_size(IMAGE), 256)
