"""The device part of a run is one XLA program of static shapes, as a TPU requires."""

import functools

import pytest
import tensorflow as tf

from tests.agents import registered
from tfrl import make_env, seeding, struct
from tfrl.agents import PPO, MultiAgent
from tfrl.distribute import check_compilable
from tfrl.envs.wrappers import RewardNormalize
from tfrl.learners import ModuleConfig
from tfrl.learning import leaves
from tfrl.workflows import OnPolicyWorkflow

CASES = {
    "cartpole": ("tf:CartPole-v1", {}, {"hidden": (8,)}, {}),
    "target_kl_and_padding": (
        "tf:CartPole-v1",
        {"autoreset": "NEXT_STEP"},
        {"target_kl": 0.01, "value_clip": 0.2, "kl_coef": 1.0, "kl_target": 0.01},
        {"remainder": "pad", "num_minibatches": 3},
    ),
    "pendulum_with_statistics": (
        "tf:Pendulum-v1",
        {"outer_wrappers": (lambda env: RewardNormalize(env=env),)},
        {"normalize_obs": True, "entropy_coef": [[0, 0.01], [100, 0.0]]},
        {"learner_config": ModuleConfig(lr=[[0, 1e-3], [1000, 0.0]], grad_clip_by="norm")},
    ),
    "several_policies": (
        "tf:Relay-v0",
        {"max_episode_steps": 50},
        {"policies": {"shared": functools.partial(PPO, hidden=(8,))}},
        {"agent": MultiAgent},
    ),
    "memory_and_masks": (
        "tf:Masked",
        {},
        {"memory": "gru", "memory_size": 8, "sequence_length": 2, "hidden": (8,)},
        {},
    ),
    "shared_torso": ("tf:CartPole-v1", {}, {"shared_torso": True, "hidden": (8,)}, {}),
    **{
        cls.__name__: (
            "tf:CartPole-v1",
            {"autoreset": "NEXT_STEP"},
            {"hidden": (8,)},
            {"agent": cls},
        )
        for cls in registered.ON_POLICY
    },
}


def workflow(name):
    env_id, env_settings, agent_settings, settings = CASES[name]
    env = make_env(env_id, num_envs=4, **env_settings)
    settings = {"rollout_length": 4, "num_minibatches": 2, "eval_episodes": 4, **settings}
    agent = functools.partial(settings.pop("agent", PPO), **agent_settings)
    modes = {"rollout": "graph", "update": "graph", "loop": "graph", "evaluation": "graph"}
    return OnPolicyWorkflow(env=env, agent=agent, compile=modes, **settings)


def loop_of(flow, state):
    """Returns the loop over iterations, as a runner calls it for XLA, and arguments."""
    flow.compile_choices(state)
    runner = flow.runner(state)
    runner.modes["loop"] = "xla"  # a graph loop has clocks
    run_stages = runner.settled(state)
    state = flow.begin_call(state)

    def run(carried, iterations, limit):
        with run_stages.in_use():
            return runner.loop(state, run_stages, carried, iterations, limit)

    return run, (leaves.carried(state), tf.constant(1), tf.constant(1, tf.int64))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.variants(2)
def test_an_iteration_of_a_workflow_is_one_program(name):
    flow = workflow(name)
    fn, args = loop_of(flow, flow.setup(0))
    assert check_compilable(fn, *args) == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.variants(2)
def test_an_evaluation_is_one_program(name):
    flow = workflow(name)
    state = flow.setup(0)
    evaluator = flow.make_evaluator(4, "graph")
    values = struct.values(state.agent_state)
    assert check_compilable(evaluator.run, values, seeding.key(1)) == []


def test_what_does_not_compile_is_found():
    flow = workflow("cartpole")

    class Loose(type(flow)):
        def update(self, learner, batch, key, timesteps, jit=False):
            rows = tf.boolean_mask(batch.advantage, batch.advantage > 0)
            return {"positive": tf.reduce_mean(rows)}

    flow.__class__ = Loose
    fn, args = loop_of(flow, flow.setup(0))
    assert any("Where" in str(problem) for problem in check_compilable(fn, *args))
