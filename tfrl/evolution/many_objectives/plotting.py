"""A plot of the Pareto front."""

import os
from typing import Any

import numpy as np

from tfrl import extras
from tfrl.errors import UserError
from tfrl.evolution.many_objectives.fronts import pareto_front


def plot_front(
    fitness: Any, path: str | os.PathLike[str], *, names: tuple[str, ...] | None = None
) -> None:
    """Plots all candidates to an image file, with the front emphasised.

    Args:
      fitness: float [P, M], M 2 or 3; non-finite candidates are left out.
      path: The file, for example `front.png`; the suffix sets the format.
      names: The names of the objectives, for the axes.

    Raises:
      UserError: For another number of objectives, or without matplotlib.
    """
    figures = extras.require("matplotlib.figure", "plots")
    fitness = np.asarray(fitness, np.float32)
    if fitness.ndim != 2 or fitness.shape[1] not in (2, 3):
        raise UserError(
            "fitness of plot_front",
            expected="[P, 2] or [P, 3], one number per objective",
            got=f"shape {list(fitness.shape)}",
            remedy="Choose two or three objectives to plot.",
        )
    front = np.asarray(pareto_front(fitness))
    rest = np.isfinite(fitness).all(axis=1) & ~front
    objectives = fitness.shape[1]
    names = names or tuple(f"objective {i}" for i in range(1, objectives + 1))
    if len(names) != objectives:
        raise UserError(
            "names of plot_front",
            expected=f"{objectives} names, one per objective",
            got=repr(names),
            remedy="Leave out names for numbered objectives.",
        )
    figure = figures.Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot(projection="3d" if objectives == 3 else None)
    axes.scatter(*fitness[rest].T, c="0.7", s=12, label="dominated")
    axes.scatter(*fitness[front].T, c="C0", s=18, label="front")
    for axis, name in zip("xyz"[:objectives], names, strict=True):
        getattr(axes, f"set_{axis}label")(name)
    axes.legend()
    figure.savefig(path, dpi=120)
