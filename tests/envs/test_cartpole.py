"""CartPole against Gymnasium's, and against itself under every way to run it."""

import gymnasium
import numpy as np
import tensorflow as tf

import tfrl
from tests.envs.device_checks import check_traced_once
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf.cartpole import CartPole

SPAN = np.array([9.6, 8.0, 0.84, 8.0])  # the ranges of the sampled states
STATES = 10_000


def random_states():
    rng = np.random.default_rng(0)
    unit = rng.uniform(-0.5, 0.5, [STATES, 4])
    # Positions and angles up to the limits, where the step decides about the end.
    unit[:, 0] *= 2.4 * 2 / 9.6
    unit[:, 2] *= 0.5
    return (unit * SPAN).astype(np.float32), rng.integers(0, 2, STATES)


def reference(states, actions):
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    rows = []
    for state, action in zip(states.astype(np.float64), actions, strict=True):
        env.state, env.steps_beyond_terminated = state, None
        obs, reward, terminated, truncated, _ = env.step(int(action))
        rows.append((obs, reward, terminated, truncated, np.array(env.state)))
    return [np.array(column) for column in zip(*rows, strict=True)]


def test_one_step_agrees_with_gymnasium_from_10000_states():
    states, actions = random_states()
    obs, reward, terminated, truncated, exact = reference(states, actions)
    env = CartPole(num_envs=STATES)
    new = env.step(carrying(tf.constant(states)), tf.constant(actions))
    assert (np.abs(new.obs - obs) <= 1e-6 * SPAN).all()
    np.testing.assert_array_equal(new.reward, reward)
    limits = np.array([2.4, 12 * 2 * np.pi / 360])
    distance = np.abs(np.abs(exact[:, [0, 2]]) - limits) / SPAN[[0, 2]]
    clear = (distance > 1e-5).all(axis=1)
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(new.termination.numpy()[clear], terminated[clear])
    assert 0.01 < terminated.mean() < 0.5
    np.testing.assert_array_equal(new.truncation, truncated)


def test_sutton_barto_reward_agrees_with_gymnasium():
    states, actions = random_states()
    env = gymnasium.make("CartPole-v1", sutton_barto_reward=True).unwrapped
    env.reset(seed=0)
    ours = CartPole(num_envs=STATES, sutton_barto_reward=True)
    new = ours.step(carrying(tf.constant(states)), tf.constant(actions))
    for i in range(300):
        env.state, env.steps_beyond_terminated = states[i].astype(np.float64), None
        assert new.reward[i] == env.step(int(actions[i]))[1]


def test_specs_and_limit_are_gymnasiums():
    ours, theirs = tfrl.make_env("tf:CartPole-v1", 2), gymnasium.make("CartPole-v1")
    assert specs.to_space(ours.obs_spec) == theirs.observation_space
    assert specs.to_space(ours.action_spec) == theirs.action_space
    assert ours.action_spec.dtype == tf.int64
    assert ours.max_episode_steps == theirs.spec.max_episode_steps == 500


def test_starts_are_distributed_as_gymnasiums():
    ours = CartPole(num_envs=4000).reset(seeding.key(0)).obs.numpy()
    env = gymnasium.make("CartPole-v1").unwrapped
    theirs = np.array([env.reset(seed=i)[0] for i in range(1000)])
    assert np.abs(ours).max() <= 0.05 and np.abs(theirs).max() <= 0.05
    for i in range(4):
        # Kolmogorov-Smirnov at 0.1%, of one sample and of two.
        grid = np.sort(ours[:, i])
        one = np.abs((grid + 0.05) / 0.1 - np.arange(1, 4001) / 4000).max()
        assert one < 1.95 / np.sqrt(4000)
        share = np.searchsorted(np.sort(theirs[:, i]), grid, side="right") / 1000
        assert np.abs(share - np.arange(1, 4001) / 4000).max() < 1.95 * np.sqrt(5000 / 4e6)
    correlation = np.corrcoef(ours.T) - np.eye(4)
    assert np.abs(correlation).max() < 0.07


def play(env, state, actions):
    """Steps through actions [T, B]; the rows of obs, reward, ends and totals."""
    rows = []
    for t in range(actions.shape[0]):
        state = env.step(state, actions[t])
        info = state.info
        rows.append(
            (state.obs, info["final_obs"], state.reward, state.termination, state.truncation)
            + (info["episode_return"], info["episode_length"])
        )
    return [tf.stack(column) for column in zip(*rows, strict=True)]


def test_one_trace_for_all_keys_and_actions():
    env = tfrl.make_env("tf:CartPole-v1", 3)
    check_traced_once(env, num_actions=2)


def test_an_episode_by_hand():
    # Always pushing right from rest tips the pole to the left beyond 12 degrees at step 9 or 10.
    env = tfrl.make_env("tf:CartPole-v1", 1)
    state = env.reset(seeding.key(0))
    lengths = []
    for _ in range(40):
        state = env.step(state, tf.constant([1], tf.int64))
        if state.termination[0]:
            lengths.append(int(state.info["episode_length"][0]))
            assert state.info["episode_return"][0] == lengths[-1]
            assert state.reward[0] == 1
            assert abs(state.info["final_obs"][0, 2]) > 0.2
            assert np.abs(state.obs).max() <= 0.05
    assert len(lengths) >= 3 and set(lengths) <= {8, 9, 10}


def test_the_device_state_is_drawn_by_gymnasium():
    env = tfrl.make_env("tf:CartPole-v1", 2)
    state = env.reset(seeding.key(0))
    frame = env.render(state, 1)
    assert frame.shape == (400, 600, 3) and frame.dtype == np.uint8
    other = gymnasium.make("CartPole-v1", render_mode="rgb_array").unwrapped
    other.reset(seed=0)
    other.state = state.obs[1].numpy().astype(np.float64)
    np.testing.assert_array_equal(frame, other.render())
    for _ in range(30):  # a state apart from the start gives another picture
        state = env.step(state, tf.constant([1, 1], tf.int64))
    assert (env.render(state, 1) != frame).any()
