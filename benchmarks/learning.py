"""Learning: trains a shipped gin file with several seeds and reports the final greedy returns.

  python -m benchmarks.learning --gin_file=ppo/tf_cartpole.gin --seeds=5

Each seed is one run of `bin/train.py` in its own folder below --root_dir; seeds that have a summary
are not run again, so an interrupted measurement goes on. Ends with one JSON line: the mean of the
seeds' mean returns with its 95% bootstrap interval, and every seed's.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from benchmarks import measure


def run_seed(gin_file: str, seed: int, root: pathlib.Path, bindings: list[str]) -> dict:
    """Trains one seed unless its summary is there; returns the summary."""
    folder = root / gin_file.removesuffix(".gin").replace("/", "_") / f"seed_{seed}"
    summary = folder / "summary.json"
    if not summary.exists():
        command = [sys.executable, str(measure.ROOT / "bin" / "train.py")]
        command += [f"--gin_file={gin_file}", f"--root_dir={folder}", f"--seed={seed}"]
        command += [f"--gin_bindings={b}" for b in ("train.video=False", *bindings)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"seed {seed} failed:\n{done.stdout}\n{done.stderr}")
    return json.loads(summary.read_text())


def main() -> None:
    """Measures as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gin_file", default="ppo/tf_cartpole.gin")
    parser.add_argument("--gin_bindings", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--root_dir", default="runs/learning")
    args = parser.parse_args()

    root = pathlib.Path(args.root_dir)
    summaries = [run_seed(args.gin_file, s, root, args.gin_bindings) for s in range(args.seeds)]
    from tfrl.evaluation import bootstrap_interval

    returns = [s["eval_return_mean"] for s in summaries]
    low, high = bootstrap_interval(returns)
    measure.emit(
        benchmark="learning",
        gin_file=args.gin_file,
        seeds=args.seeds,
        eval_episodes=summaries[0]["eval_episodes"],
        env_steps=summaries[0]["env_steps"],
        eval_return_mean=sum(returns) / len(returns),
        eval_return_low=low,
        eval_return_high=high,
        eval_return_by_seed=[round(r, 1) for r in returns],
        wall_seconds=sum(s["wall_seconds"] for s in summaries) / len(summaries),
    )


if __name__ == "__main__":
    main()
