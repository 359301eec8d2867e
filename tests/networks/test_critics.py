"""Critics over discrete actions and in training mode, and the torso of Q(o, a)."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import networks, seeding, specs, struct
from tfrl.keras import api as keras

KEY = seeding.key(3)
OBS, ACTION = tf.TensorSpec([3]), tf.TensorSpec([2])
TORSO = networks.MLP(hidden=(8,), activation="relu")


class DiscreteCriticsTest(parameterized.TestCase):
    @parameterized.product(lead=[(6,), (4, 6)], population=[False, True], jit=[False, True])
    @pytest.mark.variants(3)
    def test_n_critics_are_n_networks(self, lead, population, jit):
        network = networks.CriticEnsemble(torso=TORSO, num_critics=3, num_actions=4)
        params = network.init(KEY, OBS)
        self.assertEqual(params["head"]["kernel"].shape, [3, 8, 4])
        if population:
            params, lead = networks.init_population(network.init, KEY, 2, OBS), (2, *lead)
        obs = seeding.normal(KEY, [*lead, 3])
        results = []
        for rule in ("unstacked", "batched"):
            own = network.replace(apply_rule=rule)

            @tf.function(jit_compile=jit)
            def f(params, own=own):
                with tf.GradientTape() as tape:
                    tape.watch(params)
                    q = own.apply(params, obs)
                    loss = tf.reduce_sum(tf.sin(q))
                return q, tape.gradient(loss, params)

            results.append(tf.nest.flatten(f(params)))
        shape = [2, 3, *lead[1:], 4] if population else [3, *lead, 4]
        self.assertEqual(results[0][0].shape, shape)
        for x, y in zip(*results, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
        if not population:
            for i in range(3):
                alone = network.member.apply(struct.take(params, i), obs)
                np.testing.assert_allclose(results[0][0][i], alone, rtol=1e-4, atol=1e-5)


def normalising(spec):
    return networks.KerasNetwork(
        model_fn=lambda: keras.Sequential([keras.layers.BatchNormalization()]), spec=spec
    )


class TrainingTest(parameterized.TestCase):
    @parameterized.parameters("unstacked", "batched")
    def test_without_special_layers_training_changes_nothing(self, rule):
        network = networks.CriticEnsemble(torso=TORSO, apply_rule=rule)
        params = network.init(KEY, (OBS, ACTION))
        x = (seeding.normal(KEY, [5, 3]), seeding.normal(KEY, [5, 2]))
        q, after = network.apply_training(params, x, KEY)
        np.testing.assert_array_equal(q, network.apply(params, x))
        np.testing.assert_array_equal(q, network.apply_training(params, x[0], KEY, x[1])[0])
        tf.nest.map_structure(self.assertIs, after, params)

    @parameterized.parameters("unstacked", "batched")
    def test_moving_statistics_of_every_critic(self, rule):
        network = networks.CriticEnsemble(
            torso=normalising(OBS), num_critics=2, num_actions=4, apply_rule=rule
        )
        params = network.init(KEY, OBS)
        x = 4.0 + seeding.normal(KEY, [50, 3])
        q, after = network.apply_training(params, x, KEY)
        self.assertEqual(q.shape, [2, 50, 4])
        mean = after["torso"]["state"]["000_moving_mean"]
        expected = np.broadcast_to(0.01 * np.mean(x, 0), [2, 3])
        np.testing.assert_allclose(mean, expected, rtol=1e-4)
        self.assertGreater(float(tf.reduce_max(tf.abs(q - network.apply(params, x)))), 0.1)


class StateActionTorsoTest(parameterized.TestCase):
    torso = networks.StateActionTorso(
        encoder=networks.make_torso(OBS, hidden=(5,)), body=networks.MLP(hidden=(6,))
    )

    def test_against_its_parts(self):
        spec = (OBS, ACTION)
        params = self.torso.init(KEY, spec)
        self.assertEqual(self.torso.output_size(spec), 6)
        self.assertEqual(params["body"]["layer_0"]["kernel"].shape, [7, 6])
        obs, action = seeding.normal(KEY, [4, 9, 3]), seeding.normal(KEY, [4, 9, 2])
        hidden = self.torso.encoder.apply(params["encoder"], obs)
        expected = self.torso.body.apply(params["body"], tf.concat([hidden, action], -1))
        np.testing.assert_allclose(self.torso.apply(params, (obs, action)), expected, rtol=1e-5)

    def test_flat_observations_go_in_as_they_are(self):
        spec = {"n": specs.DiscreteSpec(4), "x": tf.TensorSpec([2, 2])}
        torso = networks.StateActionTorso(
            encoder=networks.make_torso(spec, hidden=()), body=networks.MLP(hidden=(6,))
        )
        params = torso.init(KEY, (spec, ACTION))
        self.assertEqual(list(struct.paths(params)), ["body/layer_0/bias", "body/layer_0/kernel"])
        self.assertEqual(params["body"]["layer_0"]["kernel"].shape, [4 + 4 + 2, 6])

    def test_a_population(self):
        params = networks.init_population(self.torso.init, KEY, 2, (OBS, ACTION))
        x = (seeding.normal(KEY, [2, 7, 3]), seeding.normal(KEY, [2, 7, 2]))
        y = self.torso.apply(params, x)
        for i in range(2):
            one = self.torso.apply(struct.take(params, i), struct.take(x, i))
            np.testing.assert_allclose(y[i], one, rtol=1e-4, atol=1e-5)

    def test_training_mode_of_both_parts(self):
        torso = networks.StateActionTorso(
            encoder=normalising(OBS), body=normalising(tf.TensorSpec([5]))
        )
        params = torso.init(KEY, (OBS, ACTION))
        x = (4.0 + seeding.normal(KEY, [50, 3]), seeding.normal(KEY, [50, 2]))
        y, after = torso.apply_training(params, x, KEY)
        np.testing.assert_allclose(np.mean(y, 0), np.zeros(5), atol=1e-4)
        for part in ("encoder", "body"):
            mean = "000_moving_mean"
            changed = after[part]["state"][mean] - params[part]["state"][mean]
            self.assertGreater(float(tf.reduce_max(tf.abs(changed))), 1e-3)
