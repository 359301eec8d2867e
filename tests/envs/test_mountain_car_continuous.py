"""MountainCarContinuous against Gymnasium's."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding, specs
from tfrl.agents import RandomAgent
from tfrl.envs.core import carrying, initial_state
from tfrl.envs.tf.mountain_car import MountainCarContinuous
from tfrl.envs.wrappers import ActionClip
from tfrl.rollout import rollout
from tfrl.types import ActionOutput

STATES = 10_000
SPAN = np.array([1.8, 0.14])


def random_states():
    """States of all the valley, a third near the wall, a third near the goal; actions beyond 1."""
    rng = np.random.default_rng(0)
    states = rng.uniform([-1.2, -0.07], [0.6, 0.07], [STATES, 2])
    states[::3, 0] = rng.uniform(-1.2, -1.1, states[::3, 0].shape)
    states[1::3, 0] = rng.uniform(0.35, 0.6, states[1::3, 0].shape)
    return states.astype(np.float32), rng.uniform(-1.5, 1.5, [STATES, 1]).astype(np.float32)


@pytest.mark.parametrize("goal_velocity", [0.0, 0.03])
def test_one_step_agrees_with_gymnasium_from_10000_states(goal_velocity):
    states, actions = random_states()
    env = gymnasium.make("MountainCarContinuous-v0", goal_velocity=goal_velocity).unwrapped
    env.reset(seed=0)
    rows = []
    for state, action in zip(states.astype(np.float64), actions.astype(np.float64), strict=True):
        env.state = state
        rows.append(env.step(action)[:4])
    obs, reward, terminated, truncated = [np.array(c) for c in zip(*rows, strict=True)]
    ours = MountainCarContinuous(num_envs=STATES, goal_velocity=goal_velocity)
    new = ours.step(carrying(tf.constant(states)), tf.constant(actions))
    # At the wall a car that only just reaches it is stopped by one of the two and not the other.
    touching = (np.abs(obs[:, 0] + 1.2) < 1e-6) & (obs[:, 1] != 0)
    assert touching.mean() < 0.01 and 0.01 < (obs[:, 0] == np.float32(-1.2)).mean() < 0.5
    assert (np.abs(new.obs - obs) <= 1e-6 * SPAN)[~touching].all()
    close = np.abs(obs - [0.45, goal_velocity]) < 1e-6
    near = close[:, 0] | (close[:, 1] & (obs[:, 0] > 0.4))
    assert near.mean() < 0.01
    np.testing.assert_array_equal(new.termination.numpy()[~near], terminated[~near])
    assert (np.abs(new.reward - reward) <= 1e-6 * 100)[~near].all()
    assert 0.05 < terminated.mean() < 0.5
    np.testing.assert_array_equal(new.truncation, truncated)


def test_the_cost_is_of_the_action_as_given():
    env = MountainCarContinuous(num_envs=3)
    start = carrying(tf.constant([[-0.5, 0.0]] * 3))
    new = env.step(start, tf.constant([[1.0], [3.0], [0.0]]))
    np.testing.assert_allclose(new.reward, [-0.1, -0.9, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(new.obs[0], new.obs[1])  # the motor gets 1 in both
    clipped = ActionClip(env=env).step(start, tf.constant([[1.0], [3.0], [0.0]]))
    np.testing.assert_allclose(clipped.reward, [-0.1, -0.1, 0.0], rtol=1e-6)
    goal = env.step(carrying(tf.constant([[0.44, 0.05]] * 3)), tf.constant([[1.0], [3.0], [0.0]]))
    np.testing.assert_allclose(goal.reward, [99.9, 99.1, 100.0], rtol=1e-6)
    assert goal.termination.numpy().all()


def test_specs_and_limit_are_gymnasiums():
    ours = tfrl.make_env("tf:MountainCarContinuous-v0", 2)
    theirs = gymnasium.make("MountainCarContinuous-v0")
    assert specs.to_space(ours.obs_spec) == theirs.observation_space
    assert specs.to_space(ours.action_spec) == theirs.action_space
    assert ours.max_episode_steps == theirs.spec.max_episode_steps == 999


def test_starts_are_distributed_as_gymnasiums():
    ours = MountainCarContinuous(num_envs=4000).reset(seeding.key(0)).obs.numpy()
    env = gymnasium.make("MountainCarContinuous-v0").unwrapped
    theirs = np.array([env.reset(seed=i)[0] for i in range(1000)])
    np.testing.assert_array_equal(ours[:, 1], np.zeros(4000))
    np.testing.assert_array_equal(theirs[:, 1], np.zeros(1000))
    grid, share = np.sort(ours[:, 0]), np.arange(1, 4001) / 4000
    # Kolmogorov-Smirnov at 0.1%, of one sample and of two.
    assert np.abs((grid + 0.6) / 0.2 - share).max() < 1.95 / np.sqrt(4000)
    theirs_share = np.searchsorted(np.sort(theirs[:, 0]), grid, side="right") / 1000
    assert np.abs(theirs_share - share).max() < 1.95 * np.sqrt(5000 / 4e6)


def test_a_random_episode_of_200_steps_agrees_with_gymnasium():
    theirs, ours = gymnasium.make("MountainCarContinuous-v0"), MountainCarContinuous(num_envs=1)
    first = tf.constant([theirs.reset(seed=3)[0]])
    actions = np.random.default_rng(1).uniform(-1, 1, [200, 1]).astype(np.float32)
    play = tf.function(lambda start: tf.scan(ours.step, tf.constant(actions[:, None]), start))
    states = play(initial_state(ours, env_state=first, obs=first))
    for t, action in enumerate(actions):
        obs, reward, terminated, truncated, _ = theirs.step(action)
        assert (np.abs(states.obs[t, 0] - obs) <= 2e-5 * SPAN).all()
        assert abs(states.reward[t, 0] - reward) <= 1e-6
        assert (bool(states.termination[t, 0]), truncated) == (terminated, False)


def test_resting_is_truncated_at_999_for_nothing_and_swinging_pays():
    env = tfrl.make_env("tf:MountainCarContinuous-v0", 2)

    def act(agent_state, obs, key, carry):  # the first rests, the second pushes with the motion
        push = tf.where(obs[1, 1] < 0, -1.0, 1.0)
        return ActionOutput(action=tf.stack([[0.0], [push]]), carry=carry)

    @tf.function
    def play(key):
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        fields = ("episode_return", "episode_length")
        return rollout(env, agent, env.reset(key), {}, key, 999, fields, act)[0]

    rows = play(seeding.key(0))
    np.testing.assert_array_equal(rows.truncation[:, 0], np.arange(1, 1000) == 999)
    assert not rows.termination[:, 0].numpy().any()
    totals = rows.env_extras["episode_return"].numpy()
    assert totals[-1, 0] == 0
    ended = rows.termination[:, 1].numpy()
    lengths = rows.env_extras["episode_length"][:, 1].numpy()[ended]
    np.testing.assert_allclose(totals[:, 1][ended], 100 - 0.1 * lengths, rtol=1e-5)
    assert len(lengths) >= 5 and lengths.max() < 150


def test_the_device_state_is_drawn_by_gymnasium():
    env = tfrl.make_env("tf:MountainCarContinuous-v0", 2)
    state = env.reset(seeding.key(0))
    frame = env.render(state, 1)
    assert frame.shape == (400, 600, 3) and frame.dtype == np.uint8
    other = gymnasium.make("MountainCarContinuous-v0", render_mode="rgb_array").unwrapped
    other.reset(seed=0)
    other.state = state.obs[1].numpy().astype(np.float64)
    np.testing.assert_array_equal(frame, other.render())
    for _ in range(20):  # a state apart from the start gives another picture
        state = env.step(state, -tf.ones([2, 1]))
    assert (env.render(state, 1) != frame).any()
