"""Pendulum against Gymnasium's."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf.pendulum import Pendulum

STATES = 10_000
SPAN = np.array([2.0, 2.0, 16.0])
REWARD_SPAN = 16.2736


@pytest.mark.parametrize("g", [10.0, 9.81])
def test_one_step_agrees_with_gymnasium_from_10000_states(g):
    rng = np.random.default_rng(0)
    # Several turns, so that the angle is wrapped; torques beyond the bounds, so that they clip.
    physics = rng.uniform([-12.0, -8.0], [12.0, 8.0], [STATES, 2]).astype(np.float32)
    torque = rng.uniform(-2.5, 2.5, [STATES, 1]).astype(np.float32)
    env = gymnasium.make("Pendulum-v1", g=g).unwrapped
    env.reset(seed=0)
    rows = []
    for state, u in zip(physics.astype(np.float64), torque.astype(np.float64), strict=True):
        env.state = state
        rows.append(env.step(u)[:4])
    obs, reward, terminated, truncated = [np.array(c) for c in zip(*rows, strict=True)]
    states = np.concatenate([physics, np.zeros([STATES, 1], np.float32)], axis=1)
    new = Pendulum(num_envs=STATES, g=g).step(carrying(tf.constant(states)), tf.constant(torque))
    assert (np.abs(new.obs - obs) <= 1e-6 * SPAN).all()
    assert (np.abs(new.reward - reward) <= 1e-5 * REWARD_SPAN).all()
    np.testing.assert_array_equal(new.termination, terminated)
    np.testing.assert_array_equal(new.truncation, truncated)


def test_specs_and_limit_are_gymnasiums():
    ours, theirs = tfrl.make_env("tf:Pendulum-v1", 2), gymnasium.make("Pendulum-v1")
    assert specs.to_space(ours.obs_spec) == theirs.observation_space
    assert specs.to_space(ours.action_spec) == theirs.action_space
    assert ours.max_episode_steps == theirs.spec.max_episode_steps == 200


def test_starts_are_distributed_as_gymnasiums():
    state = Pendulum(num_envs=4000).reset(seeding.key(0))
    theta, speed = state.env_state[:, 0].numpy(), state.env_state[:, 1].numpy()
    obs = np.stack([np.cos(theta), np.sin(theta), speed], axis=1)
    np.testing.assert_allclose(state.obs, obs, atol=1e-6)
    env = gymnasium.make("Pendulum-v1").unwrapped
    theirs = []
    for i in range(1000):
        env.reset(seed=i)
        theirs.append(env.state)
    for ours, other, high in zip((theta, speed), np.array(theirs).T, (np.pi, 1.0), strict=True):
        assert np.abs(ours).max() <= high and np.abs(other).max() <= high
        grid = np.sort(ours)
        share = np.arange(1, 4001) / 4000
        assert np.abs((grid + high) / (2 * high) - share).max() < 1.95 / np.sqrt(4000)
        theirs_share = np.searchsorted(np.sort(other), grid, side="right") / 1000
        assert np.abs(theirs_share - share).max() < 1.95 * np.sqrt(5000 / 4e6)


def test_the_limit_truncates_at_200_and_nothing_terminates():
    env = tfrl.make_env("tf:Pendulum-v1", 2)
    step = tf.function(env.step)
    state = env.reset(seeding.key(0))
    for t in range(1, 402):
        state = step(state, tf.zeros([2, 1]))
        assert not state.termination.numpy().any()
        assert state.truncation.numpy().all() == (t % 200 == 0)
        assert int(state.info["episode_length"][0]) == (t - 1) % 200 + 1


def test_the_device_state_is_drawn_by_gymnasium_with_its_torque():
    env = tfrl.make_env("tf:Pendulum-v1", 2)
    state = env.reset(seeding.key(0))
    assert env.render(state, 0).shape == (500, 500, 3)
    state = env.step(state, tf.constant([[0.5], [-2.0]]))
    theirs = gymnasium.make("Pendulum-v1", render_mode="rgb_array").unwrapped
    theirs.reset(seed=0)
    theta, speed, torque = state.env_state.inner[1].numpy().astype(np.float64)
    theirs.state, theirs.last_u = np.array([theta, speed]), torque
    assert torque == -2.0
    np.testing.assert_array_equal(env.render(state, 1), theirs.render())
