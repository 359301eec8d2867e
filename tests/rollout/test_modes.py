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

KEY = seeding.key(7)
AUTORESETS = ("NEXT_STEP", "SAME_STEP", "SAME_STEP_CACHED", "DISABLED")


def run(key, weight):
    """`{autoreset: what is collected of environments that end and are cut}`."""
    found = {}
    for mode in AUTORESETS:
        env = fakes.Scripted(
            lengths=((3, 2, 4, 1), (5, 1, 1, 9)),
            kinds=(tuple("TUTB"), tuple("UTUT")),
            mode=mode,
            step_reward=(1.0, 2.0),
            limit=9,
        )
        state, agent_state = env.reset(key), {"weight": weight}
        arguments = (env, fakes.CountingAgent(), state, agent_state, key)
        episode = eval_rollout_episode(*arguments)
        found[mode] = {
            "rollout": rollout(*arguments, 9, ("total",)),
            "noise": rollout(env, fakes.NoisyAgent(), state, {}, key, 5),
            "episode": episode,
            "totals": episode_totals(episode, 0.5),
            "fast": fast_eval_rollout_episode(*arguments, discount=0.5),
        }
    return found


@pytest.fixture(name="found", scope="module")
def fixture_found():
    """`{mode: what is collected}`."""
    arguments = (KEY, tf.constant(2.0))
    return {
        "eager": run(*arguments),
        "graph": tf.function(run, autograph=False)(*arguments),
        "xla": tf.function(run, jit_compile=True, autograph=False)(*arguments),
    }


@pytest.mark.parametrize("mode", ["graph", "xla"])
@pytest.mark.parametrize("autoreset", AUTORESETS)
def test_it_is_the_same(found, autoreset, mode):
    for name, expected in found["eager"][autoreset].items():
        tf.nest.map_structure(
            lambda x, y, name=name: np.testing.assert_array_equal(x, y, name),
            found[mode][autoreset][name],
            expected,
        )
