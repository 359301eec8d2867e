"""Injects actors trained by gradients into the population of a search."""

from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.evolution.core import EvoOptimizer, EvoState
from tfrl.evolution.diversity import MAPElites
from tfrl.types import Nest

KINDS = ("replace", "extra", "mean", "none")


@struct.logic_dataclass
class Injection(struct.Struct):
    """A search of P candidates with periodic injection of A actors.

    Attributes:
      optimizer: The search.
      kind: "replace": the actors replace the last candidates before evaluation. "extra": the actors
        are evaluated beside the population, and each replaces the worst candidate if it is fitter.
        "mean": the mean of the search moves towards the first actor. "none": no injection.
      every: Generations from one injection to the next.
      pull_share: The share of the distance that "mean" moves.
      num_actors: A.
    """

    optimizer: EvoOptimizer
    kind: str = "replace"
    every: int = 1
    pull_share: float = 0.5
    num_actors: int = 1

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.one_of("inject", self.kind, KINDS)
        checks.at_least("inject_every", self.every, 1)
        checks.probability("pull_share", self.pull_share)
        size, name = self.optimizer.pop_size, type(self.optimizer).__name__
        if self.optimizer.num_objectives > 1:
            raise UserError(
                "optimizer",
                expected="a single-objective search",
                got=f"{name} with {self.optimizer.num_objectives} objectives",
                remedy="Use GA, OpenES or CEM.",
            )
        if isinstance(self.optimizer, MAPElites):
            raise UserError(
                "optimizer",
                expected="a search that needs no behaviour descriptors",
                got=name,
                remedy="Use GA, OpenES or CEM.",
            )
        if self.kind == "replace" and self.num_actors >= size:
            raise UserError(
                f"{name}.pop_size",
                expected=f"more than the {self.num_actors} actors that replace candidates",
                got=size,
                remedy=f"Use a larger population, such as {max(10, 2 * self.num_actors)}.",
            )

    def check_search(self, search: EvoState) -> None:
        """Checks that the search has a mean, if "mean" moves it.

        Raises:
          UserError: For a search without a mean.
        """
        if self.kind == "mean" and getattr(search.search, "mean", None) is None:
            raise UserError(
                "inject",
                expected="a search with a mean for 'mean', such as OpenES or CEM",
                got=type(self.optimizer).__name__,
                remedy="Set inject='replace' or 'extra'.",
            )

    @property
    def num_members(self) -> int:
        """The number of evaluated candidates: P, with "extra" P + A."""
        return self.optimizer.pop_size + (self.kind == "extra") * self.num_actors

    def due(self, search: EvoState) -> tf.Tensor:
        """Returns whether to inject in this generation, bool scalar."""
        return tf.equal((search.generation + 1) % self.every, 0)

    def ask(self, search: EvoState, actors: list[Nest]) -> tuple[Nest, EvoState]:
        """Returns the candidates to evaluate, and the state for `tell`.

        Args:
          search: The state of the search.
          actors: The parameters of the actors.

        Returns:
          Leaves `[num_members, ...]`, and the state.
        """
        if self.kind == "mean":
            share = tf.where(self.due(search), tf.constant(self.pull_share, tf.float32), 0.0)
            search = self.optimizer.pull(search, actors[0], share)
        population, search = self.optimizer.ask(search)
        if self.kind not in ("replace", "extra"):
            return population, search
        stacked = struct.stack(actors)
        if self.kind == "extra":
            return struct.concat([population, stacked]), search
        due, kept = self.due(search), self.optimizer.pop_size - self.num_actors

        def replaced(x: tf.Tensor, actor: tf.Tensor) -> tf.Tensor:
            return tf.concat([x[:kept], tf.where(due, actor, x[kept:])], axis=0)

        return tf.nest.map_structure(replaced, population, stacked), search

    def tell_arguments(
        self, search: EvoState, population: Nest, fitness: tf.Tensor
    ) -> tuple[Nest, tf.Tensor, tf.Tensor]:
        """Returns the arguments of `tell` from the evaluated candidates.

        Args:
          search: The state from `ask`.
          population: Leaves `[num_members, ...]`.
          fitness: float32 `[num_members]`.

        Returns:
          Leaves `[P, ...]`, their fitness `[P]`, and the injected share: the share of actors among
          the candidates, with "mean" the share of the distance.
        """
        size, due = self.optimizer.pop_size, self.due(search)
        if self.kind != "extra":
            share = {"replace": self.num_actors / size, "mean": self.pull_share}
            return population, fitness, tf.where(due, share.get(self.kind, 0.0), 0.0)
        ranked = tf.where(tf.math.is_finite(fitness), fitness, -float("inf"))
        chosen, rows = tf.range(size), ranked[:size]
        for i in range(size, self.num_members):
            worst = tf.argmin(rows, output_type=tf.int32)
            here = tf.equal(tf.range(size), worst) & due & (ranked[i] > rows[worst])
            chosen, rows = tf.where(here, i, chosen), tf.where(here, ranked[i], rows)
        share = tf.reduce_mean(tf.cast(chosen >= size, tf.float32))
        taken: Any = struct.take(population, chosen)
        return taken, tf.gather(fitness, chosen), share
