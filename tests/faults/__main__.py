"""Injects faults and counts how they end: `python -m tests.faults --kills=100`.

The faults of `ITEMS` are tests, each of which injects one and looks at the end; the kills are those
of `kills.py`. Prints a line a fault, and at the end how many were tried, right and wrong.
"""

import argparse
import pathlib
import random
import sys
import tempfile

import pytest

from tests.faults import kills

TESTS = pathlib.Path(__file__).resolve().parents[1]

# What each test promises stands in its name; `pytest` takes files and names.
ITEMS = {
    "code in checkpoints": (
        "learners/test_checkpointing.py",
        "runs_nothing or brackets or options_of",
    ),
    "names in files": ("storage/test_codec.py", "TestNotBuilt or TestLoadable"),
    "code in run folders": ("launch/test_evaluate.py", "code or imports"),
    "open ports": ("replay/reverb/test_ports.py", ""),
    "links and lost rows": ("experiment/test_run_folder.py", ""),
    "rows of metrics": ("experiment/test_recorders.py", ""),
    "outliers": ("ops/test_statistics.py", "Outliers"),
    "outliers of rewards": ("envs/test_wrappers.py", "ruin"),
    "outliers of rewards on the host": ("envs/test_host_rewards.py", "Outlier"),
    "rewards and ends of environments": ("envs/adapters/test_gymnasium_returns.py", ""),
    "settings": ("launch/test_gin_files.py", ""),
    "moved runs": ("launch/test_train.py", "moved"),
    "signals": ("launch/test_termination.py", ""),
    "exceptions of environments": ("envs/adapters/test_gymnasium_async.py", "raises"),
    "used folders": ("workflows/test_used_folders.py", ""),
    "full disks": ("experiment/test_export.py", "disk"),
    "damaged files": ("faults/test_fuzz_files.py", "not many"),
}


class _Count:
    """A plugin that counts the outcomes of tests."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" and not report.skipped:
            self.right += report.passed
            self.wrong += report.failed
            print(f"{'right' if report.passed else 'WRONG'}  {report.nodeid}", flush=True)
        elif report.failed:
            self.wrong += 1
            print(f"WRONG  {report.nodeid} ({report.when})", flush=True)


def main(argv=None) -> int:
    """Returns 1 if a fault ended otherwise than promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="Kills, over all trainings.")
    parser.add_argument("--seed", type=int, default=0, help="Of the moments.")
    parser.add_argument("--only", default="", help="Names out of ITEMS and RUNS, with commas.")
    options = parser.parse_args(argv)
    only = [name for name in options.only.split(",") if name]
    count = _Count()
    for name, (path, words) in ITEMS.items():
        if not only or name in only:
            pytest.main(
                [str(TESTS / path), "-q", "--no-header", "-p", "no:terminal", "-k", words],
                plugins=[count],
            )
    rng = random.Random(options.seed)
    chosen = [name for name in kills.RUNS if not only or name in only]
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(chosen):
            number = options.kills // len(chosen) + (i < options.kills % len(chosen))
            for moment, wrong in kills.chain(name, number, pathlib.Path(folder), rng):
                count.right += wrong is None
                count.wrong += wrong is not None
                print(
                    f"{'WRONG' if wrong else 'right'}  {name}: {moment} {wrong or ''}", flush=True
                )
    print(f"tried {count.right + count.wrong}, right {count.right}, wrong {count.wrong}")
    return int(count.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
