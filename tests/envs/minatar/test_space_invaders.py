"""Space Invaders against the package, and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.minatar import minatar_oracle as oracle
from tfrl.envs.tf.minatar import SpaceInvaders

NUM_ENVS = 8
SHOOTER = [0.05, 0.25, 0.05, 0.25, 0.05, 0.35]


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.variants(1)
def test_random_play_equals_the_package(jit_compile):
    env = SpaceInvaders(num_envs=NUM_ENVS)
    draws, starts = oracle.uniforms(0, env, 600)
    actions = oracle.random_actions(1, NUM_ENVS)
    reward, over, _ = oracle.compare(env, actions, draws, starts, jit_compile=jit_compile)
    assert reward.sum() > 100 and over.sum() > 40


@pytest.mark.parametrize("ramping", [False, True])
@pytest.mark.variants(1)
def test_an_unhurt_shooter_equals_the_package_over_waves(ramping):
    # Aliens that landed come in again at the top there too.
    env = SpaceInvaders(num_envs=NUM_ENVS, difficulty_ramping=ramping)
    draws, starts = oracle.uniforms(2, env, 1000)
    actions = oracle.random_actions(3, NUM_ENVS, SHOOTER)
    reward, over, games = oracle.compare(env, actions, draws, starts, play_on=True)
    assert over.any() and reward.sum(axis=0).max() > 48  # two waves of 24
    levels = [g.ramp_index for g in games]
    assert max(levels) >= 2 if ramping else max(levels) == 0
    assert all(g.enemy_move_interval == 12 - level for g, level in zip(games, levels, strict=True))


def test_ramping_stops_at_6_frames():
    # Only the last alien of a wave is left, under the muzzle: it is shot, and the next wave starts.
    env = SpaceInvaders(num_envs=3)
    last = np.zeros([3, 10], np.int32)
    last[:, 5] = 1 << 5
    game = env.start(tf.zeros([3, 0])).replace(
        aliens=tf.constant(last),
        bullets=tf.constant(np.roll(last, 1, axis=1)),
        move_frames=tf.constant([12, 7, 6]),
    )
    after, reward, over = env.play(game, tf.zeros([3], tf.int32), tf.zeros([3, 0]))
    np.testing.assert_array_equal(reward, [1, 1, 1])
    np.testing.assert_array_equal(after.move_frames, [11, 6, 6])
    np.testing.assert_array_equal(after.ramp_index, [1, 1, 0])
    assert env.observe(after)[..., 1].numpy().sum() == 3 * 24 and not over.numpy().any()


@pytest.mark.parametrize(
    "cannon,columns,fires",
    [(5, [2, 7], 7), (4, [2, 7], 2), (5, [3, 7], 3), (0, [9], 9), (6, [6, 5], 6)],
)
def test_the_nearest_column_fires_the_left_of_two(cannon, columns, fires):
    # Each column has an alien in row 0 and one in row 2: the lower one fires.
    env = SpaceInvaders(num_envs=1)
    words = np.zeros([1, 10], np.int32)
    words[0, [0, 2]] = sum(1 << c for c in columns)
    game = env.start(tf.zeros([1, 0])).replace(
        x=tf.constant([cannon]), aliens=tf.constant(words), alien_shot_timer=tf.constant([0])
    )
    after, _, _ = env.play(game, tf.constant([0]), tf.zeros([1, 0]))
    np.testing.assert_array_equal(np.argwhere(env.observe(after)[0, ..., 5]), [[2, fires]])


@pytest.mark.slow
def test_long_play_equals_the_package():
    env = SpaceInvaders(num_envs=16)
    draws, starts = oracle.uniforms(5, env, 4000)
    actions = oracle.random_actions(8, 16, SHOOTER)
    reward, over, _ = oracle.compare(env, actions, draws, starts)
    assert reward.any() and over.any(axis=0).all()
    oracle.compare(env, actions, draws, starts, play_on=True)
