"""An iteration as a function of the state, and its uses: populations, actors, learners."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfrl import make_env, seeding, struct
from tfrl.agents import A2C, DQN, PPO
from tfrl.errors import UserError
from tfrl.learners import Learner, ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.rollout import rollout
from tfrl.workflows import OffPolicyWorkflow, OnPolicyWorkflow


def _workflow(agent=PPO, lr=1e-3):
    return OnPolicyWorkflow(
        env=make_env("tf:CartPole-v1", num_envs=4),
        agent=functools.partial(agent, hidden=(8,), normalize_obs=True),
        rollout_length=8,
        num_epochs=2,
        num_minibatches=2,
        learner_config=ModuleConfig(lr=lr, grad_clip=0.5),
        compile="graph",
    )


def _iterated(workflow, state):
    """An iteration of a state, as in a run; traced."""
    return workflow.iterate(state, seeding.fold_in(state.key, state.metrics.iterations))


def _assert_close(a, b):
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
        *map(struct.values, (a, b)),
    )


def _assert_same(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, *map(struct.values, (a, b)))


@pytest.mark.parametrize("agent", [PPO, A2C])
@pytest.mark.variants(1)
def test_an_iteration_of_tensors_is_that_of_variables(agent):
    workflow = _workflow(agent)
    start = workflow.setup(0)
    state = struct.values(start)
    pure = tf.function(lambda state: _iterated(workflow, state), autograph=False)
    metrics, after = pure(pure(state)[1])
    _assert_same(start, state)  # neither the argument nor any variable has changed
    done = workflow.advance(start, 2)
    _assert_same(done.state, after)
    for name, value in metrics.items():
        if "nonfinite" not in name:
            np.testing.assert_array_equal(done.rows[-1][name], value, err_msg=name)


def test_members_with_other_rates_and_seeds_in_one_call():
    """States stacked on a leading axis, stepped by one trace, equal two separate runs."""
    flows = [_workflow(lr=lr) for lr in (1e-3, 1e-2)]
    members = [struct.values(flow.setup(seed)) for seed, flow in enumerate(flows)]
    traces = []

    @functools.partial(tf.function, autograph=False)
    def population(states):
        traces.append(1)
        return tf.map_fn(lambda state: _iterated(flows[0], state)[1], states)

    after = population(population(struct.stack(members)))
    assert len(traces) == 1
    for i, (flow, member) in enumerate(zip(flows, members, strict=True)):
        _assert_same(struct.take(after, i), flow.advance(member, 2).state)
    assert np.all(struct.take(after, 0).env_state.obs != struct.take(after, 1).env_state.obs)


def test_an_actor_without_a_learner_and_a_learner_without_environments():
    """Actor and learner exchange parameters and experience; together they equal the workflow."""
    workflow = _workflow()
    agent, env = workflow.agent, workflow.env
    state = workflow.setup(0)
    learner = Learner(agent, config=workflow.learner_config)
    learner.build(seeding.streams(seeding.key(0), ["agent"])["agent"])
    sent = struct.values(learner.state)  # the actor's message
    env_state = struct.values(state.env_state)

    @functools.partial(tf.function, autograph=False)
    def act(agent_state, env_state, key):
        played, env_state, _ = rollout(env, agent, env_state, agent_state, key, 8)
        return agent.learner_batch(agent_state, played.replace(valid=None))[0], played, env_state

    for i in range(2):
        keys = tf.unstack(seeding.split(seeding.fold_in(state.key, i), 2))
        batch, played, env_state = act(sent, env_state, keys[0])
        learner.update_from_batch(
            batch, num_epochs=2, minibatch_size=16, key=keys[1], timesteps=32 * i
        )
        trained = struct.values(learner.state)
        seen = agent.update_normalizer(sent, played).normalizer
        learner.assign("default_policy", trained, trained.replace(normalizer=seen))
        sent = struct.values(learner.state)
    _assert_same(workflow.advance(state, 2).state.agent_state, sent)


@pytest.mark.parametrize("agent", [PPO, DQN])
def test_an_iteration_by_itself_over_variables(agent):
    """Called from Python, without a runner, it gives the same run, which then continues."""
    if agent is PPO:
        workflow = _workflow()
    else:
        env = make_env("tf:CartPole-v1", num_envs=1)
        settings = {"batch_size": 4, "random_steps": 4, "compile": "graph"}
        replay = functools.partial(InGraphReplay, capacity=32)
        workflow = OffPolicyWorkflow(env, DQN, replay=replay, iterations_per_row=1, **settings)
    state, other = workflow.setup(0), workflow.setup(0)
    for _ in range(7):
        key = seeding.fold_in(state.key, state.metrics.iterations)
        _, state = workflow.iterate(state, key)
        other = workflow.step(other)[1]
    _assert_close(state.agent_state, other.agent_state)
    assert state.prefetched is None
    assert int(workflow.step(state)[1].metrics.iterations) == 8


def test_an_iteration_draws_from_its_key_alone():
    """Also where a runner draws the batch one iteration ahead."""
    env = make_env("tf:CartPole-v1", num_envs=1)
    replay = functools.partial(InGraphReplay, capacity=32)
    settings = {"batch_size": 4, "random_steps": 4, "compile": "graph"}
    workflow = OffPolicyWorkflow(env, DQN, replay=replay, iterations_per_row=1, **settings)

    def learned(seed):
        state = workflow.setup(0)
        for i in range(6):
            state = workflow.iterate(state, seeding.key(seed + i))[1]
        return struct.values(state)

    one, other = learned(10), learned(20)
    _assert_same(one, learned(10))
    for path, value in struct.paths(one.agent_state.params).items():
        assert np.any(value != struct.paths(other.agent_state.params)[path]), path


def test_what_changes_a_buffer_in_place_takes_variables():
    workflow = OffPolicyWorkflow(env=make_env("tf:CartPole-v1", num_envs=4), agent=DQN)
    state = workflow.setup(0)
    with pytest.raises(UserError, match="expected a state of variables, whose replay buffer"):
        workflow.iterate(struct.values(state), state.key)
