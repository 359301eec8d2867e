"""Seconds from the default training command to its first training step, and to its end.

  python -m benchmarks.startup

Runs `bin/train.py` several times to its end with its default configuration; prints one JSON line.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import measure


def first_row_seconds(folder: pathlib.Path) -> tuple[float, float]:
    """Runs the command; returns seconds to the first metrics row, and to the end."""
    command = [sys.executable, str(measure.ROOT / "bin" / "train.py"), f"--root_dir={folder}"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        rows = folder / "metrics.jsonl"
        while not (rows.exists() and rows.stat().st_size):
            if process.poll() is not None:
                raise SystemExit(f"training ended with {process.returncode} before a row")
            time.sleep(0.01)
        first = time.perf_counter() - start
        process.wait()
    json.loads((folder / "summary.json").read_text())
    return first, time.perf_counter() - start


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        seconds = [first_row_seconds(pathlib.Path(root) / str(i)) for i in range(args.rounds)]
    measure.emit(
        benchmark="startup",
        first_step_seconds=statistics.median(s[0] for s in seconds),
        command_seconds=statistics.median(s[1] for s in seconds),
        rounds=args.rounds,
    )


if __name__ == "__main__":
    main()
