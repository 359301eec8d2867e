"""The state of a run as a value: fields, copies, stacking and unstacking."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfrl import make_env, struct
from tfrl.agents import DQN, PPO
from tfrl.errors import UserError
from tfrl.evaluation import Evaluator
from tfrl.learners import ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.rollout import rollout
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
@pytest.mark.variants(1)
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
    # Leaves hold everything that training changes: a copy of the leaves is a copy of the run.
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
    with pytest.raises(
        UserError, match="of iteration 2, got the state of iteration 1, which a later"
    ):
        workflow.step(one)
    with pytest.raises(UserError, match="which a later step has consumed"):
        workflow.evaluate(one)


def test_the_state_of_another_equal_workflow():
    one, two = _on_policy(), _on_policy()
    state = one.advance(one.setup(0), 2).state
    _assert_same(two.advance(state, 2).state, one.advance(state, 2).state)


@pytest.mark.parametrize("make", [_on_policy, _off_policy])
def test_a_state_of_arrays_goes_on_as_one_of_variables(make):
    workflow = make()
    state = workflow.advance(workflow.setup(0), 6).state
    arrays = tf.nest.map_structure(np.asarray, struct.values(state))
    rows = [workflow.step(workflow.ready(x))[0] for x in (arrays, state)]
    assert rows[0] == pytest.approx(rows[1], nan_ok=True)


def test_a_part_of_another_structure_is_named():
    workflow = _on_policy()
    state = workflow.setup(0)
    for part, other, got in (
        ("agent_state", state.opt_state, "missing"),
        ("opt_state", None, "No"),
    ):
        with pytest.raises(UserError, match=f"{part} of the state.*: expected .* got {got}"):
            workflow.step(state.replace(**{part: other}))
    with pytest.raises(UserError, match="agent_state of the state: expected .* got missing"):
        workflow.evaluate(state.replace(agent_state=state.opt_state))
    with pytest.raises(UserError, match="options of learn: expected RunOptions, got int"):
        workflow.learn(state, 1000)


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


def test_a_workflow_of_objects():
    env, eval_env = (make_env("tf:CartPole-v1", num_envs=n) for n in (4, 2))
    agent = DQN(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))
    evaluator = Evaluator(env=eval_env, agent=agent, num_episodes=3, discount=0.9, compile="xla")
    replay = functools.partial(InGraphReplay, capacity=64)
    workflow = OffPolicyWorkflow(env, agent, "sgd", evaluator, replay, batch_size=8)
    assert workflow.learner_config.optimizer == "sgd"
    assert (workflow.eval_env, workflow.eval_episodes, workflow.evaluator.discount) == (
        *(eval_env, 3, 0.9),
    )
    assert workflow.compile["evaluation"] == "xla"
    state = workflow.setup(0)
    metrics, state = workflow.evaluate(state)
    assert metrics["eval_episodes"] == 3
    assert metrics["eval_return_mean"] < 10  # discounted
    assert int(workflow.replay_buffer(state).size()) == 0
    slots = state.opt_state["dqn"]
    assert set(slots) == {"iterations", "learning_rate"}
    with pytest.raises(UserError, match="eval_env: expected None with an evaluator"):
        OnPolicyWorkflow(env, PPO, None, evaluator, eval_env=eval_env)
    with pytest.raises(UserError, match="evaluator: expected a tfrl.evaluation.Evaluator"):
        OnPolicyWorkflow(env, PPO, "adam", eval_env)
    with pytest.raises(UserError, match="the agent of the evaluator: expected an agent with the"):
        OnPolicyWorkflow(env, PPO, None, evaluator)
    with pytest.raises(UserError, match="num_episodes: expected"):
        workflow.final_evaluation(state, 0)
    with pytest.raises(UserError, match="replay_buffer: expected None with replay"):
        OffPolicyWorkflow(env, agent, replay_buffer=replay, replay=replay)


def test_hooks_of_a_fresh_run():
    class Prepared(OffPolicyWorkflow):
        """Starts with its own parameters and experience."""

        def setup_agent_and_optimizer(self, key):
            agent_state, opt_state = super().setup_agent_and_optimizer(key)
            params = tf.nest.map_structure(tf.ones_like, agent_state.params)
            return agent_state.replace(params=params), opt_state

        def postsetup_replay_buffer(self, state):
            played, _, _ = rollout(
                *(self.env, self.agent, state.env_state, state.agent_state, state.key),
                length=4,
                env_extra_fields=self.rollout_fields(state.env_state),
                action_fn=self.agent.random_actions,
            )
            self.replay_buffer(state).add(played)
            return state

    env = make_env("tf:CartPole-v1", num_envs=4)
    workflow = Prepared(
        env,
        functools.partial(DQN, hidden=(8,)),
        replay_buffer=functools.partial(InGraphReplay, capacity=64),
        batch_size=8,
        random_steps=0,
        compile="graph",
    )
    state = workflow.setup(0)
    assert int(workflow.replay_buffer(state).size()) == 16
    for leaf in tf.nest.flatten(state.agent_state.params):
        np.testing.assert_array_equal(leaf, np.ones(leaf.shape))
    state = workflow.step(state)[1]
    assert int(state.metrics.learner["learner_steps"]) == 4
