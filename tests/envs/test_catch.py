"""Catch against a plain NumPy class of its rules, and against itself under every way to run it."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tests.envs.device_checks import check_traced_once
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf import grid_picture
from tfrl.envs.tf.catch import LEFT, RIGHT, STAY, Catch
from tfrl.errors import UserError


class PlainCatch:
    """The rules, one environment at a time."""

    def __init__(self, ball, rows=10, columns=5):
        self.rows, self.columns = rows, columns
        self.ball, self.row, self.paddle = ball, 0, columns // 2

    def board(self):
        board = np.zeros([self.rows, self.columns], np.float32)
        board[self.row, self.ball] = 1.0
        board[-1, self.paddle] = 1.0
        return board

    def step(self, action):
        self.paddle = min(max(self.paddle + [-1, 0, 1][action], 0), self.columns - 1)
        self.row += 1
        if self.row < self.rows - 1:
            return self.board(), 0.0, False
        return self.board(), 1.0 if self.paddle == self.ball else -1.0, True


def game(row, ball, paddle):
    values = {"row": row, "ball": ball, "paddle": paddle}
    return carrying({name: tf.constant(v, tf.int32) for name, v in values.items()})


@pytest.mark.parametrize(("rows", "columns"), [(10, 5), (4, 3), (2, 1)])
def test_one_step_agrees_with_the_rules_from_every_state(rows, columns):
    cases = np.array(
        [
            (row, ball, paddle, action)
            for row in range(rows - 1)
            for ball in range(columns)
            for paddle in range(columns)
            for action in range(3)
        ]
    )
    env = Catch(num_envs=len(cases), rows=rows, columns=columns)
    new = env.step(game(*cases[:, :3].T), tf.constant(cases[:, 3]))
    boards, rewards, ends = [], [], []
    for row, ball, paddle, action in cases:
        plain = PlainCatch(ball, rows, columns)
        plain.row, plain.paddle = row, paddle
        for told, values in zip(plain.step(action), (boards, rewards, ends), strict=True):
            values.append(told)
    np.testing.assert_array_equal(new.obs, boards)
    np.testing.assert_array_equal(new.reward, rewards)
    np.testing.assert_array_equal(new.termination, ends)
    assert not new.truncation.numpy().any()


def test_long_random_play_agrees_with_the_rules():
    size = 6
    env = tfrl.make_env("tf:Catch", size)
    step = tf.function(env.step)
    state = env.reset(seeding.key(0))
    plain = [PlainCatch(ball) for ball in state.obs[:, 0].numpy().argmax(axis=1)]
    for t, actions in enumerate(np.random.default_rng(0).integers(0, 3, [120, size])):
        state = step(state, tf.constant(actions))
        boards, rewards, ends = zip(
            *(p.step(a) for p, a in zip(plain, actions, strict=True)), strict=True
        )
        np.testing.assert_array_equal(state.info["final_obs"], boards)
        np.testing.assert_array_equal(state.reward, rewards)
        np.testing.assert_array_equal(state.termination, ends)
        np.testing.assert_array_equal(state.info["episode_length"], [t % 9 + 1] * size)
        if t % 9 == 8:
            assert all(ends)
            plain = [PlainCatch(ball) for ball in state.obs[:, 0].numpy().argmax(axis=1)]
        np.testing.assert_array_equal(state.obs, [p.board() for p in plain])


def test_going_to_the_ball_catches_it_always():
    # From column 2 every column is at most 2 steps away, and there are 9.
    env = Catch(num_envs=50)
    state = env.reset(seeding.key(1))
    assert set(state.env_state["ball"].numpy()) == {0, 1, 2, 3, 4}
    for t in range(9):
        away = tf.sign(state.env_state["ball"] - state.env_state["paddle"])
        state = env.step(state, STAY + away)
        np.testing.assert_array_equal(state.reward, np.full(50, float(t == 8)))
        np.testing.assert_array_equal(state.termination, np.full(50, t == 8))


def test_an_episode_by_hand():
    # Three rows, three columns: the paddle starts at 1, the ball falls in column 0.
    env = Catch(num_envs=1, rows=3, columns=3)
    state = env.step(game([0], [0], [1]), tf.constant([RIGHT]))
    np.testing.assert_array_equal(state.obs[0], [[0, 0, 0], [1, 0, 0], [0, 0, 1]])
    assert (float(state.reward[0]), bool(state.termination[0])) == (0.0, False)
    state = env.step(state, tf.constant([LEFT]))
    np.testing.assert_array_equal(state.obs[0], [[0, 0, 0], [0, 0, 0], [1, 1, 0]])
    assert (float(state.reward[0]), bool(state.termination[0])) == (-1.0, True)


def test_starts_are_uniform_over_the_columns():
    state = Catch(num_envs=5000).reset(seeding.key(0))
    counts = np.bincount(state.env_state["ball"], minlength=5)
    # A standard deviation is sqrt(5000 * 0.2 * 0.8) = 28.
    assert np.abs(counts - 1000).max() < 4 * 28.3
    np.testing.assert_array_equal(state.env_state["paddle"], np.full(5000, 2))


def test_specs():
    env = tfrl.make_env("tf:Catch", 2, rows=7, columns=4)
    assert env.obs_spec == specs.BoundedTensorSpec([7, 4], tf.float32, 0.0, 1.0)
    assert env.action_spec == specs.DiscreteSpec(3)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_it_follows_the_protocol(mode):
    env = tfrl.make_env("tf:Catch", 4, mode, rows=4)
    # Episodes of 3 steps, with a reset after each, or none at all.
    times = {"NEXT_STEP": 5, "DISABLED": 18}[mode]
    assert checked(env, steps=20).sum(axis=0).tolist() == [times] * 4


def test_one_trace_for_all_keys_and_actions():
    env = tfrl.make_env("tf:Catch", 3)
    check_traced_once(env, num_actions=3)


def test_the_picture():
    env = tfrl.make_env("tf:Catch", 2, "DISABLED")
    state = env.reset(seeding.key(0))
    picture = env.render(state, 1)
    assert (picture.shape, picture.dtype) == ((320, 160, 3), np.uint8)
    ball = int(state.obs[1, 0].numpy().argmax())
    np.testing.assert_array_equal(picture[16, 32 * ball + 16], grid_picture.ITEM)
    np.testing.assert_array_equal(picture[16 + 9 * 32, 16 + 2 * 32], grid_picture.AGENT)
    np.testing.assert_array_equal(picture[100, 16], grid_picture.FLOOR)
    np.testing.assert_array_equal(picture[0], np.full([160, 3], 255))  # the line around squares
    for _ in range(9):  # at the end the ball is seen in the bottom row
        state = env.step(state, tf.constant([0, 0]))
    np.testing.assert_array_equal(
        env.render(state, 1)[16 + 9 * 32, 16 + 32 * ball], grid_picture.ITEM
    )


def test_squares_shrink_in_large_grids_and_stay_even():
    assert grid_picture.draw(grid_picture.floor(30, 3)).shape == (30 * 20, 3 * 20, 3)
    assert grid_picture.draw(grid_picture.floor(500, 2)).shape == (500 * 4, 2 * 4, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rows": 1},
            "Catch.rows: expected a whole number of at least 2 and at most 1000, got 1. Give 2 to "
            "1000.",
        ),
        (
            {"columns": 0},
            "Catch.columns: expected a whole number of at least 1, got 0. Give 1 or more.",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises(UserError) as error:
        Catch(**changes)
    assert str(error.value) == message
