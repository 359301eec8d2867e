"""OffPolicyWorkflow equals a hand-written loop."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.agents import registered
from tests.workflows.small_off_policy import (
    PRIORITIZED,
    assert_same,
    learner_state,
    run,
    workflow,
)
from tfrl import seeding
from tfrl.agents import DQN
from tfrl.learners import DEFAULT_MODULE_ID
from tfrl.rollout import rollout


class HandLoopTest(parameterized.TestCase):
    @parameterized.parameters(
        (functools.partial(DQN, hidden=(8,), target_every=3), "tf:CartPole-v1"),
        *(
            (functools.partial(cls, hidden=(8,)), "tf:Pendulum-v1")
            for cls in registered.OFF_POLICY
            if registered.accepts(cls, registered.ACTIONS["box"])
        ),
    )
    @pytest.mark.variants(2)
    def test_it_is_the_loop_that_one_would_write(self, agent, env_id):
        """Sample, roll out, add, update: the public parts by hand give the same bits."""
        flow = workflow(env_id, agent=agent, compile="eager", num_envs=1, random_steps=10)
        state, rows = run(flow, 5, 16)

        keys = seeding.streams(seeding.key(5), ["agent", "environment", "run", "evaluation"])
        learner, buffer = flow.setup_agent(keys["agent"]), flow.replay.init()
        env_state = flow.env.reset(keys["environment"])
        for i in range(16):
            play, learn = tf.unstack(seeding.split(seeding.fold_in(keys["run"], i), 2))
            act = flow.agent.random_actions if i < 10 else flow.agent.compute_actions
            own = seeding.streams(seeding.fold_in(learn, 0), ("sample", "update"))
            batch = buffer.sample(own["sample"], 8) if i >= 10 else None
            steps, env_state, _ = rollout(
                flow.env,
                flow.agent,
                env_state,
                learner.module_state(DEFAULT_MODULE_ID),
                play,
                1,
                action_fn=act,
            )
            buffer.add(steps)
            if i >= 10:
                timesteps = tf.constant(i + 1, tf.int64)
                learner.update(batch, key=own["update"], timesteps=timesteps, shuffle=False)
        assert_same(
            {p: v.numpy() for p, v in learner.variables().items()}, learner_state(flow, state)
        )
        assert_same(
            {p: np.array(x) for p, x in buffer.state_values().items()},
            {p: np.array(x) for p, x in flow.replay_buffer(state).state_values().items()},
        )

    def test_priorities_are_the_errors_of_the_loss(self):
        flow = workflow(
            replay=PRIORITIZED, compile="eager", num_envs=1, random_steps=12, priority_beta=0.7
        )
        state, _ = run(flow, 0, 12)
        learner, buffer = flow.learner_of(state).clone(), flow.replay.init()
        buffer.load_values(flow.replay_buffer(state).state_values())
        done = flow.advance(state, 1)
        # The iteration also samples its own steps, so copy them from the run.
        agent_state = learner.module_state(DEFAULT_MODULE_ID)
        play, learn = tf.unstack(seeding.split(seeding.fold_in(state.key, 12), 2))
        steps, _, _ = rollout(flow.env, flow.agent, state.env_state, agent_state, play, 1)
        observed = flow.agent.update_normalizer(agent_state, steps).normalizer
        tf.nest.map_structure(lambda v, x: v.assign(x), agent_state.normalizer, observed)
        buffer.add(steps)
        keys = seeding.streams(seeding.fold_in(learn, 0), ("sample", "update"))
        batch = buffer.sample(keys["sample"], 8, 0.7)
        self.assertLess(float(tf.reduce_min(batch.weight)), 1.01)
        errors = flow.agent.td_errors(agent_state, batch, keys["update"])
        buffer.update_priorities(batch.index, errors + 1e-6)
        assert_same(
            {p: np.array(x) for p, x in buffer.state_values().items()},
            {p: np.array(x) for p, x in flow.replay_buffer(done.state).state_values().items()},
        )

    @pytest.mark.slow
    def test_prioritised_learning_weighs_rows(self):
        agent = functools.partial(DQN, hidden=(8,))
        kinds = {}
        for beta in (0.0, 1.0):
            flow = workflow(agent=agent, replay=PRIORITIZED, priority_beta=beta)
            state, _ = run(flow, 0, 40)
            kinds[beta] = learner_state(flow, state)
        name = next(p for p in kinds[0.0] if "params/q" in p)
        self.assertFalse(np.array_equal(kinds[0.0][name], kinds[1.0][name]))
