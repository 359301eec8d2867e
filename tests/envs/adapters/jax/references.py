"""The same play in JAX alone, for tests."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfrl import seeding, specs
from tfrl.envs.adapters.jax.bridge import as_nest

jax = pytest.importorskip("jax", reason="the extra 'jax' is not installed")


def check_equal(env, steps, tolerance=0.0):
    """Asserts that random play of an environment has the bits that JAX's own step has.

    Args:
      env: An `Episode` of mode SAME_STEP_CACHED around a `JaxEnv`.
      steps: How many steps are taken.
      tolerance: How far floats may be apart.
    """
    task, num_envs, limit = env.unwrapped.task, env.num_envs, env.limit
    actions = specs.sample(env.action_spec, seeding.key(1), [steps, num_envs])
    key = seeding.key(0)
    start_key = seeding.split(key)[0].numpy().view(np.uint32)  # which Episode gives to `reset`
    jax_step = jax.jit(jax.vmap(task.step))
    start = jax.jit(jax.vmap(task.reset))(jax.random.split(start_key, num_envs))[0]
    given, length, rows = start, np.zeros([num_envs], int), []
    for t in range(steps):
        action = tf.nest.map_structure(lambda x, t=t: x[t].numpy(), actions)
        given, obs, reward, termination, truncation, _ = jax_step(given, action)
        length += 1
        truncation = np.asarray(truncation) | (length >= (limit or np.inf))
        ended = np.asarray(termination, bool) | truncation
        if ended.any():
            rows_of = functools.partial(_where_rows, ended)
            given, length = jax.tree_util.tree_map(rows_of, start, given), length * ~ended
        rows.append((as_nest(obs), np.asarray(reward, np.float32), termination, truncation))
    expected = tf.nest.map_structure(lambda *x: np.stack([np.asarray(y) for y in x]), *rows)
    step = tf.function(env.step, jit_compile=True, autograph=False)
    state, rows = env.reset(key), []
    for t in range(steps):
        state = step(state, tf.nest.map_structure(lambda x, t=t: x[t], actions))
        rows.append((state.info["final_obs"], state.reward, state.termination, state.truncation))
    got = tf.nest.map_structure(lambda *x: np.stack([y.numpy() for y in x]), *rows)
    assert (got[2] | got[3]).any(), "no episode has ended"
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(expected), strict=True):
        if tolerance and a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def _where_rows(mask, a, b):
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        data = [jax.random.key_data(x) for x in (a, b)]
        return jax.random.wrap_key_data(_where_rows(mask, *data))
    return jax.numpy.where(mask.reshape([-1] + [1] * (b.ndim - 1)), a, b)
