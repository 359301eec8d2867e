"""TD3 and DDPG: targets by hand, smoothing, the first critic, delays, noise, a known optimum."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import off_policy_cases as cases
from tfrl import networks, seeding, specs, struct
from tfrl.agents import DDPG, TD3
from tfrl.agents.td3 import losses
from tfrl.errors import UserError
from tfrl.types import Transition

KEY = cases.KEY
pytestmark = pytest.mark.usefixtures("_eager_updates")


def made(cls=TD3, **options):
    options = {"obs_spec": cases.OBS, "action_spec": cases.BOX, "hidden": (8, 8), **options}
    return cls(**options)


def moved(before, after, prefix):
    """Whether all of the values under a path have changed, or none."""
    changed = {not np.array_equal(before[p], after[p]) for p in before if p.startswith(prefix)}
    assert len(changed) == 1, prefix
    return changed.pop()


class SmoothingTest(parameterized.TestCase):
    def test_by_hand(self):
        # sigma 1 and clip 0.3: where |z| >= 0.3 the noise is +-0.3, and 0.9 + 0.3 is 1.
        z = seeding.normal(KEY, [500, 2]).numpy()
        action = np.where(z > 2.0, 0.9, 0.1).astype(np.float32)
        found = losses.smoothed(tf.constant(action), KEY, 1.0, 0.3).numpy()
        np.testing.assert_allclose(found, np.clip(action + np.clip(z, -0.3, 0.3), -1, 1), rtol=1e-6)
        self.assertEqual(found.max(), 1.0)
        self.assertGreater(np.mean(np.isclose(found, 0.4)), 0.2)

    def test_without_noise(self):
        action = tf.constant([[1.0]])
        self.assertIs(losses.smoothed(action, KEY, 0.0, 0.5), action)
        np.testing.assert_array_equal(losses.smoothed(action, KEY, 0.5, 0.0), action)

    def test_the_actor_has_the_gradient_of_rlaxs(self):
        """By the action it is that of `rlax.dpg_loss`; as a number that loss is another one.

        rlax.dpg_loss: |constant(a_t + dqda_t) - a_t|^2 / 2, whose gradient is -dqda_t
        """
        # Q = a_0 a_1 - a_0^2, so that dQ/da = (a_1 - 2 a_0, a_0): (0, 1) and (-2, 1/2).
        action = tf.constant([[1.0, 2.0], [0.5, -1.0]])
        with tf.GradientTape() as tape:
            tape.watch(action)
            q = action[:, 0] * action[:, 1] - tf.square(action[:, 0])
            loss = losses.actor_loss(q)
        self.assertEqual(float(loss), -(1.0 - 0.75) / 2)
        gradient = tape.gradient(loss, action)
        np.testing.assert_array_equal(gradient, [[0.0, -0.5], [1.0, -0.25]])

    def test_actor_by_hand(self):
        self.assertEqual(float(losses.actor_loss(tf.constant([1.0, 2.0]))), -1.5)
        mask = tf.constant([False, True])
        self.assertEqual(float(losses.actor_loss(tf.constant([np.nan, 2.0]), mask)), -2.0)


class LossTest(parameterized.TestCase):
    @parameterized.parameters((TD3, {}), (TD3, {"num_critics": 3, "target_noise": 1.0}), (DDPG, {}))
    def test_the_critic_loss_against_numpy(self, cls, options):
        """Each row and critic is `rlax.qv_learning` with the clipped double value as its v_t.

        rlax.qv_learning: r_t + discount_t v_t - q_tm1[a_tm1]. rlax has neither the least of several
        critics nor the smoothed action: those are Fujimoto et al.'s.
        """
        agent = made(cls, **options)
        state, other = agent.init(KEY), agent.init(seeding.key(1)).params
        # A head that is not small, so that tanh and the clip at the bounds matter.
        other["actor"]["head"]["kernel"] *= 200.0
        state = state.replace(target_params={g: other[g] for g in ("actor", "critic")})
        raw = cases.transitions(agent, weight=tf.abs(seeding.normal(KEY, [16])))
        batch, key = cases.prepared(agent, state, raw), cases.loss_key(agent, "critic")

        def mlp(params, x, i=None):
            for name in ("layer_0", "layer_1"):
                kernel, bias = (params[name][n].numpy() for n in ("kernel", "bias"))
                kernel, bias = (kernel, bias) if i is None else (kernel[i], bias[i])
                x = np.maximum(x @ kernel + bias, 0.0)
            return x

        def critic(params, i, action):
            head = params["critic"]["head"]
            x = np.concatenate([(raw.obs, raw.next_obs)[params is other], action], -1)
            h = mlp(params["critic"]["torso"]["body"], x, i)
            return (h @ head["kernel"].numpy()[i] + head["bias"].numpy()[i])[:, 0]

        head = other["actor"]["head"]
        h = mlp(other["actor"]["torso"], raw.next_obs.numpy())
        action = np.tanh(h @ head["kernel"].numpy() + head["bias"].numpy())
        if agent.target_noise:
            noise = agent.target_noise * seeding.normal(seeding.stream(key, "noise"), [16, 2])
            action = np.clip(action + np.clip(noise, -0.5, 0.5), -1.0, 1.0)
            self.assertEqual(np.abs(action).max(), 1.0)
        next_value = np.min([critic(other, i, action) for i in range(agent.num_critics)], 0)
        target = raw.reward.numpy() + raw.discount.numpy() * next_value
        taken = batch.action.numpy()
        np.testing.assert_allclose(taken, raw.action.numpy() / [2, 5] - [0, 1], atol=1e-6)
        error = target - [critic(state.params, i, taken) for i in range(agent.num_critics)]
        found = cases.gradients(agent, "critic", state, raw)
        expected = np.sum(np.mean(raw.weight * 0.5 * error**2, -1))
        np.testing.assert_allclose(found.loss, expected, rtol=1e-4)
        errors = agent.td_errors(state, raw, key)
        np.testing.assert_allclose(errors, np.abs(error).mean(0), rtol=1e-3, atol=1e-4)

    def test_a_subclass_chooses_the_values(self):
        @struct.logic_dataclass
        class Hooked(TD3):
            def policy_q(self, q):
                return 2.0 * q[0]

            def target_q(self, q):
                return tf.reduce_max(q, axis=0)

        options = {"obs_spec": cases.OBS, "action_spec": made().action_spec, "hidden": (8,)}
        plain, agent = TD3(**options), Hooked(**options)
        state, raw = plain.init(KEY), cases.transitions(plain)
        q = tf.constant([[1.0, 2.0], [3.0, -1.0]])
        np.testing.assert_array_equal(plain.target_q(q), [1.0, -1.0])
        np.testing.assert_array_equal(agent.target_q(q), [3.0, 2.0])
        one, twice = (float(cases.gradients(a, "actor", state, raw).loss) for a in (plain, agent))
        self.assertAlmostEqual(twice, 2.0 * one, places=5)

    def test_the_actor_ascends_the_first_critic(self):
        agent = made()
        state, raw = agent.init(KEY), cases.transitions(made())
        action = agent.actor.apply(state.params["actor"], raw.obs)
        q = agent.critic.apply(state.params["critic"], raw.obs, action)
        found = cases.gradients(agent, "actor", state, raw)
        self.assertAlmostEqual(float(found.loss), -float(tf.reduce_mean(q[0])), places=6)
        size = float(tf.reduce_mean(tf.abs(action)))
        self.assertAlmostEqual(float(found.metrics["action_size"]), size, places=6)
        # Whatever the second one says.
        spoilt = tf.nest.map_structure(
            lambda p: tf.concat([p[:1], np.nan * p[1:]], 0), state.params["critic"]
        )
        other = state.replace(params={**state.params, "critic": spoilt})
        again = cases.gradients(agent, "actor", other, raw)
        self.assertEqual(float(again.loss), float(found.loss))

    @parameterized.product(num_critics=[2, 3], apply_rule=["unstacked", "batched"])
    def test_n_critics_learn_as_if_each_were_alone(self, num_critics, apply_rule):
        agent = made(num_critics=num_critics, apply_rule=apply_rule)
        cases.assert_critics_learn_as_if_alone(agent)

    @parameterized.parameters(TD3, DDPG)
    def test_gradients_reach_their_groups_and_no_other(self, cls):
        agent = made(cls)
        state, raw = agent.init(KEY), cases.transitions(made())
        batch = cases.prepared(agent, state, raw)
        for update, group in zip(agent.updates, ("critic", "actor"), strict=True):
            self.assertEqual((update.name, update.groups), (group, (group,)))
            by = cases.reached(lambda p, u=update: u.loss(p, state, batch, KEY)[0], state.params)
            self.assertEqual(by, {group})
            own = cases.gradients(agent, group, state, raw).gradients
            self.assertTrue(all(np.any(g) for g in struct.paths(own).values()))
            targets = cases.reached(
                lambda p, u=update: u.loss(
                    state.params, state.replace(target_params=p), batch, KEY
                )[0],
                state.target_params,
            )
            self.assertEqual(targets, set())


class LearnerTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3)
    def test_actor_and_targets_move_in_every_delayed_step(self, delay):
        agent = made(policy_delay=delay, tau=0.25, hidden=(4,))
        learner = cases.learner(agent)
        before = cases.snapshot(learner)
        for step in range(5):
            raw = cases.transitions(agent, seed=step)
            learner.update_from_batch(raw, key=KEY, shuffle=False)
            after = cases.snapshot(learner)
            due = step % delay == 0
            self.assertTrue(moved(before, after, "params/critic"))
            self.assertEqual(moved(before, after, "params/actor"), due)
            for path in [p for p in before if p.startswith("target_params/")]:
                learns = after[path.replace("target_params", "params")]
                expected = 0.75 * before[path] + 0.25 * learns if due else before[path]
                np.testing.assert_allclose(after[path], expected, rtol=1e-4, atol=1e-6)
            before = after

    def test_ddpg_is_the_plain_case(self):
        plain = made(DDPG)
        same = made(num_critics=1, policy_delay=1, target_noise=0.0)
        self.assertEqual([u.every for u in plain.updates], [1, 1])
        results = []
        for agent in (plain, same):
            learner = cases.learner(agent)
            for step in range(3):
                raw = cases.transitions(agent, seed=step)
                learner.update_from_batch(raw, key=KEY, shuffle=False)
            results.append(cases.snapshot(learner))
        for path, value in results[0].items():
            np.testing.assert_array_equal(results[1][path], value)

    def test_it_goes_on_after_a_restore(self):
        cases.assert_goes_on_after_a_restore(self, made())

    @parameterized.parameters(TD3, DDPG)
    @pytest.mark.variants(1)
    def test_it_finds_the_best_action(self, cls):
        # One step, reward -(a - best)^2 in units of half the range, best = 1 + x in [0, 2] of
        # an action in [-2, 6].
        spec = specs.BoundedTensorSpec([1], tf.float32, -2, 6)
        agent = cls(obs_spec=tf.TensorSpec([1]), action_spec=spec, hidden=(32, 32))
        obs = seeding.uniform(KEY, [256, 1], -1.0, 1.0)
        action = specs.sample(spec, KEY, [256])
        batch = Transition(
            obs=obs,
            action=action,
            reward=-tf.square((action - 1.0 - obs) / 4.0)[:, 0],
            next_obs=obs,
            discount=tf.zeros([256]),
        )
        state = cases.train(cases.learner(agent, lr=3e-3), batch, 600)
        x = tf.constant([[-0.8], [0.0], [0.8]])
        found = agent.evaluate_actions(state, x, KEY).action
        np.testing.assert_allclose(found, 1.0 + x, atol=0.35)


class ActingTest(parameterized.TestCase):
    @parameterized.parameters(tf.float32, tf.float64)
    def test_noise_is_relative_to_the_range(self, dtype):
        agent = made(
            action_spec=specs.BoundedTensorSpec([2], dtype, [-2, 0], [2, 10]), exploration_noise=0.1
        )
        state = agent.init(KEY)
        obs = tf.zeros([4000, 3])
        greedy = agent.evaluate_actions(state, obs, KEY).action
        np.testing.assert_allclose(greedy[0], [0.0, 5.0], atol=1e-6)
        action = agent.compute_actions(state, obs, KEY).action
        self.assertEqual(action.dtype, dtype)
        np.testing.assert_allclose(np.std(action, 0), [0.2, 0.5], rtol=0.05)

    def test_actions_stay_within_their_bounds(self):
        agent = made(exploration_noise=5.0)
        state, obs = agent.init(KEY), seeding.normal(KEY, [500, 3])
        action = agent.compute_actions(state, obs, KEY).action
        np.testing.assert_array_equal(np.min(action, 0), [-2, 0])
        np.testing.assert_array_equal(np.max(action, 0), [2, 10])
        drawn = agent.random_actions(state, obs, KEY).action
        np.testing.assert_allclose(np.mean(drawn, 0), [0.0, 5.0], atol=0.5)

    def test_without_noise_it_is_greedy(self):
        agent = made(exploration_noise=0.0)
        state, obs = agent.init(KEY), seeding.normal(KEY, [5, 3])
        np.testing.assert_array_equal(
            agent.compute_actions(state, obs, KEY).action,
            agent.evaluate_actions(state, obs, KEY).action,
        )

    def test_custom_torsos(self):
        critic = networks.StateActionTorso(
            encoder=networks.make_torso(cases.OBS, hidden=(5,)), body=networks.MLP(hidden=(6,))
        )
        actor = networks.make_torso(cases.OBS, hidden=(7,))
        agent = made(hidden=None, actor_torso=actor, critic_torso=critic)
        params = agent.init(KEY).params
        self.assertEqual(params["actor"]["head"]["kernel"].shape, [7, 2])
        self.assertEqual(params["critic"]["torso"]["body"]["layer_0"]["kernel"].shape, [2, 7, 6])


class MessagesTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            {"action_spec": specs.BoundedTensorSpec([1], tf.float32, 0.0, np.inf)},
            "Set bounds in the environment's action space and leave out ActionClip, which removes "
            "them; or use PPO, which needs no bounds.",
        ),
        (
            {"action_spec": specs.BoundedTensorSpec([1], tf.float32, 1.0, 1.0)},
            "TD3: action spec .: expected finite bounds with low < high",
        ),
        (
            {"action_spec": {"a": cases.BOX, "b": specs.DiscreteSpec(3)}},
            "TD3: action spec b: expected a Box of floats, got DiscreteSpec(3, start=0, "
            "dtype=int64). Choose DQN for one Discrete action, or PPO, which takes actions of any "
            "kind and nests of them.",
        ),
        ({"policy_delay": 0}, "TD3.policy_delay: expected a whole number of at least 1, got 0."),
        ({"target_noise": -0.1}, "TD3.target_noise: expected a number of at least 0, got -0.1."),
        ({"exploration_noise": "x"}, "TD3.exploration_noise: expected a number of at least 0"),
        (
            {"obs_spec": {"observation": cases.OBS, "action_mask": tf.TensorSpec([2], tf.bool)}},
            "action mask .: expected None for a continuous action, got a mask.",
        ),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            made(**changes)
        self.assertIn(message, str(error.value))

    def test_the_message_names_the_class(self):
        with pytest.raises(UserError, match="DDPG: action spec .: expected a Box of floats"):
            made(DDPG, action_spec=specs.DiscreteSpec(2))
