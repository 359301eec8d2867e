"""Learning curves of evolution, ERL and population-based training, out of the records of runs."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.claims import Claim

# TD3 alone stands beside ERL and CEM-RL.
FOLDERS = ("evolution", "erl", "pbt", "td3")
_TASK = re.compile(r"(\w*?)_?(?:tf|gymnasium)_(\w+)\.gin")
_COLUMNS = 3


def mean_curve(curves: list[list[list[float]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns env steps [K], mean return [K] and the range [2, K] over runs, by evaluation.

    Args:
      curves: (env steps, return) of each run; the longer ones are cut.
    """
    least = min(map(len, curves))
    steps, returns = np.moveaxis(np.array([curve[:least] for curve in curves]), -1, 0)
    return steps.mean(0), returns.mean(0), np.stack([returns.min(0), returns.max(0)])


def by_task(
    records: Mapping[Claim, Mapping[int, Mapping[str, Any]]],
) -> dict[str, dict[str, list[list[list[float]]]]]:
    """Sorts the curves that are there: `{task: {algorithm: curves}}`; TD3 only beside others."""
    found: dict[str, dict[str, list[Any]]] = {}
    for claim, runs in records.items():
        folder, _, file = claim.gin_file.partition("/")
        curves = [run["curve"] for run in runs.values() if run.get("curve")]
        if folder in FOLDERS and curves:
            name, task = _TASK.fullmatch(file).groups()  # type: ignore[union-attr]
            name = f"pbt: {name}" if folder == "pbt" else name or folder
            found.setdefault(task, {})[name] = curves
    return {task: lines for task, lines in found.items() if set(lines) - {"td3"}}


def draw(records: Mapping[Claim, Mapping[int, Mapping[str, Any]]], path: pathlib.Path) -> None:
    """Draws a panel a task: means of the runs, and their range."""
    import matplotlib
    from matplotlib.figure import Figure

    tasks = by_task(records)
    if not tasks:
        return
    rows = -(-len(tasks) // _COLUMNS)
    figure = Figure(figsize=(4 * _COLUMNS, 3 * rows), layout="constrained")
    for place, (task, lines) in enumerate(tasks.items(), 1):
        axes = figure.add_subplot(rows, _COLUMNS, place)
        for name, curves in lines.items():
            steps, mean, (low, high) = mean_curve(curves)
            (line,) = axes.plot(steps, mean, label=name, linewidth=1.2)
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set_title(task)
        axes.set_xlabel("env steps")
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.legend(fontsize="x-small")
    small = {"svg.fonttype": "none", "svg.hashsalt": "curves"}  # and the same for the same records
    with matplotlib.rc_context(small):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
