"""Evaluation of several agents: the team's return, each agent's, and who is paid for what."""

import tempfile

import numpy as np
import pytest
from absl.testing import parameterized

import tfrl
from tests.envs.multi_agent_fakes import Two
from tests.envs.test_relay import Follows
from tests.rollout import rollout_fakes as fakes
from tfrl import seeding
from tfrl.agents import MultiAgent, RandomAgent
from tfrl.envs.wrappers import Episode
from tfrl.errors import UserError
from tfrl.evaluation import EpisodeCollector, EvaluationResult, Evaluator, record_video

KEY = seeding.key(11)
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")
COMPILE = ("eager", "graph", "xla")


def two(mode, **kwargs):
    """a is paid 1 for two steps, b for four; afterwards an inactive agent is paid NaN."""
    return Episode(env=Two(paid_after=np.nan, **kwargs), mode=mode, limit=10)


def random_agents(env):
    modules = dict.fromkeys(env.obs_spec, RandomAgent)
    return MultiAgent(obs_spec=env.obs_spec, action_spec=env.action_spec, policies=modules)


class SeveralAgentsTest(parameterized.TestCase):
    @parameterized.product(mode=MODES, discount=[1.0, 0.5])
    @pytest.mark.variants(1)
    def test_steps_after_an_agents_end_pay_nothing(self, mode, discount):
        # Halved: a 1 + 1/2, b 1 + 1/2 + 1/4 + 1/8.
        a, b = (2.0, 4.0) if discount == 1.0 else (1.5, 1.875)
        env = two(mode)
        for evaluator in (
            Evaluator(env=env, agent=random_agents(env), num_episodes=5, discount=discount),
            EpisodeCollector(env=env, agent=random_agents(env), num_episodes=5, discount=discount),
        ):
            state = evaluator.agent.init(KEY)
            result = evaluator.evaluate(state, KEY)
            if isinstance(evaluator, EpisodeCollector):
                result = evaluator.collect(state, KEY).result
            np.testing.assert_allclose(result.agent_returns["a"], [a] * 5)
            np.testing.assert_allclose(result.agent_returns["b"], [b] * 5)
            np.testing.assert_allclose(result.episode_returns, [a + b] * 5)
            np.testing.assert_array_equal(result.episode_lengths, [4] * 5)

    @parameterized.parameters(*COMPILE)
    @pytest.mark.variants(1)
    def test_the_team_is_worth_the_sum(self, how):
        env = tfrl.make_env("tf:Relay-v0", num_envs=4)
        result = Evaluator(env=env, agent=Follows(), num_episodes=6, compile=how).evaluate({}, KEY)
        self.assertAlmostEqual(result.mean, 1.8, places=5)
        metrics = result.metrics()
        self.assertAlmostEqual(metrics["eval_return_mean"], 1.8, places=5)
        for agent, best in env.unwrapped.optimal_return().items():
            self.assertAlmostEqual(metrics[f"eval_return_mean/{agent}"], best, places=5)
        self.assertEqual(metrics["eval_episodes"], 6)

    def test_metrics_of_a_single_agent_are_as_before(self):
        result = EvaluationResult.of(np.array([1.0, 3.0]), np.array([4, 5]))
        self.assertEqual(result.agent_returns, {})
        self.assertEqual(
            list(result.metrics()),
            [
                "eval_return_mean",
                "eval_return_std",
                "eval_return_low",
                "eval_return_high",
                "eval_length_mean",
                "eval_episodes",
            ],
        )

    def test_statistics_by_hand(self):
        returns = {"x": np.array([1.0, 2.0]), "y": np.array([0.0, 3.0])}
        result = EvaluationResult.of(returns, np.array([1, 1]))
        np.testing.assert_array_equal(result.episode_returns, [1.0, 5.0])
        self.assertEqual((result.mean, result.std), (3.0, 2.0))
        metrics = result.metrics()
        self.assertEqual(metrics["eval_return_mean/x"], 1.5)
        self.assertEqual(metrics["eval_return_mean/y"], 1.5)

    def test_several_rewards_of_one_agent_are_still_an_error(self):
        env = fakes.Scripted(lengths=((3,),), limit=5)

        class Dict(type(env)):
            def reset(self, key):
                state = super().reset(key)
                return state.replace(reward={"speed": state.reward, "cost": state.reward})

        evaluator = Evaluator(
            env=Dict(lengths=((3,),), limit=5), agent=fakes.PlainAgent(), num_episodes=1
        )
        with pytest.raises(UserError, match="expected one reward per step, got a dict of rewards"):
            evaluator.evaluate({}, KEY)

    def test_a_video_shows_the_teams_return(self):
        pytest.importorskip("PIL")
        env = tfrl.make_env("tf:Relay-v0", num_envs=2)
        with tempfile.TemporaryDirectory() as folder:
            video = record_video(env, Follows(), {}, KEY, f"{folder}/relay.gif")
        self.assertEqual(video.episode_lengths, (5,))
        np.testing.assert_allclose(video.episode_returns, [1.8], atol=1e-5)
