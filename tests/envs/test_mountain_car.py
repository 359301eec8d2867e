"""MountainCar against Gymnasium's."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.device_checks import check_traced_once
from tfrl import seeding, specs
from tfrl.agents import RandomAgent
from tfrl.envs.core import carrying, initial_state
from tfrl.envs.tf.mountain_car import MountainCar, roll
from tfrl.rollout import rollout
from tfrl.types import ActionOutput

STATES = 10_000
SPAN = np.array([1.8, 0.14])


def random_states():
    """States of all the valley; a third near the wall, a third near the goal."""
    rng = np.random.default_rng(0)
    states = rng.uniform([-1.2, -0.07], [0.6, 0.07], [STATES, 2])
    states[::3, 0] = rng.uniform(-1.2, -1.1, states[::3, 0].shape)
    states[1::3, 0] = rng.uniform(0.4, 0.6, states[1::3, 0].shape)
    return states.astype(np.float32), rng.integers(0, 3, STATES)


@pytest.mark.parametrize("goal_velocity", [0.0, 0.03])
def test_one_step_agrees_with_gymnasium_from_10000_states(goal_velocity):
    states, actions = random_states()
    env = gymnasium.make("MountainCar-v0", goal_velocity=goal_velocity).unwrapped
    env.reset(seed=0)
    rows = []
    for state, action in zip(states.astype(np.float64), actions, strict=True):
        env.state = state
        rows.append((*env.step(int(action))[:4], np.array(env.state)))
    obs, reward, terminated, truncated, exact = [np.array(c) for c in zip(*rows, strict=True)]
    ours = MountainCar(num_envs=STATES, goal_velocity=goal_velocity)
    new = ours.step(carrying(tf.constant(states)), tf.constant(actions))
    # At the wall a car that only just reaches it is stopped by one of the two and not the other.
    touching = np.abs(exact[:, 0] + 1.2) < 1e-6
    bounced = exact[:, 0] == -1.2
    clear = ~touching | bounced
    assert clear.mean() > 0.99 and 0.01 < bounced.mean() < 0.5
    assert (np.abs(new.obs - obs) <= 1e-6 * SPAN)[clear].all()
    np.testing.assert_array_equal(new.reward, reward)
    close = np.abs(exact - [0.5, goal_velocity]) < 1e-6
    near = close[:, 0] | (close[:, 1] & (exact[:, 0] > 0.4))
    assert near.mean() < 0.01
    np.testing.assert_array_equal(new.termination.numpy()[~near], terminated[~near])
    assert 0.05 < terminated.mean() < 0.5
    np.testing.assert_array_equal(new.truncation, truncated)


def test_steps_by_hand():
    # cos(0) = 1: from x = 0 at rest, a push to the right leaves 0.001 - 0.0025.
    position, velocity = roll(tf.zeros([1, 2]), tf.constant([0.001]))
    np.testing.assert_allclose([velocity[0], position[0]], [-0.0015, -0.0015], rtol=1e-6)
    # The wall takes all speed to the left, and none to the right; both bounds hold.
    states = tf.constant([[-1.19, -0.07], [-1.2, 0.01], [0.59, 0.07], [0.0, 0.07]])
    position, velocity = roll(states, tf.constant([0.0, 0.0, 0.0, 1.0]))
    cos = np.cos(-3.6)
    np.testing.assert_allclose(position, [-1.2, -1.19 - 0.0025 * cos, 0.6, 0.07], rtol=1e-6)
    np.testing.assert_allclose(velocity[:2], [0.0, 0.01 - 0.0025 * cos], rtol=1e-6)
    np.testing.assert_allclose(velocity[2:], [0.07, 0.07], rtol=1e-6)


def test_specs_and_limit_are_gymnasiums():
    ours, theirs = tfrl.make_env("tf:MountainCar-v0", 2), gymnasium.make("MountainCar-v0")
    assert specs.to_space(ours.obs_spec) == theirs.observation_space
    assert specs.to_space(ours.action_spec) == theirs.action_space
    assert ours.action_spec.dtype == tf.int64
    assert ours.max_episode_steps == theirs.spec.max_episode_steps == 200


def test_starts_are_distributed_as_gymnasiums():
    ours = MountainCar(num_envs=4000).reset(seeding.key(0)).obs.numpy()
    env = gymnasium.make("MountainCar-v0").unwrapped
    theirs = np.array([env.reset(seed=i)[0] for i in range(1000)])
    np.testing.assert_array_equal(ours[:, 1], np.zeros(4000))
    np.testing.assert_array_equal(theirs[:, 1], np.zeros(1000))
    grid, share = np.sort(ours[:, 0]), np.arange(1, 4001) / 4000
    assert grid[0] >= np.float32(-0.6) and grid[-1] <= np.float32(-0.4)
    # Kolmogorov-Smirnov at 0.1%, of one sample and of two.
    assert np.abs((grid + 0.6) / 0.2 - share).max() < 1.95 / np.sqrt(4000)
    theirs_share = np.searchsorted(np.sort(theirs[:, 0]), grid, side="right") / 1000
    assert np.abs(theirs_share - share).max() < 1.95 * np.sqrt(5000 / 4e6)


def test_a_random_episode_of_200_steps_agrees_with_gymnasium():
    theirs, ours = gymnasium.make("MountainCar-v0"), MountainCar(num_envs=1)
    first = tf.constant([theirs.reset(seed=3)[0]])
    actions = np.random.default_rng(1).integers(0, 3, 200)
    play = tf.function(lambda start: tf.scan(ours.step, tf.constant(actions[:, None]), start))
    states = play(initial_state(ours, env_state=first, obs=first))
    for t, action in enumerate(actions):
        obs, reward, terminated, truncated, _ = theirs.step(int(action))
        assert (np.abs(states.obs[t, 0] - obs) <= 2e-5 * SPAN).all()
        assert (states.reward[t, 0], bool(states.termination[t, 0])) == (reward, terminated)
        assert truncated == (t == 199)


@pytest.mark.slow
def test_swinging_reaches_the_goal_and_ends_the_episode():
    env = tfrl.make_env("tf:MountainCar-v0", 3)

    def swing(agent_state, obs, key, carry):  # pushing along with the motion always gains energy
        action = tf.cast(tf.where(obs[:, 1] < 0, 0, 2), tf.int64)
        return ActionOutput(action=action, carry=carry)

    @tf.function
    def play(key):
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        fields = ("episode_return", "episode_length")
        return rollout(env, agent, env.reset(key), {}, key, 300, fields, swing)[0]

    rows = play(seeding.key(0))
    assert not rows.truncation.numpy().any()
    ended = rows.termination.numpy()
    assert (rows.next_obs.numpy()[ended][:, 0] >= 0.5).all()
    following = rows.obs.numpy()[1:][ended[:-1]]
    assert ((-0.6 <= following[:, 0]) & (following[:, 0] <= -0.4)).all()
    np.testing.assert_array_equal(following[:, 1], np.zeros(len(following)))
    lengths = rows.env_extras["episode_length"].numpy()[ended]
    np.testing.assert_array_equal(rows.env_extras["episode_return"].numpy()[ended], -lengths)
    assert len(lengths) >= 6 and all(80 < n < 160 for n in lengths)


def test_one_trace_for_all_keys_and_actions():
    env = tfrl.make_env("tf:MountainCar-v0", 3)
    check_traced_once(env, num_actions=3)


def test_the_device_state_is_drawn_by_gymnasium():
    env = tfrl.make_env("tf:MountainCar-v0", 2)
    state = env.reset(seeding.key(0))
    frame = env.render(state, 1)
    assert frame.shape == (400, 600, 3) and frame.dtype == np.uint8
    other = gymnasium.make("MountainCar-v0", render_mode="rgb_array").unwrapped
    other.reset(seed=0)
    other.state = state.obs[1].numpy().astype(np.float64)
    np.testing.assert_array_equal(frame, other.render())
    for _ in range(20):  # a state apart from the start gives another picture
        state = env.step(state, tf.constant([0, 0], tf.int64))
    assert (env.render(state, 1) != frame).any()
