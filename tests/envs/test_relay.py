"""Relay: every rule by hand, its optimum and that of random play, and what it hides from whom."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding
from tfrl.envs.core import carrying
from tfrl.envs.tf.relay import LEFT, RIGHT, STAY, Relay
from tfrl.errors import UserError
from tfrl.rollout import fast_eval_rollout_episode, rollout
from tfrl.types import ActionOutput

KEY = seeding.key(3)
IDS = ("agent_0", "agent_1", "agent_2")


class Follows:
    """Goes where the signal points, and waits without one: the best policy, shared by all."""

    def evaluate_actions(self, state, obs, key, carry=None):
        move = {a: tf.cast(tf.sign(o[:, 1]), tf.int64) + 1 for a, o in obs.items()}
        return ActionOutput(action=move, carry=carry)

    compute_actions = evaluate_actions


class Random:
    def evaluate_actions(self, state, obs, key, carry=None):
        size = obs["agent_0"].shape[0]
        drawn = tf.cast(seeding.randint(key, [3, size], 0, 3), tf.int64)
        return ActionOutput(action=dict(zip(IDS, tf.unstack(drawn), strict=True)), carry=carry)

    compute_actions = evaluate_actions


def returns(agent, num_envs=4000, **kwargs):
    env = tfrl.make_env("tf:Relay-v0", num_envs=num_envs, autoreset="DISABLED", **kwargs)
    play = tf.function(
        lambda key: fast_eval_rollout_episode(env, agent, env.reset(key), {}, key), autograph=False
    )
    return play(KEY)[0]


def actions(*moves):
    """One environment's moves as actions [1]."""
    return {a: tf.constant([m], tf.int64) for a, m in zip(IDS, moves, strict=True)}


class RelayTest(parameterized.TestCase):
    @parameterized.product(
        mode=["NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED"], limit=[None, 5]
    )
    @pytest.mark.variants(3)
    def test_it_follows_the_protocol(self, mode, limit):
        env = tfrl.make_env("tf:Relay-v0", num_envs=6, autoreset=mode, max_episode_steps=limit)
        self.assertTrue(checked(env, steps=60).any(axis=0).all())

    def test_the_bare_task_follows_the_protocol(self):
        self.assertTrue(checked(Relay(num_envs=5), steps=60).any())
        small = Relay(num_envs=5, num_agents=2, half_length=4)
        self.assertTrue(checked(small, steps=40).any())

    def test_an_episode_by_hand(self):
        # Lanes of -3 .. 3, the treasure on the right; each step costs 0.1.
        env = Relay(num_envs=1)
        state = env.reset(KEY)
        state = carrying({"side": tf.constant([1]), "cell": state.env_state["cell"]})
        plan = [
            # moves, cells / n afterwards, who took part, who ended, rewards
            ((RIGHT, LEFT, STAY), (1, -1, 0), (1, 1, 1), (0, 0, 0), (-0.1, -0.1, -0.1)),
            ((RIGHT, LEFT, RIGHT), (2, -2, 1), (1, 1, 1), (0, 0, 0), (-0.1, -0.1, -0.1)),
            ((RIGHT, LEFT, RIGHT), (3, -3, 2), (1, 1, 1), (1, 1, 0), (0.9, -1.1, -0.1)),
            # The first two have ended: their moves and their costs count no more.
            ((LEFT, RIGHT, STAY), (3, -3, 2), (0, 0, 1), (0, 0, 0), (0, 0, -0.1)),
            ((LEFT, RIGHT, RIGHT), (3, -3, 3), (0, 0, 1), (0, 0, 1), (0, 0, 0.9)),
        ]
        for t, (moves, cells, active, ended, reward) in enumerate(plan):
            state = env.step(state, actions(*moves))
            np.testing.assert_array_equal(state.env_state["cell"][0], cells)
            flags = [state.info["agents"][a] for a in IDS]
            np.testing.assert_array_equal([f["active"][0] for f in flags], active)
            np.testing.assert_array_equal([f["termination"][0] for f in flags], ended)
            self.assertFalse(any(bool(f["truncation"][0]) for f in flags))
            np.testing.assert_allclose([state.reward[a][0] for a in IDS], reward, atol=1e-6)
            self.assertEqual(bool(state.termination[0]), t == len(plan) - 1)
            # Agent 0 sees the side, agent k the cell of agent k - 1.
            signals = (1.0, cells[0] / 3, cells[1] / 3)
            for a, cell, signal in zip(IDS, cells, signals, strict=True):
                np.testing.assert_allclose(state.obs[a][0], [cell / 3, signal], atol=1e-6)
            walks = [float(abs(c) < 3) for c in cells]
            np.testing.assert_allclose(
                state.info["state"][0], [1.0, *(c / 3 for c in cells), *walks], atol=1e-6
            )

    def test_following_the_signal_is_worth_the_optimum_exactly(self):
        # Agent k waits k steps and walks 3: 1 - 0.1 (3 + k) = 0.7, 0.6, 0.5.
        totals = returns(Follows(), num_envs=64)
        for agent, best in Relay().optimal_return().items():
            np.testing.assert_allclose(totals.episode_returns[agent], best, atol=1e-5)
        self.assertAlmostEqual(sum(Relay().optimal_return().values()), 1.8)
        np.testing.assert_array_equal(totals.episode_lengths, 5)

    def test_no_policy_of_the_last_agent_beats_the_optimum(self):
        # Before the news arrives, agent 2 may stand anywhere in -2 .. 2 by any policy, whatever the
        # side. Dynamic programming over (steps until the news, cell): it sees the side at 0.
        n, cost = 3, 0.1
        informed = {p: 1 - cost * (n - p) for p in range(-n + 1, n)}  # the treasure at +n
        value = {p: (informed[p] + informed[-p]) / 2 for p in informed}  # either side alike
        for _ in range(2):  # two steps without news; an end is +1 or -1 alike
            step = lambda v, p: 0.0 if abs(p) >= n else v[p]  # noqa: E731
            value = {p: max(step(value, p + m) for m in (-1, 0, 1)) - cost for p in value}
        self.assertAlmostEqual(value[0], Relay().optimal_return()["agent_2"])

    def test_random_play_is_far_below(self):
        means = [float(tf.reduce_mean(r)) for r in returns(Random()).episode_returns.values()]
        self.assertLess(sum(means), 0.3 * 1.8)
        # Either end alike, after 3^2 / (2 / 3) = 13.5 steps without the limit of 24.
        np.testing.assert_allclose(means, -1.2, atol=0.1)

    def test_without_the_signal_nobody_earns(self):
        class Blind(Follows):
            def evaluate_actions(self, state, obs, key, carry=None):
                right = {a: tf.fill([o.shape[0]], np.int64(RIGHT)) for a, o in obs.items()}
                return ActionOutput(action=right, carry=carry)

        for total in returns(Blind()).episode_returns.values():
            self.assertAlmostEqual(float(tf.reduce_mean(total)), -0.3, delta=0.05)

    def test_only_the_state_tells_a_followers_way_to_the_treasure_from_the_way_off_it(self):
        # Under random play agent 2 ends at the treasure or opposite with the odds of the gambler's
        # ruin: its expected prize is its cell towards the treasure / 3. What it sees does not tell.
        env = tfrl.make_env(
            "tf:Relay-v0", num_envs=2000, autoreset="DISABLED", max_episode_steps=120
        )
        play = lambda: rollout(env, Random(), env.reset(KEY), {}, KEY, 120, ("state",))[0]  # noqa: E731
        trajectory = tf.function(play, autograph=False)()
        own, signal = trajectory.obs["agent_2"][3].numpy().T  # after three steps
        side = trajectory.env_extras["state"][2, :, 0].numpy()
        reward = trajectory.reward["agent_2"].numpy()
        prize = np.sum(np.where(np.abs(reward) > 0.5, np.sign(reward), 0.0), axis=0)
        self.assertGreater(np.mean(prize != 0), 0.999)
        for cell in (-2, -1, 0, 1, 2):
            rows = np.round(3 * own * side) == cell
            self.assertAlmostEqual(prize[rows].mean(), cell / 3, delta=4 / np.sqrt(rows.sum()))
        for seen in (own, signal, own * signal):
            self.assertLess(abs(np.corrcoef(seen, prize)[0, 1]), 4 / np.sqrt(len(prize)))

    def test_the_picture(self):
        env = tfrl.make_env("tf:Relay-v0", num_envs=2)
        state = env.reset(KEY)
        picture = env.render(state, 1)
        self.assertEqual((picture.shape, picture.dtype), ((96, 224, 3), np.uint8))
        side = int(state.env_state.inner["side"][1])
        end = picture[4, 4] if side < 0 else picture[4, -5]
        np.testing.assert_array_equal(end, (230, 190, 60))
        np.testing.assert_array_equal(picture[48, 112], (90, 150, 210))  # agent 1 at cell 0

    @parameterized.parameters(
        (
            {"half_length": 2},
            "Relay.half_length: expected a whole number of at least 3, got 2. Give 3 or more.",
        ),
        (
            {"step_cost": 0.4},
            "Relay.step_cost: expected a number from 0 to below 1 / num_agents = 0.333333, got "
            "0.4. Lower it, so that waiting for the message pays off.",
        ),
    )
    def test_messages(self, changes, message):
        with pytest.raises(UserError) as error:
            Relay(**changes)
        self.assertEqual(str(error.value), message)
