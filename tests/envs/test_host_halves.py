"""Tests of halves of a batch: the same experience as the whole, stepped in turn."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tests.rollout.test_host import Always, Counting
from tfrl import seeding
from tfrl.agents import PPO
from tfrl.envs.host_env import HostEnv, row_seeds
from tfrl.envs.host_halves import Halves, buffered
from tfrl.envs.wrappers import RewardNormalize, RewardScale
from tfrl.errors import UserError
from tfrl.evaluation import Evaluator
from tfrl.rollout import eval_rollout_episode, rollout
from tfrl.workflows import OnPolicyWorkflow


class Noted(Scripted):
    """Notes the order of calls of both halves, and is row 2 and 3 of four as the second."""

    def __init__(self, name, first_row, log, mode):
        super().__init__((2, 3) if not first_row else (1, 4), mode)
        self.call, self.first_row, self.log = name, first_row, log

    def _obs(self):
        obs = super()._obs()
        obs[:, 0] += self.first_row
        return obs

    def send(self, action):
        self.log.append(f"send {self.call}")
        super().send(action)

    def receive(self):
        self.log.append(f"receive {self.call}")
        step = super().receive()
        rows = np.where(step.reward != 0, 100.0 * self.first_row, 0)
        step.reward = step.reward + rows
        return step


def halves(mode="SAME_STEP"):
    log = []
    parts = [HostEnv(Noted(n, r, log, mode), mode) for n, r in (("a", 0), ("b", 2))]
    return Halves(*parts), log


def numpy(nest):
    return tf.nest.map_structure(np.asarray, nest)


class HalvesTest(parameterized.TestCase):
    @parameterized.product(mode=("SAME_STEP", "NEXT_STEP"), agent=(Always(1), Counting()))
    def test_experience_is_that_of_the_whole_batch(self, mode, agent):
        fields = ("episode_return", "episode_length", "twice")
        whole = HostEnv(Scripted((2, 3, 1, 4), mode), mode)
        found = []
        for env in (whole, halves(mode)[0]):
            state, carry = env.reset(3), None
            for i in range(2):  # goes on in the middle of episodes
                key = seeding.fold_in(seeding.key(0), i)
                rows, state, carry = rollout(env, agent, state, (), key, 7, fields, carry=carry)
            told = {n: state.info[n] for n in ("final_obs", *fields)}
            found.append(numpy((rows, state.obs, told, () if carry is None else carry)))
        for a, b in zip(*map(tf.nest.flatten, found), strict=True):
            np.testing.assert_array_equal(a, b)

    def test_one_steps_while_the_other_acts(self):
        env, log = halves()
        rollout(env, Always(), env.reset(0), (), seeding.key(0), 3)
        turn = ["receive a", "send a", "receive b", "send b"]
        self.assertEqual(log, ["send a", "send b", *turn, *turn, "receive a", "receive b"])

    def test_seeds_are_those_of_one_batch(self):
        env, whole = halves()[0], HostEnv(Scripted((1, 1, 1, 1)), "SAME_STEP")
        env.begin(row_seeds(5, 4))
        whole.reset(5)
        seeds = [s for part in env.parts for s in part.backend.seeds[-1]]
        self.assertEqual(seeds, whole.backend.seeds[-1])

    def test_episodes_of_an_evaluation(self):
        env, log = halves()
        rows, _ = eval_rollout_episode(env, Always(), env.reset(0), (), seeding.key(0), length=20)
        np.testing.assert_array_equal(rows.valid.numpy().sum(0), [2, 3, 1, 4])
        self.assertEqual(log.count("send a"), 3)  # a half that is over steps no more
        result = Evaluator(env=env, agent=Always(), num_episodes=6).evaluate((), seeding.key(0))
        np.testing.assert_array_equal(result.episode_lengths, [2, 3, 1, 4, 2, 3])

    def test_a_state_left_behind_is_an_error(self):
        env, _ = halves()
        state = env.reset(0)
        env.step(state, np.zeros(4, np.int64))
        with self.assertRaisesRegex(UserError, "expected a step from the latest state"):
            env.step(state, np.zeros(4, np.int64))

    def test_rewards_copies_and_closing(self):
        env, _ = halves()
        env.wrapped([lambda env: RewardScale(env=env, scale=0.5)])
        plain = env.with_task_rewards()
        actions = np.zeros(4, np.int64)
        paid, told = (e.step(e.reset(0), actions).reward for e in (env, plain))
        np.testing.assert_array_equal(paid[:2], 0.5 * told[:2])  # copies are rows 0 and 1 again
        self.assertIs(plain.with_task_rewards(), plain)
        self.assertIsInstance(env.copy(6), Halves)
        self.assertEqual((env.copy(6).num_envs, env.copy(3).num_envs), (6, 3))
        self.assertNotIsInstance(env.copy(3), Halves)
        env.close()
        self.assertEqual([part.backend.closed for part in env.parts], [1, 1])

    def test_where_failures_are_tolerated_it_is_one_batch(self):
        env, _ = halves()
        env.wrapped([lambda env: RewardScale(env=env, scale=0.5)])
        one = env.tolerant()
        self.assertNotIsInstance(one, Halves)
        self.assertEqual((one.num_envs, len(one.rewards)), (4, 1))
        self.assertEqual(one.rewards[0].pay(*np.ones((3, 1))), env.rewards[0].pay(*np.ones((3, 1))))

    def test_statistics_of_rewards_are_kept(self):
        env, _ = halves()
        env.wrapped([lambda env: RewardNormalize(env=env)])
        state = env.reset(0)
        for _ in range(5):
            state = env.step(state, np.zeros(4, np.int64))
        kept = env.kept_state()
        counts = [kept[half]["0"]["moments"][0] for half in "01"]
        np.testing.assert_allclose(counts, [10, 10], atol=1e-3)  # 5 steps of 2 rows each
        other = halves()[0].wrapped([lambda env: RewardNormalize(env=env)])
        other.reset(0)
        other.load_kept_state(kept)
        tf.nest.map_structure(np.testing.assert_array_equal, other.kept_state(), kept)

    @pytest.mark.slow
    def test_training(self):
        env, _ = halves()
        workflow = OnPolicyWorkflow(
            env=env,
            agent=lambda **specs: PPO(**specs, hidden=(8,), normalize_obs=True),
            rollout_length=8,
            num_minibatches=2,
            eval_episodes=4,
        )
        state = workflow.setup(0)
        self.assertEqual(workflow.advance(state, 2).rows[-1]["env_steps"], 64)
        modes = {p.mode for half in env.parts for p in half.policies.values()}
        self.assertLen(modes, 1)

    @parameterized.parameters(
        (True, 3, "True with num_envs=3. Pass num_envs=4"), ("yes", 4, "'yes'")
    )
    def test_an_odd_number_is_refused(self, asked, num_envs, message):
        with self.assertRaisesRegex(UserError, f"double_buffer of x: .* got {message}"):
            buffered("x", lambda n: None, num_envs, asked)
