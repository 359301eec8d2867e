"""What the games of MinAtar share: the protocol, sticky actions, chance, action sets, pictures."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from minatar.gym import BaseEnv

import tfrl
from tests.envs.checker_fakes import checked
from tests.envs.device_checks import check_ways_agree
from tests.envs.minatar import minatar_oracle as oracle
from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.envs.tf import minatar
from tfrl.envs.tf.minatar import core
from tfrl.envs.tf.minatar.core import GONE, bit, choose, paint
from tfrl.errors import UserError
from tfrl.rollout import fast_eval_rollout_episode
from tfrl.types import ActionOutput

GAMES = sorted(oracle.NAMES)
OTHERS = [name for name in GAMES if name != "Breakout"]
KEY = seeding.key(3)


class Chooses:
    """Acts uniformly among some actions."""

    def __init__(self, choices):
        self.choices = np.array(choices, np.int64)

    def evaluate_actions(self, state, obs, key, carry=None):
        drawn = seeding.randint(key, [obs.shape[0]], 0, len(self.choices))
        return ActionOutput(action=tf.gather(self.choices, drawn), carry=carry)


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.variants(2)
def test_the_protocol(name):
    # Breakout and Freeway alone start at random.
    stochastic = name in ("Breakout", "Freeway")
    env = tfrl.make_env(f"tf:{name}-MinAtar", num_envs=6, max_episode_steps=30)
    assert checked(env, steps=40, stochastic=stochastic).any(axis=0).all()


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("minimal", [False, True])
def test_spaces_are_those_of_the_package(name, minimal):
    ours = getattr(minatar, name)(minimal_actions=minimal)
    theirs = BaseEnv(oracle.NAMES[name], use_minimal_action_set=minimal)
    assert specs.to_space(ours.action_spec) == theirs.action_space
    assert specs.to_space(ours.obs_spec) == gymnasium.spaces.Box(
        0, 1, theirs.observation_space.shape, bool
    )
    assert list(ours.action_set) == list(theirs.action_set)
    # The package writes one of its words as "guage".
    channels = [c.replace("guage", "gauge") for c in theirs.game.env.channels]
    assert list(ours.channels) == channels


# Breakout is among the tasks of tests/envs/test_modes.py, and the rules of each game are seen under
# XLA beside the package.
@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_eager_graph_and_xla_agree(name):
    env = tfrl.make_env(f"tf:{name}-MinAtar", num_envs=4, max_episode_steps=25)
    check_ways_agree(env, steps=30)


@pytest.mark.parametrize("name,minimal", [("SpaceInvaders", True), ("Asterix", False)])
def test_sticky_actions_repeat_what_the_game_did_last(name, minimal):
    env = getattr(minatar, name)(num_envs=4000, minimal_actions=minimal)
    state = env.reset(KEY)
    moves = (1, 2) if minimal else (1, 3)  # left, right
    step = tf.function(env.step, autograph=False)
    state = step(state, tf.fill([4000], moves[0]))
    repeated = state.env_state.last_action.numpy() == 0  # at the start: no-op
    assert abs(repeated.mean() - 0.1) < 4 * np.sqrt(0.09 / 4000)
    np.testing.assert_array_equal(state.env_state.game.x, np.where(repeated, 5, 4))
    again = step(state, tf.fill([4000], moves[1]))
    stuck = again.env_state.last_action.numpy() != 3
    assert abs(stuck.mean() - 0.1) < 4 * np.sqrt(0.09 / 4000)
    last = np.where(repeated, 0, 1)
    np.testing.assert_array_equal(again.env_state.last_action, np.where(stuck, last, 3))
    assert abs(np.mean(stuck & repeated) - 0.01) < 0.007  # independent of the step before


@pytest.mark.parametrize("prob,expected", [(0.0, 4), (1.0, 5)])
def test_sticky_actions_never_and_always(prob, expected):
    env = minatar.SpaceInvaders(num_envs=50, sticky_action_prob=prob)
    state = env.step(env.reset(KEY), tf.ones([50], tf.int64))
    np.testing.assert_array_equal(state.env_state.game.x, [expected] * 50)


def test_environments_and_frames_have_chances_of_their_own():
    env = tfrl.make_env("tf:Freeway-MinAtar", num_envs=200, autoreset="DISABLED")
    speeds = env.reset(KEY).env_state.inner.game.speeds.numpy()
    assert len(np.unique(speeds, axis=0)) == 200
    assert (env.reset(seeding.key(4)).env_state.inner.game.speeds.numpy() != speeds).any()
    bare = env.unwrapped
    first = bare.step(bare.reset(KEY), tf.zeros([200], tf.int64)).env_state
    assert len(np.unique(first.key, axis=0)) == 200


# Frames after which an episode is cut, and the actions. A chicken has to go up to get anywhere.
RANDOM_PLAY = {
    "Asterix": (400, range(6)),
    "Breakout": (400, range(6)),
    "Freeway": (150, [2]),
    "Seaquest": (400, [0, 1, 3, 4, 5]),
    "SpaceInvaders": (400, range(6)),
}


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.variants(2)
def test_random_play_is_distributed_as_the_packages(name):
    limit, choices = RANDOM_PLAY[name]
    theirs = oracle.package_episodes(name, choices, 200, limit)
    env = tfrl.make_env(
        f"tf:{name}-MinAtar", num_envs=500, autoreset="DISABLED", max_episode_steps=limit
    )

    @tf.function(autograph=False)
    def play(key):
        return fast_eval_rollout_episode(env, Chooses(list(choices)), env.reset(key), {}, key)

    result, _ = play(KEY)
    ours = np.array([result.episode_returns, result.episode_lengths], np.float64)
    for a, b in zip(ours, theirs, strict=True):
        error = np.sqrt(a.var() / a.size + b.var() / b.size)
        assert abs(a.mean() - b.mean()) <= 4 * error, (a.mean(), b.mean(), error)
    assert ours[0].mean() > 0 and ours[0].std() > 0


def test_pictures_have_the_colours_of_the_board():
    env = tfrl.make_env("tf:Breakout-MinAtar", num_envs=2)
    state = env.reset(KEY)
    for _ in range(2):  # until the ball and its trail are below the bricks
        state = env.step(state, tf.zeros([2], tf.int64))
    frame = env.render(state, 1)
    assert frame.shape == (320, 320, 3) and frame.dtype == np.uint8
    small = frame[16::32, 16::32]
    np.testing.assert_array_equal(small.repeat(32, 0).repeat(32, 1), frame)
    board = state.obs[1].numpy()
    colors = core.cubehelix(4)
    np.testing.assert_array_equal(small[1:4], np.broadcast_to(colors[3], [3, 10, 3]))  # bricks
    np.testing.assert_array_equal(small[9, 4], colors[0])  # the paddle
    np.testing.assert_array_equal(small[board[..., 1]], colors[1:2])  # the ball
    np.testing.assert_array_equal(small[board[..., 2]], colors[2:3])  # its trail
    assert not small[~board.any(axis=-1)].any()


def test_the_palette_is_greens():
    # x = 1/2: phi = 2 pi (1/6 - 3/4), cos = -sqrt(3)/2 and sin = 1/2, the factor is 1/8.
    c, s = -np.sqrt(3) / 2, 0.5
    rgb = [
        0.5 + (-0.14861 * c + 1.78277 * s) / 8,
        0.5 + (-0.29227 * c - 0.90649 * s) / 8,
        0.5 + 1.97294 * c / 8,
    ]
    np.testing.assert_array_equal(core.cubehelix(1), [np.round(255 * np.array(rgb))])
    brightness = core.cubehelix(10).astype(float) @ [0.3, 0.59, 0.11]
    assert (np.diff(brightness) > 0).all()


@pytest.mark.parametrize("name", GAMES)
def test_every_game_is_drawn(name):
    env = tfrl.make_env(f"tf:{name}-MinAtar", num_envs=1)
    frame = env.render(env.reset(KEY))
    assert frame.shape == (320, 320, 3) and len(np.unique(frame.reshape(-1, 3), axis=0)) > 1


def test_bits_and_boards():
    columns = tf.constant([0, 3, 9, -1, 10, -2, 11, GONE, GONE - 1, GONE + 1])
    np.testing.assert_array_equal(bit(columns), [1, 8, 512] + [0] * 7)
    words = np.zeros([1, 10, 2], np.int32)
    words[0, 2] = [0b1000000001, 0b10]
    marks = np.argwhere(paint(tf.constant(words))[0])
    np.testing.assert_array_equal(marks, [[2, 0, 0], [2, 1, 1], [2, 9, 0]])
    words[0, 2] = [0o2000000000, 0o43]  # three bits a column: 2 in column 9; 4 and 3 in 1 and 0
    marks = np.argwhere(paint(tf.constant(words), 3)[0])
    np.testing.assert_array_equal(marks, [[2, 0, 1], [2, 1, 1], [2, 9, 0]])


def test_choices_are_within_bounds():
    below_one = np.nextafter(np.float32(1), np.float32(0))
    np.testing.assert_array_equal(choose(tf.constant([0.0, 0.5, below_one]), 8), [0, 4, 7])


@pytest.mark.parametrize("prob", [-0.1, 1.5, "often", True])
def test_a_bad_probability_is_an_error(prob):
    with pytest.raises(UserError) as error:
        tfrl.make_env("tf:Breakout-MinAtar", sticky_action_prob=prob)
    assert str(error.value) == (
        "Breakout.sticky_action_prob: expected a number of at least 0 and at most 1, got "
        f"{prob!r}. Pass 0.1 as in MinAtar, or 0 for no sticky actions."
    )


def test_ppo_takes_the_board():
    env = tfrl.make_env("tf:Seaquest-MinAtar", num_envs=3)
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec)
    state = agent.init(KEY)
    output = agent.compute_actions(state, env.reset(KEY).obs, KEY)
    assert output.action.shape == [3]
    assert state.params["policy"]["torso"]["layer_0"]["kernel"].shape[0] == 10 * 10 * 10
