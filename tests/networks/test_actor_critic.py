"""A policy and a value function together: groups, the shared trunk, carries, steps and unrolls."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tfrl import distributions, networks, seeding, specs, struct
from tfrl.keras import api as keras

KEY = seeding.key(4)
OBS = tf.TensorSpec([3])
ACTIONS = distributions.make_distribution(specs.DiscreteSpec(4))


def torso(memory=None, hidden=(5,)):
    body = networks.MLP(hidden=hidden)
    return body if memory is None else networks.RecurrentTorso(body=body, cell=memory, size=6)


def network(policy=None, value=None, trunk=None):
    """Names of cells; "plain" is a trunk without memory."""
    shared = None if trunk is None else torso(None if trunk == "plain" else trunk)
    hidden = (5,) if trunk is None else ()
    return networks.ActorCriticNetwork(
        policy=networks.PolicyNetwork(
            torso=torso(policy, hidden), distribution=ACTIONS, head_scale=1.0
        ),
        value=networks.ValueNetwork(torso=torso(value, hidden)),
        trunk=shared,
    )


MEMORIES = {
    "policy": {"policy": "gru"},
    "value": {"value": "lstm"},
    "both": {"policy": "lstm", "value": "gru"},
    "trunk": {"trunk": "lstm"},
    "trunk_and_value": {"trunk": "gru", "value": "gru"},
    "plain_trunk": {"policy": "gru", "trunk": "plain"},
}
HAVE_CARRY = {
    "policy": {"policy"},
    "value": {"value"},
    "both": {"policy", "value"},
    "trunk": {"trunk"},
    "trunk_and_value": {"trunk", "value"},
    "plain_trunk": {"policy"},
}


class ActorCriticTest(parameterized.TestCase, tf.test.TestCase):
    def test_without_a_trunk_it_is_the_two_networks(self):
        net = network()
        params = net.init(KEY, OBS)
        self.assertEqual(net.groups, ("policy", "value"))
        self.assertEqual(set(params), {"policy", "value"})
        self.assertFalse(net.recurrent)
        self.assertIsNone(net.initial_carry(7))
        x = seeding.normal(KEY, [7, 3])
        policy, carry = net.act(params, x)
        self.assertIsNone(carry)
        self.assertAllEqual(policy.logits, net.policy.apply(params["policy"], x).logits)
        value, carry = net.values(params, x)
        self.assertIsNone(carry)
        self.assertAllEqual(value, net.value.apply(params["value"], x))
        trained, values, after = net.train(params, x, KEY)
        self.assertAllEqual(trained.logits, policy.logits)
        self.assertAllEqual(values, value)
        self.assertEqual(after, {})

    def test_a_trunk_is_computed_before_both(self):
        net = network(trunk="plain")
        params = net.init(KEY, OBS)
        self.assertEqual(net.groups, ("trunk", "policy", "value"))
        self.assertEqual(params["policy"]["head"]["kernel"].shape, [5, 4])
        self.assertEqual(params["value"]["head"]["kernel"].shape, [5, 1])
        x = seeding.normal(KEY, [7, 3])
        hidden = np.tanh(
            x @ params["trunk"]["layer_0"]["kernel"] + params["trunk"]["layer_0"]["bias"]
        )
        policy, value, _ = net.train(params, x, KEY)
        logits = hidden @ params["policy"]["head"]["kernel"].numpy()
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        self.assertAllClose(policy.logits, logits, 1e-5, 1e-5)
        self.assertAllClose(value, (hidden @ params["value"]["head"]["kernel"].numpy())[:, 0], 1e-5)
        self.assertAllClose(net.act(params, x)[0].logits, logits, 1e-5, 1e-5)
        self.assertAllClose(net.values(params, x)[0], value, 1e-6)

    def test_both_losses_reach_the_trunk_and_add_up(self):
        net = network(trunk="plain")
        params = net.init(KEY, OBS)
        x = seeding.normal(KEY, [7, 3])

        def gradient(weights):
            with tf.GradientTape() as tape:
                tape.watch(params)
                policy, value, _ = net.train(params, x, KEY)
                loss = weights[0] * tf.reduce_sum(policy.entropy())
                loss += weights[1] * tf.reduce_sum(value**2)
            found = tape.gradient(loss, params, unconnected_gradients="zero")
            return {path: g.numpy() for path, g in struct.paths(found).items()}

        policy, value, both = gradient((1.0, 0.0)), gradient((0.0, 1.0)), gradient((1.0, 1.0))
        for path in policy:
            self.assertAllClose(policy[path] + value[path], both[path], 1e-5, 1e-6, msg=path)
        for found, other in ((policy, "value"), (value, "policy")):
            self.assertGreater(np.abs(found["trunk/layer_0/kernel"]).max(), 0.01)
            self.assertEqual(np.abs(found[f"{other}/head/kernel"]).max(), 0.0)

    @parameterized.named_parameters((n, n) for n in MEMORIES)
    def test_a_loss_sees_what_acting_saw(self, name):
        net = network(**MEMORIES[name])
        params = net.init(KEY, OBS)
        carry = net.initial_carry(4)
        self.assertTrue(net.recurrent)
        self.assertEqual(set(carry), HAVE_CARRY[name])
        x = seeding.normal(KEY, [6, 4, 3])
        starts = np.zeros([6, 4], bool)
        starts[2, 1] = starts[3, 0] = starts[5, 0] = True
        logits, values, first, running = [], [], carry, carry
        for t in range(6):
            fresh = starts[t][:, np.newaxis]
            running = tf.nest.map_structure(
                lambda a, b, f=fresh: tf.where(f, a, b), net.initial_carry(4), running
            )
            value, after_value = net.values(params, x[t], running)
            policy, running_after = net.act(params, x[t], running)
            self.assertEqual(set(running_after), HAVE_CARRY[name])
            # What V hands on is the part of the carry that V needs.
            for group in after_value or {}:
                tf.nest.map_structure(self.assertAllEqual, after_value[group], running_after[group])
            self.assertEqual(set(after_value or {}), HAVE_CARRY[name] - {"policy"})
            running = running_after
            logits.append(policy.logits)
            values.append(value)
        policy, value, after = net.train(params, x, None, carry=first, starts=tf.constant(starts))
        self.assertAllClose(policy.logits, tf.stack(logits), 1e-5, 1e-5)
        self.assertAllClose(value, tf.stack(values), 1e-5, 1e-5)
        self.assertEqual(after, {})

    @parameterized.parameters({}, {"policy": "gru"}, {"trunk": "lstm"})
    def test_masks_reach_the_policy(self, **memory):
        net = network(**memory)
        params = net.init(KEY, OBS)
        mask = tf.constant([True, False, False, True])
        x = seeding.normal(KEY, [5, 8, 3])
        many = tf.broadcast_to(mask, [5, 8, 4])
        policy, _ = net.act(params, x[0], net.initial_carry(8), many[0])
        self.assertAllEqual(tf.exp(policy.logits[:, 1:3]), np.zeros([8, 2]))
        options = {}
        if net.recurrent:
            options = {"carry": net.initial_carry(8), "starts": tf.zeros([5, 8], tf.bool)}
        policy, _, _ = net.train(params, x, KEY, mask=many, **options)
        self.assertAllEqual(tf.exp(policy.logits[..., 1:3]), np.zeros([5, 8, 2]))
        self.assertAllClose(tf.reduce_sum(tf.exp(policy.logits), -1), np.ones([5, 8]), 1e-5)

    def test_a_policy_that_knows_no_masks_is_not_given_any(self):
        calls = []

        class Own(networks.PolicyNetwork):
            def apply_training(self, params, x, key):
                calls.append("train")
                return self.apply(params, x), params

            def step(self, params, x, carry=None):
                calls.append("step")
                return self.apply(params, x), carry

        own = Own(torso=torso(), distribution=ACTIONS)
        net = network().replace(policy=own)
        params = net.init(KEY, OBS)
        net.act(params, tf.zeros([2, 3]))
        net.train(params, tf.zeros([2, 3]), KEY)
        self.assertEqual(calls, ["step", "train"])

    @parameterized.parameters(True, False)
    def test_what_no_gradient_trains_comes_back_by_group(self, shared):
        body = networks.KerasNetwork(
            model_fn=lambda: keras.Sequential([keras.layers.BatchNormalization()]), spec=OBS
        )
        if shared:
            net = network(trunk="plain").replace(trunk=body)
        else:
            net = network().replace(value=networks.ValueNetwork(torso=body))
        params = net.init(KEY, OBS)
        x = seeding.normal(KEY, [50, 3]) + 4.0
        _, _, after = net.train(params, x, KEY)
        group = "trunk" if shared else "value"
        self.assertEqual(list(after), [group])
        state = after["trunk"] if shared else after["value"]["torso"]
        mean = state["state"]["000_moving_mean"]
        self.assertAllClose(mean, 0.01 * np.mean(x, axis=0), 1e-4)

    def test_equal_networks_are_equal(self):
        self.assertEqual(network(trunk="gru"), network(trunk="gru"))
        self.assertNotEqual(network(trunk="gru"), network(policy="gru"))
