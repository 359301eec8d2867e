"""PPO: the loss by hand, ratio 1, the normaliser's snapshot, stops and schedules."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tfrl import distributions, networks, seeding, specs, struct
from tfrl.agents import PPO, RandomAgent
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.agents.ppo.losses import ppo_loss
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig
from tfrl.rollout import rollout
from tfrl.types import Trajectory

KEY = seeding.key(7)


@struct.dataclass
class TwoActions(struct.Struct):
    """A policy whose log-probabilities and entropies are given."""

    chosen: tf.Tensor
    entropies: tf.Tensor

    def log_prob(self, action):
        return self.chosen

    def entropy(self):
        return self.entropies


def made(env_id="tf:CartPole-v1", num_envs=4, autoreset="SAME_STEP", **kwargs):
    env = tfrl.make_env(env_id, num_envs=num_envs, autoreset=autoreset)
    return env, PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8, 8), **kwargs)


def experience(env, agent, state, length=16):
    return rollout(env, agent, env.reset(KEY), state, KEY, length)[0]


class LossTest(parameterized.TestCase):
    def batch(self, **changes):
        batch = PolicyBatch(
            obs=tf.zeros([2, 1]),
            action=tf.zeros([2], tf.int64),
            log_prob=tf.math.log([0.5, 0.5]),
            advantage=tf.constant([1.0, -1.0]),
            value_target=tf.constant([2.0, 0.0]),
            value=tf.constant([1.0, 0.0]),
        )
        return batch.replace(**changes)

    def loss(self, batch, chosen=(0.75, 0.45), value=(1.5, 1.0), value_clip=None):
        policy = TwoActions(chosen=tf.math.log(chosen), entropies=tf.constant([0.5, 0.7]))
        return ppo_loss(
            policy,
            tf.constant(value),
            batch,
            clip=0.2,
            value_clip=value_clip,
            value_coef=0.5,
            entropy_coef=0.1,
        )

    def test_by_hand(self):
        # Ratios 1.5 and 0.9. Surrogates min(1.5, 1.2) = 1.2 and min(-0.9, -0.9) = -0.9:
        # policy loss -(1.2 - 0.9) / 2 = -0.15. Value errors -0.5 and 1: (0.25 + 1) / 4 = 0.3125.
        # Entropy 0.6. Loss -0.15 + 0.15625 - 0.06 = -0.05375. k3: 0.5 - ln 1.5 = 0.0945349 and
        # -0.1 - ln 0.9 = 0.0053605, mean 0.0499477. One of two ratios is outside.
        loss, metrics = self.loss(self.batch())
        self.assertAlmostEqual(float(loss), -0.05375, places=6)
        self.assertAlmostEqual(float(metrics["policy_loss"]), -0.15, places=6)
        self.assertAlmostEqual(float(metrics["value_loss"]), 0.3125, places=6)
        self.assertAlmostEqual(float(metrics["entropy"]), 0.6, places=6)
        self.assertAlmostEqual(float(metrics["approx_kl"]), 0.0499477, places=6)
        self.assertAlmostEqual(float(metrics["clip_fraction"]), 0.5, places=6)

    def test_clipped_value_loss_by_hand(self):
        # Old values 1 and 0, clip 0.2: held values 1.2 and 0.2. Errors squared: max(0.25, 0.64) and
        # max(1, 0.04), half of the mean: 0.41.
        _, metrics = self.loss(self.batch(), value_clip=0.2)
        self.assertAlmostEqual(float(metrics["value_loss"]), 0.41, places=6)

    def test_masked_rows_change_nothing(self):
        plain, plain_metrics = self.loss(self.batch())
        nan = np.nan
        padded = PolicyBatch(
            obs=tf.zeros([3, 1]),
            action=tf.zeros([3], tf.int64),
            log_prob=tf.concat([tf.math.log([0.5, 0.5]), [nan]], 0),
            advantage=tf.constant([1.0, -1.0, nan]),
            value_target=tf.constant([2.0, 0.0, nan]),
            value=tf.constant([1.0, 0.0, nan]),
            mask=tf.constant([True, True, False]),
        )
        policy = TwoActions(
            chosen=tf.concat([tf.math.log([0.75, 0.45]), [nan]], 0),
            entropies=tf.constant([0.5, 0.7, nan]),
        )
        loss, metrics = ppo_loss(
            policy,
            tf.constant([1.5, 1.0, nan]),
            padded,
            clip=0.2,
            value_clip=None,
            value_coef=0.5,
            entropy_coef=0.1,
        )
        self.assertAlmostEqual(float(loss), float(plain), places=6)
        for name, value in plain_metrics.items():
            self.assertAlmostEqual(float(metrics[name]), float(value), places=6, msg=name)


class AgentTest(parameterized.TestCase):
    @parameterized.product(
        env_id=["tf:CartPole-v1", "tf:Pendulum-v1"], autoreset=["SAME_STEP", "NEXT_STEP"]
    )
    def test_at_ratio_one_the_approximate_kl_is_zero_with_the_normaliser_on(
        self, env_id, autoreset
    ):
        env, agent = made(env_id, autoreset=autoreset, normalize_obs=True)
        state = agent.init(KEY)
        state = agent.update_normalizer(state, experience(env, agent, state))
        trajectory = experience(env, agent, state, 64)
        batch, _ = agent.learner_batch(state, trajectory)
        _, metrics = agent.loss(state.params, state, batch, KEY)
        self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)
        self.assertEqual(float(metrics["clip_fraction"]), 0.0)

    def test_at_ratio_one_the_approximate_kl_is_zero_where_a_squashed_policy_saturates(self):
        env = tfrl.make_env("tf:Pendulum-v1", num_envs=8)
        policy = networks.PolicyNetwork(
            torso=networks.make_torso(env.obs_spec, hidden=(8,)),
            distribution=distributions.make_distribution(
                env.action_spec, squash=True, init_log_std=2.0
            ),
        )
        agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, policy=policy)
        state = agent.init(KEY)
        state.params["policy"]["head"]["bias"] += 6.0
        trajectory = experience(env, agent, state, 64)
        at_the_edge = tf.abs(trajectory.action) >= 2.0 * (1 - 1e-6)
        self.assertGreater(float(tf.reduce_mean(tf.cast(at_the_edge, tf.float32))), 0.25)
        batch, _ = agent.learner_batch(state, trajectory)
        _, metrics = agent.loss(state.params, state, batch, KEY)
        self.assertLess(abs(float(metrics["approx_kl"])), 1e-6)
        self.assertEqual(float(metrics["clip_fraction"]), 0.0)

    def test_the_loss_sees_the_statistics_that_acted(self):
        env, agent = made(normalize_obs=True)
        state = agent.init(KEY)
        trajectory = experience(env, agent, state)
        batch, _ = agent.learner_batch(state, trajectory)
        # Statistics of no rows are the identity.
        np.testing.assert_allclose(
            batch.obs, tf.reshape(trajectory.obs, [-1, 4]), rtol=1e-6, atol=1e-6
        )
        seen = agent.update_normalizer(state, trajectory)
        self.assertEqual(float(seen.normalizer.count), 64.0)
        again, _ = agent.learner_batch(seen, trajectory)
        np.testing.assert_allclose(np.mean(again.obs, axis=0), np.zeros(4), atol=1e-4)
        np.testing.assert_allclose(np.std(again.obs, axis=0), np.ones(4), atol=1e-3)

    def test_advantages_bootstrap_from_the_true_successor(self):
        env, agent = made()
        state = agent.init(KEY)
        trajectory = experience(env, agent, state, 3)
        # A truncation at the last row: its value target is r + gamma V(o_T).
        trajectory = trajectory.replace(
            truncation=tf.constant([[False] * 4, [False] * 4, [True] * 4]),
            termination=tf.zeros([3, 4], tf.bool),
            next_obs=trajectory.next_obs + 0.5,
        )
        batch, metrics = agent.learner_batch(state, trajectory)
        value = agent.value_network.apply(state.params["value"], trajectory.next_obs[2])
        np.testing.assert_allclose(
            tf.reshape(batch.value_target, [3, 4])[2], 1.0 + 0.99 * value, rtol=1e-4
        )
        self.assertIn("explained_variance", metrics)

    def test_invalid_rows_are_masked(self):
        env, agent = made(autoreset="NEXT_STEP", normalize_obs=True)
        state = agent.init(KEY)
        trajectory = experience(env, agent, state, 64)
        self.assertGreater(int(tf.math.count_nonzero(~trajectory.valid)), 0)
        batch, _ = agent.learner_batch(state, trajectory)
        np.testing.assert_array_equal(batch.mask, tf.reshape(trajectory.valid, [-1]))
        seen = agent.update_normalizer(state, trajectory).normalizer.count
        self.assertEqual(float(seen), float(tf.math.count_nonzero(trajectory.valid)))

    def test_exploring_samples_and_evaluating_takes_the_mode(self):
        env, agent = made("tf:Pendulum-v1", num_envs=512)
        state = agent.init(KEY)
        obs = tf.zeros([512, 3])
        explored = agent.compute_actions(state, obs, KEY)
        self.assertGreater(float(tf.math.reduce_std(explored.action)), 0.5)
        greedy = agent.evaluate_actions(state, obs, KEY)
        self.assertEqual(float(tf.math.reduce_std(greedy.action)), 0.0)
        self.assertEqual(greedy.action.shape, [512, 1])

    def test_gradients_reach_both_groups_and_nothing_else(self):
        env, agent = made()
        learner = Learner(agent, config=ModuleConfig(lr=1e-2))
        learner.build(KEY)
        before = {p: v.numpy().copy() for p, v in learner.variables().items()}
        trajectory = experience(env, agent, learner.state)
        batch, _ = agent.learner_batch(struct.values(learner.state), trajectory)
        learner.update_from_batch(batch, num_epochs=2, minibatch_size=16)
        changed = {
            p.split("/")[3]
            for p, v in learner.variables().items()
            if p.startswith("modules/") and "/params/" in p and not np.array_equal(v, before[p])
        }
        self.assertEqual(changed, {"policy", "value"})

    def test_the_target_kl_stops_the_epochs(self):
        env, agent = made(target_kl=1e-4)
        learner = Learner(agent, config=ModuleConfig(lr=0.05))
        learner.build(KEY)
        trajectory = experience(env, agent, learner.state)
        batch, _ = agent.learner_batch(struct.values(learner.state), trajectory)
        results = learner.update_from_batch(batch, num_epochs=10, minibatch_size=32)
        metrics = results["default_policy"]
        self.assertLess(metrics["gradient_steps"], 10)
        self.assertGreater(metrics["approx_kl"], 0.0)

    def test_the_entropy_coefficient_follows_its_schedule(self):
        env, agent = made(entropy_coef=[[0, 0.2], [100, 0.0]])
        state = agent.init(KEY)
        self.assertAlmostEqual(float(state.extra["entropy_coef"]), 0.2)
        later = agent.before_update(state, tf.constant(50, tf.int64))
        self.assertAlmostEqual(float(later.extra["entropy_coef"]), 0.1)

    @parameterized.parameters(
        ({"discount": 1.5}, "PPO.discount: expected a number of at least 0 and at most 1, got 1.5"),
        ({"clip": -0.1}, "PPO.clip: expected a number of at least 0 or None, got -0.1"),
        ({"gae_lambda": float("nan")}, "PPO.gae_lambda: expected a number"),
        (
            {"clip": [[0, 0.2], [9, 0]]},
            "expected a number of at least 0 or None, got [[0, 0.2],",
        ),
        ({"clip": True}, "PPO.clip: expected a number of at least 0 or None, got True"),
        ({"clip": None}, "PPO.clip: expected a number, since there is no KL penalty, got None"),
        ({"clip": "0.2"}, "PPO.clip: expected a number of at least 0 or None, got '0.2'"),
        ({"value_coef": -1}, "PPO.value_coef: expected a number of at least 0, got -1"),
        ({"value_coef": float("inf")}, "PPO.value_coef: expected a number of at least 0, got inf"),
        ({"value_clip": -0.2}, "PPO.value_clip: expected a number of at least 0 or None, got -0.2"),
        ({"value_clip": float("nan")}, "or None, got nan. Give one finite number; only entropy_"),
        ({"obs_clip": 0.0}, "PPO.obs_clip: expected a number above 0, got 0.0"),
        ({"obs_clip": float("nan")}, "PPO.obs_clip: expected a number above 0, got nan"),
        ({"target_kl": -0.01}, "PPO.target_kl: expected a number above 0 or None, got -0.01"),
        ({"target_kl": float("nan")}, "PPO.target_kl: expected a number above 0 or None, got nan"),
        ({"entropy_coef": float("nan")}, "expected a finite number, got nan"),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            made(**changes)
        self.assertIn(message, str(error.value))

    def test_integers_and_numpy_numbers_are_numbers(self):
        _, agent = made(clip=np.float32(0.2), discount=1, value_coef=np.int64(1), target_kl=None)
        self.assertEqual((agent.clip, agent.discount), (np.float32(0.2), 1))
        self.assertEqual((agent.value_coef, agent.target_kl), (1, None))

    @parameterized.parameters("policy", "value")
    def test_a_keras_model_or_a_bare_torso_is_told_how_to_become_a_network(self, name):
        model = keras.Sequential([keras.layers.Dense(2)])
        for wrong in (model, networks.MLP()):
            with pytest.raises(UserError) as error:
                made(**{name: wrong})
            self.assertIn(f"PPO.{name}: expected a tfrl.networks network", str(error.value))
            self.assertIn(f"got {type(wrong).__name__}.", str(error.value))
            self.assertIn("torso=KerasNetwork(model_fn=make_model, spec=", str(error.value))

    def test_one_item_of_a_dict_observation(self):
        spec = {"image": tf.TensorSpec([84, 84, 4], tf.uint8), "speed": tf.TensorSpec([3])}
        make = lambda **kwargs: PPO(  # noqa: E731
            obs_spec=spec, action_spec=specs.DiscreteSpec(2), **kwargs
        )
        with pytest.raises(UserError, match="Choose one with obs_key='image'"):
            make()
        for key, body in (("image", networks.NatureCNN), ("speed", networks.MLP)):
            agent = make(obs_key=key)
            self.assertIsInstance(agent.policy_network.torso.body, body)
            self.assertIsInstance(agent.value_network.torso.body, body)
        state = agent.init(KEY)
        obs = specs.zeros(spec, (5,))
        other = {**obs, "image": obs["image"] + 255}
        for o in (obs, other):
            np.testing.assert_array_equal(
                agent.compute_actions(state, o, KEY).extras["log_prob"],
                agent.compute_actions(state, obs, KEY).extras["log_prob"],
            )
        with pytest.raises(UserError, match="obs_key: expected the name of an item"):
            make(obs_key="speeed")

    def test_the_value_network_may_take_an_item_of_its_own(self):
        spec = {"own": tf.TensorSpec([2]), "state": tf.TensorSpec([6])}
        make = lambda **kwargs: PPO(  # noqa: E731
            obs_spec=spec, action_spec=specs.DiscreteSpec(2), hidden=(8,), obs_key="own", **kwargs
        )
        agent = make(value_obs_key="state")
        state = agent.init(KEY)
        kernels = {g: struct.paths(p) for g, p in state.params.items()}
        sizes = {g: {v.shape[0] for n, v in p.items() if "kernel" in n} for g, p in kernels.items()}
        self.assertEqual(sizes, {"policy": {2, 8}, "value": {6, 8}})
        obs = {"own": tf.random.stateless_uniform([5, 2], KEY), "state": tf.ones([5, 6])}
        moved = {**obs, "own": obs["own"] + 1.0}
        np.testing.assert_array_equal(
            agent.compute_values(state, obs), agent.compute_values(state, moved)
        )
        changed = {**obs, "state": 2.0 * obs["state"]}
        self.assertFalse(
            np.array_equal(agent.compute_values(state, obs), agent.compute_values(state, changed))
        )
        np.testing.assert_array_equal(
            agent.evaluate_actions(state, obs, KEY).action,
            agent.evaluate_actions(state, changed, KEY).action,
        )

    def test_values_have_the_leading_axes_of_the_observations(self):
        env, agent = made(normalize_obs=True)
        state = agent.init(KEY)
        trajectory = experience(env, agent, state)
        state = agent.update_normalizer(state, trajectory)
        values = agent.compute_values(state, trajectory.obs)
        self.assertEqual((values.shape, values.dtype), ([16, 4], tf.float32))
        batch, _ = agent.learner_batch(state, trajectory)
        np.testing.assert_allclose(tf.reshape(values, [-1]), batch.value, rtol=1e-5, atol=1e-6)

    @parameterized.parameters("dataclass", "columns")
    def test_advantages_are_normalised_over_the_valid_rows_of_a_minibatch(self, kind):
        # Of 1, 2, 6: mean 3, standard deviation sqrt(14 / 3) = 2.160247.
        _, agent = made()
        rows = {
            "obs": tf.zeros([4, 4]),
            "action": tf.zeros([4], tf.int64),
            "log_prob": tf.zeros([4]),
            "advantage": tf.constant([1.0, 2.0, np.nan, 6.0]),
            "value_target": tf.zeros([4]),
            "value": tf.zeros([4]),
            "mask": tf.constant([True, True, False, True]),
        }
        batch = PolicyBatch(**rows) if kind == "dataclass" else struct.TensorDict(rows)
        prepared = agent.prepare_minibatch(None, batch, lambda x: x)
        self.assertIsInstance(prepared, type(batch))
        expected = [-0.9258201, -0.46291, 0.0, 1.3887301]
        np.testing.assert_allclose(prepared.advantage, expected, rtol=1e-5)
        np.testing.assert_array_equal(prepared.mask, batch.mask)
        # Another replica with the same rows: twice the sums give the same statistics.
        twice = agent.prepare_minibatch(None, batch, lambda x: tf.nest.map_structure(tf.add, x, x))
        np.testing.assert_allclose(twice.advantage, expected, rtol=1e-5)
        _, plain = made(normalize_advantage=False)
        self.assertIs(plain.prepare_minibatch(None, batch, lambda x: x), batch)

    def test_a_minibatch_without_a_mask_is_normalised_over_all_rows(self):
        _, agent = made()
        batch = struct.TensorDict(advantage=tf.constant([3.0, 1.0]))
        prepared = agent.prepare_minibatch(None, batch, lambda x: x)
        np.testing.assert_allclose(prepared.advantage, [1.0, -1.0])

    def test_equal_agents_are_equal(self):
        self.assertEqual(made()[1], made()[1])
        self.assertNotEqual(made()[1], made(clip=0.3)[1])


class RandomAgentTest(parameterized.TestCase):
    @parameterized.parameters("tf:CartPole-v1", "tf:Pendulum-v1")
    def test_it_acts_within_the_spec(self, env_id):
        env = tfrl.make_env(env_id, num_envs=64)
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        state = agent.init(KEY)
        trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 8)
        self.assertIsInstance(trajectory, Trajectory)
        action = trajectory.action.numpy()
        self.assertEqual(trajectory.action.dtype, env.action_spec.dtype)
        self.assertTrue(np.all(action >= env.action_spec.minimum))
        self.assertTrue(np.all(action <= env.action_spec.maximum))
        self.assertGreater(len(np.unique(action)), 1)
        self.assertEqual(agent.updates, ())
