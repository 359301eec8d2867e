"""What the README tells people to type is run as it stands."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.docs_helpers import QUICK, ROOT, run

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_python_example_is_short_and_runs(tmp_path, short):
    code, *_ = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    if short:
        code = code.replace("100_000, eval_interval=50_000", "12_288, eval_interval=8_192")
        assert "12_288" in code
    out = run([sys.executable, "-c", QUICK + code], tmp_path)
    assert 9.0 < float(out.strip().splitlines()[-1]) <= 500.0


def test_the_learner_example_runs(tmp_path):
    *_, code = blocks("python")
    out = run([sys.executable, "-c", code], tmp_path)
    assert 0.0 < float(out.strip().splitlines()[-1]) < 0.5


@pytest.mark.slow
def test_the_run_in_python_goes_on(tmp_path):
    _, code, *_ = blocks("python")
    code = code.replace("500_000", "4_096").replace("600_000", "8_192")
    out = run([sys.executable, "-c", "import tfrl\n" + code], tmp_path)
    assert "going on at 4,096 of 8,192 env steps" in out


@pytest.mark.slow
def test_the_command_on_two_devices_runs(tmp_path):
    text = "".join(blocks("bash")).replace("\\\n", " ")
    (command,) = [shlex.split(c) for c in text.splitlines() if "runs/two" in c]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert "mirrored, 2 replicas" in out and "Final return" in out


@pytest.mark.slow
def test_the_command_with_several_policies_runs(tmp_path):
    text = "".join(blocks("bash"))
    (command,) = [shlex.split(c) for c in text.splitlines() if "mappo" in c]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert float(re.search(r"Final return\s+(-?[\d.]+)", out)[1]) >= 0.95 * 1.8


@pytest.mark.slow
def test_the_small_command_runs(tmp_path):
    text = "".join(blocks("bash")).replace("\\\n", " ")
    (command,) = [shlex.split(c) for c in text.splitlines() if "runs/small" in c]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert "Final return" in out


@pytest.mark.slow
def test_the_command_with_an_agent_of_tf_agents_runs(tmp_path):
    text = "".join(blocks("bash")).replace("\\\n", " ")
    (command,) = [shlex.split(c) for c in text.splitlines() if "runs/theirs" in c]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert "Final return" in out


@pytest.mark.slow
def test_the_command_of_evolution_runs(tmp_path):
    text = "".join(blocks("bash"))
    (command,) = [shlex.split(c) for c in text.splitlines() if "open_es" in c]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert float(re.search(r"Final return\s+([\d.]+)", out)[1]) >= 475


@pytest.mark.slow
def test_the_pendulum_command_runs(tmp_path):
    text = "".join(blocks("bash"))
    (command,) = [shlex.split(c) for c in text.splitlines() if "ppo/tf_pendulum" in c]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert "Final return" in out


# The whole training is slow; a short one of graphs goes the same way through every command.
SHORT = (
    *("train.total_env_steps=2_048", "OnPolicyWorkflow.compile='graph'"),
    *("train.eval_interval=None", "train.final_eval_episodes=2"),
)


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_make_train_and_its_policy_is_used(tmp_path, short):
    make = ["make", "--dry-run", "--no-print-directory", "train"]
    shown = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [x for x in shown.splitlines() if x.startswith(".venv/bin/python bin/train.py")]
    command = shlex.split(line) + [f"--gin_bindings={b}" for b in SHORT if short]
    out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
    assert "Final return" in out and "tensorboard --logdir" in out
    assert float(re.search(r"Final return\s+([\d.]+)", out)[1]) >= (8 if short else 490)
    video = re.search(r"Video\s+(\S+)", out)[1]
    assert (tmp_path / video).stat().st_size > 1000
    text = "".join(blocks("bash")).replace("\\\n", " ")
    commands = [shlex.split(c) for c in text.splitlines() if "runs/ppo_tf_cartpole" in c]
    evaluate, *exports = commands
    out = run([sys.executable, str(ROOT / evaluate[1]), *evaluate[2:]], tmp_path)
    assert '"eval_episodes": 20' in out.splitlines()[-1]
    assert (tmp_path / "play.gif").stat().st_size > 1000
    assert len(exports) == 2
    assert {command[0] for command in exports} == {".venv/bin/python"}
    assert exports[0][1:] == ["bin/export.py", "--root_dir=runs/ppo_tf_cartpole"]
    for command in [] if short else exports:  # tests/launch/test_export.py runs both formats
        out = run([sys.executable, str(ROOT / command[1]), *command[2:]], tmp_path)
        assert '"verified": true' in out.splitlines()[-1], out


def test_its_make_targets_and_files_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\S+)", "".join(blocks("bash")), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    targets = re.findall(r"\]\(([^)]*)\)", README)
    assert len(targets) > 40
    for target in targets:  # absolute, so that they work on the index of packages too
        assert target.startswith("https://github.com/tfrl/tfrl/blob/main/"), target
        assert (ROOT / target.partition("/blob/main/")[2]).exists(), target
