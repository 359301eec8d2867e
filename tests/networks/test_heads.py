"""Tests of policies, values, Q-functions and n-fold critics."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tfrl import distributions, networks, seeding, specs, struct
from tfrl.errors import UserError
from tfrl.keras import api as keras

KEY = seeding.key(3)
OBS = tf.TensorSpec([3])
TORSO = networks.MLP(hidden=(8, 5))
BOX = specs.BoundedTensorSpec([2], tf.float32, -1, 1)
ACTION_SPECS = {
    "discrete": specs.DiscreteSpec(4),
    "multi": specs.MultiDiscreteSpec([2, 3]),
    "binary": specs.BinarySpec([3]),
    "box": BOX,
    "nested": {"a": BOX, "b": specs.DiscreteSpec(3)},
}


def policy(spec, **options):
    return networks.PolicyNetwork(
        torso=TORSO, distribution=distributions.make_distribution(spec, **options)
    )


class PolicyTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(ACTION_SPECS.items())
    def test_leading_axes_and_population(self, spec):
        network = policy(spec)
        params = network.init(KEY, OBS)
        d = network.apply(params, seeding.normal(KEY, [4, 6, 3]))
        self.assertEqual(d.entropy().shape, [4, 6])
        stacked = networks.init_population(network.init, KEY, 2, OBS)
        x = seeding.normal(KEY, [2, 4, 6, 3])
        for lead in (x, x[:, 0]):
            joint = network.apply(stacked, lead)
            action = joint.sample(KEY)
            for p in range(2):
                member = network.apply(struct.take(stacked, p), lead[p])
                mine = struct.take(action, p)
                self.assertAllClose(joint.log_prob(action)[p], member.log_prob(mine), 1e-4, 1e-5)
                self.assertAllClose(joint.entropy()[p], member.entropy(), 1e-4, 1e-5)

    def test_first_policy_is_nearly_uniform(self):
        network = policy(specs.DiscreteSpec(4))
        d = network.apply(network.init(KEY, OBS), seeding.normal(KEY, [50, 3]))
        self.assertAllClose(tf.exp(d.logits), tf.fill([50, 4], 0.25), atol=0.02)

    def test_head_is_orthogonal_with_its_gain(self):
        params = policy(specs.DiscreteSpec(4)).init(KEY, OBS)
        kernel = params["head"]["kernel"].numpy()
        self.assertAllClose(kernel.T @ kernel, 1e-4 * np.eye(4), atol=1e-8)

    def test_parameters_of_the_distribution(self):
        self.assertEqual(set(policy(BOX).init(KEY, OBS)), {"torso", "head", "distribution"})
        self.assertEqual(set(policy(specs.DiscreteSpec(2)).init(KEY, OBS)), {"torso", "head"})
        dependent = policy(BOX, state_dependent_std=True).init(KEY, OBS)
        self.assertEqual(set(dependent), {"torso", "head"})
        self.assertEqual(dependent["head"]["kernel"].shape, [5, 4])

    @parameterized.named_parameters(ACTION_SPECS.items())
    def test_gradient_reaches_every_parameter(self, spec):
        network = policy(spec)
        params = network.init(KEY, OBS)
        x = seeding.normal(KEY, [16, 3])
        action = network.apply(params, x).sample(KEY)

        def f(params):
            with tf.GradientTape() as tape:
                tape.watch(params)
                loss = tf.reduce_sum(network.apply(params, x).log_prob(action))
            return tape.gradient(loss, params)

        for path, gradient in struct.paths(f(params)).items():
            self.assertTrue(np.all(np.isfinite(gradient)), path)
            self.assertGreater(np.abs(gradient).max(), 0, path)

    def test_mask(self):
        network = policy(specs.DiscreteSpec(4))
        params = network.init(KEY, OBS)
        x = seeding.normal(KEY, [300, 3])
        mask = tf.constant([True, False, False, True])
        action = network.apply(params, x, mask).sample(KEY)
        self.assertAllEqual(np.unique(action), [0, 3])

    def test_equal_networks_are_equal(self):
        self.assertEqual(policy(BOX), policy(BOX))
        self.assertNotEqual(policy(BOX), policy(BOX).replace(head_scale=1.0))

    def test_observations_of_any_nest(self):
        spec = {
            "image": specs.BoundedTensorSpec([2, 2], tf.uint8, 0, 255),
            "n": specs.DiscreteSpec(3),
        }
        network = networks.ValueNetwork(torso=networks.make_torso(spec, hidden=(4,)))
        params = network.init(KEY, spec)
        self.assertEqual(network.apply(params, specs.sample(spec, KEY, (5, 2))).shape, [5, 2])


class ValueTest(parameterized.TestCase, tf.test.TestCase):
    def test_value_against_numpy(self):
        network = networks.ValueNetwork(torso=TORSO)
        params = network.init(KEY, OBS)
        x = seeding.normal(KEY, [4, 6, 3])
        hidden = TORSO.apply(params["torso"], x).numpy()
        expected = hidden @ params["head"]["kernel"].numpy()[:, 0]
        self.assertAllClose(network.apply(params, x), expected, 1e-5, 1e-6)

    @parameterized.named_parameters(
        ("value", networks.ValueNetwork(torso=TORSO), []),
        ("q", networks.QNetwork(torso=TORSO, num_actions=4), [4]),
        ("dueling", networks.DuelingQNetwork(torso=TORSO, num_actions=4), [4]),
    )
    def test_leading_axes_and_population(self, network, event):
        x = seeding.normal(KEY, [2, 4, 6, 3])
        stacked = networks.init_population(network.init, KEY, 2, OBS)
        for inputs in (x, x[:, 0]):
            y = network.apply(stacked, inputs)
            self.assertEqual(y.shape, [*inputs.shape[:-1], *event])
            for p in range(2):
                member = network.apply(struct.take(stacked, p), inputs[p])
                self.assertAllClose(y[p], member, 1e-4, 1e-5)
        for jit in (False, True):
            f = tf.function(network.apply, jit_compile=jit)
            self.assertAllClose(f(stacked, x), network.apply(stacked, x), 1e-4, 1e-5)

    def test_dueling_identity(self):
        network = networks.DuelingQNetwork(torso=TORSO, num_actions=4)
        params = network.init(KEY, OBS)
        x = seeding.normal(KEY, [6, 3])
        q = network.apply(params, x)
        hidden = TORSO.apply(params["torso"], x)
        value = hidden @ params["value"]["kernel"]
        advantage = hidden @ params["advantage"]["kernel"]
        # The mean over actions is V, and differences between actions are those of A.
        self.assertAllClose(tf.reduce_mean(q, -1, keepdims=True), value, 1e-4, 1e-5)
        self.assertAllClose(q - q[:, :1], advantage - advantage[:, :1], 1e-4, 1e-5)


class CriticEnsembleTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.network = networks.CriticEnsemble(torso=TORSO, num_critics=3)
        self.spec = (OBS, BOX)

    def test_equals_its_members(self):
        params = self.network.init(KEY, self.spec)
        self.assertEqual(params["torso"]["layer_0"]["kernel"].shape, [3, 5, 8])
        obs, action = seeding.normal(KEY, [4, 6, 3]), seeding.normal(KEY, [4, 6, 2])
        q = self.network.apply(params, obs, action)
        self.assertEqual(q.shape, [3, 4, 6])
        self.assertAllEqual(q, self.network.apply(params, (obs, action)))
        joined = tf.concat([obs, action], -1)
        for i in range(3):
            member = self.network.member.apply(struct.take(params, i), joined)
            self.assertAllClose(q[i], member, 1e-4, 1e-5)
        self.assertNotAllClose(q[0], q[1])

    @parameterized.product(lead=[(6,), (4, 6)], population=[False, True], jit=[False, True])
    @pytest.mark.variants(3)
    def test_apply_rules_give_equal_values_and_gradients(self, lead, population, jit):
        params = self.network.init(KEY, self.spec)
        if population:
            params = networks.init_population(self.network.init, KEY, 2, self.spec)
            lead = (2, *lead)
        obs, action = seeding.normal(KEY, [*lead, 3]), seeding.normal(KEY, [*lead, 2])
        results = []
        for rule in ("unstacked", "batched"):
            network = self.network.replace(apply_rule=rule)

            @tf.function(jit_compile=jit)
            def f(params, action, network=network):
                with tf.GradientTape() as tape:
                    tape.watch((params, action))
                    q = network.apply(params, obs, action)
                    loss = tf.reduce_sum(tf.sin(q))
                return q, tape.gradient(loss, (params, action))

            results.append(tf.nest.flatten(f(params, action)))
        shape = [2, 3, *lead[1:]] if population else [3, *lead]
        self.assertEqual(results[0][0].shape, shape)
        for a, b in zip(*results, strict=True):
            self.assertAllClose(a, b, 1e-3, 1e-5)
        if population:
            member = self.network.apply(struct.take(params, 1), obs[1], action[1])
            self.assertAllClose(results[0][0][1], member, 1e-4, 1e-5)

    def test_rule_on_this_device(self):
        params = self.network.init(KEY, self.spec)
        f = tf.function(self.network.apply)
        graph = f.get_concrete_function(params, tf.zeros([6, 3]), tf.zeros([6, 2])).graph
        kinds = [op.type for op in graph.get_operations()]
        if tf.config.list_physical_devices("GPU"):
            self.assertIn("BatchMatMulV2", kinds)
        else:
            self.assertNotIn("BatchMatMulV2", kinds)
            self.assertEqual(kinds.count("MatMul"), 9)

    def test_variables(self):
        params = self.network.init(KEY, self.spec)
        variables = tf.nest.map_structure(tf.Variable, params)
        x = (seeding.normal(KEY, [6, 3]), seeding.normal(KEY, [6, 2]))
        for rule in ("unstacked", "batched"):
            network = self.network.replace(apply_rule=rule)
            self.assertAllClose(network.apply(params, x), network.apply(variables, x), 1e-5)

    def test_composite_observations_and_discrete_actions(self):
        spec = ({"n": specs.DiscreteSpec(3), "m": tf.TensorSpec([2, 2])}, specs.DiscreteSpec(4))
        network = networks.CriticEnsemble(torso=networks.make_torso(spec, hidden=(4,)))
        params = network.init(KEY, spec)
        self.assertEqual(params["torso"]["layer_0"]["kernel"].shape, [2, 3 + 4 + 4, 4])
        obs, action = specs.sample(spec, KEY, (5,))
        self.assertEqual(network.apply(params, obs, action).shape, [2, 5])

    def test_unknown_rule(self):
        with pytest.raises(UserError, match="apply_rule: expected one of auto, batched, unstacked"):
            networks.CriticEnsemble(torso=TORSO, apply_rule="batch")


class TrainingTest(parameterized.TestCase):
    @parameterized.parameters(
        networks.ValueNetwork(torso=TORSO),
        networks.QNetwork(torso=TORSO, num_actions=3),
        networks.DuelingQNetwork(torso=TORSO, num_actions=3),
        TORSO,
    )
    def test_without_special_layers_training_changes_nothing(self, network):
        params = network.init(KEY, OBS)
        x = seeding.normal(KEY, [5, 3])
        y, after = network.apply_training(params, x, KEY)
        np.testing.assert_array_equal(y, network.apply(params, x))
        tf.nest.map_structure(self.assertIs, after, params)

    @parameterized.parameters(
        lambda torso: networks.ValueNetwork(torso=torso),
        lambda torso: networks.QNetwork(torso=torso, num_actions=3),
        lambda torso: networks.DuelingQNetwork(torso=torso, num_actions=3),
    )
    def test_the_torso_trains_inside_every_head(self, make):
        torso = networks.KerasNetwork(
            model_fn=lambda: keras.Sequential([keras.layers.BatchNormalization()]), spec=OBS
        )
        network = make(torso)
        params = network.init(KEY, OBS)
        x = seeding.normal(KEY, [50, 3]) + 4.0
        y, after = network.apply_training(params, x, KEY)
        hidden, _ = torso.apply_training(params["torso"], x, KEY)
        np.testing.assert_allclose(np.mean(hidden, axis=0), 0.0, atol=1e-5)
        self.assertGreater(float(tf.reduce_max(tf.abs(y - network.apply(params, x)))), 0.1)
        mean = after["torso"]["state"]["000_moving_mean"]
        np.testing.assert_allclose(mean, 0.01 * np.mean(x, axis=0), rtol=1e-4)
        self.assertIs(
            after["head" if "head" in after else "value"]["kernel"],
            (params["head" if "head" in params else "value"]["kernel"]),
        )

    def test_only_the_state_of_an_adapter_is_not_trained(self):
        params = {
            "a": {"params": {"w": 1}, "state": {"m": 2, "v": 3}},
            "b": {"state": 4},
            "c": ({"params": {}, "state": 5}, 6),
        }
        # Dicts inside tuples are looked into, too.
        trained, others = networks.split_leaves(params)
        self.assertEqual((trained, others), ([1, 4, 6], [2, 3, 5]))
