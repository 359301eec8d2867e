"""IPPO and MAPPO in the workflow: counts, compilation, resuming and (slow) learning."""

import functools
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import tfrl
from tfrl import struct
from tfrl.agents import PPO, MultiAgent, RandomAgent
from tfrl.envs.wrappers import CentralState
from tfrl.evaluation import Evaluator
from tfrl.seeding import key
from tfrl.workflows import OnPolicyWorkflow

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIMUM = 1.8  # of Relay's team, see its docstring
SMALL = functools.partial(PPO, hidden=(8,))
KINDS = {
    "separate": ({f"agent_{k}": SMALL for k in range(3)}, ()),
    "shared": ({"shared": SMALL}, ()),
    "mappo": (
        {"shared": functools.partial(SMALL, obs_key="own", value_obs_key="state")},
        (lambda env: CentralState(env=env),),
    ),
}


def made(kind, **kwargs):
    policies, wrappers = KINDS[kind]
    env = tfrl.make_env("tf:Relay-v0", num_envs=4, wrappers=wrappers)
    options = {"rollout_length": 8, "num_epochs": 2, "num_minibatches": 2, "compile": "graph"}
    agent = functools.partial(MultiAgent, policies=policies)
    return OnPolicyWorkflow(env=env, agent=agent, **{**options, **kwargs})


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.variants(1)
def test_every_module_learns(kind):
    workflow = made(kind)
    state = workflow.setup(0)
    before = workflow.agent_state(state)
    metrics, state = workflow.step(state)
    after = workflow.agent_state(state)
    modules = list(KINDS[kind][0])
    assert list(after) == modules
    for m in modules:
        old, new = struct.paths(before[m].params), struct.paths(after[m].params)
        assert all(np.any(old[p] != new[p]) for p in old if "kernel" in p)
        assert f"{m}/policy_loss" in metrics and f"{m}/explained_variance" in metrics
    assert workflow.env_steps(state) == 4 * 8
    result, state = workflow.evaluate(state)
    assert "eval_return_mean/agent_2" in result


def test_iterations_per_call_do_not_change_the_result():
    ends = []
    for calls in ((1, 1, 1, 1), (4,)):
        workflow = made("separate")
        state = workflow.setup(3)
        for n in calls:
            state = workflow.advance(state, n).state
        ends.append(workflow.agent_state(state))
    for path, value in struct.paths(ends[0]).items():
        np.testing.assert_array_equal(value, struct.paths(ends[1])[path], err_msg=path)


def test_random_play_is_at_most_0_3_of_the_optimum():
    env = tfrl.make_env("tf:Relay-v0", num_envs=250, autoreset="DISABLED")
    agent = MultiAgent(
        obs_spec=env.obs_spec, action_spec=env.action_spec, policies={"random": RandomAgent}
    )
    for seed in range(3):
        evaluator = Evaluator(env=env, agent=agent, num_episodes=250)
        assert evaluator.evaluate(agent.init(key(seed)), key(seed)).mean <= 0.3 * OPTIMUM


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "gin_file", ["ippo/tf_relay_shared.gin", "ippo/tf_relay_separate.gin", "mappo/tf_relay.gin"]
)
def test_relay_is_solved(tmp_path, gin_file, seed):
    command = [sys.executable, str(ROOT / "bin" / "train.py"), f"--gin_file={gin_file}"]
    command += [f"--root_dir={tmp_path / 'run'}", f"--seed={seed}"]
    command += ["--gin_bindings=train.video=False"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_episodes"] == 500
    assert summary["eval_return_mean"] >= 0.95 * OPTIMUM
    assert summary["env_steps"] < 101_000
