import itertools

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.rollout import rollout_fakes as fakes
from tfrl import seeding
from tfrl.errors import UserError
from tfrl.rollout import (
    episode_totals,
    eval_rollout_episode,
    fast_eval_rollout_episode,
    rollout,
)

KEY = seeding.key(3)
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")


def weights():
    return {"weight": tf.constant(1.0)}


class EpisodeTest(parameterized.TestCase):
    @parameterized.parameters(*MODES)
    def test_hand_worked_numbers(self, mode):
        # Rewards are 1 + age / 4 (evaluating, the action is 0): row 0 ends after 3 steps with
        # 1.25 + 1.5 + 1.75 = 4.5; row 1 after 1 step with 2.25; row 2 is cut after 5 steps with
        # 1.25 + 1.5 + 1.75 + 2 + 2.25 = 8.75. Later episodes give NaN where a mode plays them.
        env = fakes.Scripted(
            lengths=((3, 2), (1, 1), (9, 9)),
            kinds=(("U", "T"), ("T", "T"), ("T", "T")),
            step_reward=(1.0, 2.0, 1.0),
            mode=mode,
            limit=5,
            garbage=True,
        )
        agent = fakes.CountingAgent()

        arguments = (env, agent, env.reset(KEY), weights(), KEY)
        trajectory, _ = eval_rollout_episode(*arguments)
        fast, _ = fast_eval_rollout_episode(*arguments, discount=0.5)
        slow = episode_totals(trajectory, discount=0.5)
        valid = [[1, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [0, 0, 1]]
        np.testing.assert_array_equal(trajectory.valid, np.array(valid, bool))
        for totals in (fast, slow):
            np.testing.assert_array_equal(totals.episode_returns, [4.5, 2.25, 8.75])
            np.testing.assert_array_equal(totals.episode_lengths, [3, 1, 5])
            self.assertEqual(totals.episode_lengths.dtype, tf.int32)
            # 1.25 + 1.5 / 2 + 1.75 / 4 = 2.4375; and + 2 / 8 + 2.25 / 16 = 2.828125.
            np.testing.assert_array_equal(totals.discounted_returns, [2.4375, 2.25, 2.828125])

    @parameterized.parameters(*MODES)
    def test_the_three_agree_where_they_overlap(self, mode):
        env = fakes.Scripted(lengths=((3, 2, 9), (6, 1, 9), (1, 1, 9)), mode=mode)
        arguments = (env, fakes.NoisyAgent(), env.reset(KEY), {}, KEY, 8)
        plain, _, _ = rollout(*arguments, ("total",))
        episode, _ = eval_rollout_episode(*arguments, ("total",))
        fast, _ = fast_eval_rollout_episode(*arguments)
        # The longest episode has 6 steps; then no step is taken any more.
        tf.nest.map_structure(
            lambda x, y: np.testing.assert_array_equal(x[:6], y[:6]),
            episode.replace(valid=plain.valid),
            plain,
        )
        tf.nest.map_structure(lambda x: np.testing.assert_array_equal(x[6:], 0), episode)
        steps = np.arange(8)[:, None]
        np.testing.assert_array_equal(episode.valid, steps < [3, 6, 1])
        np.testing.assert_array_equal(fast.episode_lengths, [3, 6, 1])
        returns = np.where(episode.valid, plain.reward, 0).sum(0)
        np.testing.assert_allclose(fast.episode_returns, returns, rtol=1e-6)
        self.assertIsNone(fast.discounted_returns)

    @parameterized.parameters(*itertools.product(MODES, (1, 4)))
    def test_one_step_one_environment(self, mode, length):
        env = fakes.Scripted(lengths=((1, 3),), step_reward=(2.0,), mode=mode)
        fast, _ = fast_eval_rollout_episode(
            env, fakes.PlainAgent(), env.reset(KEY), {}, KEY, length
        )
        episode, _ = eval_rollout_episode(env, fakes.PlainAgent(), env.reset(KEY), {}, KEY, length)
        np.testing.assert_array_equal(fast.episode_returns, [2.25])
        np.testing.assert_array_equal(episode.valid[:, 0], [True, False, False, False][:length])

    def test_starting_at_an_end(self):
        # After one step row 0 has ended: NEXT_STEP plays its second episode (2 steps) after an
        # invalid row, DISABLED plays nothing.
        for mode, lengths, valid in (
            ("NEXT_STEP", [2, 3], [[0, 1], [1, 1], [1, 1], [0, 0]]),
            ("DISABLED", [0, 3], [[0, 1], [0, 1], [0, 1], [0, 0]]),
        ):
            env = fakes.Scripted(lengths=((1, 2), (4, 4)), mode=mode)
            state = env.step(env.reset(KEY), tf.zeros([2], tf.int32))
            arguments = (env, fakes.PlainAgent(), state, {}, KEY, 4)
            trajectory, _ = eval_rollout_episode(*arguments)
            np.testing.assert_array_equal(trajectory.valid, np.array(valid, bool), mode)
            totals, _ = fast_eval_rollout_episode(*arguments, discount=0.5)
            np.testing.assert_array_equal(totals.episode_lengths, lengths, mode)
            expected = episode_totals(trajectory, 0.5)
            np.testing.assert_array_equal(totals.discounted_returns, expected.discounted_returns)

    def test_stops_when_all_are_done(self):
        env = fakes.Scripted(lengths=((3, 9), (4, 9)), limit=100)
        calls = []

        def counting(state, obs, key, carry=None):
            calls.append(None)
            return fakes.PlainAgent().compute_actions(state, obs, key, carry)

        fast_eval_rollout_episode(
            env, fakes.PlainAgent(), env.reset(KEY), {}, KEY, action_fn=counting
        )
        self.assertLen(calls, 4)

    def test_evaluates_with_evaluate_actions(self):
        env = fakes.Scripted(lengths=((3,),))
        state = env.reset(KEY)
        explored, _, _ = rollout(env, fakes.CountingAgent(), state, weights(), KEY, 3)
        greedy, _ = eval_rollout_episode(env, fakes.CountingAgent(), state, weights(), KEY, 3)
        np.testing.assert_array_equal(explored.action[:, 0], [2, 0, 1])
        np.testing.assert_array_equal(greedy.action[:, 0], [0, 0, 0])

    def test_dict_of_rewards(self):
        class TwoRewards(fakes.Scripted):
            def reset(self, key):
                state = super().reset(key)
                return state.replace(reward={"a": state.reward, "b": state.reward})

            def step(self, state, action):
                new = super().step(state, action)
                return new.replace(reward={"a": new.reward, "b": -new.reward})

        env = TwoRewards(lengths=((2, 9), (1, 9)))
        arguments = (env, fakes.PlainAgent(), env.reset(KEY), {}, KEY, 4)
        for totals in (
            fast_eval_rollout_episode(*arguments)[0],
            episode_totals(eval_rollout_episode(*arguments)[0]),
        ):
            np.testing.assert_array_equal(totals.episode_returns["a"], [0.75, 0.25])
            np.testing.assert_array_equal(totals.episode_returns["b"], [-0.75, -0.25])

    @parameterized.parameters(eval_rollout_episode, fast_eval_rollout_episode)
    def test_errors(self, function):
        env = fakes.Scripted(lengths=((3,),))
        with self.assertRaises(UserError) as caught:
            function(env, fakes.PlainAgent(), env.reset(KEY), {}, KEY)
        self.assertEqual(
            str(caught.exception),
            "length: expected a limit on the steps of an episode, got None, and the environment "
            "has "
            "no max_episode_steps. Pass length, or create the environment with max_episode_steps.",
        )
        with self.assertRaisesRegex(UserError, "env_extra_fields: .* got nothing"):
            function(env, fakes.PlainAgent(), env.reset(KEY), {}, KEY, 3, ("nothing",))
