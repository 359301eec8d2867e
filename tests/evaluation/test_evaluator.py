import itertools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.rollout import rollout_fakes as fakes
from tfrl import seeding, struct
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.registry import finish
from tfrl.errors import UserError
from tfrl.evaluation import EpisodeCollector, Evaluator
from tfrl.types import ActionOutput, EnvState

KEY = seeding.key(11)
MODES = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")
COMPILE = ("eager", "graph", "xla")


def short_or_long(num_envs, mode="SAME_STEP"):
    """Even slots: episodes of 1 step with return 0. Odd slots: 10 steps, return 10."""
    return fakes.Scripted(
        lengths=tuple(((1, 1), (10, 10))[i % 2] for i in range(num_envs)),
        step_reward=tuple(float(i % 2) for i in range(num_envs)),
        slope=0.0,
        mode=mode,
        limit=20,
    )


@struct.logic_dataclass
class Coins(Env):
    """Each episode tosses a coin: tails is 1 step of reward 0, heads 4 steps of reward 1."""

    num: int

    @property
    def obs_spec(self):
        return tf.TensorSpec([], tf.float32)

    @property
    def action_spec(self):
        return tf.TensorSpec([], tf.int32)

    @property
    def num_envs(self):
        return self.num

    def reset(self, key):
        heads = tf.equal(seeding.randint(key, [self.num], 0, 2), 1)
        no, age = tf.zeros_like(heads), tf.zeros([self.num], tf.int32)
        return self.state(heads, age, tf.zeros([self.num]), no)

    def step(self, state, action):
        heads, age = state.env_state["heads"], state.env_state["age"] + 1
        reward = tf.cast(heads, tf.float32)
        return self.state(heads, age, reward, age >= tf.where(heads, 4, 1))

    def state(self, heads, age, reward, ended):
        return EnvState(
            env_state={"heads": heads, "age": age},
            obs=tf.cast(heads, tf.float32),
            reward=reward,
            termination=ended,
            truncation=tf.zeros_like(ended),
            info={},
        )


class ZeroAgent:
    def evaluate_actions(self, state, obs, key, carry=None):
        return ActionOutput(action=tf.zeros([tf.nest.flatten(obs)[0].shape[0]], tf.int32))


def coins(num, mode=Autoreset.SAME_STEP):
    return finish(Coins(num=num), autoreset=mode, max_episode_steps=None, task_limit=9)


class EvaluatorTest(parameterized.TestCase):
    @parameterized.parameters(
        # num_envs, num_episodes, short episodes, long episodes
        (2, 2, 1, 1),
        (2, 8, 4, 4),
        (4, 6, 3, 3),
        (8, 4, 2, 2),
        (6, 20, 10, 10),
        (2, 7, 4, 3),  # slot 0 plays four times, slot 1 three times
        (4, 5, 3, 2),
        (1, 3, 3, 0),
        (8, 1, 1, 0),
    )
    @pytest.mark.variants(3)
    def test_every_episode_counts_once(self, num_envs, num_episodes, short, long):
        for mode in MODES:
            evaluator = Evaluator(
                env=short_or_long(num_envs, mode),
                agent=ZeroAgent(),
                num_episodes=num_episodes,
                compile="graph",
            )
            result = evaluator.evaluate({}, KEY)
            self.assertEqual(result.episode_returns.shape, (num_episodes,))
            self.assertEqual(sorted(result.episode_returns), [0.0] * short + [10.0] * long)
            self.assertEqual(sorted(result.episode_lengths), [1] * short + [10] * long)
            self.assertAlmostEqual(result.mean, 10 * long / num_episodes)

    @parameterized.parameters("graph", "xla")
    def test_random_short_episodes_are_not_favoured(self, how):
        evaluator = Evaluator(env=coins(16), agent=ZeroAgent(), num_episodes=1001, compile=how)
        result = evaluator.evaluate({}, KEY)
        # The coins of the rounds, tossed outside of the evaluator.
        heads = []
        for index in range(63):
            reset_key, _ = evaluator.round_keys(KEY, tf.constant(index))
            heads.append(evaluator.env.reset(reset_key).obs.numpy() == 1)
        heads = np.concatenate(heads)[:1001]
        np.testing.assert_array_equal(result.episode_returns, np.where(heads, 4.0, 0.0))
        np.testing.assert_array_equal(result.episode_lengths, np.where(heads, 4, 1))
        self.assertAlmostEqual(result.mean, 4 * heads.mean())
        self.assertBetween(heads.mean(), 0.45, 0.55)
        low, high = result.interval
        self.assertBetween(result.mean, low, high)

    def test_more_episodes_begin_with_the_same_ones(self):
        results = [
            Evaluator(env=coins(4), agent=ZeroAgent(), num_episodes=n).evaluate({}, KEY)
            for n in (3, 10)
        ]
        np.testing.assert_array_equal(results[0].episode_returns, results[1].episode_returns[:3])
        other = Evaluator(env=coins(4), agent=ZeroAgent(), num_episodes=40)
        first, second = other.evaluate({}, KEY), other.evaluate({}, seeding.key(12))
        self.assertTrue(np.any(first.episode_returns != second.episode_returns))

    @parameterized.parameters(*itertools.product(COMPILE, (1.0, 0.5)))
    @pytest.mark.variants(2)
    def test_compiles_in_every_mode_with_discount(self, how, discount):
        # Rewards 1.25, 1.5, 1.75: sum 4.5; halved, 1.25 + 0.75 + 0.4375 = 2.4375.
        # And one step of 2.25, worth the same under any discount.
        env = fakes.Scripted(lengths=((3, 1), (1, 3)), step_reward=(1.0, 2.0), limit=5)
        agent = fakes.CountingAgent()
        evaluator = Evaluator(env=env, agent=agent, num_episodes=5, discount=discount, compile=how)
        a = 4.5 if discount == 1.0 else 2.4375
        state = {"weight": tf.Variable(1.0)}
        result = evaluator.evaluate(state, KEY)
        np.testing.assert_array_equal(result.episode_returns, [a, 2.25, a, 2.25, a])
        np.testing.assert_array_equal(result.episode_lengths, [3, 1, 3, 1, 3])
        returns, lengths = fakes.compile_as(how, evaluator.run)(state, KEY)
        self.assertEqual(returns.shape, [5])
        self.assertEqual((returns.dtype, lengths.dtype), (tf.float32, tf.int32))
        np.testing.assert_array_equal(returns, result.episode_returns)

    @parameterized.parameters("graph", "xla", "auto")
    def test_traces_once(self, how):
        traces = []

        def act(state, obs, key, carry=None):
            traces.append(None)
            return ActionOutput(action=tf.zeros([2], tf.int32))

        evaluator = Evaluator(
            env=short_or_long(2), agent=ZeroAgent(), num_episodes=4, action_fn=act, compile=how
        )
        evaluator.evaluate({"w": tf.Variable(1.0)}, KEY)
        count = len(traces)
        self.assertGreater(count, 0)
        evaluator.evaluate({"w": tf.Variable(2.0)}, seeding.key(1))
        evaluator.evaluate({"w": tf.constant(3.0)}, seeding.key(2))
        self.assertLen(traces, count)

    def test_max_steps(self):
        env = fakes.Scripted(lengths=((9, 9),), slope=0.0, step_reward=(1.0,), limit=8)
        for max_steps, length in ((None, 8), (3, 3), (20, 9)):
            evaluator = Evaluator(env=env, agent=ZeroAgent(), num_episodes=2, max_steps=max_steps)
            result = evaluator.evaluate({}, KEY)
            np.testing.assert_array_equal(result.episode_lengths, [length] * 2)
            np.testing.assert_array_equal(result.episode_returns, [float(length)] * 2)

    @parameterized.parameters(
        (
            {"num_episodes": 0},
            "num_episodes: expected a whole number of at least 1, got 0. Give 1 or more.",
        ),
        (
            {"num_episodes": 1.5},
            "num_episodes: expected a whole number of at least 1, got 1.5. Give 1 or more.",
        ),
        (
            {"discount": 1.01},
            "discount: expected a number of at least 0 and at most 1, got 1.01. Pass a finite "
            "number.",
        ),
        (
            {"compile": "jit"},
            "compile: expected one of auto, xla, graph, eager, got 'jit'. Known: auto, eager, "
            "graph, xla.",
        ),
        (
            {"env": fakes.Scripted(lengths=((9,),))},
            "max_steps: expected a limit on the steps of an episode, got None, and the environment "
            "has no max_episode_steps. Pass max_steps, or create the environment with "
            "max_episode_steps.",
        ),
        (
            {"max_steps": 0},
            "max_steps: expected a whole number of at least 1, got 0. Give 1 or more.",
        ),
    )
    def test_errors(self, change, message):
        arguments = {"env": short_or_long(2), "agent": ZeroAgent(), "num_episodes": 4}
        with self.assertRaises(UserError) as caught:
            Evaluator(**(arguments | change))
        self.assertEqual(str(caught.exception), message)

    def test_bare_environment(self):
        evaluator = Evaluator(env=Coins(num=2), agent=ZeroAgent(), num_episodes=1, max_steps=3)
        with self.assertRaisesRegex(UserError, "the bare Coins .* tfrl.make_env"):
            evaluator.evaluate({}, KEY)


class EpisodeCollectorTest(parameterized.TestCase):
    @parameterized.parameters(*itertools.product(MODES, ("graph", "xla")))
    @pytest.mark.variants(3)
    def test_same_episodes_as_the_evaluator(self, mode, how):
        arguments = dict(
            env=coins(4, Autoreset[mode]),
            agent=ZeroAgent(),
            num_episodes=10,
            discount=0.5,
            compile=how,
        )
        evaluated = Evaluator(**arguments).evaluate({}, KEY)
        collected = EpisodeCollector(**arguments, env_extra_fields=("episode_return",)).collect(
            {}, KEY
        )
        np.testing.assert_array_equal(collected.result.episode_returns, evaluated.episode_returns)
        lengths = evaluated.episode_lengths
        np.testing.assert_array_equal(collected.result.episode_lengths, lengths)
        self.assertContainsSubset([1, 4], lengths)
        self.assertLen(collected.episodes, 10)
        self.assertEqual(collected.padded.reward.shape, (9, 10))
        np.testing.assert_array_equal(collected.padded.valid, np.arange(9)[:, None] < lengths)
        for i, (episode, length) in enumerate(zip(collected.episodes, lengths, strict=True)):
            heads = float(length == 4)
            self.assertIsInstance(episode.reward, np.ndarray)
            np.testing.assert_array_equal(episode.reward, [heads] * length)
            np.testing.assert_array_equal(episode.obs, collected.padded.obs[:length, i])
            np.testing.assert_array_equal(episode.next_obs, [heads] * length)
            np.testing.assert_array_equal(episode.termination, [False] * (length - 1) + [True])
            self.assertTrue(episode.valid.all())
            self.assertEqual(episode.env_extras["episode_return"][-1], heads * length)

    def test_evaluates_as_well(self):
        collector = EpisodeCollector(env=short_or_long(2), agent=ZeroAgent(), num_episodes=3)
        np.testing.assert_array_equal(collector.evaluate({}, KEY).episode_returns, [0, 10, 0])
