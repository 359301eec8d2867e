import contextlib
import itertools
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import time

import pytest

from tests import forked
from tests.launch import launch_runs
from tests.launch.launch_runs import (
    ITERATION,
    arguments,
    command,
    copy_of,
    damage,
    digest,
    environment,
    in_process,
    run,
    run_alone,
)
from tfrl.launch import termination, train

# Runs in this process end with the parameters of runs in processes of their own.
pytestmark = pytest.mark.usefixtures("grappler")

ROWS = list(range(ITERATION, 1024 + 1, ITERATION))
EVERY = f"train.checkpoint_interval={ITERATION}"
ONE_BY_ONE = "OnPolicyWorkflow.iterations_per_call=1"


@pytest.fixture(name="here")
def fixture_here(capsys, monkeypatch):
    """Goes on with a run inside this process, which has traced it once: (code, stdout, stderr)."""
    monkeypatch.setattr(termination.Termination, "install", lambda self: None)
    return lambda *args: in_process(train.main, capsys, *args)


@pytest.fixture(name="straight", scope="module")
def fixture_straight(tmp_path_factory):
    """An uninterrupted run of 1024 env steps on a terminal: (folder, what it showed)."""
    root = tmp_path_factory.mktemp("straight") / "run"
    master, slave = pty.openpty()
    process = forked.Process(
        command("train", *arguments(root, 1024, EVERY, ONE_BY_ONE, "train.eval_interval=256")),
        env={**environment(), "TERM": "xterm-256color", "COLUMNS": "140"},
        stdout=os.ttyname(slave),
        stderr=os.ttyname(slave),
    )
    shown = b""
    while process.poll() is None:
        if select.select([master], [], [], 0.05)[0]:
            shown += os.read(master, 65536)
    os.close(slave)
    with contextlib.suppress(OSError):  # nobody has the other end any more
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    assert process.returncode == 0, shown.decode(errors="replace")
    return root, shown.decode()


@pytest.fixture(name="first", scope="module")
def fixture_first(tmp_path_factory):
    """A run of 512 env steps that writes to pipes: (folder, completed process)."""
    root = tmp_path_factory.mktemp("first") / "run"
    args = arguments(root, 512, "train.eval_interval=256")
    done = run_alone("train", "--strategy=one_device", *args)  # as `in_process` goes on
    assert done.returncode == 0, done.stdout + done.stderr
    return root, done


def _check_records(root, rows=ROWS):
    assert launch_runs.csv_steps(root) == rows
    assert launch_runs.jsonl_steps(root) == rows
    assert launch_runs.tensorboard_steps(root) == rows


def test_run_folder(first):
    root, _ = first
    assert {p.name for p in root.iterdir()} == {
        *("operative_config.gin", "metadata.json", "metrics.csv", "metrics.jsonl"),
        *("tensorboard", "checkpoints", "policy", "videos", "summary.json"),
    }
    assert {p.name for p in (root / "checkpoints").iterdir()} == {"ckpt-512", "ckpt-256"}
    assert (root / "policy" / "saved_model.pb").is_file()
    assert (root / "videos" / "final.mp4").stat().st_size > 1000
    _check_records(root, ROWS[:16])
    rows = [json.loads(line) for line in (root / "metrics.jsonl").open()]
    assert [r["env_steps"] for r in rows if "eval_return_mean" in r] == [256, 512]
    metadata = json.loads((root / "metadata.json").read_text())
    assert metadata["seed"] == 0
    assert metadata["compile_choices"] == dict.fromkeys(
        ("loop", "rollout", "update", "evaluation"), "graph"
    )
    assert {"versions", "git_hash", "device", "intra_op_threads"} <= set(metadata)
    assert metadata["configuration"]["make_env.env_id"] == "'tf:CartPole-v1'"
    config = (root / "operative_config.gin").read_text()
    for line in ("train.total_env_steps = 512", "PPO.hidden = None", "num_envs = 4"):
        assert line in config


def test_summary(first):
    root, _ = first
    summary = launch_runs.summary(root)
    assert summary["env_steps"] == 512
    assert summary["eval_episodes"] == 4
    assert summary["eval_return_mean"] >= 8  # No CartPole episode is shorter.
    assert summary["eval_return_std"] >= 0
    assert summary["wall_seconds"] > 0
    assert summary["env_steps_per_second"] > 0
    assert re.fullmatch("[0-9a-f]{64}", summary["params_digest"])
    assert summary["stopped_by"] == "budget"
    assert summary["video"] == "videos/final.mp4"


def test_users_see_our_lines_only(first):
    root, done = first
    head, *result = done.stdout.splitlines()
    assert head == (
        "tfrl 0.1.0: PPO on CartPole, 4 environments x 8 steps, minibatches of 8; training for "
        "512 env steps; compiled: loop graph, rollout graph, update graph, evaluation graph; "
        f"folder {root}"
    )
    patterns = {
        "Final return": r"[\d.]+ \+- [\d.]+ over 4 episodes",
        "Env steps": "512",
        "Speed": r"[\d,]+ env steps/s in training",
        "This command": r"[\d.]+ s",
        "Video": re.escape(str(root / "videos" / "final.mp4")),
        "Policy": re.escape(f"{root / 'policy'} (SavedModel)"),
        "TensorBoard": re.escape(f"tensorboard --logdir {root / 'tensorboard'}"),
    }
    assert len(result) == len(patterns)
    for line, (name, pattern) in zip(result, patterns.items(), strict=True):
        assert re.fullmatch(f"{name} +{pattern}", line), line
    progress = done.stderr.splitlines()
    assert progress
    for line in progress:
        assert re.fullmatch(
            r"env steps +\d+% [\d,]+/512  (\?|[\d,]+)/s  eta (\?|[\d:]+) "
            r"( return=[\d.]+ length=[\d.]+)?( eval=[\d.]+)?"
            r" entropy=[\d.]+ approx_kl=\S+ explained_variance=\S+",
            line,
        ), line
    assert progress[-1].startswith("env steps 100% 512/512")


def test_a_terminal_gets_a_bar(straight):
    root, shown = straight
    assert "━" in shown
    assert "\x1b[" in shown
    assert "1,024/1,024" in shown
    assert "eta" in shown and "return=" in shown and "eval=" in shown
    assert f"Policy        {root / 'policy'} (SavedModel)" in shown
    for noise in ("cuda", "CUDA", "TF-TRT", "unmaintained", "XLA", "Traceback", "Warning"):
        assert noise not in shown
    _check_records(root)


def test_the_same_command_shows_the_result_and_a_larger_budget_goes_on(
    first, straight, tmp_path, here
):
    root = copy_of(first[0], tmp_path / "run")
    before = launch_runs.tree(root)
    code, out, err = here(*arguments(root, 512, "train.eval_interval=256"))
    assert (code, err) == (0, "")
    head, *result = out.splitlines()
    assert head == (
        f"tfrl 0.1.0: nothing to train in {root}: the budget is done; a larger "
        "--total_env_steps goes on."
    )
    assert result[0] == first[1].stdout.splitlines()[1]
    assert launch_runs.tree(root) == before

    # Three iterations a call, other checkpoints: none of it changes a bit.
    code, out, err = here(*arguments(root, 1024, "OnPolicyWorkflow.iterations_per_call=3"))
    assert code == 0, err
    assert "going on at 512 of 1,024 env steps" in out
    assert digest(root) == digest(straight[0])
    _check_records(root)
    # The run time goes on too: this start alone has at most 416 steps beyond its first call.
    earlier, now = (_manifest(r / "checkpoints", s) for r, s in ((first[0], 512), (root, 1024)))
    assert now["wall_seconds"] > earlier["wall_seconds"]
    assert (earlier["train_steps"], now["train_steps"]) == (480, 896)


def _manifest(checkpoints, step):
    return json.loads((checkpoints / f"ckpt-{step}" / "manifest.json").read_text())["manifest"]


def test_sigterm_and_sigkill_leave_no_trace(straight, tmp_path, here):
    root = tmp_path / "run"
    args = arguments(root, 1024, EVERY, ONE_BY_ONE, "train.eval_interval=256")
    log = tmp_path / "log"

    process = launch_runs.start("train", *args, log=log)
    launch_runs.wait_for_steps(process, root, 3 * ITERATION)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143, log.read_text()
    text = log.read_text()
    stopped = re.search(r"Stopped by SIGTERM at (\d+) env steps; saved.", text)
    assert stopped, text
    assert (root / "checkpoints" / f"ckpt-{stopped[1]}" / "COMPLETE").exists()
    assert not (root / "summary.json").exists()

    # With a checkpoint in every iteration this kill falls into a save most of the time.
    process = launch_runs.start("train", *args, log=log)
    launch_runs.wait_for_steps(process, root, int(stopped[1]) + 5 * ITERATION)
    process.kill()
    assert process.wait(timeout=60) == -signal.SIGKILL

    code, out, err = here(*args)
    assert code == 0, err
    assert "going on at" in out
    assert digest(root) == digest(straight[0])
    _check_records(root)
    assert not list(root.rglob(".tmp-*"))


def test_a_damaged_checkpoint_is_said_and_the_previous_used(straight, tmp_path, here):
    root = copy_of(straight[0], tmp_path / "run")
    newest, previous = root / "checkpoints" / "ckpt-1024", root / "checkpoints" / "ckpt-992"
    damage(newest)
    args = arguments(root, 1024, "train.eval_interval=256", "train.video=False")
    code, out, err = here(*args)
    assert code == 0, err
    assert f"checkpoint {newest} is damaged: data.data-00000-of-00001 has " in out
    assert f"using {previous.name} instead" in out
    assert "going on at 992 of 1,024" in out
    assert digest(root) == digest(straight[0])
    _check_records(root)


@pytest.mark.slow
def test_kills_at_random_moments(straight, tmp_path):
    """SIGKILL at any time of the process's life, start-up and finishing included."""
    draw = random.Random(0)
    for trial in range(3):
        root = tmp_path / f"run_{trial}"
        args = arguments(root, 1024, EVERY, ONE_BY_ONE, "train.eval_interval=256")
        for _ in range(4):
            process = launch_runs.start("train", *args, log=tmp_path / "log")
            try:
                process.wait(timeout=draw.uniform(1.0, 6.0))
            except subprocess.TimeoutExpired:
                process.send_signal(draw.choice([signal.SIGKILL, signal.SIGTERM]))
                process.wait(timeout=60)
        done = run("train", *args)
        assert done.returncode == 0, done.stderr
        assert digest(root) == digest(straight[0])
        _check_records(root)


@pytest.mark.slow
@pytest.mark.parametrize("compile", ["xla", "auto"])
def test_resume_is_exact_under_other_compile_modes(tmp_path, compile):
    choice = f"OnPolicyWorkflow.compile='{compile}'"
    digests = []
    for name, steps in (("straight", [768]), ("resumed", [256, 768])):
        root = tmp_path / name
        if digests:  # "auto" by the clock may choose otherwise: the second run takes the choices.
            metadata = json.loads((tmp_path / "straight" / "metadata.json").read_text())
            choice = f"OnPolicyWorkflow.compile={metadata['compile_choices']!r}"
        for total in steps:
            done = run("train", *arguments(root, total, choice, "train.video=False"))
            assert done.returncode == 0, done.stderr
        digests.append(digest(root))
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_deterministic_ops(tmp_path):
    digests = []
    for name in ("a", "b"):
        args = arguments(tmp_path / name, 64, "train.video=False")
        done = run("train", *args, "--deterministic_ops")
        assert done.returncode == 0, done.stderr
        digests.append(digest(tmp_path / name))
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_evaluation_of_a_living_run(tmp_path):
    root = tmp_path / "run"
    args = arguments(root, 100_000_000, EVERY, ONE_BY_ONE, "train.video=False")
    process = launch_runs.start("train", *args, log=tmp_path / "log")
    try:
        launch_runs.wait_for_steps(process, root, ITERATION)
        steps = []
        for _ in range(3):
            result = run("evaluate", f"--root_dir={root}", "--episodes=4")
            assert result.returncode == 0, result.stderr
            steps.append(json.loads(result.stdout.splitlines()[-1])["env_steps"])
        assert steps == sorted(set(steps))
        second = run("train", *args)
        assert second.returncode == 2
        assert "a folder that no other process trains in" in second.stderr
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 143
    rows = launch_runs.csv_steps(root)
    assert all(b - a == ITERATION for a, b in itertools.pairwise([0, *rows]))


@pytest.mark.slow
def test_the_first_training_step_comes_in_time(tmp_path):
    """The default command, from its start to the first row of metrics."""
    start = time.monotonic()
    process = launch_runs.start("train", f"--root_dir={tmp_path / 'run'}", log=tmp_path / "log")
    try:
        rows = tmp_path / "run" / "metrics.jsonl"
        while not (rows.exists() and rows.stat().st_size):
            assert process.poll() is None
            assert time.monotonic() - start < 12.0
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.slow
def test_a_moved_run_goes_on_from_its_folder_alone(tmp_path, capsys):
    """With its configuration and seed; what it has written out at its default is no difference."""
    first, moved = tmp_path / "first", tmp_path / "moved"
    args = arguments(first, 64, "train.video=False")
    assert in_process(train.main, capsys, *args, "--seed=5")[0] == 0
    first.rename(moved)
    more = "--gin_bindings=train.total_env_steps=128"
    for flags in ([more], [more, "--seed=5", f"--gin_file={moved}/operative_config.gin"]):
        code, _, err = in_process(train.main, capsys, f"--root_dir={moved}", *flags)
        assert code == 0, err
    assert json.loads((moved / "summary.json").read_text())["env_steps"] == 128
    assert json.loads((moved / "metadata.json").read_text())["seed"] == 5
    code, _, err = in_process(train.main, capsys, f"--root_dir={moved}", more, "--seed=6")
    assert code == 2 and "--seed = 6 (the run has 5)" in err
    code, _, err = in_process(
        train.main, capsys, f"--root_dir={moved}", more, "--gin_bindings=PPO.clip=0.3"
    )
    assert code == 2 and "PPO.clip = '0.3' (the run has '0.2')" in err
