"""Small off-policy workflows, and the compared values of their runs."""

import functools

import numpy as np

import tfrl
from tfrl.agents import DQN
from tfrl.learners import ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.workflows import OffPolicyWorkflow

BUFFER = functools.partial(InGraphReplay, capacity=400)
PRIORITIZED = functools.partial(InGraphReplay, capacity=400, kind="prioritized")


def workflow(env_id="tf:CartPole-v1", *, agent=None, num_envs=2, autoreset="SAME_STEP", **changes):
    if "env" not in changes:
        changes["env"] = tfrl.make_env(env_id, num_envs=num_envs, autoreset=autoreset)
    agent = agent or functools.partial(DQN, hidden=(8,), target_every=3, normalize_obs=True)
    settings = {
        "replay": BUFFER,
        "batch_size": 8,
        "random_steps": 20,
        "eval_episodes": 2,
        "compile": "graph",
        "learner_config": ModuleConfig(lr=1e-3),
        "iterations_per_row": 4,
    }
    return OffPolicyWorkflow(agent=agent, **{**settings, **changes})


def bits(flow, state):
    return {path: np.array(x) for path, x in flow.state_values(state).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for path, value in a.items():
        np.testing.assert_array_equal(value, b[path], err_msg=path)


def learner_state(flow, state):
    learner = flow.learner_of(state)
    return {path: v.numpy() for path, v in learner.variables().items()}


def run(flow, seed, env_steps):
    """A run until a number of env steps, and all its rows."""
    state, rows = flow.setup(seed), []
    while flow.env_steps(state) < env_steps:
        done = flow.advance(state, 1000, env_steps)
        state, rows = done.state, rows + list(done.rows)
    return state, rows
