"""Breakout against the package, and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.minatar import minatar_oracle as oracle
from tfrl.envs.tf.minatar import Breakout

NUM_ENVS = 8


def follow(seed):
    """Follows the ball when it is near, walks about when it is far."""
    rng = np.random.default_rng(seed)

    def act(t, games):
        walk = rng.choice([1, 3], len(games))
        ahead = [g.ball_x - g.pos for g in games]
        chase = [0 if d == 0 else 1 if d < 0 else 3 for d in ahead]
        far = [g.ball_y < 3 and g.ball_dir < 2 for g in games]
        return np.where(far, walk, chase)

    return act


@pytest.mark.parametrize("jit_compile", [False, True])
def test_random_play_equals_the_package(jit_compile):
    env = Breakout(num_envs=NUM_ENVS)
    draws, starts = oracle.uniforms(0, env, 800)
    actions = oracle.random_actions(1, NUM_ENVS)
    reward, over, _ = oracle.compare(env, actions, draws, starts, jit_compile=jit_compile)
    assert reward.sum() > 100 and over.sum() > 300


def test_a_player_that_clears_the_wall_equals_the_package():
    env = Breakout(num_envs=NUM_ENVS)
    draws, starts = oracle.uniforms(2, env, 1200)
    reward, over, _ = oracle.compare(env, follow(3), draws, starts)
    streak = best = np.zeros(NUM_ENVS)
    for r, end in zip(reward, over, strict=True):
        streak = streak + r
        best, streak = np.maximum(best, streak), np.where(end, 0, streak)
    assert best.max() > 30  # of the 30 bricks of a wall: a second one was begun


def test_the_first_bounce_by_hand():
    # From (0, 3) to the right the ball comes down in column 6, row 9, after 6 frames.
    env = Breakout(num_envs=2)
    none = tf.zeros([2, 0])
    game = env.start(tf.constant([[0.4], [0.6]]))
    np.testing.assert_array_equal(game.x, [0, 9])
    np.testing.assert_array_equal(game.dx, [1, -1])
    for t in range(5):
        # The paddle goes from 4 to 6 in the first game, and to 3 and back to 4 in the other.
        action = [[3, 1], [3, 3], [0, 0], [0, 0], [0, 0]][t]
        game, reward, over = env.play(game, tf.constant(action), none)
        np.testing.assert_array_equal(reward, [0, 0])
        np.testing.assert_array_equal(over, [False, False])
    np.testing.assert_array_equal(game.x, [5, 4])
    np.testing.assert_array_equal(game.y, [8, 8])
    # First: the corner at 6 throws it back along its way. Second: from above at 4, only up.
    game, _, over = env.play(game, tf.constant([0, 0]), none)
    np.testing.assert_array_equal(over, [False, False])
    np.testing.assert_array_equal(game.x, [6, 3])
    np.testing.assert_array_equal(game.y, [8, 8])
    np.testing.assert_array_equal(game.dx, [-1, -1])
    np.testing.assert_array_equal(game.dy, [-1, -1])


def test_a_missed_ball_ends_the_game():
    env = Breakout(num_envs=1)
    game = env.start(tf.constant([[0.0]]))
    for t in range(6):
        game, _, over = env.play(game, tf.constant([0]), tf.zeros([1, 0]))
        assert bool(over[0]) == (t == 5)


def test_a_brick_is_broken_once_and_the_board_shows_it():
    env = Breakout(num_envs=1)
    game = env.start(tf.constant([[0.0]])).replace(
        x=tf.constant([4]), y=tf.constant([4]), dy=tf.constant([-1])
    )
    game, reward, _ = env.play(game, tf.constant([0]), tf.zeros([1, 0]))
    # The brick at (5, 3) is gone, and the ball is below it, on its way down.
    board = env.observe(game)[0].numpy()
    assert reward[0] == 1 and int(game.dy[0]) == 1
    assert board[..., 3].sum() == 29 and not board[3, 5, 3]
    assert board[4, 5, 1] and board[4, 4, 2] and board[9, 4, 0]
    assert board[..., :3].sum() == 3


@pytest.mark.slow
def test_long_play_equals_the_package():
    env = Breakout(num_envs=16)
    for seed, actions in ((5, follow(6)), (7, oracle.random_actions(8, 16))):
        draws, starts = oracle.uniforms(seed, env, 6000)
        reward, over, _ = oracle.compare(env, actions, draws, starts)
        assert reward.any() and over.any(axis=0).all()
