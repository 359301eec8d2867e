"""Compares runs: curves over seeds, and tables of final returns with intervals."""

import collections
import csv
import io
import pathlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tfrl import extras
from tfrl.errors import UserError
from tfrl.evaluation import bootstrap_interval
from tfrl.experiment import report
from tfrl.experiment.report import RunRecord
from tfrl.storage import files

NAME = "comparison"
_FULL = 0.9  # a run with less of its group's longest is unfinished
_POINTS = 100  # of a curve
_RESAMPLES = 2000
_TASK = "make_env.env_id"
_BUDGET = "train.total_env_steps"

# {task: {group: runs}}
Groups = Mapping[str, Mapping[str, Sequence[RunRecord]]]


def grouped(runs: Sequence[RunRecord], may_differ: Collection[str] = ()) -> Groups:
    """Groups runs by task, and within a task by the settings in which they differ.

    Args:
      runs: The runs.
      may_differ: Names of bindings to ignore in the grouping, e.g. budgets.
    """
    by_task: dict[str, list[RunRecord]] = collections.defaultdict(list)
    for run in runs:
        by_task[run.configuration.get(_TASK, "one task").strip("'\"")].append(run)
    but = {*may_differ, *_schedules_of_budgets(runs), _TASK}
    return {task: _by_difference(own, but) for task, own in by_task.items()}


def _schedules_of_budgets(runs: Sequence[RunRecord]) -> set[str]:
    """The bindings of schedules that end with the budget of each run."""
    return {
        name
        for name in {n for run in runs for n in run.configuration if "Schedule." in n}
        if all(r.configuration.get(name) in (None, r.configuration.get(_BUDGET)) for r in runs)
    }


def _by_difference(runs: Sequence[RunRecord], but: Collection[str]) -> dict[str, list[RunRecord]]:
    names = sorted({name for run in runs for name in run.configuration} - set(but))
    names = [n for n in names if not n.endswith(f"/{_TASK}")]
    differing = [n for n in names if len({run.configuration.get(n) for run in runs}) > 1]
    # Different algorithms have different bindings, so the name suffices.
    chosen = [n for n in differing if n.endswith(".agent")] or differing
    groups: dict[str, list[RunRecord]] = {}
    for run in runs:
        words = [f"{n.rpartition('.')[2]}={run.configuration.get(n, 'default')}" for n in chosen]
        kept = tuple(run.configuration.get(n) for n in differing)
        label = ", ".join(words) or "all runs"
        twins = {tuple(r.configuration.get(n) for n in differing) for r in groups.get(label, [])}
        if twins - {kept}:  # the same algorithm with other settings
            words = [f"{n}={run.configuration.get(n, 'default')}" for n in differing]
            label = ", ".join(words)
        groups.setdefault(label, []).append(run)
    return groups


def finished(groups: Groups, log: Callable[[str], None] = print) -> Groups:
    """Returns the groups without runs that have less than 90% of their group's most env steps.

    A run that reached its `train.target_return` stays.

    Args:
      groups: The runs.
      log: Takes one line per run that is left out.
    """

    def full(runs: Sequence[RunRecord]) -> list[RunRecord]:
        kept, most = [], max(map(_env_steps, runs))
        for run in runs:
            steps = _env_steps(run)
            if steps >= _FULL * most or run.summary.get("stopped_by") == "target_return":
                kept.append(run)
            else:
                log(f"Left out: {run.root} has {steps:,} env steps, its group up to {most:,}.")
        return kept

    return {task: {g: full(runs) for g, runs in own.items()} for task, own in groups.items()}


def _env_steps(run: RunRecord) -> int:
    return int(run.rows[-1]["env_steps"] if run.rows else run.summary.get("env_steps", 0))


def curve_of(run: RunRecord, against: str = "env_steps") -> tuple[np.ndarray, np.ndarray]:
    """Returns a run's curve, of evaluations or else of training episodes.

    Args:
      run: The run.
      against: "env_steps" or "seconds" of training.

    Returns:
      The axis and mean returns, each `[N]`.
    """
    name = "eval_return_mean" if len(run.column("eval_return_mean")[0]) > 1 else "episode_return"
    steps, returns = run.column(name)
    if against == "env_steps":
        return steps, returns
    all_steps = [row["env_steps"] for row in run.rows]
    return np.interp(steps, all_steps, run.seconds()), returns


def mean_curve(
    runs: Sequence[RunRecord], against: str = "env_steps"
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns axis, mean over runs and its 95% bootstrap band (low, high), each `[100]`.

    The axis ends at the end of the shortest run; curves are interpolated linearly. Arrays are empty
    without a range of the axis that all runs have.
    """
    curves = [curve for run in runs if len((curve := curve_of(run, against))[0])]
    start = max((x[0] for x, _ in curves), default=0)
    end = min((x[-1] for x, _ in curves), default=0)
    if start >= end:
        return (np.zeros(0),) * 4
    axis = np.linspace(start, end, _POINTS)
    values = np.stack([np.interp(axis, x, y) for x, y in curves])  # [runs, points]
    draws = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975], axis=0)
    return axis, values.mean(axis=0), low, high


def final_return(run: RunRecord) -> float:
    """Returns the mean return of the final evaluation, or else the curve's last point."""
    final = run.summary.get("eval_return_mean")
    if final is not None:
        return float(final)
    returns = curve_of(run)[1]
    return float(returns[-1]) if len(returns) else float("nan")


def table(groups: Groups, with_rliable: bool) -> list[dict[str, Any]]:
    """Returns one row per group: number of runs, mean of final returns, interquartile mean.

    Args:
      groups: The runs.
      with_rliable: Whether to include the interquartile mean and its 95% interval.
    """
    rows = []
    for task, by_group in groups.items():
        scores = {g: np.array([[final_return(r)] for r in runs]) for g, runs in by_group.items()}
        iqm = _estimates(scores, "aggregate_iqm") if with_rliable else {}
        for group, runs in by_group.items():
            speeds = [r.summary.get("env_steps_per_second") for r in runs]
            row = {
                "task": task,
                "group": group,
                "runs": len(runs),
                "return_mean": float(scores[group].mean()),
                "return_std": float(scores[group].std()) if len(runs) > 1 else None,
            }
            if group in iqm:
                row |= dict(zip(("iqm", "iqm_low", "iqm_high"), iqm[group], strict=True))
            row["env_steps"] = max(map(_env_steps, runs))
            row["env_steps_per_second"] = _median(speeds)
            rows.append(row)
    return rows


def _median(values: Sequence[Any]) -> float | None:
    known = [x for x in values if x is not None]
    return float(np.median(known)) if known else None


def _estimates(scores: Mapping[str, Any], metric: str) -> dict[str, tuple[float, float, float]]:
    """`{name: (estimate, low, high)}` with 95% intervals, by rliable's stratified bootstrap."""
    library = extras.require("rliable.library", "report")
    function = getattr(extras.require("rliable.metrics", "report"), metric)
    points, intervals = library.get_interval_estimates(
        dict(scores), lambda *x: np.array([function(*x)]), reps=_RESAMPLES
    )
    low, high = ({n: float(intervals[n][i, 0]) for n in scores} for i in (0, 1))
    return {n: (float(points[n][0]), low[n], high[n]) for n in scores}


def improvements(groups: Groups) -> list[dict[str, Any]]:
    """Returns the probability of improvement between groups, by task."""
    rows = []
    for task, by_group in groups.items():
        scores = {g: np.array([[final_return(r)] for r in runs]) for g, runs in by_group.items()}
        names = list(scores)
        pairs = {
            f"{a} > {b}": (scores[a], scores[b])
            for i, a in enumerate(names)
            for b in names[i + 1 :]
        }
        estimates = _estimates(pairs, "probability_of_improvement") if pairs else {}
        rows += [
            {"task": task, "pair": pair, "probability": p, "low": low, "high": high}
            for pair, (p, low, high) in estimates.items()
        ]
    return rows


def draw(groups: Groups, path: pathlib.Path, against: str, with_rliable: bool) -> None:
    """Draws one row of panels per task: mean curves, and performance profiles.

    Raises:
      UserError: Without matplotlib, or if the file cannot be written.
    """
    figures = extras.require("matplotlib.figure", "report")
    columns = 2 if with_rliable else 1
    figure = figures.Figure(figsize=(5 * columns, 3.4 * len(groups)), layout="constrained")
    panels = figure.subplots(len(groups), columns, squeeze=False)
    for row, (task, by_group) in zip(panels, groups.items(), strict=True):
        draw_returns(row[0], by_group, against)
        several = any(len(runs) > 1 for runs in by_group.values())
        row[0].set_title(f"{task}: return" + (", 95% bootstrap" if several else ""))
        if against == "env_steps":
            report.label_env_steps(row[0])
        else:
            row[0].set_xlabel("seconds of training")
        row[0].grid(alpha=0.3)
        row[0].legend(fontsize=7)
        if with_rliable:
            _draw_profile(row[1], by_group)
    report.save(figure, path)


def draw_returns(
    axes: Any, by_group: Mapping[str, Sequence[RunRecord]], against: str = "env_steps"
) -> None:
    """Draws the mean curve of every group with its 95% bootstrap band.

    A group without curves is a point: the mean final return with its interval. A group without
    returns is left out.

    Args:
      axes: Matplotlib axes.
      by_group: The runs of one task.
      against: The axis of the curves, "env_steps" or "seconds".
    """
    for group, runs in by_group.items():
        label = f"{group} ({len(runs)})"
        axis, mean, low, high = mean_curve(runs, against)
        if len(axis):
            (line,) = axes.plot(axis, mean, label=label)
            axes.fill_between(axis, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            continue
        finals = np.array([final_return(run) for run in runs])
        if np.isnan(finals).any():
            continue
        below, above = bootstrap_interval(finals)
        spread = [[finals.mean() - below], [above - finals.mean()]]
        ends = [
            run.seconds()[-1:].sum() if against == "seconds" else _env_steps(run) for run in runs
        ]
        at = max(ends)
        axes.errorbar([at], [finals.mean()], yerr=spread, fmt="o", capsize=3, label=label)


def _draw_profile(axes: Any, by_group: Mapping[str, Sequence[RunRecord]]) -> None:
    library = extras.require("rliable.library", "report")
    scores = {g: np.array([[final_return(r)] for r in runs]) for g, runs in by_group.items()}
    everything = np.concatenate(list(scores.values()))
    thresholds = np.linspace(everything.min(), everything.max(), 81)
    profiles, bands = library.create_performance_profile(scores, thresholds, reps=_RESAMPLES)
    for group, profile in profiles.items():
        (line,) = axes.plot(thresholds, profile, label=group)
        axes.fill_between(thresholds, *bands[group], color=line.get_color(), alpha=0.2)
    axes.set_title("share of runs above a final return")
    axes.grid(alpha=0.3)


def write(
    folders: Sequence[str | pathlib.Path],
    target: pathlib.Path,
    *,
    against: str = "env_steps",
    may_differ: Collection[str] = (),
    log: Callable[[str], None] = print,
) -> pathlib.Path:
    """Compares runs: writes `comparison.png`, `.html`, `.md` and `.csv` into a folder.

    Args:
      folders: The run folders; those without metrics, and unfinished ones, are logged and skipped.
      target: The folder to write; created if missing.
      against: The axis of the curves, "env_steps" or "seconds".
      may_differ: As in `grouped`.
      log: Takes one-line messages.

    Returns:
      The page.

    Raises:
      UserError: No run has metrics, matplotlib is not installed, or nothing can be written.
    """
    runs = []
    for folder in folders:
        try:
            runs.append(RunRecord.read(folder))
        except UserError as error:
            log(f"Left out: {error}")
    if not runs:
        raise UserError("the comparison", expected="run folders with metrics", got="none")
    with_rliable = True
    try:
        extras.require("rliable.library", "report")
    except UserError as error:
        log(f"Without interquartile means, profiles and probabilities of improvement. {error}")
        with_rliable = False
    groups = finished(grouped(runs, may_differ), log)
    tables = [table(groups, with_rliable)]
    if with_rliable:
        tables.append(improvements(groups))
    try:
        target.mkdir(parents=True, exist_ok=True)
        picture = target / f"{NAME}.png"
        draw(groups, picture, against, with_rliable)
        files.write_text(target / f"{NAME}.csv", csv_of(tables[0]))
        text = "\n\n".join(markdown_of(rows) for rows in tables if rows)
        files.write_text(target / f"{NAME}.md", text + "\n")
        page = target / f"{NAME}.html"
        files.write_text(
            page, report.page("Comparison", [report.picture(picture), *html_of(tables)])
        )
    except OSError as error:
        raise files.unwritable(f"comparison {target}", error) from error
    return page


def _shown(value: Any) -> str:
    return "" if value is None else report.shown(value)


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows, at least one, as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns rows, at least one, as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_shown(row[n]) for n in names] for row in rows)]
    return "\n".join(f"| {' | '.join(x.replace('|', '/') for x in line)} |" for line in lines)


def html_of(tables: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Returns each list of rows as an HTML table."""
    return [
        report.table(list(rows[0]), [[_shown(x) for x in row.values()] for row in rows])
        for rows in tables
        if rows
    ]
