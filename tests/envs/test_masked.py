"""Masked: rewards and ends by hand, how masks and signs are drawn, and that both are needed."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf import grid_picture
from tfrl.envs.tf.masked import Masked
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.types import ActionOutput

KEY = seeding.key(3)


class Policy:
    """Takes the greatest of `logits(obs, key)` [B, A], with or without the mask."""

    def __init__(self, logits, uses_mask=True):
        self.logits, self.uses_mask = logits, uses_mask

    def compute_actions(self, state, obs, key, carry=None):
        logits = self.logits(obs["observation"], key)
        if self.uses_mask:
            logits = tf.where(obs["action_mask"], logits, -1e9)
        return ActionOutput(action=tf.argmax(logits, axis=-1), carry=carry)


def rising(obs, key):
    """Logits that rise with the number of the action if the sign is 1, else fall."""
    return obs[:, :1] * tf.range(20.0)


def random(obs, key):
    return seeding.uniform(key, [obs.shape[0], 20])


def play(policy, num_envs=200, length=60):
    env = tfrl.make_env("tf:Masked", num_envs)
    run = tf.function(
        lambda: rollout(env, policy, env.reset(KEY), (), KEY, length, ("invalid_action",))[0],
        autograph=False,
    )
    trajectory = run()
    return trajectory.reward.numpy(), trajectory.env_extras["invalid_action"].numpy()


def test_the_sign_and_the_mask_together_are_worth_everything():
    reward, invalid = play(Policy(rising))
    np.testing.assert_array_equal(reward, np.ones_like(reward))
    assert not invalid.any()


def test_the_mask_alone_is_right_half_the_time():
    reward, invalid = play(Policy(random))
    assert set(np.unique(reward)) == {0.0, 1.0} and not invalid.any()
    assert abs(reward.mean() - 0.5) < 4 * 0.5 / np.sqrt(reward.size)


@pytest.mark.parametrize("logits", [rising, random])
def test_without_the_mask_9_of_10_actions_are_invalid(logits):
    reward, invalid = play(Policy(logits, uses_mask=False))
    np.testing.assert_array_equal(invalid, reward == -1)
    assert abs(invalid.mean() - 0.9) < 4 * 0.3 / np.sqrt(invalid.size)


def test_an_episode_by_hand():
    env = Masked(num_envs=3, num_actions=6, num_valid=3, length=2)
    mask = np.array([[0, 1, 0, 1, 1, 0]] * 3, bool)
    game = env.reset(KEY).env_state
    game = {**game, "mask": tf.constant(mask), "right": tf.constant([4, 1, 1])}
    # The right action; a valid one that is not; an invalid one.
    state = env.step(carrying(game), tf.constant([4, 3, 2]))
    np.testing.assert_array_equal(state.reward, [1, 0, -1])
    np.testing.assert_array_equal(state.termination, [False, False, True])
    np.testing.assert_array_equal(state.info["invalid_action"], [False, False, True])
    np.testing.assert_array_equal(state.obs[:, 1], [0.5] * 3)
    state = env.step(state, state.env_state["right"])  # the second step is the last
    np.testing.assert_array_equal(state.reward, [1, 1, 1])
    np.testing.assert_array_equal(state.termination, [True] * 3)
    np.testing.assert_array_equal(state.obs[:, 1], [1.0] * 3)
    state = env.step(state, state.env_state["right"])  # beyond the end time stays
    np.testing.assert_array_equal(state.obs[:, 1], [1.0] * 3)


@pytest.mark.parametrize("num_valid", [2, 3, 6])
def test_the_right_action_is_the_first_or_the_last_valid_one_at_every_state(num_valid):
    env = Masked(num_envs=30, num_actions=6, num_valid=num_valid)
    state = env.reset(KEY)
    for _ in range(4):
        mask, game = state.info["action_mask"].numpy(), state.env_state
        assert mask.dtype == bool and mask.shape == (30, 6)
        np.testing.assert_array_equal(mask.sum(axis=1), [num_valid] * 30)
        sign = state.obs[:, 0].numpy()
        assert set(sign) == {-1.0, 1.0}
        last = 5 - mask[:, ::-1].argmax(axis=1)
        np.testing.assert_array_equal(game["right"], np.where(sign > 0, last, mask.argmax(axis=1)))
        state = env.step(state, game["right"])


def test_draws_are_uniform_and_independent_of_what_was_before():
    count, pairs = 15_000, list(itertools.combinations(range(6), 2))
    env = Masked(num_envs=count, num_actions=6)
    state = env.reset(KEY)
    drawn = []
    for _ in range(3):
        mask = state.info["action_mask"].numpy()
        which = np.argmax([mask[:, a] & mask[:, b] for a, b in pairs], axis=0)
        # 15 pairs, 1000 of each; a standard deviation is sqrt(1000 * 14 / 15) = 30.6.
        assert np.abs(np.bincount(which, minlength=15) - 1000).max() < 4.5 * 30.6
        drawn += [which, state.obs[:, 0].numpy()]
        state = env.step(state, state.env_state["right"])
    drawn = np.array(drawn, float)
    assert np.abs(np.corrcoef(drawn) - np.eye(6)).max() < 4 / np.sqrt(count)
    # Neighbouring rows are independent too.
    for values in drawn:
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(count)


def test_specs_and_the_mask_in_the_observation():
    env = tfrl.make_env("tf:Masked", 2, num_actions=30, num_valid=3)
    bare = env.unwrapped
    low, high = specs.bounds(bare.obs_spec)
    assert (low.tolist(), high.tolist()) == ([-1, 0], [1, 1])
    assert env.action_spec == specs.DiscreteSpec(30)
    assert env.obs_spec["observation"] == bare.obs_spec
    state = env.reset(KEY)
    np.testing.assert_array_equal(state.obs["action_mask"], state.info["action_mask"])


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_it_follows_the_protocol(mode):
    assert checked(Masked(num_envs=3), steps=12).sum(axis=0).tolist() == [1] * 3
    env = tfrl.make_env("tf:Masked", 4, mode, num_actions=4, length=3)
    assert checked(env, steps=15).any(axis=0).all()


def test_the_picture():
    env = tfrl.make_env("tf:Masked", 2, num_actions=10, length=5)
    state = env.reset(KEY)
    state = env.step(state, tf.argmax(state.obs["action_mask"], axis=-1))
    picture = env.render(state, 1)
    assert (picture.shape, picture.dtype) == ((64, 320, 3), np.uint8)
    squares = picture[16::32, 16::32]
    mask = state.obs["action_mask"][1].numpy()
    first, last = np.flatnonzero(mask)
    right = last if state.obs["observation"][1, 0] > 0 else first
    expected = np.where(mask[:, np.newaxis], grid_picture.AGENT, grid_picture.WALL)
    expected[right] = grid_picture.GOAL
    np.testing.assert_array_equal(squares[0], expected)
    over = [grid_picture.ITEM] * 2 + [grid_picture.FLOOR] * 8  # one step of five
    np.testing.assert_array_equal(squares[1], over)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_valid": 1},
            "Masked.num_valid: expected a whole number of at least 2 and at most 20, got 1. Give "
            "2 to 20.",
        ),
        (
            {"num_actions": 3, "num_valid": 4},
            "Masked.num_valid: expected a whole number of at least 2 and at most 3, got 4. Give 2 "
            "to 3.",
        ),
        (
            {"length": 1001},
            "Masked.length: expected a whole number of at least 1 and at most 1000, got 1001. "
            "Give 1 to 1000.",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises(UserError) as error:
        Masked(**changes)
    assert str(error.value) == message
