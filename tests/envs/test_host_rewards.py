"""Tests of rewards on the host, against the device environments' wrappers."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tfrl import make_env
from tfrl.envs import host_rewards, wrappers
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.ops import statistics


def wrapped(wrapper, mode="SAME_STEP", **options):
    env = HostEnv(Scripted((2, 3), mode), mode)
    return env.wrapped([lambda env: getattr(wrappers, wrapper)(env=env, **options)])


def play(env, steps):
    """Rewards [T, B], rows that are steps, ends, and the last state; action 1 everywhere."""
    state, found = env.reset(0), []
    for _ in range(steps):
        state = env.step(state, np.ones(2, np.int64))
        ended = state.termination | state.truncation
        found.append((state.reward, ~state.info["autoreset"], ended))
    return *(np.stack(x) for x in zip(*found, strict=True)), state


class HostRewardTest(parameterized.TestCase):
    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_normalized_as_on_the_device(self, mode):
        rewards, valid, ended, _ = play(HostEnv(Scripted((2, 3), mode), mode), 12)
        env = wrapped("RewardNormalize", mode, discount=0.9)
        paid, _, _, state = play(env, 12)
        moments = statistics.RunningStatistics(
            count=tf.constant(1e-4, tf.float64),
            mean=tf.constant(0.0, tf.float64),
            m2=tf.constant(1e-4, tf.float64),
        )
        g = np.zeros(2, np.float32)
        for t in range(12):
            g = g * np.float32(0.9) + rewards[t]
            moments = statistics.update(
                moments, tf.constant(g), mask=tf.constant(valid[t]), usual=1e4
            )
            want = rewards[t] / np.sqrt(moments.m2 / moments.count + 1e-8)
            np.testing.assert_allclose(paid[t], want, rtol=1e-5)
            g = np.where(ended[t], 0, g).astype(np.float32)
        # What is paid is not what an episode returns.
        plain = play(HostEnv(Scripted((2, 3), mode), mode), 12)[-1]
        np.testing.assert_array_equal(state.info["episode_return"], plain.info["episode_return"])
        np.testing.assert_array_equal(state.info["reward_outlier"], [False, False])

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_scaled_and_clipped(self, mode):
        rewards, valid, _, _ = play(HostEnv(Scripted((2, 3), mode), mode), 8)
        self.assertGreater(rewards.max(), 100)
        scaled = play(wrapped("RewardScale", mode, scale=0.5), 8)[0]
        np.testing.assert_array_equal(scaled, 0.5 * rewards)
        clipped = play(wrapped("RewardClip", mode, low=3.0, high=50.0), 8)[0]
        np.testing.assert_array_equal(clipped, np.where(valid, np.clip(rewards, 3, 50), 0))

    def test_from_the_innermost_on(self):
        env = HostEnv(Scripted((2, 3)), "SAME_STEP").wrapped(
            [
                functools.partial(_wrap, wrappers.RewardScale, scale=0.01),
                functools.partial(_wrap, wrappers.RewardClip, low=-1.0, high=1.0),
            ]
        )
        rewards = play(HostEnv(Scripted((2, 3)), "SAME_STEP"), 8)[0]
        np.testing.assert_allclose(play(env, 8)[0], np.clip(0.01 * rewards, -1, 1), rtol=1e-6)

    def test_moments_are_kept_and_sums_are_not(self):
        env = wrapped("RewardNormalize")
        play(env, 6)
        kept = env.kept_state()
        self.assertEqual(list(kept), ["0"])
        self.assertEqual(list(kept["0"]), ["moments"])
        other = wrapped("RewardNormalize")
        state = other.reset(0)
        other.load_kept_state(kept)
        np.testing.assert_array_equal(other.kept_state()["0"]["moments"], kept["0"]["moments"])
        paid = other.step(state, np.ones(2, np.int64)).reward
        self.assertFalse(np.allclose(paid, play(wrapped("RewardNormalize"), 1)[0][0]))
        self.assertEqual(HostEnv(Scripted((2,)), "SAME_STEP").kept_state(), {})

    def test_copies_have_rewards_of_their_own(self):
        env = wrapped("RewardNormalize")
        play(env, 6)
        copy = env.copy()
        np.testing.assert_array_equal(play(copy, 6)[0], play(wrapped("RewardNormalize"), 6)[0])

    def test_others_are_refused(self):
        with self.assertRaisesRegex(
            UserError,
            "outer_wrappers: ObservationFlatten: expected RewardScale, RewardClip or "
            "RewardNormalize for environments on the host, got a wrapper of device",
        ):
            wrapped("ObservationFlatten")
        device = make_env("tf:CartPole-v1")
        with self.assertRaisesRegex(UserError, "outer_wrappers: expected functions that wrap"):
            HostEnv(Scripted((2,)), "SAME_STEP").wrapped([lambda env: device])


def _wrap(kind, env, **options):
    return kind(env=env, **options)


class OutlierTest(parameterized.TestCase):
    @parameterized.parameters(1e20, 3e38, -3e38)
    @pytest.mark.variants(1)
    def test_one_reward_counts_as_on_the_device(self, wrong):
        rewards = np.random.default_rng(0).normal(0.0, 2.0, [40, 3]).astype(np.float32)
        rewards[8, 0] = wrong
        host = host_rewards.Normalized(discount=0.9, epsilon=1e-8)
        host.reset(3)
        moments = statistics.RunningStatistics(
            count=tf.constant(1e-4, tf.float64),
            mean=tf.constant(0.0, tf.float64),
            m2=tf.constant(1e-4, tf.float64),
        )
        g = np.zeros(3, np.float32)
        for t, reward in enumerate(rewards):
            ended = np.full(3, t % 10 == 9)
            paid = host.pay(reward, np.ones(3, bool), ended)
            np.testing.assert_array_equal(host.info()["reward_outlier"], [t == 8, False, False])
            self.assertTrue(np.all(np.abs(paid) < np.sqrt(120)))
            g = g * np.float32(0.9) + reward
            g = statistics.limited(moments, tf.constant(g), usual=1e4)[0].numpy()
            moments = statistics.update(moments, tf.constant(g), usual=1e4)
            g = np.where(ended, 0, g).astype(np.float32)
            np.testing.assert_allclose(
                host.state()["moments"], [moments.count, moments.mean, moments.m2], rtol=1e-4
            )
