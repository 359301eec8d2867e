"""Rollouts where one policy acts for the environments that have answered."""

import functools
import time

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.rollout.staggered_env import PERIOD, SECONDS
from tfrl.agents import PPO
from tfrl.envs.central_inference import CentralInference
from tfrl.envs.host_env import row_seeds
from tfrl.errors import UserError
from tfrl.rollout import rollout
from tfrl.rollout.acting import policy_for
from tfrl.types import ActionOutput
from tfrl.workflows import OnPolicyWorkflow

TASK = "gymnasium:tests.rollout.staggered_env:Staggered-v0"
T = 12


class Counting:
    """Its recurrent state counts the steps of an episode, which are its action modulo 2."""

    def __init__(self):
        self.rows = []

    def initial_carry(self, batch_size):
        return tf.zeros([batch_size], tf.int64)

    def compute_actions(self, agent_state, obs, key, carry):
        action = carry % 2
        extras = {"carry": carry, "at": tf.cast(obs[:, 1], tf.int64)}
        return ActionOutput(action=action, carry=carry + 1, extras=extras)


@pytest.fixture(name="env", scope="module")
def fixture_env():
    with tfrl.make_env(
        TASK, num_envs=4, autoreset="SAME_STEP", vectorization="async", max_wait_time=0.005
    ) as env:
        yield env


def play(env, state, carry=None):
    agent = Counting()
    return rollout(env, agent, state, None, tf.zeros([2], tf.int32), T, carry=carry, in_numpy=True)


def test_every_environment_has_its_steps_in_order(env):
    assert isinstance(env, CentralInference)
    played, state, carry = play(env, env.reset(0))
    episode, at = played.obs[..., 0], played.obs[..., 1]
    steps = np.arange(T)[:, None].repeat(4, 1)
    np.testing.assert_array_equal(at, steps % 5)
    np.testing.assert_array_equal(episode - episode[0], steps // 5)
    np.testing.assert_array_equal(played.termination, steps % 5 == 4)
    np.testing.assert_array_equal(played.reward, steps % 5 + 1)
    np.testing.assert_array_equal(played.next_obs[..., 1], steps % 5 + 1)  # the true successor
    assert played.valid.all()
    # The recurrent state is that of the row, and begins anew with each episode.
    np.testing.assert_array_equal(played.policy_extras["carry"], steps % 5)
    np.testing.assert_array_equal(played.policy_extras["at"], steps % 5)
    np.testing.assert_array_equal(played.action, steps % 5 % 2)
    # The next rollout goes on.
    played, *_ = play(env, state, carry)
    np.testing.assert_array_equal(played.obs[..., 1], (steps + T) % 5)
    np.testing.assert_array_equal(played.policy_extras["carry"], (steps + T) % 5)


def test_no_environment_waits_for_another(env):
    # Each environment sleeps at another one of PERIOD steps.
    apart = (s for s in range(1000) if len({int(x) % PERIOD for x in row_seeds(s, 4)}) == PERIOD)
    state = env.reset(next(apart))
    began = time.monotonic()
    play(env, state)
    seconds = time.monotonic() - began
    # Stepped together, one of them would sleep in every step.
    assert T / PERIOD * SECONDS <= seconds < 0.75 * T * SECONDS


def test_a_policy_in_numpy_draws_anew_within_a_rollout(env):
    """Environments answer apart, so a rollout needs more calls of the policy than it has steps."""
    policy_calls = []
    workflow = OnPolicyWorkflow(
        env,
        functools.partial(PPO, hidden=(4,)),
        eval_env=tfrl.make_env(TASK, num_envs=1, max_episode_steps=9, slow=False),
        rollout_length=4,
        num_epochs=1,
        num_minibatches=1,
        compile={"rollout": "numpy", "update": "graph", "loop": "eager", "evaluation": "graph"},
    )
    state = workflow.setup(0)
    policy = policy_for(env, workflow.agent, workflow.agent.compute_actions)
    redraw = policy.redraw
    policy.redraw = lambda *given: (policy_calls.append(given), redraw(*given))
    done = workflow.advance(state, 3)
    assert [row["env_steps"] for row in done.rows] == [16, 32, 48]
    assert policy.mode == "numpy" and policy_calls
    workflow.eval_env.close()


def test_everything_else_steps_them_together(env):
    state = env.reset(3)
    for _ in range(2):
        state = env.step(state, np.zeros(4, np.int64))
    np.testing.assert_array_equal(state.obs[:, 1], [2.0] * 4)
    np.testing.assert_array_equal(state.info["episode_return"], [3.0] * 4)


def test_copies_are_alike(env):
    with env.with_num_envs(2) as two:
        assert isinstance(two, CentralInference)
        assert (two.num_envs, two.max_wait_time) == (2, 0.005)


def test_an_environment_that_dies_ends_the_rollout():
    with tfrl.make_env(TASK, num_envs=2, vectorization="async", max_wait_time=0.0) as env:
        state = env.reset(0)
        env.parts[1].backend._vector.processes[0].kill()
        with pytest.raises(UserError, match=r"Staggered-v0"):
            play(env, state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectorization": "sync"}, "vectorization='sync'"),
        ({"vectorization": "async", "double_buffer": True}, "double_buffer=True"),
    ],
)
def test_what_it_needs(arguments, message):
    with pytest.raises(UserError, match=f"max_wait_time of {TASK}: .*{message}"):
        tfrl.make_env(TASK, num_envs=2, max_wait_time=0.1, **arguments)


def test_a_negative_time_is_refused():
    with pytest.raises(UserError, match="max_wait_time of .*got -1"):
        tfrl.make_env(TASK, num_envs=1, vectorization="async", max_wait_time=-1)
