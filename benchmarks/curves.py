"""Figures of the results: one panel per task, one line per algorithm, drawn by `tfrl-report`."""

import csv
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.claims import Claim
from tfrl.experiment import comparison, report
from tfrl.experiment.report import RunRecord

Records = Mapping[Claim, Mapping[int, Mapping[str, Any]]]
_FILE = re.compile(r"(\w*?)_?(?:tf|gymnasium|envpool)_\w+\.gin")
_COLUMNS = 4
_LOG_FROM = 30  # ratio of env steps in a panel from which their axis is logarithmic
_MOST_INSIDE = 4  # entries of a legend inside its panel
# Differences between light and dark pages.
_INK = {"light": "#1f2328", "dark": "#e6edf3"}


def task_of(claim: Claim) -> str:
    """Returns the id of a claim's environment, as its gin file binds it."""
    from tfrl.launch import gin_files

    bound = {b.key: b.value for b in gin_files.read([claim.gin_file], claim.bindings)}
    value = bound.get("make_env.env_id", "one task")
    if isinstance(value, gin_files.Macro):
        value = bound[value.name]
    return str(value)


def panel_of(claim: Claim) -> str:
    """Returns the panel of a claim: its task; strategies of evolution have their own panels."""
    task = task_of(claim)
    return f"{task}, evolution" if claim.gin_file.startswith("evolution/") else task


def algorithm_of(claim: Claim) -> str:
    """Returns the label of a claim's line: folder, prefix of the task, variant."""
    folder, _, file = claim.gin_file.rpartition("/")
    match = _FILE.fullmatch(file)
    own = match[1] if match else file.removesuffix(".gin")
    short = pathlib.PurePath(folder).name
    name = own if short in ("evolution", "erl") and own else f"{short}: {own}" if own else short
    return f"{name}, {claim.variant}" if claim.variant else name


def runs_of(
    claim: Claim, records: Mapping[int, Mapping[str, Any]], root: pathlib.Path
) -> list[RunRecord]:
    """Returns the records of a claim as runs; a run without a curve has only its final return.

    Args:
      claim: The claim.
      records: By seed.
      root: The folder of the records, which may have the `curve.csv` of one run.
    """
    runs = []
    for record in records.values():
        curve = record.get("curve") or _table(root / claim.folder / "curve.csv")
        rows = [{"env_steps": x, "eval_return_mean": y} for x, y in curve]
        runs.append(RunRecord(root / claim.folder, rows, {}, record))
    return runs


def _table(path: pathlib.Path) -> list[tuple[float, float]]:
    """Env steps and returns, the first and the last column of a table; empty without a file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [(float(row[0]), float(row[-1])) for row in list(csv.reader(file))[1:]]


def by_panel(records: Records, root: pathlib.Path) -> dict[str, dict[str, list[RunRecord]]]:
    """Groups the existing records: `{panel: {algorithm: runs}}`."""
    panels: dict[str, dict[str, list[RunRecord]]] = {}
    for claim, runs in records.items():
        if runs:
            panels.setdefault(panel_of(claim), {})[algorithm_of(claim)] = runs_of(claim, runs, root)
    return panels


def peers_of(records: Records) -> dict[str, dict[str, float]]:
    """Returns the targets that are another library's figures: `{panel: {label: return}}`."""
    targets: dict[str, dict[str, float]] = {}
    for claim, runs in records.items():
        if runs and claim.peer and claim.target is not None:
            label = f"{claim.peer}: {claim.target:,g}"
            targets.setdefault(panel_of(claim), {})[label] = claim.target
    return targets


def without_curves(records: Records, root: pathlib.Path) -> list[str]:
    """Returns names of the claims that have only final returns."""
    return [
        claim.name
        for claim, runs in records.items()
        if runs and not any(run.rows for run in runs_of(claim, runs, root))
    ]


def draw(records: Records, root: pathlib.Path) -> list[pathlib.Path]:
    """Draws `curves_light.svg` and `curves_dark.svg` into the folder of the records.

    Dotted lines are the figures of other libraries.

    Args:
      records: By claim and seed.
      root: The folder of the records.

    Returns:
      The figures; empty without records.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    panels, peers = by_panel(records, root), peers_of(records)
    if not panels:
        return []
    rows = -(-len(panels) // _COLUMNS)
    ten = matplotlib.rcParams["axes.prop_cycle"]
    paths = []
    for theme, ink in _INK.items():
        colors = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        style = {
            **dict.fromkeys(colors, ink),
            **{"axes.facecolor": "none", "legend.facecolor": "none", "legend.framealpha": 0.0},
            **{"svg.fonttype": "none", "svg.hashsalt": "curves"},  # the same for the same records
            "axes.prop_cycle": cycler(linestyle=["-", "--"]) * ten,  # 20 different lines
        }
        with matplotlib.rc_context(style):
            figure = Figure(figsize=(4 * _COLUMNS, 3.8 * rows), layout="constrained")
            for place, (panel, by_group) in enumerate(panels.items(), 1):
                axes = figure.add_subplot(rows, _COLUMNS, place)
                comparison.draw_returns(axes, by_group)
                for label, figure_of_peer in peers.get(panel, {}).items():
                    axes.axhline(figure_of_peer, color=ink, ls=":", lw=1.2, label=label)
                axes.set_title(panel)
                _finish(axes)
            paths.append(root / f"curves_{theme}.svg")
            figure.savefig(paths[-1], transparent=True, metadata={"Date": None})
    return paths


def _finish(axes: Any) -> None:
    """Scales the axis of env steps, and places the legend."""
    report.label_env_steps(axes)
    low, high = axes.dataLim.intervalx
    if low > 0 and high / low > _LOG_FROM:
        shown = axes.xaxis.get_major_formatter()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(shown)
        axes.xaxis.set_minor_formatter("")
    else:
        axes.set_xlim(0, 1.03 * high)
    axes.grid(alpha=0.2)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > _MOST_INSIDE:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": 3}
        axes.legend(handles, labels, fontsize="xx-small", **below)
    else:
        axes.legend(handles, labels, fontsize="x-small")
