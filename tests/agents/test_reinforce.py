"""REINFORCE: whole returns only, by hand; truncations go on with the value."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tfrl import seeding, specs
from tfrl.agents import Reinforce
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.types import Trajectory

KEY = seeding.key(7)
OBS = tf.TensorSpec([1])


def agent(**options):
    return Reinforce(
        obs_spec=OBS, action_spec=specs.DiscreteSpec(2), hidden=(4,), discount=0.5, **options
    )


def trajectory(reward, termination=(), truncation=(), valid=None, memory=None):
    """One environment; ends are given by the numbers of their rows."""
    steps = len(reward)
    flags = lambda rows: tf.constant([[t in rows] for t in range(steps)])  # noqa: E731
    obs = tf.reshape(tf.range(steps + 1, dtype=tf.float32), [-1, 1, 1])
    extras = {"log_prob": tf.fill([steps, 1], -0.6931472)}
    if memory is not None:
        extras["state_in"] = tf.nest.map_structure(
            lambda x: tf.zeros([steps, *x.shape]), memory.initial_carry(1)
        )
    return Trajectory(
        obs=obs[:-1],
        action=tf.zeros([steps, 1], tf.int64),
        reward=tf.constant(reward)[:, tf.newaxis],
        next_obs=obs[1:],
        termination=flags(termination),
        truncation=flags(truncation),
        valid=None if valid is None else tf.constant(valid)[:, tf.newaxis],
        policy_extras=extras,
    )


class ReinforceTest(parameterized.TestCase):
    def test_returns_by_hand(self):
        # gamma 1/2. First episode: rewards 1 2 4, G = 1 + (2 + 4/2)/2 = 3, 4, 4. Second: 8 16,
        # G = 16, 16. The last two rows belong to an episode that does not end.
        a = agent()
        state = a.init(KEY)
        steps = trajectory([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], termination=(2, 4))
        batch, metrics = a.learner_batch(state, steps)
        np.testing.assert_array_equal(batch.mask, [True] * 5 + [False] * 2)
        np.testing.assert_allclose(batch.value_target[:5], [3.0, 4.0, 4.0, 16.0, 16.0], rtol=1e-5)
        np.testing.assert_allclose(
            batch.advantage[:5], batch.value_target[:5] - batch.value[:5], rtol=1e-5, atol=1e-5
        )
        self.assertAlmostEqual(float(metrics["rows_used"]), 5 / 7, places=6)
        self.assertAlmostEqual(
            float(metrics["value_mean"]), float(np.mean(batch.value[:5])), places=5
        )

    def test_a_truncation_goes_on_with_the_value_of_the_last_observation(self):
        a = agent()
        state = a.init(KEY)
        steps = trajectory([1.0, 2.0, 4.0], truncation=(1,))
        batch, _ = a.learner_batch(state, steps)
        last = float(a.network.values(state.params, steps.next_obs[1])[0][0])
        self.assertGreater(abs(last), 1e-3)
        np.testing.assert_array_equal(batch.mask, [True, True, False])
        expected = [1.0 + 0.5 * (2.0 + 0.5 * last), 2.0 + 0.5 * last]
        np.testing.assert_allclose(batch.value_target[:2], expected, rtol=1e-5)

    @parameterized.parameters(None, "gru")
    def test_unfinished_and_invalid_rows_count_nothing(self, memory):
        a = agent(memory=memory)
        state = a.init(KEY)
        valid = [True, True, False, True, True, False, True, True]
        steps = trajectory(
            [1.0, 2.0, 0.0, 4.0, 8.0, 0.0, 5.0, 6.0],
            termination=(1,),
            truncation=(4,),
            valid=valid,
            memory=a if memory else None,
        )
        batch, metrics = a.learner_batch(state, steps)
        used = [True, True, False, True, True, False, False, False]
        np.testing.assert_array_equal(np.reshape(batch.mask, -1), used)
        self.assertAlmostEqual(float(metrics["rows_used"]), 4 / 6, places=6)

        def loss_and_gradient(steps):
            batch, _ = a.learner_batch(state, steps)
            with tf.GradientTape() as tape:
                tape.watch(state.params)
                loss, _ = a.loss(state.params, state, batch, KEY)
            return [loss, *tf.nest.flatten(tape.gradient(loss, state.params))]

        garbage = tf.where(tf.constant(used)[:, tf.newaxis], steps.reward, np.nan)
        for x, y in zip(
            loss_and_gradient(steps),
            loss_and_gradient(steps.replace(reward=garbage)),
            strict=True,
        ):
            np.testing.assert_array_equal(x, y)

    def test_where_nothing_ends_nothing_is_learnt(self):
        a = agent(entropy_coef=0.1)
        state = a.init(KEY)
        batch, metrics = a.learner_batch(state, trajectory([1.0, 2.0]))
        with tf.GradientTape() as tape:
            tape.watch(state.params)
            loss, _ = a.loss(state.params, state, batch, KEY)
        self.assertEqual((float(loss), float(metrics["rows_used"])), (0.0, 0.0))
        for g in tf.nest.flatten(tape.gradient(loss, state.params)):
            np.testing.assert_array_equal(g, tf.zeros_like(g))

    def test_the_statistics_see_all_valid_rows(self):
        a = agent(normalize_obs=True)
        state = a.update_normalizer(a.init(KEY), trajectory([1.0, 2.0, 3.0], termination=(0,)))
        self.assertEqual(float(state.normalizer.count), 3.0)

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_returns_of_a_rollout_are_those_of_its_episodes(self, autoreset):
        # Rewards 1 4 2 in a circle, episodes of 4 steps: rewards 1 4 2 1, the last is cut.
        env = tfrl.make_env(
            "testing:Scripted",
            num_envs=2,
            rewards=(1.0, 4.0, 2.0),
            autoreset=autoreset,
            max_episode_steps=4,
        )
        a = Reinforce(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(4,), discount=0.5)
        state = a.init(KEY)
        steps, _, _ = rollout(env, a, env.reset(KEY), state, KEY, 11)
        batch, metrics = a.learner_batch(state, steps)
        target = np.reshape(batch.value_target, [11, 2])
        period = 4 if autoreset == "SAME_STEP" else 5
        for first in (0, period):
            last = a.network.values(state.params, steps.next_obs[first + 3])[0]
            expected = last
            for t, reward in ((3, 1.0), (2, 2.0), (1, 4.0), (0, 1.0)):
                expected = reward + 0.5 * expected
                np.testing.assert_allclose(target[first + t], expected, rtol=1e-4)
        used, valid = 16, 22 if autoreset == "SAME_STEP" else 18
        self.assertAlmostEqual(float(metrics["rows_used"]), used / valid, places=6)

    @parameterized.parameters({"gae_lambda": 0.95}, {"gae_horizon": 4})
    def test_messages(self, **changes):
        with pytest.raises(UserError) as error:
            agent(**changes)
        lambda_, horizon = changes.get("gae_lambda", 1.0), changes.get("gae_horizon")
        self.assertEqual(
            str(error.value),
            "Reinforce: expected gae_lambda=1 and gae_horizon=None, since REINFORCE uses full "
            "returns, "
            f"got gae_lambda={lambda_} and gae_horizon={horizon}. Use A2C to bootstrap from the "
            "value function.",
        )
