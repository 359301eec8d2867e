"""A heat map of an archive of two descriptors."""

import os

import numpy as np

from tfrl import checks, extras
from tfrl.errors import UserError
from tfrl.evolution.core import EvoState
from tfrl.evolution.diversity.map_elites import MAPElites


def plot_archive(
    optimizer: MAPElites,
    state: EvoState,
    path: str | os.PathLike[str],
    *,
    names: tuple[str, str] = ("descriptor 1", "descriptor 2"),
) -> None:
    """Plots the fitness of each cell's elite to an image file; empty cells are white.

    Args:
      optimizer: A `MAPElites` with two descriptors.
      state: Its state.
      path: The file, for example `archive.png`; the suffix sets the format.
      names: The names of the descriptors, for the axes.

    Raises:
      UserError: For another number of descriptors, or without matplotlib.
    """
    figures = extras.require("matplotlib.figure", "plots")
    checks.instance("optimizer of plot_archive", optimizer, MAPElites, "a MAPElites")
    if len(names) != 2:
        raise UserError(
            "names of plot_archive",
            expected="two names, one for each axis",
            got=repr(names),
            remedy="Pass names=('speed', 'height').",
        )
    if len(optimizer.grid) != 2:
        raise UserError(
            "optimizer of plot_archive",
            expected="a grid of two descriptors",
            got=f"{len(optimizer.grid)} descriptors",
            remedy="Plot two axes of state.search.archive.fitness.",
        )
    fitness = np.asarray(state.search.archive.fitness).reshape(optimizer.grid)
    (left, right), (bottom, top) = optimizer.descriptor_bounds
    figure = figures.Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(
        np.where(np.isfinite(fitness), fitness, np.nan).T,
        origin="lower",
        extent=(left, right, bottom, top),
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    figure.colorbar(image, label="fitness")
    figure.savefig(path, dpi=120)
