"""Training and start-up on TensorFlow 2.15 and on the current one, in alternating runs.

    make venv venv-current
    python -m benchmarks.stacks --rounds=3

Each run is a process of `bin/train.py`, once with each environment's Python, round by round. One
JSON line per task: medians of env steps/s in training (without compilation) and of seconds until
the first row of metrics, on each stack, and the ratio of the current stack to 2.15.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time
from typing import Any

from benchmarks.measure import ROOT, emit

PYTHONS = {
    "tensorflow_2.15": ROOT / ".venv" / "bin" / "python",
    "current": ROOT / ".venv-current" / "bin" / "python",
}
_SHORT = {
    "train.eval_interval": "None",
    "train.final_eval_episodes": "1",
    "train.video": "False",
    "train.report": "False",
    "train.progress": "False",
}
# name: (gin file, env steps, bindings)
TASKS: dict[str, tuple[str, int, dict[str, str]]] = {
    "ppo_xla": ("ppo/tf_cartpole.gin", 1_000_000, {"OnPolicyWorkflow.compile": "'xla'"}),
    "ppo_graph": ("ppo/tf_cartpole.gin", 500_000, {"OnPolicyWorkflow.compile": "'graph'"}),
    "dqn_xla": ("dqn/tf_cartpole.gin", 40_000, {"OffPolicyWorkflow.compile": "'xla'"}),
    "dqn_graph": ("dqn/tf_cartpole.gin", 20_000, {"OffPolicyWorkflow.compile": "'graph'"}),
    "sac_graph": ("sac/tf_pendulum.gin", 4_000, {"OffPolicyWorkflow.compile": "'graph'"}),
    "ppo_host": ("ppo/gymnasium_cartpole.gin", 60_000, {}),
    "sac_host": (
        "sac/gymnasium_pendulum.gin",
        3_000,
        {"OffPolicyWorkflow.compile": "{'rollout': 'numpy', 'update': 'graph'}"},
    ),
}


def train(python: pathlib.Path, task: str) -> dict[str, float]:
    """Runs a task; returns env steps/s, and seconds until the first row of metrics."""
    gin_file, env_steps, bindings = TASKS[task]
    bindings = {**_SHORT, "train.total_env_steps": str(env_steps), **bindings}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder, "run")
        command = [
            *(str(python), str(ROOT / "bin" / "train.py"), f"--root_dir={root}"),
            f"--gin_file={gin_file}",
            *(f"--gin_bindings={key}={value}" for key, value in bindings.items()),
        ]
        start = time.perf_counter()
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            rows = root / "metrics.jsonl"
            while not (rows.exists() and rows.stat().st_size) and process.poll() is None:
                time.sleep(0.01)
            first = time.perf_counter() - start
            _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{task} ended with {process.returncode}: {errors[-2_000:]}")
        summary = json.loads((root / "summary.json").read_text())
    return {"env_steps_per_second": summary["env_steps_per_second"], "first_row_seconds": first}


def import_seconds(python: pathlib.Path) -> float:
    """Returns the seconds of a process with the imports of a training."""
    start = time.perf_counter()
    subprocess.run(
        [str(python), "-c", "import tfrl.workflows"], cwd=ROOT, check=True, capture_output=True
    )
    return time.perf_counter() - start


def compared(figures: dict[str, list[float]]) -> dict[str, Any]:
    """Returns medians, and the ratio of the current stack to 2.15."""
    medians: dict[str, Any] = {name: statistics.median(values) for name, values in figures.items()}
    return {**medians, "current_share": medians["current"] / medians["tensorflow_2.15"]}


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join([*TASKS, "imports"]))
    args = parser.parse_args()
    missing = [str(path) for path in PYTHONS.values() if not path.exists()]
    if missing:
        raise SystemExit(f"missing {', '.join(missing)}; run: make venv venv-current")
    for task in args.only.split(","):
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in PYTHONS}
        for _ in range(args.rounds):
            for name, python in PYTHONS.items():
                if task == "imports":
                    runs[name].append({"import_seconds": import_seconds(python)})
                else:
                    runs[name].append(train(python, task))
        for figure in next(iter(runs.values()))[0]:
            values = {name: [run[figure] for run in rows] for name, rows in runs.items()}
            emit(
                benchmark="stacks", task=task, figure=figure, rounds=args.rounds, **compared(values)
            )


if __name__ == "__main__":
    main()
