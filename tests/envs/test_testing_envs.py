"""The closed-form environments give what their docstrings promise."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding
from tfrl.envs.testing import Chain, ConstantReward, Identity, MemoryRecall, ScriptedEnv
from tfrl.errors import UserError

ENVS = {
    "ConstantReward": (ConstantReward(num_envs=3), False),
    "Chain": (Chain(num_envs=3), False),
    "Identity": (Identity(num_envs=3), True),
    "MemoryRecall": (MemoryRecall(num_envs=3, num_cues=7), True),
    "Scripted": (ScriptedEnv(num_envs=3, rewards=(1.0, 2.0), terminations=(False, True)), True),
}


@pytest.mark.parametrize("name", ENVS)
def test_bare_environments_pass_the_checker(name):
    env, stochastic = ENVS[name]
    assert checked(env, steps=20, stochastic=stochastic).any()


@pytest.mark.parametrize("name", ENVS)
def test_registered(name):
    tables = {"rewards": (1.0,)} if name == "Scripted" else {}
    env = tfrl.make_env(f"testing:{name}", 2, **tables)
    assert type(env.unwrapped) is type(ENVS[name][0]) and env.num_envs == 2


def episode(env, policy, seed=0):
    """Plays until all have terminated; rewards [T, B] up to each end, and observations."""
    state, carry, rows, seen = env.reset(seeding.key(seed)), None, [], []
    over = np.zeros(env.num_envs, bool)
    while not over.all():
        seen.append(state.obs.numpy())
        action, carry = policy(state.obs.numpy(), carry)
        state = env.step(state, tf.constant(action, tf.int64))
        rows.append(np.where(over, 0.0, state.reward))
        over |= state.termination.numpy()
        assert not state.truncation.numpy().any()
    return np.array(rows), np.array(seen)


def test_constant_reward():
    env = ConstantReward(num_envs=2, reward=-1.5, length=4)
    rewards, obs = episode(env, lambda obs, _: (np.zeros(2), None))
    np.testing.assert_array_equal(rewards, np.full([4, 2], -1.5))
    np.testing.assert_array_equal(obs[:, 0, 0], [0.0, 0.25, 0.5, 0.75])
    endless = ConstantReward(num_envs=1, length=None)
    state = endless.reset(seeding.key(0))
    for _ in range(30):
        state = endless.step(state, tf.zeros([1], tf.int64))
        assert not state.termination[0] and state.obs[0, 0] == 0


def test_chain():
    env = Chain(num_envs=2, length=4)
    rewards, obs = episode(env, lambda obs, _: (np.ones(2), None))
    np.testing.assert_array_equal(rewards[:, 0], [0, 0, 1])
    np.testing.assert_array_equal(obs[:, 0], np.eye(4)[:3])
    state = env.step(env.reset(seeding.key(0)), tf.constant([0, 1], tf.int64))
    np.testing.assert_array_equal(state.obs.numpy().argmax(-1), [0, 1])
    with pytest.raises(
        UserError, match="Chain.length: expected a whole number of at least 2, got 1"
    ):
        Chain(length=1)


def test_identity():
    env = Identity(num_envs=64, num_values=4, length=8)
    best, obs = episode(env, lambda obs, _: (obs.argmax(-1), None))
    np.testing.assert_array_equal(best.sum(0), np.full(64, 8.0))
    np.testing.assert_allclose(obs.mean((0, 1)), np.full(4, 0.25), atol=0.06)
    wrong, _ = episode(env, lambda obs, _: ((obs.argmax(-1) + 1) % 4, None))
    assert wrong.sum() == 0


def test_memory_recall():
    env = MemoryRecall(num_envs=64, num_cues=3, delay=2)

    def remembering(obs, cue):
        cue = obs[:, :3].argmax(-1) if cue is None else cue
        return cue, cue

    best, obs = episode(env, remembering)
    assert best.shape == (4, 64)
    np.testing.assert_array_equal(best.sum(0), np.ones(64))
    np.testing.assert_array_equal(best[:-1], 0)
    np.testing.assert_array_equal(obs[0, :, :3].sum(-1), 1)
    np.testing.assert_array_equal(obs[1:3], 0)
    np.testing.assert_array_equal(obs[3], np.eye(4)[np.full(64, 3)])
    chance, _ = episode(env, lambda obs, _: (np.zeros(64), None))
    assert abs(chance.sum(0).mean() - (2 / 3 - 1)) < 0.3
    no_delay, _ = episode(MemoryRecall(num_envs=64, delay=0), lambda o, c: remembering_two(o, c))
    np.testing.assert_array_equal(no_delay.sum(0), np.ones(64))


def remembering_two(obs, cue):
    cue = obs[:, :2].argmax(-1) if cue is None else cue
    return cue, cue


def test_scripted_tables():
    env = ScriptedEnv(
        num_envs=2,
        rewards=((1.0, 10.0), 2.0, (3.0, 30.0)),
        terminations=(False, (False, True), False),
        truncations=((True, False), False, False),
    )
    state, rows = env.reset(seeding.key(0)), []
    for _ in range(4):
        state = env.step(state, tf.zeros([2], tf.int64))
        rows.append((state.reward, state.termination, state.truncation, state.obs[:, 0]))
    reward, termination, truncation, t = (np.array(c) for c in zip(*rows, strict=True))
    np.testing.assert_array_equal(reward, [[1, 10], [2, 2], [3, 30], [1, 10]])
    np.testing.assert_array_equal(termination[:, 1], [False, True, False, False])
    np.testing.assert_array_equal(truncation[:, 0], [True, False, False, True])
    np.testing.assert_array_equal(t[:, 0], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"rewards": ()}, "ScriptedEnv.rewards: expected at least one row, got ()"),
        (
            {"rewards": (1.0, 2.0), "terminations": (True,)},
            "ScriptedEnv.terminations: expected 2 rows, each a number or 2 numbers, got 1 rows",
        ),
        ({"rewards": ((1.0, 2.0, 3.0),)}, "got 1 rows of shapes (3,)"),
    ],
)
def test_scripted_mistakes(kwargs, text):
    with pytest.raises(UserError) as error:
        ScriptedEnv(num_envs=2, **kwargs)
    assert text in str(error.value)
