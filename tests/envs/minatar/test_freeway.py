"""Freeway against the package, and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.minatar import minatar_oracle as oracle
from tfrl.envs.tf.minatar import Freeway

NUM_ENVS = 8


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.variants(1)
def test_a_hurried_chicken_equals_the_package(jit_compile):
    env = Freeway(num_envs=NUM_ENVS)
    draws, starts = oracle.uniforms(0, env, 600)
    actions = oracle.random_actions(1, NUM_ENVS, [0.1, 0.05, 0.65, 0.05, 0.1, 0.05])
    reward, over, _ = oracle.compare(env, actions, draws, starts, jit_compile=jit_compile)
    assert reward.sum() > 10 and not over.any()


def test_the_end_and_the_next_game_equal_the_package():
    env = Freeway(num_envs=2)
    draws, starts = oracle.uniforms(2, env, 2600)
    _, over, _ = oracle.compare(env, lambda t, games: [2, 2 * (t % 2)], draws, starts)
    np.testing.assert_array_equal(np.argwhere(over), [[2500, 0], [2500, 1]])  # frame 2501


def test_speeds_are_uniform():
    # 1000 equally spaced draws: each of the ten speeds 100 times, half to the left.
    env = Freeway(num_envs=125)
    draws = (tf.range(1000, dtype=tf.float32) + 0.5) / 1000
    speeds, counts = np.unique(env.start(tf.reshape(draws, [125, 8])).speeds, return_counts=True)
    np.testing.assert_array_equal(speeds, [-5, -4, -3, -2, -1, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(counts, [100] * 10)


def test_a_crossing_by_hand():
    # On a road whose cars hardly move, up at every third frame: 9 rows in 27 frames, from frame 4.
    env = Freeway(num_envs=1)
    game = env.start(tf.fill([1, 8], 0.99))  # speed 5, from column 0
    game = game.replace(timers=tf.fill([1, 8], 1000))
    draws = tf.fill([1, 8], 0.0)
    for t in range(1, 29):
        game, reward, over = env.play(game, tf.constant([2]), draws)
        assert bool(reward[0]) == (t == 28) and not over[0]
    # Back at the start, and all cars have the new speed -5.
    assert int(game.y[0]) == 9
    np.testing.assert_array_equal(game.speeds[0], [-5] * 8)
    board = env.observe(game)[0].numpy()
    assert board[9, 4, 0] and board[..., 0].sum() == 1
    # The cars are in column 0 and go left: their marks in the channel of speed 5 are in column 1.
    np.testing.assert_array_equal(np.argwhere(board[..., 6]), [[r, 1] for r in range(1, 9)])
    np.testing.assert_array_equal(np.argwhere(board[..., 1]), [[r, 0] for r in range(1, 9)])


@pytest.mark.parametrize("column,speed,timer", [(4, 1, 3), (4, 1, 0), (3, 2, 0), (5, -2, 0)])
@pytest.mark.variants(2)
def test_a_car_that_is_or_comes_where_the_chicken_is_sends_it_back(column, speed, timer):
    env = Freeway(num_envs=1)
    game = env.start(tf.zeros([1, 8])).replace(
        y=tf.constant([4]),
        columns=tf.constant([[0, 0, 0, column, 0, 0, 0, 0]]),
        speeds=tf.fill([1, 8], speed),
        timers=tf.fill([1, 8], timer),
    )
    after, _, _ = env.play(game, tf.constant([0]), tf.zeros([1, 8]))
    assert int(after.y[0]) == 9
    elsewhere, _, _ = env.play(game.replace(y=tf.constant([5])), tf.constant([0]), tf.zeros([1, 8]))
    assert int(elsewhere.y[0]) == 5


@pytest.mark.slow
def test_long_play_equals_the_package():
    env = Freeway(num_envs=16)
    draws, starts = oracle.uniforms(5, env, 5100)
    actions = oracle.random_actions(8, 16, [0.1, 0.02, 0.7, 0.03, 0.1, 0.05])
    _, over, _ = oracle.compare(env, actions, draws, starts)
    assert over.sum() == 32
