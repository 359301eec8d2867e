"""What agents learn and how they act is the same eagerly, in a graph and compiled by XLA."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.agents import off_policy_cases as cases
from tests.agents import registered
from tests.learners import train_steps
from tfrl import seeding, struct
from tfrl.agents import A2C, DQN, PPO, SAC, TD3, Impala
from tfrl.rollout import rollout

pytestmark = pytest.mark.usefixtures("grappler")

KEY = cases.KEY
DISCRETE, BOX = registered.ACTIONS["discrete"], registered.ACTIONS["box"]
OFF_POLICY = {
    "DQN": (DQN, DISCRETE, {"dueling": True, "huber_delta": 1.0}),
    "SAC_box": (SAC, BOX, {"num_critics": 3, "critic_subset": 2}),
    "SAC_discrete": (SAC, DISCRETE, {"normalize_obs": True}),
    "TD3": (TD3, BOX, {}),
}
ON_POLICY = {
    "A2C": (A2C, "tf:CartPole-v1", {}),
    "PPO": (
        PPO,
        "tf:Pendulum-v1",
        {"normalize_obs": True, "squash": True, "kl_coef": 0.2, "kl_target": 0.01},
    ),
    "Impala": (Impala, "tf:CartPole-v1", {"memory": "gru", "memory_size": 4}),
}


def off_policy(name):
    cls, action_spec, options = OFF_POLICY[name]
    agent = cls(obs_spec=registered.OBS, action_spec=action_spec, hidden=(4,), **options)
    state = agent.init(KEY)
    batch = cases.transitions(agent, weight=tf.abs(seeding.normal(KEY, [16])))
    learner = train_steps.recording(agent)

    def run(state, batch):
        acts = (agent.compute_actions, agent.evaluate_actions, agent.random_actions)
        return {
            "actions": [act(state, batch.obs, KEY) for act in acts],
            "td_errors": agent.td_errors(state, batch, KEY),
            "updates": train_steps.computed(learner, state, batch, KEY),
        }

    return run, state, batch


def on_policy(name):
    """Of a rollout with rows that are invalid."""
    cls, env_id, options = ON_POLICY[name]
    env = tfrl.make_env(env_id, num_envs=3, autoreset="NEXT_STEP", max_episode_steps=3)
    agent = cls(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(4,), **options)
    state = agent.init(KEY)
    trajectory, _, _ = rollout(env, agent, env.reset(KEY), state, KEY, 6)
    assert not np.all(trajectory.valid)
    learner = train_steps.recording(agent)

    def run(state, trajectory):
        carry = agent.initial_carry(3) if agent.recurrent else None
        acts = (agent.compute_actions, agent.evaluate_actions)
        batch, metrics = agent.learner_batch(state, trajectory)
        state = agent.update_normalizer(state, trajectory)
        return {
            "actions": [act(state, trajectory.obs[0], KEY, carry) for act in acts],
            "metrics": metrics,
            "updates": train_steps.computed(learner, state, batch, KEY),
        }

    return run, state, trajectory


@pytest.mark.parametrize("name", [*OFF_POLICY, *ON_POLICY])
@pytest.mark.variants(4)
def test_it_is_the_same(name):
    run, *inputs = off_policy(name) if name in OFF_POLICY else on_policy(name)
    expected = struct.paths(run(*inputs))
    for jit in (False, True):
        found = struct.paths(tf.function(run, jit_compile=jit, autograph=False)(*inputs))
        assert list(found) == list(expected)
        for path, value in expected.items():
            np.testing.assert_allclose(
                found[path], value, rtol=1e-4, atol=1e-5, err_msg=f"{path}, jit_compile={jit}"
            )
