"""Distributed runs with replay learn."""

import json
import subprocess

import pytest

from tests.faults import roles


@pytest.mark.slow
@pytest.mark.parametrize(
    "gin_file, collectors, target, least",
    [
        ("dqn/apex_gymnasium_cartpole.gin", 3, 400.0, 300.0),
        ("sac/gymnasium_pendulum.gin", 2, -180.0, -250.0),
    ],
)
def test_a_run_reaches_its_return(tmp_path, gin_file, collectors, target, least):
    """An evaluation reaches the target, at which the run ends; 100 further episodes agree."""
    bindings = (f"train.target_return = {target}", "train.video = False")
    command = roles.launch_command(tmp_path / "run", gin_file, bindings, "--quiet")
    ended = subprocess.run(
        [*command, f"--collectors={collectors}"], capture_output=True, text=True, timeout=900.0
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["eval_return_mean"] > least, summary
