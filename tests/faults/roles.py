"""Kills and stops processes of a distributed run at random moments, and looks how it ends.

  python -m tests.faults.roles --times=20 --faults_per_run=4 --kinds=collect,learn

It prints a line of JSON for each run, which has several faults of one kind.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What is killed, by the binary; "stop:" stops it for `STOPPED_SECONDS` in its place.
KINDS = ("collect", "reverb-server", "learn", "evaluate", "launch")
STOPPED_SECONDS = 30.0
IMPALA = "impala/gymnasium_cartpole.gin"


@dataclasses.dataclass
class Outcome:
    """How a run has ended.

    Attributes:
      kind: What was done to it.
      faults: How often, before its end.
      code: The exit code.
      summary: The learner's `summary.json`.
      output: All that was printed.
      left: Processes that were left.
    """

    kind: str
    faults: int
    code: int
    summary: dict
    output: str
    left: list


def children(pid, binary=None):
    """The processes that a process has started, {pid: command line}."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            line = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and (binary is None or f"-m tfrl {binary} " in line):
            found[int(path.name)] = line
    return found


def launch_command(root, gin_file, bindings, *flags):
    """Returns the command of a distributed run with an evaluator."""
    return [
        sys.executable,
        str(ROOT / "bin" / "launch.py"),
        f"--gin_file={gin_file}",
        f"--root_dir={root}",
        "--evaluators=1",
        *flags,
        *(f"--gin_bindings={binding}" for binding in bindings),
    ]


def run(
    kind,
    waits,
    root,
    *,
    gin_file=IMPALA,
    bindings=(),
    collectors=2,
    learners=1,
    seed=0,
    bound=900.0,
):
    """Launches a run, hurts it, and waits for its end.

    Args:
      kind: One of `KINDS`, or "stop:<kind>"; "launch" sends SIGTERM to the launcher, and gives the
        same command again.
      waits: Seconds before each fault; the first after the learner's first checkpoint.
      root: The run folder.
      gin_file: The training.
      bindings: Gin bindings.
      collectors: How many play.
      learners: Workers of the learner, of which the last is hurt.
      seed: Of the run.
      bound: Seconds for all of it.
    """
    bindings = ("train.video = False", "train.checkpoint_seconds = 2", *bindings)
    command = launch_command(
        root,
        gin_file,
        bindings,
        f"--collectors={collectors}",
        f"--learners={learners}",
        f"--seed={seed}",
        f"--max_restarts={len(waits) + 3}",
    )
    deadline, log = time.monotonic() + bound, pathlib.Path(f"{root}.log")
    with open(log, "wb") as output:
        launcher = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while not list(pathlib.Path(root).glob("checkpoints/ckpt-*")):
            if launcher.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(log.read_text())
            time.sleep(0.05)
        verb, _, binary = kind.rpartition(":")
        started, faults = {}, 0
        for seconds in waits:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(timeout=seconds)
                break
            started.update(children(launcher.pid))
            victims = sorted(children(launcher.pid, binary))
            if kind == "launch":
                launcher.send_signal(signal.SIGTERM)
                first = launcher.wait(timeout=deadline - time.monotonic())
                assert first in (0, 143, -signal.SIGTERM), log.read_text()
                launcher = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            elif not victims:
                continue
            elif verb == "stop":
                os.kill(victims[-1], signal.SIGSTOP)
                time.sleep(STOPPED_SECONDS)
                with contextlib.suppress(ProcessLookupError):  # the launcher may have replaced it
                    os.kill(victims[-1], signal.SIGCONT)
            else:
                os.kill(victims[-1], signal.SIGKILL)
            faults += 1
        code = launcher.wait(timeout=max(deadline - time.monotonic(), 1.0))
    left = [line for pid, line in started.items() if pathlib.Path(f"/proc/{pid}").exists()]
    summary = pathlib.Path(root, "summary.json")
    told = json.loads(summary.read_text()) if summary.exists() else {}
    return Outcome(kind, faults, code, told, log.read_text(), left)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--faults_per_run", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--gin_file", default=IMPALA)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--most_seconds", type=float, default=12.0)
    parser.add_argument("--gin_bindings", action="append", default=[])
    options = parser.parse_args()
    rng, bad = random.Random(0), 0
    for kind in options.kinds.split(","):
        left, seed = options.times, 0
        while left > 0:
            count = min(options.faults_per_run, left)
            waits = [rng.uniform(0.0, options.most_seconds) for _ in range(count)]
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                outcome = run(
                    kind,
                    waits,
                    str(pathlib.Path(folder, "run")),
                    gin_file=options.gin_file,
                    learners=options.learners,
                    bindings=options.gin_bindings,
                    seed=seed,
                )
            left, seed = left - max(outcome.faults, 1), seed + 1
            good = outcome.code == 0 and not outcome.left
            bad += not good
            row = {
                "kind": kind,
                "faults": outcome.faults,
                "code": outcome.code,
                "return": outcome.summary.get("eval_return_mean"),
                "env_steps": outcome.summary.get("env_steps"),
                "left": len(outcome.left),
                "seconds": round(time.monotonic() - began, 1),
            }
            print(json.dumps(row), flush=True)
            if not good:
                print(outcome.output, file=sys.stderr, flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
