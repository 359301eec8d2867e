"""Memory: an episode by hand, what it is worth to remember, and what it hides."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding, specs
from tfrl.envs.core import carrying
from tfrl.envs.tf import grid_picture
from tfrl.envs.tf.memory import Memory
from tfrl.errors import UserError
from tfrl.rollout import fast_eval_rollout_episode
from tfrl.types import ActionOutput


class Remembers:
    """Keeps the cue that comes with the first flag, and answers with it."""

    def evaluate_actions(self, state, obs, key, carry=None):
        flag = obs[:, -2] > 0
        cue = tf.argmax(obs[:, :-2], axis=-1)
        kept = tf.where(flag, cue, carry)
        return ActionOutput(action=kept, carry=kept)


class LastSeen(Remembers):
    """Keeps the last cue that it saw, flag or not."""

    def evaluate_actions(self, state, obs, key, carry=None):
        seen = tf.reduce_any(obs[:, :-2] > 0, axis=-1)
        kept = tf.where(seen, tf.argmax(obs[:, :-2], axis=-1), carry)
        return ActionOutput(action=kept, carry=kept)


class FeedForward:
    """Any function of the observation: here a random linear one."""

    def evaluate_actions(self, state, obs, key, carry=None):
        size = obs.shape[-1]
        scores = seeding.normal(state, [size, size - 2])
        return ActionOutput(action=tf.argmax(obs @ scores, axis=-1), carry=carry)


def recall(agent, num_envs=1000, state=(), **kwargs):
    env = tfrl.make_env("tf:Memory", num_envs, autoreset="DISABLED", **kwargs)
    carry = tf.zeros([num_envs], tf.int64)
    key = seeding.key(5)
    play = tf.function(
        lambda: fast_eval_rollout_episode(env, agent, env.reset(key), state, key, carry=carry),
        autograph=False,
    )
    totals, _ = play()
    steps = kwargs.get("delay", 20) + 2
    np.testing.assert_array_equal(totals.episode_lengths, np.full(num_envs, steps))
    assert set(totals.episode_returns.numpy()) <= {0.0, 1.0}
    return float(tf.reduce_mean(totals.episode_returns))


def test_an_episode_by_hand():
    env = Memory(num_envs=2, num_cues=3, delay=2)
    state = env.reset(seeding.key(0))
    cue = state.env_state["cue"].numpy()
    shown = np.zeros([2, 5])
    shown[[0, 1], cue] = 1
    shown[:, 3] = 1
    np.testing.assert_array_equal(state.obs, shown)
    answers = tf.constant([cue[0], (cue[1] + 1) % 3])  # right, wrong
    for obs, reward, ends in (
        ([0, 0, 0, 0, 0], [0, 0], False),
        ([0, 0, 0, 0, 0], [0, 0], False),
        ([0, 0, 0, 0, 1], [0, 0], False),  # the question
        ([0, 0, 0, 0, 1], [1, 0], True),
    ):
        state = env.step(state, answers)
        np.testing.assert_array_equal(state.obs, [obs, obs])
        np.testing.assert_array_equal(state.reward, reward)
        np.testing.assert_array_equal(state.termination, [ends, ends])
        assert not state.truncation.numpy().any()


def test_without_delay_the_question_follows_the_cue():
    env = Memory(num_envs=1, delay=0)
    state = env.reset(seeding.key(0))
    state = env.step(state, tf.constant([0]))
    np.testing.assert_array_equal(state.obs, [[0, 0, 0, 1]])
    assert not state.termination[0]
    state = env.step(state, tf.cast(state.env_state["cue"], tf.int64))
    assert (float(state.reward[0]), bool(state.termination[0])) == (1.0, True)


def test_memory_recalls_always():
    assert recall(Remembers()) == 1.0
    assert recall(Remembers(), num_cues=5, delay=7, distractors=True) == 1.0


def test_a_function_of_the_observation_is_right_by_chance():
    # 1000 episodes: a standard deviation is 0.016.
    for seed in (0, 1):
        assert abs(recall(FeedForward(), state=seeding.key(seed)) - 0.5) < 0.065
    four = recall(FeedForward(), state=seeding.key(2), num_cues=4, delay=5)
    assert abs(four - 0.25) < 0.055


def test_distractors_take_in_who_ignores_the_flag():
    assert recall(LastSeen(), delay=5) == 1.0
    assert abs(recall(LastSeen(), delay=5, distractors=True) - 0.5) < 0.065


def test_distractors_are_uniform_unflagged_and_independent_of_the_cue():
    count = 4000
    env = Memory(num_envs=count, num_cues=2, delay=3, distractors=True)
    state = env.reset(seeding.key(0))
    cue = state.env_state["cue"].numpy()
    assert abs(cue.mean() - 0.5) < 4 * 0.5 / np.sqrt(count)
    shown = []
    for _ in range(3):
        state = env.step(state, tf.zeros([count], tf.int64))
        np.testing.assert_array_equal(state.obs[:, 2:], np.zeros([count, 2]))
        np.testing.assert_array_equal(tf.reduce_sum(state.obs, axis=-1), np.ones(count))
        shown.append(state.obs[:, 1].numpy())
    state = env.step(state, tf.zeros([count], tf.int64))
    np.testing.assert_array_equal(state.obs, np.tile([0.0, 0, 0, 1], [count, 1]))
    correlation = np.corrcoef([cue, *shown]) - np.eye(4)
    assert np.abs(correlation).max() < 4 / np.sqrt(count)
    assert np.abs(np.mean(shown, axis=1) - 0.5).max() < 4 * 0.5 / np.sqrt(count)


def test_specs_and_frozen_rows():
    env = tfrl.make_env("tf:Memory", 2, num_cues=3)
    assert env.obs_spec == specs.BoundedTensorSpec([5], tf.float32, 0.0, 1.0)
    assert env.action_spec == specs.DiscreteSpec(3)
    bare = Memory(num_envs=1, delay=0)  # long after the end the observation stays within bounds
    ended = carrying({"cue": tf.constant([1]), "t": tf.constant([50])})
    np.testing.assert_array_equal(bare.step(ended, tf.constant([1])).obs, [[0, 0, 0, 1]])


@pytest.mark.parametrize(("mode", "distractors"), [("NEXT_STEP", True), ("DISABLED", False)])
def test_it_follows_the_protocol(mode, distractors):
    env = tfrl.make_env("tf:Memory", 4, mode, num_cues=5, delay=1, distractors=distractors)
    assert checked(env, steps=15).any(axis=0).all()


def test_the_picture():
    env = tfrl.make_env("tf:Memory", 2, "DISABLED", num_cues=4, delay=3)
    state = env.reset(seeding.key(0))
    cue = int(state.obs[1, :4].numpy().argmax())

    def squares(state):
        picture = env.render(state, 1)
        assert (picture.shape, picture.dtype) == ((64, 128, 3), np.uint8)
        return picture[16::32, 16::32]

    first = squares(state)
    np.testing.assert_array_equal(first[0, cue], grid_picture.GOAL)
    np.testing.assert_array_equal(first[1], [grid_picture.FLOOR] * 4)
    for _ in range(2):
        state = env.step(state, tf.constant([0, 0]))
    over = [grid_picture.AGENT] * 2 + [grid_picture.FLOOR] * 2
    np.testing.assert_array_equal(squares(state)[1], over)
    for _ in range(2):
        state = env.step(state, tf.constant([0, 0]))
    np.testing.assert_array_equal(squares(state)[1], [grid_picture.ITEM] * 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_cues": 1},
            "Memory.num_cues: expected a whole number of at least 2, got 1. Use at least 2 cues: "
            "one cue requires no memory.",
        ),
        (
            {"delay": -1},
            "Memory.delay: expected a whole number of at least 0 and at most 998, got -1. Give 0 "
            "to 998.",
        ),
    ],
)
def test_messages(changes, message):
    with pytest.raises(UserError) as error:
        Memory(**changes)
    assert str(error.value) == message
