"""Acrobot against Gymnasium's."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.device_checks import check_traced_once
from tfrl import seeding, specs
from tfrl.envs.core import carrying, initial_state
from tfrl.envs.tf.acrobot import Acrobot, AcrobotState
from tfrl.errors import UserError

STATES = 5_000
SPAN = np.array([2.0, 2.0, 2.0, 2.0, 8 * np.pi, 18 * np.pi])


def random_states(fastest):
    rng = np.random.default_rng(0)
    high = np.array([np.pi, np.pi, *fastest])
    return rng.uniform(-high, high, [STATES, 4]).astype(np.float32), rng.integers(0, 3, STATES)


def reference(states, actions, book_or_nips="book"):
    env = gymnasium.make("Acrobot-v1").unwrapped
    env.book_or_nips = book_or_nips
    env.reset(seed=0)
    rows = []
    for state, action in zip(states.astype(np.float64), actions, strict=True):
        env.state = state
        rows.append((*env.step(int(action))[:4], np.array(env.state)))
    return [np.array(column) for column in zip(*rows, strict=True)]


# Up to the bounds of the speeds the four stages blow up the rounding of a few states: Gymnasium's
# own step, from a state that differs in its last float32 bit, differs as much.
@pytest.mark.parametrize(
    ("fastest", "typical", "worst"),
    [((6.0, 9.0), 1e-6, 1e-6), ((4 * np.pi, 9 * np.pi), 1e-5, 2e-3)],
)
@pytest.mark.parametrize("book_or_nips", ["book", "nips"])
def test_one_step_agrees_with_gymnasium_from_5000_states(book_or_nips, fastest, typical, worst):
    states, actions = random_states(fastest)
    obs, reward, terminated, truncated, exact = reference(states, actions, book_or_nips)
    env = Acrobot(num_envs=STATES, book_or_nips=book_or_nips)
    new = env.step(carrying(AcrobotState(physics=tf.constant(states))), tf.constant(actions))
    error = (np.abs(new.obs - obs) / SPAN).max(axis=1)
    assert np.quantile(error, 0.99) <= typical and error.max() <= worst
    height = -np.cos(exact[:, 0]) - np.cos(exact[:, 0] + exact[:, 1])
    clear = np.abs(height - 1.0) > 4 * worst
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(new.termination.numpy()[clear], terminated[clear])
    np.testing.assert_array_equal(new.reward.numpy()[clear], reward[clear])
    assert 0.05 < terminated.mean() < 0.5
    np.testing.assert_array_equal(new.truncation, truncated)
    angles = new.env_state.physics[:, :2].numpy()
    assert np.abs(angles).max() <= np.float32(np.pi) + 1e-6


def test_the_dynamics_differ():
    states, actions = random_states((4.0, 6.0))
    book, nips = (
        Acrobot(num_envs=STATES, book_or_nips=name).step(
            carrying(AcrobotState(physics=tf.constant(states))), tf.constant(actions)
        )
        for name in ("book", "nips")
    )
    assert np.abs(book.obs - nips.obs).max() > 0.1


def test_rest_is_rest_and_heights_end_episodes():
    # Hanging down without a torque nothing moves; upright, the free end is 2 m above.
    physics = tf.constant([[0.0, 0.0, 0.0, 0.0], [np.pi, 0.0, 0.0, 0.0], [np.pi / 2, 0, 0, 0]])
    new = Acrobot(num_envs=3).step(carrying(AcrobotState(physics=physics)), tf.constant([1, 1, 1]))
    np.testing.assert_array_equal(new.env_state.physics[0], np.zeros(4))
    np.testing.assert_array_equal(new.obs[0], [1, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(new.termination, [False, True, False])
    np.testing.assert_array_equal(new.reward, [-1, 0, -1])


def test_specs_and_limit_are_gymnasiums():
    ours, theirs = tfrl.make_env("tf:Acrobot-v1", 2), gymnasium.make("Acrobot-v1")
    assert specs.to_space(ours.obs_spec) == theirs.observation_space
    assert specs.to_space(ours.action_spec) == theirs.action_space
    assert ours.action_spec.dtype == tf.int64
    assert ours.max_episode_steps == theirs.spec.max_episode_steps == 500


def test_starts_are_distributed_as_gymnasiums():
    state = Acrobot(num_envs=4000).reset(seeding.key(0))
    ours = state.env_state.physics.numpy()
    columns = [np.cos(ours[:, 0]), np.sin(ours[:, 0]), np.cos(ours[:, 1]), np.sin(ours[:, 1])]
    np.testing.assert_allclose(state.obs, np.stack([*columns, *ours[:, 2:].T], 1), atol=1e-6)
    env = gymnasium.make("Acrobot-v1").unwrapped
    theirs = []
    for i in range(1000):
        env.reset(seed=i)
        theirs.append(env.state)
    theirs = np.array(theirs)
    assert np.abs(ours).max() <= 0.1 and np.abs(theirs).max() <= 0.1
    share = np.arange(1, 4001) / 4000
    for i in range(4):
        # Kolmogorov-Smirnov at 0.1%, of one sample and of two.
        grid = np.sort(ours[:, i])
        assert np.abs((grid + 0.1) / 0.2 - share).max() < 1.95 / np.sqrt(4000)
        theirs_share = np.searchsorted(np.sort(theirs[:, i]), grid, side="right") / 1000
        assert np.abs(theirs_share - share).max() < 1.95 * np.sqrt(5000 / 4e6)
    assert np.abs(np.corrcoef(ours.T) - np.eye(4)).max() < 0.07


def test_a_random_episode_of_200_steps_agrees_with_gymnasium():
    theirs, ours = gymnasium.make("Acrobot-v1").unwrapped, Acrobot(num_envs=1)
    start = initial_state(ours, env_state=None, obs=tf.constant([theirs.reset(seed=3)[0]]))
    start = start.replace(env_state=AcrobotState(physics=tf.constant([theirs.state])))
    actions = np.random.default_rng(1).integers(0, 3, 200)
    play = tf.function(lambda start: tf.scan(ours.step, tf.constant(actions[:, None]), start))
    states = play(start)
    for t, action in enumerate(actions):
        obs, reward, terminated, _, _ = theirs.step(int(action))
        assert (np.abs(states.obs[t, 0] - obs) <= 1e-4 * SPAN).all()
        assert (states.reward[t, 0], bool(states.termination[t, 0])) == (reward, terminated)


def test_one_trace_for_all_keys_and_actions():
    env = tfrl.make_env("tf:Acrobot-v1", 3)
    check_traced_once(env, num_actions=3)


def torques(state, new):
    """The torques that led from `state` to `new`, by inverting Gymnasium's step."""
    grid = np.linspace(-2.0, 2.0, 21)
    theirs = gymnasium.make("Acrobot-v1").unwrapped
    theirs.AVAIL_TORQUE = list(grid)
    theirs.reset(seed=0)
    speeds = []
    for a in range(len(grid)):
        theirs.state = state.astype(np.float64)
        speeds.append(theirs.step(a)[0][5])
    assert (np.diff(speeds) > 0).all()
    return np.interp(new[:, 5], speeds, grid)


def test_the_noise_of_the_torque_is_uniform_and_new_at_every_step():
    env = Acrobot(num_envs=4000, torque_noise_max=0.5)
    start = env.reset(seeding.key(0)).env_state
    row = np.array([0.5, -0.3, 0.2, 0.1], np.float32)
    start = start.replace(physics=tf.constant(np.tile(row, [4000, 1])))
    actions = tf.fill([4000], tf.constant(2, tf.int64))
    draws = []
    for _ in range(2):  # the same state with the keys of the step after
        new = env.step(carrying(start), actions)
        draws.append(torques(row, new.obs.numpy()) - 1.0)
        start = start.replace(key=new.env_state.key)
    share = np.arange(1, 4001) / 4000
    for noise in draws:
        assert np.abs(noise).max() <= 0.5 + 1e-3
        assert np.abs(np.sort(noise) + 0.5 - share).max() < 1.95 / np.sqrt(4000)
    assert abs(np.corrcoef(draws)[0, 1]) < 0.06


def test_rows_that_restart_get_new_noise():
    env = Acrobot(num_envs=2, torque_noise_max=0.5)
    a, b = (env.reset(seeding.key(seed)).env_state for seed in range(2))
    actions = tf.constant([1, 1], tf.int64)
    mixed = tf.concat([a.key[:1], b.key[1:]], axis=0)
    old, new = (
        env.step(carrying(AcrobotState(physics=a.physics, key=key)), actions).obs[:, 5]
        for key in (a.key, mixed)
    )
    assert old[0] == new[0] and old[1] != new[1]
    assert Acrobot(num_envs=2).reset(seeding.key(0)).env_state.key is None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"torque_noise_max": -1.0}, "expected a number of at least 0, got -1.0"),
        ({"torque_noise_max": float("nan")}, "expected a number of at least 0, got nan"),
        ({"book_or_nips": "paper"}, "expected one of book, nips, got 'paper'"),
    ],
)
def test_arguments_are_checked(argument, message):
    with pytest.raises(UserError, match=f"Acrobot.{next(iter(argument))}: {message}"):
        tfrl.make_env("tf:Acrobot-v1", **argument)


def test_the_device_state_is_drawn_by_gymnasium():
    env = tfrl.make_env("tf:Acrobot-v1", 2)
    state = env.reset(seeding.key(0))
    frame = env.render(state, 1)
    assert frame.shape == (500, 500, 3) and frame.dtype == np.uint8
    other = gymnasium.make("Acrobot-v1", render_mode="rgb_array").unwrapped
    other.reset(seed=0)
    other.state = state.env_state.inner.physics[1].numpy().astype(np.float64)
    np.testing.assert_array_equal(frame, other.render())
    for t in range(12):  # a state apart from the start gives another picture
        state = env.step(state, tf.fill([2], tf.constant(2 * (t // 4 % 2), tf.int64)))
    assert (env.render(state, 1) != frame).any()
