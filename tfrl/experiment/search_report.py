"""The report of a search: a table of its trials, and Optuna's plots of the study."""

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

from tfrl import extras
from tfrl.errors import UserError
from tfrl.experiment import comparison, report
from tfrl.storage import files

NAME = "search"
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
    """Draws optuna's plots of a study: values by trial, evaluations, parameters, importances.

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
        "parameters": lambda: plots.plot_slice(study),
    }
    if any(t.intermediate_values for t in study.trials):
        figures["evaluations"] = lambda: plots.plot_intermediate_values(study)
    if len(done) > 1 and len({t.value for t in done}) > 1:
        evaluator = importance.PedAnovaImportanceEvaluator()
        figures["importances"] = lambda: plots.plot_param_importances(study, evaluator)
    pictures = []
    pyplot = extras.require("matplotlib.pyplot", "tune")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from experimental plots or plots with little data
        for name, make in figures.items():
            axes = make()
            figure = (axes if hasattr(axes, "figure") else axes.flat[0]).figure
            path = target / f"{NAME}_{name}.png"
            report.save(figure, path, bbox_inches="tight")
            pyplot.close(figure)
            pictures.append(path)
    return pictures
