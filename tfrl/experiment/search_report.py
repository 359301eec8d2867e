"""The report of a search: a table of its trials, and plots of the study."""

import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tfrl import extras
from tfrl.errors import UserError
from tfrl.experiment import comparison, report
from tfrl.storage import files

NAME = "search"
_COLUMNS = 4  # of panels
_ORDER = ("COMPLETE", "PRUNED", "RUNNING", "WAITING", "FAIL")


def table(study: Any) -> list[dict[str, Any]]:
    """Returns one row per trial: the best first, then pruned ones, then the others."""
    names = sorted({name for trial in study.trials for name in trial.params})
    rows = []
    for trial in sorted(study.trials, key=_rank):
        reported = trial.intermediate_values
        rows.append(
            {
                "trial": trial.number,
                "state": trial.state.name.lower(),
                "return": trial.value,
                "evaluations": len(reported),
                "seconds": trial.duration.total_seconds() if trial.duration else None,
                **{name: trial.params.get(name) for name in names},
                "folder": trial.user_attrs.get("folder"),
            }
        )
    return rows


def _rank(trial: Any) -> tuple[int, float, int]:
    value = trial.value if trial.value is not None else -float("inf")
    return _ORDER.index(trial.state.name), -value, trial.number


def write(study: Any, target: pathlib.Path, log: Callable[[str], None] = print) -> pathlib.Path:
    """Writes `search.html`, `search.csv`, `search.md` and pictures into the folder of a search.

    Args:
      study: An optuna study.
      target: The folder.
      log: Takes one-line messages.

    Returns:
      The page.

    Raises:
      UserError: The study has no trial, or nothing can be written.
    """
    rows = table(study)
    if not rows:
        raise UserError(f"the search in {target}", expected="trials", got="none")
    try:
        pictures = draw(study, target)
    except UserError as error:
        log(f"Without pictures. {error}")
        pictures = []
    try:
        files.write_text(target / f"{NAME}.csv", comparison.csv_of(rows))
        files.write_text(target / f"{NAME}.md", comparison.markdown_of(rows) + "\n")
        page = target / f"{NAME}.html"
        parts = [*map(report.picture, pictures), *comparison.html_of([rows])]
        files.write_text(page, report.page("Search", parts))
    except OSError as error:
        raise files.unwritable(f"search {target}", error) from error
    return page


def draw(study: Any, target: pathlib.Path) -> list[pathlib.Path]:
    """Draws plots of a study: values by trial, evaluations, parameters, importances.

    Args:
      study: An optuna study.
      target: The folder of the pictures.

    Returns:
      The pictures, except those that need more trials.

    Raises:
      UserError: matplotlib is not installed, or nothing can be written.
    """
    extras.require("matplotlib", "tune").use("Agg")
    plots = extras.require("optuna.visualization.matplotlib", "tune")
    importance = extras.require("optuna.importance", "tune")
    done = [t for t in study.trials if t.state.name == "COMPLETE"]
    if not done:
        return []
    figures = {
        "history": lambda: plots.plot_optimization_history(study),
        "parameters": lambda: draw_parameters(done),
    }
    if any(t.intermediate_values for t in study.trials):
        figures["evaluations"] = lambda: plots.plot_intermediate_values(study)
    if len(done) > 1 and len({t.value for t in done}) > 1:
        evaluator = importance.PedAnovaImportanceEvaluator()
        figures["importances"] = lambda: plots.plot_param_importances(study, evaluator)
    pictures = []
    pyplot = extras.require("matplotlib.pyplot", "tune")
    ticker = extras.require("matplotlib.ticker", "tune")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from experimental plots or plots with little data
        for name, make in figures.items():
            axes = make()
            figure = (axes if hasattr(axes, "figure") else axes.flat[0]).figure
            if name == "history":  # its axis has trials
                axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
            path = target / f"{NAME}_{name}.png"
            report.save(figure, path, bbox_inches="tight")
            pyplot.close(figure)
            pictures.append(path)
    return pictures


def draw_parameters(trials: Sequence[Any]) -> Any:
    """Draws the return of trials by each parameter, in rows of four panels.

    Args:
      trials: Complete trials of optuna.

    Returns:
      The axes, `[rows, columns]`.
    """
    pyplot = extras.require("matplotlib.pyplot", "tune")
    ticker = extras.require("matplotlib.ticker", "tune")
    names = sorted({name for trial in trials for name in trial.params})
    columns = min(len(names), _COLUMNS) or 1
    rows = -(-len(names) // columns) or 1
    figure, panels = pyplot.subplots(
        *(rows, columns), figsize=(3 * columns + 1, 3 * rows), squeeze=False, layout="constrained"
    )
    numbers = [trial.number for trial in trials]
    colors = {"cmap": "viridis", "vmin": min(numbers), "vmax": max(numbers)}
    for axes, name in zip(panels.flat, names, strict=False):
        own = [trial for trial in trials if name in trial.params]
        values = [trial.params[name] for trial in own]
        kinds = [trial.distributions[name] for trial in own]
        if not all(hasattr(kind, "low") for kind in kinds):  # a choice
            labels = sorted({*map(str, values)})
            axes.set_xticks(range(len(labels)), labels)
            values = [labels.index(str(value)) for value in values]
        elif all(kind.log for kind in kinds):
            axes.set_xscale("log")
            low, high = min(kind.low for kind in kinds), max(kind.high for kind in kinds)
            axes.set_xlim(low / 1.1, high * 1.1)
            ratio = high / low
            subs = (1,) if ratio >= 100 else (1, 3) if ratio >= 10 else (1, 2, 5)
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=subs))
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.xaxis.set_minor_formatter("")
        else:
            integer = all(isinstance(value, int) for value in values)
            axes.locator_params(axis="x", nbins=4, integer=integer)
        points = axes.scatter(
            values, [trial.value for trial in own], c=[t.number for t in own], **colors
        )
        short = name.rpartition(".")[2]
        alone = sum(other.rpartition(".")[2] == short for other in names) == 1
        axes.set_xlabel(short if alone else name)
    for axes in panels[:, 0]:
        axes.set_ylabel("return")
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    if names and len(numbers) > 1:
        ticks = ticker.MaxNLocator(integer=True)
        figure.colorbar(points, ax=panels, label="trial", ticks=ticks)
    return panels
