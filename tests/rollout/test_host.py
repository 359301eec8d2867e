"""Tests of rollouts in host environments, against a loop by hand and against the device's."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tfrl import networks, seeding
from tfrl.agents import PPO
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.evaluation import EpisodeCollector, Evaluator
from tfrl.keras import api as keras
from tfrl.rollout import eval_rollout_episode, fast_eval_rollout_episode, rollout
from tfrl.rollout.acting import policy_for
from tfrl.types import ActionOutput

LENGTHS = (2, 3, 1)


class Always:
    """Takes one action; no networks."""

    def __init__(self, action=0):
        self.action = action

    def compute_actions(self, state, obs, key, carry=None):
        size = obs.shape[0]
        action = tf.fill([size], tf.constant(self.action, tf.int64))
        return ActionOutput(action=action, carry=carry, extras={"log_prob": tf.zeros([size])})

    evaluate_actions = compute_actions


class Counting(Always):
    """Its memory counts the steps of an episode; its action is their parity."""

    def initial_carry(self, batch_size):
        return {"count": tf.zeros([batch_size], tf.int64)}

    def compute_actions(self, state, obs, key, carry=None):
        return ActionOutput(
            action=carry["count"] % 2,
            carry={"count": carry["count"] + 1},
            extras={"count": carry["count"]},
        )

    evaluate_actions = compute_actions


def played(mode, native, steps=9, agent=None, fields=("episode_return", "episode_length")):
    """A rollout of a scripted environment: the environment, the trajectory and the last state."""
    env = HostEnv(Scripted(LENGTHS, native), mode)
    agent = agent or Always()
    state = env.reset(0)
    trajectory, state, carry = rollout(env, agent, state, (), seeding.key(0), steps, fields)
    return env, tf.nest.map_structure(lambda x: x.numpy(), trajectory), state, carry


def oracle(steps, start=(0, 0)):
    """(obs, reward, next_obs, termination, truncation, length) of real steps, row by row."""
    rows = []
    for row, length in enumerate(LENGTHS):
        episode, t, found = *start, []
        while len(found) < steps:
            obs, t = [row, episode, t], t + 1
            ends = t == length
            ended = (ends and episode % 2 == 0, ends and episode % 2 == 1)
            reward = 100 * row + 10 * episode + t
            found.append((obs, reward, [row, episode, t], *ended, t))
            if ends:
                episode, t = episode + 1, 0
        rows.append(found)
    return rows


class RolloutTest(parameterized.TestCase):
    @parameterized.parameters(("SAME_STEP", "SAME_STEP"), ("NEXT_STEP", "NEXT_STEP"))
    def test_rollouts_of_one_step_are_the_rows_of_a_long_one(self, mode, native):
        env, agent, fields = HostEnv(Scripted(LENGTHS, native), mode), Counting(), ("twice",)
        state, carry, rows = env.reset(0), None, []
        for _ in range(9):
            row, state, carry = rollout(
                env, agent, state, (), seeding.key(0), 1, fields, carry=carry
            )
            rows.append(row)
        _, want, _, _ = played(mode, native, agent=agent, fields=fields)
        found = tf.nest.map_structure(lambda *xs: np.concatenate(xs), *rows)
        for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(want), strict=True):
            np.testing.assert_array_equal(a, b)
            self.assertEqual(a.dtype, b.dtype)

    @parameterized.parameters(("SAME_STEP", "SAME_STEP"), ("NEXT_STEP", "NEXT_STEP"))
    def test_every_real_step_is_there_once_with_its_true_successor(self, mode, native):
        _, rows, _, _ = played(mode, native)
        want = oracle(9)
        for b in range(3):
            real = np.flatnonzero(rows.valid[:, b])
            for k, t in enumerate(real):
                obs, reward, next_obs, termination, truncation, length = want[b][k]
                np.testing.assert_array_equal(rows.obs[t, b], obs)
                np.testing.assert_array_equal(rows.next_obs[t, b], next_obs)
                self.assertEqual(rows.reward[t, b], reward)
                self.assertEqual(rows.termination[t, b], termination)
                self.assertEqual(rows.truncation[t, b], truncation)
                self.assertEqual(rows.env_extras["episode_length"][t, b], length)
        # Row 2 has episodes of one step: under NEXT_STEP every second row is an autoreset.
        self.assertEqual(rows.valid[:, 2].sum(), 9 if mode == "SAME_STEP" else 5)
        self.assertEqual(rows.valid[:, 0].sum(), 9 if mode == "SAME_STEP" else 6)

    def test_invalid_rows_hold_no_reward_and_no_end(self):
        _, rows, _, _ = played("NEXT_STEP", "NEXT_STEP")
        invalid = ~rows.valid
        self.assertGreater(invalid.sum(), 0)
        self.assertFalse(rows.termination[invalid].any() or rows.truncation[invalid].any())
        np.testing.assert_array_equal(rows.reward[invalid], 0.0)
        np.testing.assert_array_equal(rows.env_extras["episode_length"][invalid], 0)

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_disabled_freezes_the_first_end(self, native):
        _, rows, state, _ = played("DISABLED", native, steps=5)
        np.testing.assert_array_equal(rows.valid.sum(0), LENGTHS)
        for b, length in enumerate(LENGTHS):
            np.testing.assert_array_equal(
                rows.next_obs[length - 1 :, b], [[b, 0, length]] * (6 - length)
            )
            self.assertTrue(rows.termination[length - 1 :, b].all())
            np.testing.assert_array_equal(rows.reward[length:, b], 0.0)
        total = [sum(100 * b + t + 1 for t in range(n)) for b, n in enumerate(LENGTHS)]
        np.testing.assert_array_equal(state.info["episode_return"], total)
        np.testing.assert_array_equal(state.info["episode_length"], LENGTHS)

    def test_returns_are_complete_where_an_episode_ends(self):
        _, rows, _, _ = played("SAME_STEP", "SAME_STEP")
        ends = rows.termination | rows.truncation
        # Row 0 plays episodes of two steps: 1 + 2, then 11 + 12, 21 + 22, 31 + 32.
        np.testing.assert_array_equal(
            rows.env_extras["episode_return"][:, 0][ends[:, 0]], [3, 23, 43, 63]
        )

    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    def test_memory_begins_afresh_with_every_episode(self, mode):
        _, rows, _, carry = played(mode, mode, agent=Counting())
        real = rows.valid
        np.testing.assert_array_equal(
            rows.policy_extras["count"][real], rows.obs[..., 2][real].astype(int)
        )
        self.assertEqual(carry["count"].shape, (3,))

    def test_two_rollouts_go_on_where_the_first_stopped(self):
        env = HostEnv(Scripted(LENGTHS), "SAME_STEP")
        state, parts = env.reset(0), []
        for _ in range(2):
            rows, state, _ = rollout(env, Always(), state, (), seeding.key(0), 4)
            parts.append(rows.obs.numpy())
        whole = played("SAME_STEP", "SAME_STEP", steps=8)[1].obs
        np.testing.assert_array_equal(np.concatenate(parts), whole)

    def test_info_of_the_environment_can_be_stored(self):
        rows = played("SAME_STEP", "SAME_STEP", fields=("twice",))[1]
        # Of the ending step, not of the new episode: the backend says which.
        np.testing.assert_array_equal(rows.env_extras["twice"], 2 * rows.next_obs[..., 2])

    def test_an_unknown_field_is_an_error(self):
        with self.assertRaisesRegex(UserError, "env_extra_fields: expected some of"):
            played("SAME_STEP", "SAME_STEP", fields=("thrice",))

    def test_a_state_left_behind_is_an_error(self):
        env = HostEnv(Scripted(LENGTHS), "SAME_STEP")
        state = env.reset(0)
        rollout(env, Always(), state, (), seeding.key(0), 2)
        with self.assertRaisesRegex(
            UserError,
            "testing:ScriptedHost: expected a step from the latest state, got an older state, or "
            "one from another process. Continue from a new reset",
        ):
            rollout(env, Always(), state, (), seeding.key(0), 2)


class EpisodeTest(parameterized.TestCase):
    @parameterized.product(mode=("SAME_STEP", "NEXT_STEP"), discount=(None, 0.5))
    def test_totals_are_those_of_the_trajectory(self, mode, discount):
        env = HostEnv(Scripted(LENGTHS, mode), mode)
        args = (env, Always(1), env.reset(0), (), seeding.key(0))
        totals, _ = fast_eval_rollout_episode(*args, discount=discount)
        np.testing.assert_array_equal(totals.episode_lengths, LENGTHS)
        rewards = [[100 * b + t + 2.0 for t in range(n)] for b, n in enumerate(LENGTHS)]
        np.testing.assert_array_equal(totals.episode_returns, [sum(r) for r in rewards])
        if discount is None:
            self.assertIsNone(totals.discounted_returns)
        else:
            want = [sum(x * 0.5**i for i, x in enumerate(r)) for r in rewards]
            np.testing.assert_array_equal(totals.discounted_returns, want)

    def test_a_recorded_episode_ends_with_the_longest(self):
        env = HostEnv(Scripted(LENGTHS), "SAME_STEP")
        rows, _ = eval_rollout_episode(env, Always(), env.reset(0), (), seeding.key(0), length=40)
        self.assertEqual(rows.obs.shape, (40, 3, 3))
        np.testing.assert_array_equal(rows.valid.numpy().sum(0), LENGTHS)
        self.assertLen(env.backend.taken, 3)

    def test_evaluator_and_collector_agree(self):
        env = HostEnv(Scripted(LENGTHS), "SAME_STEP")
        options = {"env": env, "agent": Always(), "num_episodes": 5}
        result = Evaluator(**options).evaluate((), seeding.key(0))
        collected = EpisodeCollector(**options).collect((), seeding.key(0))
        np.testing.assert_array_equal(result.episode_lengths, [2, 3, 1, 2, 3])
        np.testing.assert_array_equal(result.episode_returns, collected.result.episode_returns)
        self.assertEqual([len(e.reward) for e in collected.episodes], [2, 3, 1, 2, 3])


class ActingTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.env = HostEnv(Scripted(LENGTHS), "SAME_STEP")
        self.agent = PPO(
            obs_spec=self.env.obs_spec, action_spec=self.env.action_spec, normalize_obs=True
        )
        self.state = self.agent.init(seeding.key(3))

    def _rows(self, mode):
        policy = policy_for(self.env, self.agent, self.agent.compute_actions)
        policy.mode = mode
        args = (self.env, self.agent, self.env.reset(0), self.state, seeding.key(1), 16)
        return rollout(*args)[0]

    @parameterized.parameters("numpy", "xla", "eager")
    def test_every_mode_acts_like_the_graph(self, mode):
        want, got = self._rows("graph"), self._rows(mode)
        np.testing.assert_array_equal(got.action, want.action)
        np.testing.assert_allclose(
            got.policy_extras["log_prob"], want.policy_extras["log_prob"], atol=1e-5
        )
        self.assertGreater(len(np.unique(want.action)), 1)

    def test_steps_draw_as_on_the_device(self):
        rows = self._rows("numpy")
        keys = seeding.split(seeding.key(1), 16)
        for t in range(16):
            want = self.agent.compute_actions(self.state, rows.obs[t], keys[t])
            np.testing.assert_array_equal(rows.action[t], want.action)

    def test_the_newest_parameters_act(self):
        first = self._rows("numpy")
        self.state = self.agent.init(seeding.key(4))
        for mode in ("numpy", "graph"):
            second = self._rows(mode)
            self.assertFalse(
                np.allclose(first.policy_extras["log_prob"], second.policy_extras["log_prob"])
            )

    def test_small_policies_act_in_numpy_and_others_in_a_graph(self):
        self._rows(None)
        self.assertEqual(self.env.policies[self.agent.compute_actions].mode, "numpy")
        conv = networks.KerasNetwork(model_fn=_conv, spec=self.env.obs_spec)
        agent = PPO(obs_spec=self.env.obs_spec, action_spec=self.env.action_spec, torso=conv)
        rollout(self.env, agent, self.env.reset(0), agent.init(seeding.key(0)), seeding.key(1), 2)
        policy = self.env.policies[agent.compute_actions]
        self.assertEqual(policy.mode, "graph")
        self.assertIn("Conv2D", policy.why_not_numpy)


def _conv():

    return keras.Sequential(
        [
            keras.layers.Reshape([3, 1, 1], input_shape=(3,)),
            keras.layers.Conv2D(2, 1),
            keras.layers.Flatten(),
        ]
    )
