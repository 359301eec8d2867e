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
      values: float32 [N, H, P], the hyperparameters that led to this fitness.
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
        for t in range(rounds - 1):
            for m in range(members):
                begin = values_of[t, parents[t, m]]
                shade = rank[t + 1, m] / max(1, members - 1)
                axis.plot(
                    [t, t + 1],
                    [begin, values_of[t + 1, m]],
                    color=(0.12, 0.35, 0.65),
                    alpha=0.15 + 0.85 * shade,
                    linewidth=0.8 + shade,
                )
        axis.set_ylabel(name)
        if log:
            axis.set_yscale("log")
    axes[-1].set_xlabel("round")
    figure.savefig(path, dpi=120)
