"""Runs a distributed training for an hour; memory and descriptors must not grow after 10 minutes.

  python -m tests.faults.soak --minutes=60

Prints one JSON line per process, with its resident memory in MB and its open file descriptors:
medians of each five minutes after the tenth; and a last line with the exit code after SIGTERM and
the env steps. It fails if a process has grown by more than 3%, or by more than two descriptors.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from tests.faults.roles import children, launch_command

FIRST_MINUTE = 10.0
SAMPLE_SECONDS = 5.0
WINDOW = 5.0  # minutes
MOST_GROWTH, MOST_DESCRIPTORS = 0.03, 2


def role_of(line):
    """Returns a process's binary and, of several, its number."""
    binary, task = re.search(r"-m tfrl (\S+)", line), re.search(r"--task_id=(\d+)", line)
    return " ".join(x.group(1) for x in (binary, task) if x) or line


def usage(pid):
    """Returns resident memory in MB, and the number of open descriptors."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, descriptors


def report(role, samples, minutes):
    """Returns the row of a process, with whether its memory and descriptors stay.

    Args:
      role: Its name.
      samples: [(minutes, MB, descriptors)].
      minutes: The length of the run.
    """
    row = {"role": role}
    begins = np.arange(FIRST_MINUTE, minutes - WINDOW / 2, WINDOW)
    for i, name in ((1, "mb"), (2, "descriptors")):
        windows = [[s[i] for s in samples if t <= s[0] < t + WINDOW] for t in begins]
        row[name] = [round(statistics.median(w), 1) if w else None for w in windows]
    memory, descriptors = row["mb"], row["descriptors"]
    row["stays"] = (
        None not in memory
        and memory[-1] <= memory[0] * (1.0 + MOST_GROWTH)
        and descriptors[-1] <= descriptors[0] + MOST_DESCRIPTORS
    )
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--gin_file", default="dqn/gymnasium_cartpole.gin")
    parser.add_argument("--collectors", type=int, default=2)
    parser.add_argument("--gin_bindings", action="append", default=[])
    options = parser.parse_args()
    if options.minutes < FIRST_MINUTE + 2 * WINDOW:
        parser.error(f"--minutes must be at least {FIRST_MINUTE + 2 * WINDOW:g}")
    samples, begun = {}, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root, log = pathlib.Path(folder, "run"), pathlib.Path(folder, "log")
        endless = "train.total_env_steps = 1_000_000_000"
        bindings = (endless, *options.gin_bindings)
        collectors = f"--collectors={options.collectors}"
        command = launch_command(root, options.gin_file, bindings, collectors)
        with open(log, "wb") as output:
            launcher = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            while (now := (time.monotonic() - begun) / 60) < options.minutes:
                if launcher.poll() is not None:
                    print(log.read_text(), file=sys.stderr)
                    return 1
                processes = {launcher.pid: "launch"}
                processes.update((p, role_of(x)) for p, x in children(launcher.pid).items())
                for pid, role in processes.items():
                    try:
                        samples.setdefault((role, pid), []).append((now, *usage(pid)))
                    except OSError:  # it has ended
                        continue
                time.sleep(SAMPLE_SECONDS)
            launcher.send_signal(signal.SIGTERM)
            code = launcher.wait(timeout=120.0)
        rows = [report(role, s, options.minutes) for (role, _), s in sorted(samples.items())]
        summary = root / "summary.json"
        told = json.loads(summary.read_text()) if summary.exists() else {}
        metrics = (root / "metrics.jsonl").read_text().splitlines()
    for row in rows:
        print(json.dumps(row))
    steps = told.get("env_steps") or json.loads(metrics[-1])["env_steps"]
    print(json.dumps({"minutes": options.minutes, "code": code, "env_steps": steps}))
    return int(code != 143 or not all(row["stays"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
