"""Hurts a distributed run at random moments, and looks how it ends.

  python -m tests.faults.roles --times=20 --faults_per_run=4 --kinds=collect,learn,stop:learn

It prints a line of JSON for each run, which has several faults of one kind:

- a binary's name: its process is killed; with "stop:" before it, stopped for 30 seconds.
  "variable-server" is the server of parameters and reports; it needs an off-policy gin file.
- "launch": the launcher gets SIGTERM, and the same command comes again.
- "other-file": a collector of another network comes in, and must end with exit code 2.
- "disk": the disk of the run folder is full until the run has ended, with exit code 2 and a
  message; the same command comes again. It mounts a small disk, so it needs root.

A run is good if it ends with code 0, leaves no process, had at least one fault, prints a line for
each, counts its env steps in order up to those of its summary, and reaches its target return.
`TARGETS` has that of a gin file with its own budget; with other bindings, give `--target_return`
where the budget is long enough for one.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("collect", "reverb-server", "learn", "evaluate", "launch")
STOPPED_SECONDS = 30.0
# What another network is, by the agent of the gin file.
OTHER_NETWORKS = {"impala": "Impala.hidden = (8,)", "dqn": "DQN.hidden = (8,)"}
_DISK_MB = 64
IMPALA = "impala/gymnasium_cartpole.gin"
# The least returns of gin files, with their own budgets.
TARGETS = {IMPALA: 475.0}
# What is printed about a fault. Of a process that is stopped nobody need notice anything.
_KILLED = r"{}-\d has ended with exit code 137; started again"
LINES = {
    "collect": _KILLED.format("collector"),
    "learn": _KILLED.format("learner"),
    "reverb-server": _KILLED.format("server"),
    "variable-server": _KILLED.format("server"),
    "evaluate": _KILLED.format("evaluator"),
    "launch": "Stopped by SIGTERM: the same command goes on",
    "disk": "has failed with exit code 2: .*got a full disk",
}


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
      env_steps: Those of the rows of its metrics.
    """

    kind: str
    faults: int
    code: int
    summary: dict
    output: str
    left: list
    env_steps: list


def problems(outcome, target=None):
    """What is wrong with the end of a run.

    Args:
      outcome: Its `Outcome`.
      target: The least return; None for a budget that is too short for one.
    """
    found = []
    if outcome.code:
        found.append(f"exit code {outcome.code}")
    if outcome.left:
        found.append(f"{len(outcome.left)} processes were left")
    if not outcome.faults:
        found.append("no fault: it ended before, or there was no process to hurt")
    told = len(re.findall(LINES.get(outcome.kind, ""), outcome.output))
    if told < outcome.faults:
        found.append(f"{told} lines about {outcome.faults} faults")
    counted = outcome.env_steps
    twice = [(a, b) for a, b in itertools.pairwise(counted) if a >= b]
    if twice:
        found.append(f"env steps are counted twice: {twice[:3]}")
    if counted[-1:] != [outcome.summary.get("env_steps")]:
        found.append(f"env steps {counted[-1:]}, in the summary {outcome.summary.get('env_steps')}")
    reached = outcome.summary.get("eval_return_mean", float("-inf"))
    if target is not None and not reached >= target:
        found.append(f"a return of {reached:g} for {target:g}")
    return found


def command_line(pid):
    """The command line of a process; "" if there is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(pid, binary=None):
    """The processes that a process has started, {pid: command line}."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        line = command_line(int(path.name))
        if parent == pid and (binary is None or f"-m tfrl {binary} " in line):
            found[int(path.name)] = line
    return found


def launch_command(root, gin_file, bindings, *flags, program="bin/launch.py"):
    """Returns the command of a distributed run with an evaluator."""
    return [
        sys.executable,
        str(ROOT / program),
        f"--gin_file={gin_file}",
        f"--root_dir={root}",
        "--evaluators=1",
        *flags,
        *(f"--gin_bindings={binding}" for binding in bindings),
    ]


class Run:
    """A distributed run with an evaluator.

    Attributes:
      root: The run folder.
      log: What its launchers have printed.
      launcher: The process of the present one.
    """

    def __init__(self, kind, root, gin_file, bindings, flags, bound):
        """Launches it; see `run`."""
        self.kind, self.root, self.gin_file = kind, pathlib.Path(root), gin_file
        self._bindings, self._flags = bindings, flags
        numbers = [int(x.partition("=")[2]) for x in flags if x.startswith("--learners=")]
        self._learners = numbers[0] if numbers else 1
        self._deadline = time.monotonic() + bound
        self._output = tempfile.TemporaryFile()
        self.launch()

    @property
    def log(self):
        """What was printed so far."""
        return os.pread(self._output.fileno(), 2**24, 0).decode()

    def launch(self):
        """Launches it, or resumes it."""
        own = self.kind.rpartition(":")[2] == "variable-server"
        program = "tests/faults/variable_server.py" if own else "bin/launch.py"
        command = launch_command(
            self.root, self.gin_file, self._bindings, *self._flags, program=program
        )
        self.launcher = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT)

    def wait(self):
        """Waits for the launcher's end; returns its exit code."""
        return self.launcher.wait(timeout=max(self._deadline - time.monotonic(), 1.0))

    def await_checkpoint(self):
        """Waits for the learner's first checkpoint."""
        while not list(self.root.glob("checkpoints/ckpt-*")):
            if self.launcher.poll() is not None or time.monotonic() > self._deadline:
                raise AssertionError(self.log)
            time.sleep(0.05)

    def ends_within(self, seconds):
        """Whether the launcher ends within some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.launcher.wait(timeout=seconds)
            return True
        return False

    def hurt(self):
        """Does to it what its kind says; returns whether there was something to hurt."""
        verb, _, binary = self.kind.rpartition(":")
        if self.kind == "launch":
            self.launcher.send_signal(signal.SIGTERM)
            assert self.wait() in (0, 143, -signal.SIGTERM), self.log
            self.launch()
            return True
        if self.kind == "disk":
            with full_disk(self.root):
                assert self.wait() == 2, self.log
            self.launch()
            return True
        if self.kind == "other-file":
            return self._come_in()
        victims = self._victims(binary)
        if not victims:
            return False
        if verb == "stop":
            os.kill(victims[-1], signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            with contextlib.suppress(ProcessLookupError):  # the launcher may have replaced it
                os.kill(victims[-1], signal.SIGCONT)
        else:
            os.kill(victims[-1], signal.SIGKILL)
        return True

    def _victims(self, binary):
        """The processes of a binary that run now."""
        if binary == "learn":  # all workers, or none while the launcher restarts them
            workers = sorted(children(self.launcher.pid, binary))
            return workers if len(workers) == self._learners else []
        if binary != "variable-server":
            return sorted(children(self.launcher.pid, binary))
        servers = children(self.launcher.pid, "reverb-server")
        return [pid for pid, line in servers.items() if "/servers/1" in line]  # the second

    def _come_in(self):
        """Starts a collector of another network; returns whether the server was there for it."""
        collectors = " ".join(children(self.launcher.pid, "collect").values())
        address = next((w for w in collectors.split() if w.startswith("--replay_server=")), None)
        command = [
            *(sys.executable, "-m", "tfrl", "collect", f"--gin_file={self.gin_file}"),
            *(address, "--task_id=0", "--num_tasks=2", "--wait_seconds=20"),
            f"--gin_bindings={OTHER_NETWORKS[self.gin_file.partition('/')[0]]}",
        ]
        if address is None:
            return False
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120.0)
        if ended.returncode in (0, 75):  # the run has ended meanwhile
            return False
        assert ended.returncode == 2 and "as in the server at" in ended.stderr, ended.stderr
        return True

    def outcome(self, faults, started):
        """Waits for its end; `started` are processes that must not outlive it."""
        while not self.ends_within(1.0):
            started.update(children(self.launcher.pid))  # also those that come after a fault
            if time.monotonic() > self._deadline:
                raise AssertionError(self.log)
        code = self.wait()
        # The number of a process that has ended may be another's by now, or a thread's.
        # One that was ending when it was noted has no command line.
        left = [line for pid, line in started.items() if line and command_line(pid) == line]
        summary = self.root / "summary.json"
        told = json.loads(summary.read_text()) if summary.exists() else {}
        metrics = self.root / "metrics.jsonl"
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        env_steps = [json.loads(row)["env_steps"] for row in rows]
        if self.gin_file.startswith("dqn"):  # iterations on replay may have no new env steps
            env_steps = [steps for steps, _ in itertools.groupby(env_steps)]
        return Outcome(self.kind, faults, code, told, self.log, left, env_steps)


def run(
    kind,
    waits,
    root,
    *,
    gin_file=IMPALA,
    bindings=(),
    collectors=2,
    learners=1,
    replay_servers=1,
    seed=0,
    bound=1800.0,
):
    """Launches a run, hurts it, and waits for its end.

    Args:
      kind: See this module.
      waits: Seconds before each fault; the first after the learner's first checkpoint.
      root: The run folder.
      gin_file: The training.
      bindings: Gin bindings.
      collectors: How many play.
      learners: Workers of the learner, of which the last is hurt.
      replay_servers: How many share the replay buffer; the last is hurt.
      seed: Of the run.
      bound: Seconds for all of it.
    """
    bindings = ("train.video = False", "train.checkpoint_seconds = 2", *bindings)
    flags = (
        f"--collectors={collectors}",
        f"--learners={learners}",
        f"--replay_servers={replay_servers}",
        f"--seed={seed}",
        f"--max_restarts={len(waits) + 3}",
    )
    hurt, started, faults = Run(kind, root, gin_file, bindings, flags, bound), {}, 0
    try:
        hurt.await_checkpoint()
        for seconds in waits:
            if hurt.ends_within(seconds):
                break
            started.update(children(hurt.launcher.pid))
            faults += hurt.hurt()
        return hurt.outcome(faults, started)
    finally:
        hurt.launcher.kill()  # after a failure; its processes end with it


@contextlib.contextmanager
def full_disk(folder):
    """Fills the disk of a folder."""
    filling = pathlib.Path(folder, "filling")
    try:
        with contextlib.suppress(OSError), open(filling, "ab", 0) as file:
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filling.unlink()


@contextlib.contextmanager
def folder_of(kind):
    """Yields a folder for a run, of the kind "disk" on a small disk."""
    with tempfile.TemporaryDirectory() as folder:
        if kind != "disk":
            yield folder
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tfrl", folder]
        subprocess.run(mount, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--faults_per_run", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--gin_file", default=IMPALA)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--most_seconds", type=float, default=12.0)
    parser.add_argument("--gin_bindings", action="append", default=[])
    parser.add_argument("--target_return", type=float)
    options = parser.parse_args()
    target = options.target_return
    if target is None and not options.gin_bindings:
        target = TARGETS.get(options.gin_file)
    rng, bad = random.Random(0), 0
    for kind in options.kinds.split(","):
        left, seed = options.times, 0
        while left > 0:
            count = min(options.faults_per_run, left)
            waits = [rng.uniform(0.0, options.most_seconds) for _ in range(count)]
            with folder_of(kind) as folder:
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
            wrong = problems(outcome, target)
            bad += bool(wrong)
            row = {
                "kind": kind,
                "faults": outcome.faults,
                "code": outcome.code,
                "return": outcome.summary.get("eval_return_mean"),
                "target": target,
                "env_steps": outcome.summary.get("env_steps"),
                "left": len(outcome.left),
                "seconds": round(time.monotonic() - began, 1),
                "wrong": wrong,
            }
            print(json.dumps(row), flush=True)
            if wrong:
                print(outcome.output, file=sys.stderr, flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
