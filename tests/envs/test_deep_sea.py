"""DeepSea against a plain NumPy class of its rules, its optima, and its chance."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf import grid_picture
from tfrl.envs.tf.deep_sea import DeepSea
from tfrl.errors import UserError


class PlainDeepSea:
    """The rules, one environment at a time; whoever calls says whether a move is held back."""

    def __init__(self, mapping, deterministic=True, cost=0.01):
        self.mapping, self.size = mapping, len(mapping)
        self.deterministic, self.cost = deterministic, cost
        self.row = self.column = 0

    def step(self, action, held=False, noise=0.0):
        reward, last = 0.0, self.size - 1
        right = action == self.mapping[self.row, self.column]
        if right and self.column == last:
            reward += 1.0
        if not self.deterministic and self.row == last and self.column in (0, last):
            reward += noise
        if right:
            reward -= self.cost / self.size
            if self.deterministic or not held:
                self.column = min(self.column + 1, last)
        else:
            self.column = max(self.column - 1, 0)
        self.row += 1
        board = np.zeros([self.size, self.size], np.float32)
        if self.row < self.size:
            board[self.row, self.column] = 1.0
        return board, reward, self.row == self.size


def rights(env, state):
    """The action that goes right in every environment; any at the end."""
    cells = [np.minimum(state.env_state[n].numpy(), env.size - 1) for n in ("row", "column")]
    return env.action_mapping[tuple(cells)]


@pytest.mark.parametrize(("size", "seed"), [(2, 42), (np.int64(7), np.int64(3)), (3, None)])
def test_random_play_agrees_with_the_rules(size, seed):
    env = tfrl.make_env("tf:DeepSea", 4, size=size, mapping_seed=seed)
    mapping = env.unwrapped.action_mapping
    step, state = tf.function(env.step), env.reset(seeding.key(0))
    plain = [PlainDeepSea(mapping) for _ in range(4)]
    for t, actions in enumerate(np.random.default_rng(0).integers(0, 2, [5 * size, 4])):
        state = step(state, tf.constant(actions))
        boards, rewards, ends = zip(
            *(p.step(a) for p, a in zip(plain, actions, strict=True)), strict=True
        )
        np.testing.assert_array_equal(state.info["final_obs"], boards)
        np.testing.assert_allclose(state.reward, rewards, atol=1e-7)
        np.testing.assert_array_equal(state.termination, ends)
        assert list(ends) == [t % size == size - 1] * 4
        if all(ends):
            plain = [PlainDeepSea(mapping) for _ in range(4)]
            np.testing.assert_array_equal(state.obs, env.reset(seeding.key(1)).obs)


def test_one_step_from_every_cell():
    size = 5
    env = DeepSea(num_envs=2 * size * size, size=size, unscaled_move_cost=0.5)
    row, column, action = (x.ravel() for x in np.indices([size, size, 2]))
    state = carrying({"row": tf.constant(row, tf.int32), "column": tf.constant(column, tf.int32)})
    new = env.step(state, tf.constant(action))
    rows = zip(*(x.numpy() for x in (new.obs, new.reward, new.termination)), strict=True)
    for i, got in enumerate(rows):
        plain = PlainDeepSea(env.action_mapping, cost=0.5)
        plain.row, plain.column = row[i], column[i]
        for value, expected in zip(got, plain.step(action[i]), strict=True):
            np.testing.assert_allclose(value, expected, atol=1e-7)


@pytest.mark.parametrize("size", [2, 10, 50])
def test_going_right_is_worth_the_optimum_of_0_99(size):
    env, total = DeepSea(num_envs=2, size=size), np.zeros(2)
    step, state = tf.function(env.step), env.reset(seeding.key(0))
    for t in range(size):
        state = step(state, tf.constant(rights(env, state)))
        total += state.reward.numpy()
        assert state.termination.numpy().tolist() == [t == size - 1] * 2
    np.testing.assert_allclose(total, 0.99, atol=1e-5)
    np.testing.assert_allclose(env.optimal_return(), 0.99, atol=1e-12)


@pytest.mark.parametrize("cost", [0.0, 0.01, 0.9, 1.5])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("size", [2, 5, 12])
def test_the_optimum_is_that_of_dynamic_programming(size, deterministic, cost):
    held = 0.0 if deterministic else 1 / size
    value = np.zeros(size)  # below the last row
    for _ in range(size):
        left = value[np.maximum(np.arange(size) - 1, 0)]
        moved = value[np.minimum(np.arange(size) + 1, size - 1)]
        right = (1 - held) * moved + held * value - cost / size
        right[-1] += 1.0
        value = np.maximum(left, right)
    env = DeepSea(size=size, deterministic=deterministic, unscaled_move_cost=cost)
    np.testing.assert_allclose(env.optimal_return(), value[0], atol=1e-12)


def test_wind_and_noise_have_their_odds():
    # From all cells of the first and the last column and one between, each many times.
    size, count = 4, 20_000
    env = DeepSea(num_envs=count, size=size, deterministic=False)
    start = env.reset(seeding.key(0)).env_state
    for row, column in ((1, 0), (2, 2), (3, 0), (3, 2), (3, 3)):
        place = {"row": tf.fill([count], row), "column": tf.fill([count], column)}
        state = carrying({**place, "key": start["key"]})
        right = env.action_mapping[row, column]
        for action in (right, 1 - right):
            new = env.step(state, tf.fill([count], action))
            moved = new.env_state["column"].numpy() - column
            gains = new.reward.numpy()
            base = (action == right) * ((column == 3) - 0.01 / 4)
            noise = gains - base
            if row == 3 and column in (0, 3):
                assert abs(noise.mean()) < 4 / np.sqrt(count)
                assert abs(noise.var() - 1) < 4 * np.sqrt(2 / count)
                assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 4 / np.sqrt(count)
            else:
                np.testing.assert_allclose(noise, 0.0, atol=1e-7)
            if action == right and column < 3:
                assert set(moved) == {0, 1}
                # Held back with probability 1 / 4; a standard deviation is sqrt(3 / 16 / count).
                assert abs((moved == 0).mean() - 0.25) < 4 * np.sqrt(3 / 16 / count)
            elif action != right:
                np.testing.assert_array_equal(moved, -1 if column else 0)


def test_chance_is_new_at_every_step_and_after_every_reset():
    env = tfrl.make_env("tf:DeepSea", 8, size=2, deterministic=False)
    step, state = tf.function(env.step), env.reset(seeding.key(3))
    seen = []
    for _ in range(40):
        state = step(state, tf.zeros([8], tf.int64))
        seen += state.reward.numpy()[np.abs(state.reward) > 0.02].tolist()
    assert len(seen) > 50 and len(set(seen)) == len(seen)
    again = env.reset(seeding.key(3))
    other = env.reset(seeding.key(4))
    rewards = [
        step(step(s, tf.zeros([8], tf.int64)), tf.zeros([8], tf.int64)).reward.numpy()
        for s in (again, env.reset(seeding.key(3)), other)
    ]
    np.testing.assert_array_equal(rewards[0], rewards[1])
    assert (rewards[0] != rewards[2]).any()


def test_the_mapping_is_numpys_draw_from_its_seed():
    mapping = DeepSea(size=6, mapping_seed=7).action_mapping
    np.testing.assert_array_equal(mapping, np.random.RandomState(7).binomial(1, 0.5, [6, 6]))
    assert (mapping != DeepSea(size=6, mapping_seed=8).action_mapping).any()
    assert set(mapping.ravel()) == {0, 1}
    ones = DeepSea(size=6, mapping_seed=None).action_mapping
    np.testing.assert_array_equal(ones, np.ones([6, 6]))


def test_specs():
    env = tfrl.make_env("tf:DeepSea", 2, size=7)
    assert env.obs_spec == specs.BoundedTensorSpec([7, 7], tf.float32, 0.0, 1.0)
    assert env.action_spec == specs.DiscreteSpec(2)


@pytest.mark.parametrize(
    ("mode", "deterministic"), [("NEXT_STEP", False), ("DISABLED", True), ("DISABLED", False)]
)
def test_it_follows_the_protocol(mode, deterministic):
    # All episodes start at the same cell.
    env = tfrl.make_env("tf:DeepSea", 3, mode, size=4, deterministic=deterministic)
    assert checked(env, steps=12, stochastic=False).any(axis=0).all()


def test_the_picture():
    env = tfrl.make_env("tf:DeepSea", 2, "DISABLED", size=4, mapping_seed=None)
    state = env.step(env.reset(seeding.key(0)), tf.constant([0, 1]))
    picture = env.render(state, 1)
    assert (picture.shape, picture.dtype) == ((128, 128, 3), np.uint8)
    np.testing.assert_array_equal(picture[32 + 16, 32 + 16], grid_picture.AGENT)
    np.testing.assert_array_equal(picture[-16, -16], grid_picture.GOAL)
    np.testing.assert_array_equal(env.render(state, 0)[32 + 16, 16], grid_picture.AGENT)
    for _ in range(3):
        state = env.step(state, tf.constant([0, 1]))
    bottom = env.render(state, 1)
    assert not (bottom == grid_picture.AGENT).all(axis=-1).any()  # below the square


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"size": 1},
            "DeepSea.size: expected a whole number of at least 2 and at most 1000, got 1. Give 2 "
            "to 1000.",
        ),
        (
            {"unscaled_move_cost": -0.1},
            "DeepSea.unscaled_move_cost: expected a number of at least 0, got -0.1. Pass a finite "
            "number.",
        ),
        (
            {"mapping_seed": True},
            "DeepSea.mapping_seed: expected an int from 0 to 2^32 - 1, or None for action 1 as "
            "right in every cell, got True.",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises(UserError) as error:
        DeepSea(**changes)
    assert str(error.value) == message
