"""Injects faults and counts how they end: `python -m tests.faults --kills=100`.

The faults of `ITEMS` are tests, each of which injects one and looks at the end; the kills are those
of `kills.py`. Prints a line a fault, and at the end how many were tried, right and wrong.
"""

import argparse
import contextlib
import pathlib
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from xml.etree import ElementTree

from tests.faults import kills
from tests.storage import fake_gcs

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


def inject(path: str, words: str, folder: pathlib.Path) -> Iterator[tuple[str, bool]]:
    """Runs tests in a process of their own; yields the name of each, and whether it passed."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", str(TESTS / path), "-q", "-k", words]
    run = subprocess.run(
        [*command, f"--junitxml={report}"], cwd=TESTS.parent, capture_output=True, text=True
    )
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    tried = [case for case in cases if case.find("skipped") is None]
    if run.returncode not in (0, 1) or not tried:
        yield f"no test of {path} ran: {(run.stderr or run.stdout)[-500:]}", False
    for case in tried:
        passed = case.find("failure") is None and case.find("error") is None
        yield f"{path}: {case.get('name')}", passed


def main(argv=None) -> int:
    """Returns 1 if a fault ended otherwise than promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="Kills, over all trainings.")
    parser.add_argument("--seed", type=int, default=0, help="Of the moments.")
    parser.add_argument("--only", default="", help="Names out of ITEMS and RUNS, with commas.")
    parser.add_argument("--bucket", action="store_true", help="Kill trainings that run on gs://.")
    options = parser.parse_args(argv)
    only = [name for name in options.only.split(",") if name]
    counts = {True: 0, False: 0}

    def tell(name: str, right: bool) -> None:
        counts[right] += 1
        print(f"{'right' if right else 'WRONG'}  {name}", flush=True)

    rng = random.Random(options.seed)
    chosen = [name for name in kills.RUNS if not only or name in only]
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = pathlib.Path(temporary)
        for name, (path, words) in ITEMS.items():
            if not only or name in only:
                for test, passed in inject(path, words, folder):
                    tell(f"{name}: {test}", passed)
        place = kills.Place(folder)
        if options.bucket:
            place = kills.Place.of(stack.enter_context(fake_gcs.serve(folder / "gcs", busy=0.02)))
        for i, name in enumerate(chosen):
            number = options.kills // len(chosen) + (i < options.kills % len(chosen))
            for moment, wrong in kills.chain(name, number, place, rng):
                tell(f"{name}: killed in {moment} {wrong or ''}", not wrong)
    print(f"tried {sum(counts.values())}, right {counts[True]}, wrong {counts[False]}")
    return int(counts[False] > 0)


if __name__ == "__main__":
    sys.exit(main())
