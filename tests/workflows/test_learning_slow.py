"""Slow: the shipped gin files reach their figures, and a long run keeps its memory."""

import gc
import json
import pathlib
import resource
import subprocess
import sys

import pytest

import tfrl
from benchmarks.claims import CLAIMS
from tfrl.agents import PPO
from tfrl.workflows import OnPolicyWorkflow

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Gin files with separate tests below.
APART = ("ppo/tf_cartpole.gin", "ppo/tf_masked.gin", "ppo/tf_pendulum.gin")


def trained(gin_file, seed, folder, *bindings):
    command = [sys.executable, str(ROOT / "bin" / "train.py"), f"--gin_file={gin_file}"]
    command += [f"--root_dir={folder}", f"--seed={seed}"]
    command += [f"--gin_bindings={b}" for b in ("train.video=False", *bindings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_cartpole_is_solved(tmp_path, seed):
    summary = trained("ppo/tf_cartpole.gin", seed, tmp_path / "run")
    assert summary["eval_episodes"] == 100
    assert summary["eval_return_mean"] >= 490
    assert summary["env_steps"] < 510_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_pendulum_swings_up(tmp_path, seed):
    summary = trained("ppo/tf_pendulum.gin", seed, tmp_path / "run")
    assert summary["eval_return_mean"] >= -200
    assert summary["env_steps"] < 1_010_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "claim", [c for c in CLAIMS if c.tested and c.gin_file not in APART], ids=lambda c: c.name
)
def test_one_seed_reaches_what_is_claimed(tmp_path, claim):
    summary = trained(claim.gin_file, 0, tmp_path / "run", *claim.bindings)
    assert claim.holds_for_one(summary["eval_return_mean"]), summary


@pytest.mark.slow
def test_masked_is_solved_and_an_invalid_action_is_never_taken(tmp_path):
    summary = trained("ppo/tf_masked.gin", 0, tmp_path / "run")
    assert summary["eval_return_mean"] == 10.0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # An invalid action would end its episode, which otherwise has 10 steps.
    steps = rows[-1]["env_steps"] // 32  # of each environment
    assert rows[-1]["episodes"] == 32 * (steps // 10)
    assert {row["episode_length"] for row in rows} == {10.0}
    assert {row["eval_length_mean"] for row in rows if "eval_length_mean" in row} == {10.0}


@pytest.mark.slow
def test_a_thousand_calls_keep_the_memory():
    env = tfrl.make_env("tf:CartPole-v1", num_envs=4)
    workflow = OnPolicyWorkflow(
        env=env,
        agent=PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,)),
        rollout_length=8,
        compile="graph",
    )
    state = workflow.setup(0)

    def call(n):
        nonlocal state
        for _ in range(n):
            state = workflow.advance(state, 2).state

    call(100)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call(1000)
    gc.collect()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4 * 1024  # KiB
    assert len(workflow.runner(state).traces.functions) == 1
