"""Rollouts are the same eagerly, in a graph and compiled by XLA."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rollout import rollout_fakes as fakes
from tfrl import seeding
from tfrl.rollout import (
    episode_totals,
    eval_rollout_episode,
    fast_eval_rollout_episode,
    rollout,
)

pytestmark = pytest.mark.usefixtures("grappler")

KEY = seeding.key(7)
AUTORESETS = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")


def run(key, weight, mode):
    """What is collected of environments that end and are cut."""
    env = fakes.Scripted(
        lengths=((3, 2, 4, 1), (5, 1, 1, 9)),
        kinds=(tuple("TUTB"), tuple("UTUT")),
        mode=mode,
        step_reward=(1.0, 2.0),
        limit=9,
    )
    state, agent_state = env.reset(key), {"weight": weight}
    arguments = (env, fakes.CountingAgent(), state, agent_state, key)
    episode, _ = eval_rollout_episode(*arguments)
    return {
        "rollout": rollout(*arguments, 9, ("total",)),
        "noise": rollout(env, fakes.NoisyAgent(), state, {}, key, 5),
        "episode": episode,
        "totals": episode_totals(episode, 0.5),
        "fast": fast_eval_rollout_episode(*arguments, discount=0.5)[0],
    }


@pytest.mark.parametrize("autoreset", AUTORESETS)
@pytest.mark.variants(2)
def test_they_are_the_same(autoreset):
    arguments = (KEY, tf.constant(2.0), autoreset)
    expected = run(*arguments)
    for jit in (False, True):
        found = tf.function(run, jit_compile=jit, autograph=False)(*arguments)
        for name, wanted in expected.items():
            tf.nest.map_structure(
                lambda x, y, name=name: np.testing.assert_array_equal(x, y, name),
                found[name],
                wanted,
            )
