"""A hand-written pure JAX environment inside TensorFlow."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding, specs
from tfrl.envs.core import Autoreset
from tfrl.envs.wrappers import Episode
from tfrl.errors import UserError

jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")
from tests.envs.adapters.jax import references  # noqa: E402
from tfrl.envs.adapters.jax import bridge, wrap  # noqa: E402

jnp = jax.numpy


class Walk(NamedTuple):
    """Where the walker is, how long it has walked, and its two kinds of keys."""

    place: object
    steps: object
    raw: object
    typed: object


class Seen(NamedTuple):
    place: object
    picture: object
    parts: object


ACTION = {
    "push": specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0),
    "choice": specs.MultiDiscreteSpec([2, 3], dtype=tf.int32),
}


def observe(state):
    picture = jnp.full((4, 4, 1), state.steps, jnp.uint8)
    return {"seen": Seen(state.place, picture, (state.steps, state.steps > 2))}


def reset(key):
    raw, typed = jax.random.split(key)
    place = jax.random.normal(raw, (2,))
    state = Walk(place, 0, raw, jax.random.wrap_key_data(typed))
    return state, observe(state)


def step(state, action):
    raw, drawn = jax.random.split(state.raw)
    noise = jax.random.uniform(drawn, (2,)) + jax.random.normal(state.typed, (2,))
    place = state.place + action["push"] * (1 + action["choice"][1]) + 0.1 * noise
    state = Walk(place, state.steps + 1, raw, jax.random.split(state.typed)[0])
    far = jnp.abs(place).max() > 4
    return state, observe(state), place.sum(), far, state.steps == 5, {"noise": noise}


walk = functools.partial(wrap, reset, step, action_spec=ACTION)


@pytest.fixture(scope="module")
def env():
    return walk(num_envs=3)


def test_specs_are_those_of_jax(env):
    seen = env.obs_spec["seen"]
    assert seen["place"] == tf.TensorSpec([2], tf.float32)
    assert seen["picture"] == tf.TensorSpec([4, 4, 1], tf.uint8)
    assert seen["parts"] == (tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool))
    assert env.action_spec == ACTION


def test_it_is_jax_to_the_bit_over_a_thousand_steps():
    references.check_equal(Episode(env=walk(num_envs=4), mode="SAME_STEP_CACHED"), 1000)


@pytest.mark.parametrize("mode", Autoreset)
def test_modes(env, mode):
    """The truncated observation is the true one: five steps old, whatever the mode."""
    env = Episode(env=env, mode=mode)
    still = {"push": tf.zeros([3, 2]), "choice": tf.zeros([3, 2], tf.int32)}
    state = env.reset(seeding.key(0))
    first = state.obs["seen"]["place"]
    for _ in range(5):
        state = env.step(state, still)
    assert state.truncation.numpy().all() and not state.termination.numpy().any()
    np.testing.assert_array_equal(state.info["final_obs"]["seen"]["parts"][0], [5, 5, 5])
    after = env.step(state, still)
    steps = after.obs["seen"]["parts"][0].numpy()
    expected = {"NEXT_STEP": 0, "SAME_STEP": 1, "SAME_STEP_CACHED": 1, "DISABLED": 5}[mode.name]
    np.testing.assert_array_equal(steps, [expected] * 3)
    if mode is Autoreset.SAME_STEP_CACHED:
        np.testing.assert_array_equal(state.obs["seen"]["place"], first)


def test_it_is_converted_once(monkeypatch):
    conversions = []
    convert = bridge._as_tensorflow
    monkeypatch.setattr(bridge, "_as_tensorflow", lambda *a: conversions.append(1) or convert(*a))
    task = walk(num_envs=2).task
    first = bridge.JaxEnv(task=task, num_envs=2)
    for env in (first, bridge.JaxEnv(task=task, num_envs=2), first.with_num_envs(2)):
        state = tf.function(env.reset)(seeding.key(0))
        tf.function(env.step, jit_compile=True)(state, specs.sample(ACTION, seeding.key(1), [2]))
    assert len(conversions) == 2  # reset and step
    assert first.with_num_envs(5).reset(seeding.key(0)).reward.shape == [5]
    assert len(conversions) == 4


def test_keys_are_data(env):
    """Rows differ, and the same key gives the same rows."""
    one, same, other = (env.reset(seeding.key(s)).obs["seen"]["place"].numpy() for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert len(np.unique(np.concatenate([one, other]), axis=0)) == 6


def test_its_own_state_comes_back(env):
    state = env.reset(seeding.key(0))
    own = env.jax_state(state, 1)
    assert isinstance(own, Walk)
    np.testing.assert_array_equal(own.place, state.obs["seen"]["place"][1])
    assert own.raw.dtype == np.uint32


def test_it_registers():
    tfrl.envs.register("jax_test:Walk", walk, max_episode_steps=3)
    env = tfrl.make_env("jax_test:Walk", num_envs=2)
    assert (env.num_envs, env.max_episode_steps) == (2, 3)


def step_of_another_dtype(state, action):
    return (state._replace(place=state.place.astype(jnp.int32)), *step(state, action)[1:])


def step_of_two_rewards(state, action):
    state, obs, reward, *rest = step(state, action)
    return (state, obs, jnp.stack([reward, reward]), *rest)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            {"step": step_of_another_dtype},
            "step of {}, state.place: expected float32 [2, 2], as returned by reset, got int32 "
            "[2, 2].",
        ),
        ({"step": step_of_two_rewards}, "step of {}, reward: expected a scalar, got shape [2]."),
        (
            {"step": lambda state, action: state},
            "step of {}: expected a tuple (state, obs, reward, termination, truncation) or",
        ),
        ({"reset": lambda key: key}, "reset of {}: expected a tuple (state, obs) or"),
        (
            {"reset": lambda key: (*reset(key), {"hidden": key})},
            "reset of {}: expected no info items other than those of step (noise), got hidden.",
        ),
        (
            {"obs_spec": tf.TensorSpec([2])},
            "obs_spec of {}: expected the structure {{'seen':",
        ),
        (
            {
                "reset": lambda key: (key, {"a": jnp.zeros(3)}),
                "obs_spec": {"a": tf.TensorSpec([2], tf.int32)},
            },
            "obs_spec of {}, a: expected float32 [3], as returned by reset, got int32 [2].",
        ),
    ],
)
def test_errors(wrong, message):
    arguments = {"reset": reset, "step": step, "action_spec": ACTION, "name": "it", **wrong}
    with pytest.raises(UserError) as error:
        wrap(**arguments, num_envs=2).reset(seeding.key(0))
    assert message.format("it") in str(error.value)
