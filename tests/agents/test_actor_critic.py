"""What the on-policy agents share: trunks, heads, items of observations, squashing, messages."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import registered
from tfrl import networks, seeding, specs, struct
from tfrl.agents import PPO, ActorCritic
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.distributions import make_distribution
from tfrl.errors import UserError
from tfrl.keras import api as keras

KEY = seeding.key(21)
OBS = tf.TensorSpec([3])
ACTION = specs.DiscreteSpec(4)
BOX = specs.BoundedTensorSpec([2], tf.float32, [-2.0, 0.0], [1.0, 5.0])
BOTH = {"own": tf.TensorSpec([2]), "state": tf.TensorSpec([6])}
TORSO = networks.make_torso(OBS, hidden=(5,))
POLICY = networks.PolicyNetwork(torso=TORSO, distribution=make_distribution(ACTION))
VALUE = networks.ValueNetwork(torso=TORSO)


def made(cls=PPO, **options):
    return cls(**{"obs_spec": OBS, "action_spec": ACTION, "hidden": (8,), **options})


def batch(agent, n=6):
    obs = specs.sample(agent.obs_spec, KEY, (n,))
    output = agent.compute_actions(agent.init(KEY), obs, KEY)
    return PolicyBatch(
        obs=obs,
        action=output.action,
        log_prob=output.extras["log_prob"],
        advantage=seeding.normal(KEY, [n]),
        value_target=seeding.normal(KEY, [n]) + 3.0,
        value=tf.zeros([n]),
    )


class SharedTorsoTest(parameterized.TestCase):
    def test_the_groups_are_trained_together(self):
        agent = made(shared_torso=True)
        state = agent.init(KEY)
        self.assertEqual(set(state.params), {"trunk", "policy", "value"})
        (update,) = agent.updates
        self.assertEqual((update.name, update.groups), ("ppo", ("trunk", "policy", "value")))
        sizes = {p: x.shape.as_list() for p, x in struct.paths(state.params).items()}
        self.assertEqual(
            sizes,
            {
                "trunk/layer_0/kernel": [3, 8],
                "trunk/layer_0/bias": [8],
                "policy/head/kernel": [8, 4],
                "policy/head/bias": [4],
                "value/head/kernel": [8, 1],
                "value/head/bias": [1],
            },
        )

    def test_both_losses_reach_the_trunk(self):
        agent = made(shared_torso=True, value_coef=1.0)
        state = agent.init(KEY)
        rows = batch(agent)

        def trunk(agent, rows):
            with tf.GradientTape() as tape:
                tape.watch(state.params)
                loss, _ = agent.loss(state.params, state, rows, KEY)
            return tape.gradient(loss, state.params["trunk"]["layer_0"]["kernel"]).numpy()

        both = trunk(agent, rows)
        policy = trunk(agent.replace(value_coef=0.0), rows)
        value = trunk(agent, rows.replace(advantage=tf.zeros([6])))
        for found in (policy, value):
            self.assertGreater(np.abs(found).max(), 1e-5)
        np.testing.assert_allclose(policy + value, both, rtol=1e-4, atol=1e-6)

    def test_apart_by_default(self):
        state = made().init(KEY)
        self.assertEqual(set(state.params), {"policy", "value"})
        kernels = [state.params[g]["torso"]["layer_0"]["kernel"] for g in ("policy", "value")]
        self.assertFalse(np.array_equal(*kernels))

    @parameterized.parameters(False, True)
    def test_a_torso_is_that_of_both(self, shared):
        agent = made(torso=TORSO, shared_torso=shared, hidden=None)
        params = agent.init(KEY).params
        groups = [params["trunk"]] if shared else [params[g]["torso"] for g in ("policy", "value")]
        for torso in groups:
            self.assertEqual(torso["layer_0"]["kernel"].shape, [3, 5])
        self.assertEqual(params["value"]["head"]["kernel"].shape, [5, 1])

    def test_memory_goes_behind_the_torso_that_is_shared(self):
        agent = made(torso=TORSO, shared_torso=True, memory="gru", memory_size=7, hidden=None)
        self.assertEqual(set(agent.initial_carry(2)), {"trunk"})
        self.assertEqual(agent.init(KEY).params["policy"]["head"]["kernel"].shape, [7, 4])

    def test_images(self):
        spec = specs.BoundedTensorSpec([36, 36, 1], tf.uint8, 0, 255)
        agent = made(obs_spec=spec, shared_torso=True, hidden=None)
        self.assertIsInstance(agent.network.trunk.body, networks.NatureCNN)


class ItemsTest(parameterized.TestCase):
    def test_one_item_each(self):
        agent = made(obs_spec=BOTH, obs_key="own", value_obs_key="state")
        params = agent.init(KEY).params
        self.assertEqual(params["policy"]["torso"]["layer_0"]["kernel"].shape, [2, 8])
        self.assertEqual(params["value"]["torso"]["layer_0"]["kernel"].shape, [6, 8])

    def test_with_memory(self):
        agent = made(obs_spec=BOTH, obs_key="own", value_obs_key="state", memory="gru")
        state = agent.init(KEY)
        carry = agent.initial_carry(3)
        obs = specs.sample(BOTH, KEY, (3,))
        other = {**obs, "state": obs["state"] + 1.0}
        a, b = (agent.compute_actions(state, o, KEY, carry) for o in (obs, other))
        np.testing.assert_array_equal(a.extras["log_prob"], b.extras["log_prob"])
        self.assertFalse(np.array_equal(a.carry["value"]["hidden"], b.carry["value"]["hidden"]))

    def test_the_same_item_for_both(self):
        for shared in (False, True):
            agent = made(obs_spec=BOTH, obs_key="state", shared_torso=shared)
            state = agent.init(KEY)
            obs = specs.sample(BOTH, KEY, (3,))
            other = {**obs, "own": obs["own"] + 1.0}
            np.testing.assert_array_equal(
                agent.compute_values(state, obs), agent.compute_values(state, other)
            )


class SquashTest(parameterized.TestCase):
    def test_actions_stay_within_the_bounds(self):
        agent = made(action_spec=BOX, squash=True)
        state = agent.init(KEY)
        state.params["policy"]["head"]["kernel"] *= 1e3
        obs = seeding.normal(KEY, [2000, 3])
        for output in (
            agent.compute_actions(state, obs, KEY),
            agent.evaluate_actions(state, obs, KEY),
        ):
            action = output.action.numpy()
            self.assertTrue(np.all(action >= [-2.0, 0.0]) and np.all(action <= [1.0, 5.0]))
            # They reach into every corner.
            self.assertGreater(action.max(0)[1], 4.5)
            self.assertLess(action.min(0)[0], -1.7)

    def test_without_they_do_not(self):
        agent = made(action_spec=BOX)
        action = agent.compute_actions(agent.init(KEY), tf.zeros([2000, 3]), KEY).action
        self.assertLess(float(tf.reduce_min(action[:, 1])), 0.0)

    @parameterized.parameters(False, True)
    def test_the_initial_deviation(self, shared):
        agent = made(action_spec=tf.TensorSpec([2]), shared_torso=shared, init_log_std=-2.0)
        actions = agent.compute_actions(agent.init(KEY), tf.zeros([2000, 3]), KEY).action
        np.testing.assert_allclose(np.std(actions, axis=0), np.exp(-2.0), rtol=0.05)

    def test_bounds_must_be_finite(self):
        with pytest.raises(UserError, match="expected finite bounds with low < high, since squash"):
            made(action_spec=tf.TensorSpec([2]), squash=True)


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            {"policy": POLICY, "memory": "gru"},
            "PPO.memory: expected None with a custom policy, got 'gru'. Put a RecurrentTorso into "
            "the policy, or leave out memory or policy.",
        ),
        (
            {"torso": networks.PolicyNetwork(torso=TORSO, distribution=make_distribution(ACTION))},
            "PPO.torso: expected a tfrl.networks torso, or None, got PolicyNetwork. Pass for "
            "example torso=",
        ),
        (
            {"torso": keras.Sequential()},
            "PPO.torso: expected a tfrl.networks torso, or None, got Seq",
        ),
        ({"value_obs_key": "stat", "obs_spec": BOTH}, "obs_key: expected the name of an item"),
    )
    def test_contradictions(self, changes, message):
        with pytest.raises(UserError) as error:
            made(**changes)
        self.assertIn(message, str(error.value))

    @parameterized.parameters(*registered.ON_POLICY)
    def test_the_name_is_that_of_the_agent(self, cls):
        with pytest.raises(UserError, match=f"{cls.__name__}.discount: expected a number of at le"):
            made(cls, discount=2.0)
        self.assertEqual([u.name for u in made(cls).updates], [cls.__name__.lower()])

    def test_the_base_has_no_loss(self):
        agent = made(ActorCritic)
        state = agent.init(KEY)
        with pytest.raises(NotImplementedError, match="ActorCritic has no loss"):
            agent.loss(state.params, state, batch(agent), KEY)

    def test_one_network_may_be_given(self):
        agent = made(policy=POLICY)
        self.assertEqual(agent.network.policy, POLICY)
        agent = made(value=VALUE, memory="gru", memory_size=7)
        self.assertEqual(set(agent.initial_carry(2)), {"policy"})
        agent = made(value=VALUE, obs_spec=OBS)
        self.assertEqual(agent.value_network, VALUE)
        self.assertEqual(agent.policy_network.torso.body.hidden, (8,))


class EqualTest(parameterized.TestCase):
    @parameterized.parameters(
        {"shared_torso": True}, {"memory": "gru"}, {"gae_horizon": 4}, {"squash": True}
    )
    def test_equal_agents_are_equal(self, **options):
        spec = BOX if "squash" in options else ACTION
        self.assertEqual(made(action_spec=spec, **options), made(action_spec=spec, **options))
        self.assertNotEqual(made(action_spec=spec, **options), made(action_spec=spec))
