"""Tiny runs of the binaries, as processes and inside the test's own process."""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from absl import flags

from tests import forked
from tfrl.launch import app

ROOT = pathlib.Path(__file__).resolve().parents[2]
ITERATION = 32  # env steps: 4 environments x 8 steps
TINY = (
    "make_env.num_envs=4",
    "OnPolicyWorkflow.rollout_length=8",
    "OnPolicyWorkflow.num_epochs=1",
    "OnPolicyWorkflow.num_minibatches=4",
    "PPO.discount=0.99",
    "OnPolicyWorkflow.compile='graph'",
    "eval/make_env.num_envs=4",
    "OnPolicyWorkflow.eval_episodes=4",
    "train.final_eval_episodes=4",
    "train.report=False",
)
IN_TIME = 300.0
TRAINING = ("tfrl.launch.train", "tfrl.launch.evaluate")


def arguments(root, steps=512, *bindings, tiny=TINY):
    """The flags of a tiny run; later bindings take the place of earlier ones of the same name."""
    merged = {}
    for text in (*tiny, f"train.total_env_steps={steps}", *bindings):
        merged[text.partition("=")[0].strip()] = text
    return [f"--root_dir={root}", *(f"--gin_bindings={text}" for text in merged.values())]


def command(binary, *args):
    return [sys.executable, str(ROOT / "bin" / f"{binary}.py"), *map(str, args)]


def environment():
    """As a user has it: nothing set that quietens TensorFlow."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL")}


def run(binary, *args, cwd=None):
    """Runs a binary in a fork, see `tests.forked`."""
    return forked.run(command(binary, *args), cwd=cwd, env=environment(), timeout=IN_TIME)


def run_alone(binary, *args, cwd=None):
    """Runs a binary in a process of its own, as a user does."""
    return subprocess.run(
        command(binary, *args),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=IN_TIME,
    )


def start(binary, *args, log):
    """Starts a fork whose output goes to a file, so that no pipe can fill up."""
    log.write_bytes(b"")
    return forked.Process(command(binary, *args), env=environment(), stdout=log, stderr=log)


def wait_for_steps(process, root, steps):
    """Waits until the run has a checkpoint of at least so many env steps."""
    deadline = time.monotonic() + IN_TIME
    while time.monotonic() < deadline:
        found = [int(p.name[5:]) for p in (root / "checkpoints").glob("ckpt-*")]
        if max(found, default=-1) >= steps:
            return
        assert process.poll() is None, "the process ended before it was stopped"
        time.sleep(0.002)
    raise AssertionError(f"no checkpoint of {steps} env steps in time")


def wait_until(condition):
    """Waits until something holds."""
    deadline = time.monotonic() + IN_TIME
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_process(main, capsys, *args):
    """Runs a binary's main behind its real frame; returns (exit code, stdout, stderr)."""
    code = start_here(main, *args)
    return code, *capsys.readouterr()


def start_here(main, *args):
    """Runs a binary's main behind its real frame; returns the exit code."""
    flags.FLAGS.unparse_flags()
    if main.__module__ in TRAINING and not any("--strategy" in str(x) for x in args):
        args = (*args, "--strategy=one_device")  # pytest has several CPUs, a process of a user one
    with pytest.raises(SystemExit) as end:
        app.run(main, argv=["program", *map(str, args)])
    flags.FLAGS["quiet"].unparse()  # what a later test prints depends on it
    return end.value.code or 0


def summary(root):
    return json.loads((root / "summary.json").read_text())


def digest(root):
    return summary(root)["params_digest"]


def csv_steps(root):
    with open(root / "metrics.csv", newline="") as file:
        return [int(row["env_steps"]) for row in csv.DictReader(file)]


def jsonl_steps(root):
    return [json.loads(line)["env_steps"] for line in (root / "metrics.jsonl").open()]


def tensorboard_steps(root, tag="train/loss"):
    """The steps of one scalar over all event files, as they are on the disk."""
    from tensorboard.backend.event_processing import event_file_loader

    steps = []
    for path in sorted((root / "tensorboard").iterdir()):
        for event in event_file_loader.LegacyEventFileLoader(str(path)).Load():
            steps += [event.step for value in event.summary.value if value.tag == tag]
    return steps


def tree(root):
    """Every file under a folder with its content."""
    return {p.relative_to(root): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def damage(checkpoint):
    """Cuts the data of a checkpoint short."""
    (data,) = checkpoint.glob("data.data-*")
    data.write_bytes(data.read_bytes()[:-8])


def copy_of(root, target):
    shutil.copytree(root, target)
    return target
