"""Seaquest against the package, and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tests.envs.minatar import minatar_oracle as oracle
from tfrl.envs.tf.minatar import Seaquest
from tfrl.envs.tf.minatar.core import GONE

NUM_ENVS = 8


def save(t, games):
    """Fetches divers, and surfaces with six, or with any when the air gets short."""
    actions = []
    for game in games:
        x, y = game.sub_x, game.sub_y
        if game.diver_count == 6 or (game.oxygen < 40 and game.diver_count != 0):
            actions.append(2)
        elif game.divers:
            diver = min(game.divers, key=lambda d: abs(d[0] - x) + abs(d[1] - y))
            up_or_down = 2 if diver[1] < y else 4
            actions.append(up_or_down if diver[1] != y else 1 if diver[0] < x else 3)
        else:
            actions.append([5, 4, 1, 5, 4, 3][t % 6])
    return actions


def late(level):
    """Starts at the last level, at which an enemy may come in every frame."""

    def theirs(game):
        game.e_spawn_speed, game.move_speed, game.ramp_index = 1, 2, level
        game.e_spawn_timer, game.surface = 0, False

    def ours(game):
        return game.replace(
            spawn_frames=tf.ones_like(game.x),
            move_frames=tf.fill(tf.shape(game.x), 2),
            ramp_index=tf.fill(tf.shape(game.x), level),
            spawn_timer=tf.zeros_like(game.x),
            surfaced=tf.zeros_like(game.surfaced),
        )

    return theirs, ours


@pytest.mark.parametrize("ramping", [False, True])
@pytest.mark.variants(1)
def test_random_play_equals_the_package(ramping):
    env = Seaquest(num_envs=NUM_ENVS, difficulty_ramping=ramping)
    draws, starts = oracle.uniforms(0, env, 700)
    weights = [0.1, 0.15, 0.1, 0.15, 0.3, 0.2]
    actions = oracle.random_actions(1, NUM_ENVS, weights)
    reward, over, _ = oracle.compare(env, actions, draws, starts, jit_compile=ramping)
    assert reward.sum() > 5 and over.sum() > 50


@pytest.mark.parametrize("ramping", [False, True])
@pytest.mark.variants(1)
def test_a_saviour_of_divers_equals_the_package(ramping):
    env = Seaquest(num_envs=4, difficulty_ramping=ramping)
    draws, starts = oracle.uniforms(2, env, 1600)
    reward, over, games = oracle.compare(env, save, draws, starts, play_on=True)
    assert over.any() and reward.max() >= 4  # six were brought up, which pays by the air left
    assert all((g.ramp_index > 0) == ramping for g in games)


@pytest.mark.slow
def test_the_last_level_equals_the_package():
    env = Seaquest(num_envs=NUM_ENVS)
    draws, starts = oracle.uniforms(4, env, 700)
    crowd = []
    act = oracle.random_actions(5, NUM_ENVS, [0.1, 0.15, 0.1, 0.15, 0.2, 0.3])

    def actions(t, games):
        cells = [[tuple(e[:2]) for e in g.e_fish + g.e_subs] for g in games]
        crowd.append([(len(c), len(c) - len(set(c))) for c in cells])
        return act(t, games)

    reward, _, _ = oracle.compare(env, actions, draws, starts, play_on=True, prepare=late(19))
    most, shared = np.max(crowd, axis=(0, 1))
    assert most >= 20 and shared >= 2  # so many enemies, some of them in the same cell
    assert reward.sum() > 100


def test_a_crowd_in_one_row_fills_all_slots():
    # A newcomer in each frame, all from the left into row 1: 30 of them, 3 to a cell.
    env = Seaquest(num_envs=2)
    draws, starts = oracle.uniforms(6, env, 80)
    draws[..., 0], draws[..., 2] = 0.1, 0.01
    _, _, games = oracle.compare(
        env, lambda t, g: [4, 4 if t < 6 else 0], draws, starts, play_on=True, prepare=late(19)
    )
    assert all(len(g.e_fish + g.e_subs) == 29 for g in games)


def test_surfacing_by_hand():
    # Rows: nobody aboard, one, six with 150 frames of air, six again with none left.
    env = Seaquest(num_envs=4)
    game = env.start(tf.zeros([4, 0])).replace(
        y=tf.ones([4], tf.int32),
        surfaced=tf.zeros([4], tf.bool),
        aboard=tf.constant([0, 1, 6, 6]),
        oxygen=tf.constant([100, 100, 150, 0]),
    )
    after, reward, over = env.play(game, tf.fill([4], 2), tf.zeros([4, 5]))
    np.testing.assert_array_equal(reward, [0, 0, 7, 0])  # 150 * 10 // 200
    np.testing.assert_array_equal(over, [True, False, False, True])
    np.testing.assert_array_equal(after.oxygen, [100, 200, 200, 200])
    np.testing.assert_array_equal(after.aboard, [0, 0, -1, -1])
    np.testing.assert_array_equal(after.surfaced, [False, True, True, True])
    np.testing.assert_array_equal(after.spawn_frames, [20, 19, 19, 19])
    np.testing.assert_array_equal(after.move_frames, [5, 5, 5, 5])
    # The second rise makes enemies faster too.
    again = after.replace(surfaced=tf.zeros([4], tf.bool), aboard=tf.ones([4], tf.int32))
    again, _, _ = env.play(again, tf.zeros([4], tf.int32), tf.zeros([4, 5]))
    np.testing.assert_array_equal(again.ramp_index, [1, 2, 2, 2])
    np.testing.assert_array_equal(again.move_frames, [5, 4, 4, 4])


def test_room_for_one_diver_takes_the_newer():
    env = Seaquest(num_envs=1)
    game = env.start(tf.zeros([1, 0]))
    game = game.replace(
        y=tf.constant([3]),
        aboard=tf.constant([5]),
        divers=game.divers.replace(
            x=tf.constant([[5, 5]]),
            y=tf.constant([[3, 3]]),
            direction=tf.constant([[1, -1]]),
            move_timer=tf.constant([[2, 4]]),
        ),
    )
    after, _, _ = env.play(game, tf.constant([0]), tf.zeros([1, 5]))
    assert int(after.aboard[0]) == 6
    np.testing.assert_array_equal(after.divers.x, [[5, GONE]])


def test_the_gauges_by_hand():
    env = Seaquest(num_envs=3)
    game = env.start(tf.zeros([3, 0])).replace(
        oxygen=tf.constant([200, 119, -1]), aboard=tf.constant([0, 2, -1])
    )
    board = env.observe(game).numpy()
    np.testing.assert_array_equal(board[:, 9, :, 7].sum(axis=-1), [10, 5, 0])
    np.testing.assert_array_equal(np.argwhere(board[..., 8])[:, [0, 2]], [[1, 7], [1, 8]])


@pytest.mark.slow
def test_long_play_equals_the_package():
    env = Seaquest(num_envs=16)
    draws, starts = oracle.uniforms(5, env, 4000)
    weights = [0.1, 0.15, 0.1, 0.15, 0.2, 0.3]
    for actions in (save, oracle.random_actions(8, 16, weights)):
        reward, over, _ = oracle.compare(env, actions, draws, starts)
        assert reward.any() and over.any(axis=0).all()
        oracle.compare(env, actions, draws, starts, play_on=True)
    oracle.compare(
        env, oracle.random_actions(9, 16, weights), draws, starts, play_on=True, prepare=late(19)
    )
