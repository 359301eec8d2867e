"""The state of a run as a value: its fields, its copies, states stacked and taken apart."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfrl import make_env, struct
from tfrl.agents import DQN, PPO
from tfrl.errors import UserError
from tfrl.learners import ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow, State

FIELDS = ("key", "metrics", "agent_state", "opt_state", "env_state", "replay_buffer_state")


def _on_policy():
    return OnPolicyWorkflow(
        env=make_env("tf:CartPole-v1", num_envs=4),
        agent=functools.partial(PPO, hidden=(8,), normalize_obs=True),
        rollout_length=8,
        num_epochs=2,
        num_minibatches=2,
        compile="graph",
        eval_episodes=2,
    )


def _off_policy():
    return OffPolicyWorkflow(
        env=make_env("tf:CartPole-v1", num_envs=4),
        agent=functools.partial(DQN, hidden=(8,)),
        replay=functools.partial(InGraphReplay, capacity=64),
        batch_size=8,
        random_steps=16,
        learner_config=ModuleConfig(lr=1e-3),
        compile="graph",
        eval_episodes=2,
    )


def _assert_same(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, *map(struct.values, (a, b)))


@pytest.mark.parametrize("make", [_on_policy, _off_policy])
def test_a_state_is_one_nest_of_tensors_and_variables(make):
    workflow = make()
    state = workflow.setup(0)
    assert isinstance(state, State)
    assert tuple(name for name in FIELDS if hasattr(state, name)) == FIELDS
    leaves = tf.nest.flatten(state)
    assert all(tf.is_tensor(x) or isinstance(x, tf.Variable) for x in leaves)
    variables = [x for x in leaves if isinstance(x, tf.Variable)]
    assert len(variables) > 10
    assert tf.nest.map_structure(lambda x: x, state) is not state
    # All that training changes is a leaf: a copy of the leaves is a copy of the run.
    for _ in range(3):
        state = workflow.advance(state, 5).state
    copy = struct.values(state)
    after = workflow.advance(state, 5)
    again = workflow.advance(copy, 5)
    _assert_same(after.state, again.state)
    assert [dict(r) for r in after.rows] == [dict(r) for r in again.rows]


@pytest.mark.parametrize("make", [_on_policy, _off_policy])
def test_states_are_stacked_and_taken_apart(make):
    workflow = make()
    states = [workflow.advance(workflow.setup(seed), 8).state for seed in range(2)]
    stacked = struct.stack(states)
    assert all(x.shape[0] == 2 for x in tf.nest.flatten(stacked))
    for i, state in enumerate(states):
        taken = struct.take(stacked, i)
        _assert_same(taken, state)
        _assert_same(workflow.advance(taken, 2).state, workflow.advance(state, 2).state)


def test_a_state_of_tensors_is_not_consumed():
    workflow = _on_policy()
    state = struct.values(workflow.setup(0))
    one, two = workflow.step(state)[1], workflow.step(state)[1]
    _assert_same(one, two)
    assert workflow.evaluate(state)[0]["eval_episodes"] == 2
    assert workflow.env_steps(state) == 0
    workflow.step(one)
    with pytest.raises(UserError, match="of iteration 2, got that of iteration 1, which a later"):
        workflow.step(one)


def test_the_state_of_another_equal_workflow():
    one, two = _on_policy(), _on_policy()
    state = one.advance(one.setup(0), 2).state
    _assert_same(two.advance(state, 2).state, one.advance(state, 2).state)


def test_a_snapshot_is_a_copy_of_leaves():
    workflow = _off_policy()
    state = workflow.advance(workflow.setup(0), 10).state
    copy = workflow.snapshot(state)
    mine, its = (
        {id(x) for x in tf.nest.flatten(s) if isinstance(x, tf.Variable)} for s in (state, copy)
    )
    assert not mine & its
    before = struct.values(copy)
    workflow.advance(state, 3)
    _assert_same(copy, before)
