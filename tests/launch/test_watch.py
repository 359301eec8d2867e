"""`bin/evaluate.py --watch`: each checkpoint of a run, until that has ended."""

import json

import pytest

from tests.launch.launch_runs import arguments, in_process, start_here
from tfrl.experiment.run_folder import RunFolder
from tfrl.launch import evaluate, train
from tfrl.storage import working_copy

FLAGS = ("--watch", "--episodes=4", "--wait_seconds=20")


@pytest.fixture(name="quick", autouse=True)
def fixture_quick(monkeypatch):
    monkeypatch.setattr(evaluate.Termination, "install", lambda self: None)
    monkeypatch.setattr(evaluate, "_REMOTE_LOOK_SECONDS", 0.1)


def test_a_run_that_has_ended_is_evaluated_once(tmp_path, capsys):
    root = tmp_path / "run"
    assert start_here(train.main, *arguments(root, 64, "train.video=False")) == 0
    capsys.readouterr()
    code, out, _ = in_process(evaluate.main, capsys, f"--root_dir={root}", *FLAGS)
    assert code == 0
    told = json.loads(out.splitlines()[-1])
    assert (told["env_steps"], told["eval_episodes"], told["checkpoint"]) == (64, 4, "ckpt-64")
    lines = (root / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [told]
    # A restart repeats no line; with a larger budget it waits for the learner.
    assert in_process(evaluate.main, capsys, f"--root_dir={root}", *FLAGS)[0] == 0
    larger = (*FLAGS[:2], "--wait_seconds=0.6", "--gin_bindings=train.total_env_steps=128")
    code, _, err = in_process(evaluate.main, capsys, f"--root_dir={root}", *larger)
    assert code == 75 and "expected a new checkpoint within 0.6 s, got none" in err
    assert (root / "evaluations.jsonl").read_text().splitlines() == lines


def test_a_run_on_remote_storage(tmp_path, capsys):
    root = f"ram://{tmp_path.name}/run"
    assert start_here(train.main, *arguments(root, 64, "train.video=False")) == 0
    working_copy.forget()
    code, out, err = in_process(evaluate.main, capsys, f"--root_dir={root}", *FLAGS)
    assert code == 0, err
    copy = working_copy.working_copy(root)
    assert json.loads(copy.local.joinpath("evaluations.jsonl").read_text())["env_steps"] == 64
    working_copy.forget()


def test_it_reports_only_while_it_watches(capsys):
    code, out, err = in_process(evaluate.main, capsys, "--heartbeat_server=localhost:1")
    assert (code, out) == (2, "") and "Add --watch, or leave the flag out." in err


def test_a_run_that_never_begins(tmp_path, capsys):
    flags = (f"--root_dir={tmp_path}/none", "--watch", "--wait_seconds=0.6")
    code, out, err = in_process(evaluate.main, capsys, *flags)
    assert code == 75 and "expected a run with a checkpoint within 0.6 s, got none" in err
    assert "Waiting up to 0.6 s for the first checkpoint" in out


def test_a_full_disk_does_not_end_it(tmp_path, capsys):
    (tmp_path / evaluate.EVALUATIONS).symlink_to("/dev/full")
    evaluate._record(RunFolder(tmp_path), "{}")
    said = "".join(capsys.readouterr())
    assert said == f"Note: {tmp_path}/evaluations.jsonl lacks this evaluation: a full disk.\n"
