"""This release and all later ones restore checkpoints of the previous release.

This command, run once at the top of the repository, wrote the folders in data/:

    python -m tests.workflows.test_earlier_release tests/workflows/data/v0

Do not change them. Each has a checkpoint after some iterations, and in `after.npz` the policy
parameters at the checkpoint and two iterations later.
"""

import functools
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.tasks.small_tasks import ScriptedTask, config
from tests.workflows.small_off_policy import PRIORITIZED
from tests.workflows.small_off_policy import workflow as off_policy
from tfrl import struct
from tfrl.agents import PPO, SAC, TD3
from tfrl.envs.wrappers import RewardClip, RewardNormalize
from tfrl.learners import ModuleConfig
from tfrl.tasks import TaskWorkflow
from tfrl.workflows import OnPolicyWorkflow

DATA = pathlib.Path(__file__).parent / "data" / "v0"


def on_policy(env_id="tf:CartPole-v1", strategy=None, make_env=None, **agent):
    return OnPolicyWorkflow(
        env=tfrl.make_env(env_id, num_envs=4, **(make_env or {})),
        agent=functools.partial(PPO, **{"hidden": (4,), **agent}),
        rollout_length=8,
        num_epochs=1,
        num_minibatches=2,
        eval_episodes=2,
        learner_config=ModuleConfig(lr=[[0, 1e-2], [1000, 0.0]], grad_clip=0.5),
        compile="graph",
        strategy=strategy,
    )


def normalized(env):
    return RewardNormalize(env=env)


def clipped(env):
    return RewardClip(env=env, low=-1.0, high=1.0)


def pendulum(agent):
    make = functools.partial(agent, hidden=(4,))
    return off_policy("tf:Pendulum-v1", agent=make, random_steps=16)


# name: (the workflow, iterations before the checkpoint)
CASES = {
    "ppo": (functools.partial(on_policy, normalize_obs=True), 3),
    "ppo_recurrent": (
        functools.partial(on_policy, memory="lstm", memory_size=4),
        3,
    ),
    "ppo_normalized_rewards": (
        lambda: on_policy(make_env={"outer_wrappers": (normalized, clipped)}, normalize_obs=True),
        3,
    ),
    "ppo_two_replicas": (
        lambda: on_policy(
            strategy=tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), normalize_obs=True
        ),
        3,
    ),
    "sac": (functools.partial(pendulum, SAC), 16),
    "td3": (functools.partial(pendulum, TD3), 16),
    "ppo_host": (functools.partial(on_policy, "gymnasium:CartPole-v1"), 3),
    "dqn_prioritized": (functools.partial(off_policy, replay=PRIORITIZED), 20),
    "task": (lambda: TaskWorkflow(task=ScriptedTask(config())), 2),
}


def params_of(workflow, state, name):
    params = struct.paths(workflow.agent_state(state))
    return {f"{name}/{path}": np.asarray(x) for path, x in params.items()}


def go_on(workflow, state):
    """The parameters of a state, and the parameters two iterations later."""
    found = params_of(workflow, state, "restored")
    for _ in range(2):
        _, state = workflow.step(state)
    return {**found, **params_of(workflow, state, "later")}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.variants(3)
def test_it_is_restored(name):
    workflow = CASES[name][0]()
    found = params_of(workflow, workflow.restore(DATA / name), "restored")
    workflow.close()
    with np.load(DATA / name / "after.npz") as kept:
        assert set(found) == {path for path in kept.files if path.startswith("restored/")}
        for path, value in found.items():
            np.testing.assert_array_equal(value, kept[path], err_msg=path)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.variants(2)
def test_it_is_restored_and_goes_on(name):
    workflow = CASES[name][0]()
    found = go_on(workflow, workflow.restore(DATA / name))
    workflow.close()
    with np.load(DATA / name / "after.npz") as kept:
        assert set(found) == set(kept.files)
        for path in kept.files:
            if path.startswith("restored/"):
                np.testing.assert_array_equal(found[path], kept[path], err_msg=path)
            elif name != "ppo_host":  # which starts new episodes
                # Another processor may round differently, and so draw other rows by priority.
                atol = 1e-3 if name == "dqn_prioritized" else 1e-5
                np.testing.assert_allclose(found[path], kept[path], rtol=1e-4, atol=atol)


def write(directory):
    """Writes all cases."""
    for name, (make, iterations) in CASES.items():
        workflow = make()
        state = workflow.setup(3)
        for _ in range(iterations):
            _, state = workflow.step(state)
        workflow.save(state, directory / name)
        np.savez_compressed(directory / name / "after.npz", **go_on(workflow, state))
        workflow.close()


if __name__ == "__main__":
    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    write(pathlib.Path(sys.argv[1]))
