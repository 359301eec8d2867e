"""The torsos that agents make, and what is said about sizes that nothing would have."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import networks, specs
from tfrl.agents.actor_critic.networks import check_hidden, default_torso
from tfrl.errors import UserError

VECTOR = tf.TensorSpec([3])
IMAGE = specs.BoundedTensorSpec([36, 36, 1], tf.uint8, 0, 255)
BOTH = {"camera": IMAGE, "state": VECTOR}


class DefaultTorsoTest(parameterized.TestCase):
    @parameterized.parameters((None, (64, 64)), ((8,), (8,)), ((), ()))
    def test_an_mlp_has_the_sizes(self, hidden, expected):
        torso = default_torso(VECTOR, hidden)
        self.assertIsInstance(torso.body, networks.MLP)
        self.assertEqual(torso.body.hidden, expected)
        self.assertEqual(torso.output_size(VECTOR), expected[-1] if expected else 3)

    def test_an_image_has_those_of_its_network(self):
        for torso in (default_torso(IMAGE, None), default_torso(BOTH, None, "camera")):
            self.assertEqual(torso.body, networks.make_torso(IMAGE).body)
            self.assertIsInstance(torso.body, networks.NatureCNN)
        self.assertEqual(default_torso(BOTH, (8,), "state").body.hidden, (8,))


class CheckHiddenTest(parameterized.TestCase):
    @parameterized.parameters(
        (None, "a torso is", IMAGE, [None]),
        ((8, 8), None, VECTOR, [None]),
        ([8], None, VECTOR, [None, None]),
        ((), None, VECTOR, [None]),
        # One of the two is an MLP.
        ((8,), None, BOTH, ["camera", "state"]),
    )
    def test_what_passes(self, *arguments):
        self.assertIsNone(check_hidden("PPO", *arguments))

    @parameterized.parameters(
        *(
            (
                (hidden, None, VECTOR, [None]),
                "PPO.hidden: expected None or a tuple of sizes, each an int of at least 1, got "
                f"{hidden!r}. (64, 64) makes two layers, (64,) one.",
            )
            for hidden in (64, "64", (64, 0), (64, True), (0.5,), np.int64(3))
        ),
        *(
            (
                ((64, 64), given, VECTOR, [None]),
                f"PPO.hidden: expected None where {given} given, got (64, 64). It would have no "
                "effect; put the sizes into what is given, as in "
                "make_torso(spec, hidden=(64, 64)).",
            )
            for given in ("a torso is", "policy and value are")
        ),
        *(
            (
                ((256,), None, spec, keys),
                "PPO.hidden: expected None for images: the Nature-CNN has sizes of its own, got "
                "(256,). For another dense layer give torso=make_torso(env.obs_spec, "
                "hidden=(256,)).",
            )
            for spec, keys in ((IMAGE, [None]), (BOTH, ["camera", "camera"]))
        ),
    )
    def test_messages(self, arguments, message):
        with pytest.raises(UserError) as error:
            check_hidden("PPO", *arguments)
        self.assertEqual(str(error.value), message)

    def test_the_remedy_for_images_works(self):
        torso = networks.make_torso(IMAGE, hidden=(256,))
        self.assertEqual(torso.output_size(IMAGE), 256)
