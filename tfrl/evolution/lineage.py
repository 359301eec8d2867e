"""The lineage of members in population-based training, and its plot."""

import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrl import extras, struct


@struct.dataclass
class Lineage(struct.Struct):
    """Parents, fitness and hyperparameters of the first N rounds.

    Attributes:
      parents: int32 [N, P], the member whose state each member continued with.
      fitness: float32 [N, P], before the exploitation.
      values: float32 [N, H, P], the hyperparameters of the round before this fitness; a copy has
        its parent's fitness until an episode of its own has ended.
    """

    parents: tf.Tensor
    fitness: tf.Tensor
    values: tf.Tensor

    @classmethod
    def start(cls, rounds: int, hyperparameters: int, members: int) -> "Lineage":
        """Returns an empty lineage."""
        return cls(
            parents=tf.zeros([rounds, members], tf.int32),
            fitness=tf.zeros([rounds, members]),
            values=tf.zeros([rounds, hyperparameters, members]),
        )

    def noted(
        self, index: tf.Tensor, parents: tf.Tensor, fitness: tf.Tensor, values: Sequence[tf.Tensor]
    ) -> "Lineage":
        """Returns the lineage with round number `index`; rounds beyond N are dropped.

        Args:
          index: int64 scalar.
          parents: int32 [P].
          fitness: float32 [P].
          values: H times float32 [P].
        """
        here = tf.equal(tf.range(self.parents.shape[0], dtype=tf.int64), index)

        def put(old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
            mask = tf.reshape(here, [-1] + [1] * new.shape.rank)
            return tf.where(mask, new[tf.newaxis], old)

        return Lineage(
            parents=put(self.parents, parents),
            fitness=put(self.fitness, fitness),
            values=put(self.values, tf.stack(values) if values else self.values[0]),
        )


def plot_lineage(
    lineage: Lineage, names: Sequence[str], log_scales: Sequence[bool], path: str | pathlib.Path
) -> None:
    """Plots fitness and hyperparameters of all members by round, as a PNG.

    A line follows one state: if a member copied another, its line begins at the other's line.

    Args:
      lineage: The lineage of R rounds, NumPy arrays or tensors.
      names: The names of the hyperparameters.
      log_scales: Whether each hyperparameter has a logarithmic axis.
      path: The file.
    """
    figures = extras.require("matplotlib.figure", "plots")
    collections = extras.require("matplotlib.collections", "plots")
    parents, fitness, values = (
        np.asarray(x) for x in (lineage.parents, lineage.fitness, lineage.values)
    )
    rows = [("fitness", fitness, False)]
    rows += [
        (n, values[:, i], log) for i, (n, log) in enumerate(zip(names, log_scales, strict=True))
    ]
    figure = figures.Figure(figsize=(8, 2.4 * len(rows)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(len(rows), 1, sharex=True))
    rounds, members = parents.shape
    rank = np.argsort(np.argsort(np.nan_to_num(fitness, nan=-np.inf), axis=1), axis=1)
    for axis, (name, values_of, log) in zip(axes, rows, strict=True):
        begins = np.take_along_axis(values_of[:-1], parents[:-1], axis=1)
        ends = np.stack([begins, values_of[1:]], axis=-1).reshape(-1, 2)  # [(R - 1) P, 2]
        times = np.repeat(np.arange(rounds - 1), members)
        steps = np.stack([times, times + 1], axis=-1)
        shades = (rank[1:] / max(1, members - 1)).reshape(-1)
        lines = collections.LineCollection(
            np.stack([steps, ends], axis=-1),
            colors=[(0.12, 0.35, 0.65, 0.15 + 0.85 * shade) for shade in shades],
            linewidths=0.8 + shades,
        )
        axis.add_collection(lines)
        axis.plot(np.zeros(members), values_of[0], ".", color=(0.12, 0.35, 0.65))  # their start
        axis.autoscale()
        axis.set_ylabel(name)
        if log:
            axis.set_yscale("log")
    axes[-1].set_xlabel("round")
    figure.savefig(path, dpi=120)
