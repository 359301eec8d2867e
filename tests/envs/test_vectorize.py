"""A vectorised single environment equals a Python loop over single environments."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import checked
from tfrl import seeding, specs, struct
from tfrl.envs import register, registry
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.testing import Chain
from tfrl.envs.vectorize import vectorize
from tfrl.envs.wrappers import Episode
from tfrl.errors import UserError
from tfrl.types import EnvState

TRACES = []


@struct.logic_dataclass
class Walk(Env):
    """A random walk of one walker: randomness at reset and in each step."""

    num_envs: int = 1
    noise: float = 0.5

    @property
    def obs_spec(self):
        return {"place": tf.TensorSpec([2], tf.float32), "steps": tf.TensorSpec([], tf.int32)}

    @property
    def action_spec(self):
        return specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0)

    def reset(self, key):
        here, later = tf.unstack(seeding.split(key, 2))
        place = seeding.uniform(here, [2])
        return self._state(place, tf.constant(0), later, 0.0, False)

    def step(self, state, action):
        TRACES.append(1)
        inner = state.env_state
        now, later = tf.unstack(seeding.split(inner["key"], 2))
        shake = seeding.uniform(now, [2], -1.0, 1.0) * self.noise
        place = inner["place"] + action + shake
        distance = tf.norm(place)
        # Branches per environment, and Python numbers for reward and flags, are allowed.
        return self._state(place, inner["steps"] + 1, later, -distance, distance > 2.0)

    def _state(self, place, steps, key, reward, termination):
        return EnvState(
            env_state={"place": place, "steps": steps, "key": key},
            obs={"place": place, "steps": steps},
            reward=reward,
            termination=termination,
            truncation=False,
            info={"distance": tf.norm(place)},
        )


B, T = 5, 4


def loop(keys, actions):
    """One environment after the other."""
    rows = []
    for i in range(B):
        env = Walk()
        state, mine = env.reset(keys[i]), []
        for t in range(T):
            state = env.step(state, actions[t, i])
            mine.append((state.obs["place"], state.reward, state.termination, state.obs["steps"]))
        rows.append([np.array(c) for c in zip(*mine, strict=True)])
    return [np.stack(c, axis=1) for c in zip(*rows, strict=True)]  # [T, B, ...]


def batch(key, actions):
    env = vectorize(Walk(), B)
    state, rows = env.reset(key), []
    for t in range(T):
        state = env.step(state, actions[t])
        rows.append((state.obs["place"], state.reward, state.termination, state.obs["steps"]))
    return [tf.stack(c) for c in zip(*rows, strict=True)]


@pytest.mark.parametrize("jit", [None, False, True], ids=["eager", "graph", "xla"])
@pytest.mark.variants(1)
def test_equals_a_loop_over_single_environments(jit):
    key = seeding.key(4)
    actions = seeding.uniform(seeding.key(1), [T, B, 2], -1.0, 1.0)
    expected = loop([seeding.fold_in(key, i) for i in range(B)], actions)
    assert 0 < expected[2].mean() < 1
    run = batch if jit is None else tf.function(batch, jit_compile=jit)
    for a, b in zip(expected, run(key, actions), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_under_the_episode_layer():
    env = Episode(env=vectorize(Walk(), 3), mode=Autoreset.SAME_STEP, limit=6)
    assert checked(env, steps=15).any(axis=0).all()
    assert checked(vectorize(Walk(), 1), steps=4).shape == (4, 1)


def test_eager_steps_trace_once():
    env = vectorize(Walk(noise=0.25), 3)
    state = env.reset(seeding.key(0))
    TRACES.clear()
    for _ in range(4):
        state = vectorize(Walk(noise=0.25), 3).step(state, tf.zeros([3, 2]))
    assert len(TRACES) <= 2  # vectorized_map may trace its function more than once


def test_registered_with_make_env(monkeypatch):
    registry.env_ids()  # what ships is registered once in a process, not in the copies below
    monkeypatch.setattr(registry, "_SUITES", dict(registry._SUITES))
    monkeypatch.setattr(registry, "_TASKS", {s: dict(t) for s, t in registry._TASKS.items()})
    register("mine:Walk", lambda num_envs, noise=0.5: vectorize(Walk(noise=noise), num_envs), 6)
    env = tfrl.make_env("mine:Walk", 3, noise=0.0)
    state = env.step(env.reset(seeding.key(0)), tf.zeros([3, 2]))
    assert state.obs["place"].shape == [3, 2] and state.reward.dtype == tf.float32
    assert env.unwrapped.env.noise == 0.0


def test_mistakes():
    with pytest.raises(UserError, match="vectorize: expected a bare environment with num_envs 1"):
        vectorize(Chain(num_envs=3), 2)
    with pytest.raises(UserError, match="num_envs: expected a whole number of at least 1, got 0"):
        vectorize(Walk(), 0)
    with pytest.raises(UserError) as error:
        vectorize(Chain(num_envs=1), 2).reset(seeding.key(0))
    assert str(error.value).startswith(
        "vectorize: reward: expected a scalar, since the environment is unbatched, got shape (1,)"
    )
