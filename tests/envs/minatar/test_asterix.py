"""Asterix against the package, and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.minatar import minatar_oracle as oracle
from tfrl.envs.tf.minatar import Asterix

NUM_ENVS = 8


def hunt(t, games):
    """Goes for gold, and else stays."""
    actions = []
    for game in games:
        gold = [e for e in game.entities if e is not None and e[3]]
        if not gold:
            actions.append(0)
            continue
        x, y = min(gold, key=lambda e: abs(e[1] - game.player_y))[:2]
        up_or_down = 2 if y < game.player_y else 4
        actions.append(up_or_down if y != game.player_y else 1 if x < game.player_x else 3)
    return actions


@pytest.mark.parametrize("ramping", [False, True])
@pytest.mark.variants(1)
def test_random_play_equals_the_package(ramping):
    env = Asterix(num_envs=NUM_ENVS, difficulty_ramping=ramping)
    draws, starts = oracle.uniforms(0, env, 700)
    actions = oracle.random_actions(1, NUM_ENVS)
    reward, over, _ = oracle.compare(env, actions, draws, starts, jit_compile=ramping)
    assert reward.sum() > 10 and over.sum() > 40


def test_a_hunter_up_to_the_last_level_equals_the_package():
    # Enemies do not stop it. After 9 rises, one in 102 frames, newcomers come in each frame.
    env = Asterix(num_envs=4)
    draws, starts = oracle.uniforms(2, env, 1200)
    reward, over, games = oracle.compare(env, hunt, draws, starts, play_on=True)
    assert reward.sum() > 100 and over.any()
    assert all(g.ramp_index == 9 and g.spawn_speed == g.move_speed == 1 for g in games)


def test_without_ramping_the_speed_stays():
    env = Asterix(num_envs=2, difficulty_ramping=False)
    draws, starts = oracle.uniforms(3, env, 300)
    _, _, games = oracle.compare(env, hunt, draws, starts, play_on=True)
    assert all(g.ramp_index == 0 and g.spawn_speed == 10 for g in games)


def test_the_first_newcomer_by_hand():
    # One comes in frame 11: from the left, gold, into the last of the eight rows. Things move in
    # frames 6, 11, 16, so that it goes on at once.
    env = Asterix(num_envs=1)
    game = env.start(tf.zeros([1, 0]))
    draws = tf.constant([[0.4, 0.3, 0.99]])
    for _ in range(10):
        game, _, _ = env.play(game, tf.constant([0]), draws)
        assert not env.observe(game)[..., 1:].numpy().any()
    game, reward, over = env.play(game, tf.constant([0]), draws)
    board = env.observe(game)[0].numpy()
    assert board[8, 1, 3] and board[8, 0, 2] and board[..., 1:].sum() == 2
    assert board[5, 5, 0] and not over[0] and reward[0] == 0


def test_newcomers_choose_among_free_rows():
    # With rows 2 to 7 taken, a draw below 1/2 is row 1, and row 8 from there on.
    env = Asterix(num_envs=4)
    game = env.start(tf.zeros([4, 0])).replace(
        spawn_timer=tf.zeros([4], tf.int32),
        columns=tf.constant([[-10] + [9] * 6 + [-10]] * 4),
    )
    draws = tf.constant([[0.9, 0.9, u] for u in (0.0, 0.49, 0.51, 0.9999)])
    after, _, _ = env.play(game, tf.zeros([4], tf.int32), draws)
    np.testing.assert_array_equal(after.columns[:, 0], [9, 9, -10, -10])
    np.testing.assert_array_equal(after.columns[:, 7], [-10, -10, 9, 9])
    np.testing.assert_array_equal(after.directions[:, 0], [-1, -1, 1, 1])


@pytest.mark.slow
def test_long_play_equals_the_package():
    env = Asterix(num_envs=16)
    for seed, actions in ((5, hunt), (7, oracle.random_actions(8, 16))):
        draws, starts = oracle.uniforms(seed, env, 5000)
        reward, over, _ = oracle.compare(env, actions, draws, starts)
        assert reward.any() and over.any(axis=0).all()
        oracle.compare(env, actions, draws, starts, play_on=True)
