"""What is checked of every device task in the same way."""

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs


def check_ways_agree(env, steps, atol=0.0, rtol=0.0):
    """Asserts that eager, graph and XLA show the same states.

    Args:
      env: An environment with an autoreset mode.
      steps: How many steps of random actions are taken.
      atol: How far floats may be apart; what is no float has to be equal.
      rtol: The same, relative to their size.
    """
    actions = specs.sample(env.action_spec, seeding.key(1), [steps, env.num_envs])

    def play(reset, step):
        states = [reset(seeding.key(2))]
        for t in range(steps):
            action = tf.nest.map_structure(lambda x, t=t: x[t], actions)
            states.append(step(states[-1], action))
        seen = [(s.obs, s.info, s.reward, s.termination, s.truncation) for s in states]
        return tf.nest.flatten(seen)

    eager = play(env.reset, env.step)
    for xla in (False, True):
        compiled = (tf.function(f, jit_compile=xla, autograph=False) for f in (env.reset, env.step))
        for a, b in zip(eager, play(*compiled), strict=True):
            if a.dtype.is_floating:
                np.testing.assert_allclose(a, b, atol=atol, rtol=rtol)
            else:
                np.testing.assert_array_equal(a, b)


def check_traced_once(env, num_actions):
    """Asserts that neither keys nor actions make a step be traced again.

    Args:
      env: An environment of discrete actions.
      num_actions: How many of them to try.
    """
    traces = []

    @tf.function
    def step(state, action):
        traces.append(1)
        return env.step(state, action)

    for seed in range(3):
        state = env.reset(seeding.key(seed))
        for t in range(3):
            action = tf.constant(t % num_actions, tf.int64)
            state = step(state, tf.fill([env.num_envs], action))
    assert len(traces) == 1
