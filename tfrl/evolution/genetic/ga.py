"""The genetic algorithm."""

from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.core import EvoState
from tfrl.evolution.genetic.crossover import Crossover, UniformCrossover
from tfrl.evolution.genetic.mutation import GaussianMutation, Mutation, PolynomialMutation
from tfrl.evolution.genetic.selection import Selection, TournamentSelection
from tfrl.evolution.population_search import PopulationSearch, Space, unit_numbers
from tfrl.loading import loadable
from tfrl.types import Nest


@struct.dataclass
class GAState(struct.Struct):
    """The state of `GA`.

    Attributes:
      population: float32 [P, D], the elites first, the fittest of them at 0.
      best: float32 [D], the fittest that was told last.
      units: int32 [D], the unit of each parameter.
    """

    population: tf.Tensor
    best: tf.Tensor
    units: tf.Tensor


@loadable
@struct.logic_dataclass
class GA(PopulationSearch):
    """Keeps the elites; the rest are mutated children of selected parents.

    Elites are evaluated again in every generation, which a noisy fitness needs.

    Source: Khadka & Tumer 2018, algorithm 1, https://arxiv.org/abs/1805.07917; operators by their
    own sources.

    Attributes:
      pop_size: Candidates of a generation, P.
      init_std: As `PopulationSearch`.
      bounds: As `PopulationSearch`.
      elites: How many of the fittest stay as they are, less than P.
      selection: Chooses parents: `TournamentSelection`, `TruncationSelection`, or a function.
      crossover: Makes two children of two parents: `UniformCrossover`, `NPointCrossover`,
        `NeuronCrossover`, `SBX`, or a function.
      crossover_rate: The probability that a pair is crossed; else the children are the parents.
      mutation: Changes children: `GaussianMutation`, `ERLMutation`, `PolynomialMutation`, or a
        function.
      mutation_rate: The probability that a child is mutated.
    """

    elites: int = 1
    selection: Selection = TournamentSelection()
    crossover: Crossover = UniformCrossover()
    crossover_rate: float = 0.9
    mutation: Mutation = GaussianMutation()
    mutation_rate: float = 0.9

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.at_least("GA.elites", self.elites, 0, maximum=self.pop_size - 1)
        checks.function("GA.selection", self.selection, "an operator such as TournamentSelection()")
        checks.function("GA.crossover", self.crossover, "an operator such as UniformCrossover()")
        checks.function("GA.mutation", self.mutation, "an operator such as GaussianMutation()")
        checks.probability("GA.crossover_rate", self.crossover_rate)
        checks.probability("GA.mutation_rate", self.mutation_rate)
        check_mutation(self)

    def init(self, params: Nest, key: tf.Tensor) -> EvoState:
        """Returns the state before the first generation; see `EvoOptimizer.init`."""
        state = super().init(params, key)
        return state.replace(search=state.search.replace(units=unit_numbers(state.params)))

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> GAState:
        """Draws the first population."""
        population = self.first_population(mean, key)
        return GAState(population=population, best=mean, units=tf.range(mean.shape[0]))

    def learn(
        self,
        search: GAState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> GAState:
        """Makes the next population."""
        space = self.space(candidates.shape[1], search.units)
        order = tf.argsort(fitness, direction="DESCENDING", stable=True)
        elites = tf.gather(candidates, order[: self.elites])
        children = self._children(candidates, fitness, key, space)
        return GAState(
            population=tf.concat([elites, space.clip(children)], axis=0),
            best=tf.gather(candidates, order[0]),
            units=search.units,
        )

    def _children(
        self, candidates: tf.Tensor, fitness: tf.Tensor, key: tf.Tensor, space: Space
    ) -> tf.Tensor:
        """The children of selected parents, float32 [P - elites, D]."""
        keys = seeding.streams(key, ("selection", "crossover", "mutation", "is_mutated"))
        num = self.pop_size - self.elites
        pairs = (num + 1) // 2
        parents = tf.gather(candidates, self.selection(fitness, 2 * pairs, keys["selection"]))
        children = cross_pairs(
            self.crossover, self.crossover_rate, parents, space, keys["crossover"]
        )[:num]
        mutated = self.mutation(children, keys["mutation"], space)
        is_mutated = seeding.uniform(keys["is_mutated"], [num, 1]) < self.mutation_rate
        return tf.where(is_mutated, mutated, children)

    def centre(self, search: GAState) -> tf.Tensor:
        """Returns the fittest of the last generation."""
        return search.best


def check_mutation(search: Any) -> None:
    """Raises a UserError for PolynomialMutation in a search without bounds."""
    if isinstance(search.mutation, PolynomialMutation) and search.bounds is None:
        raise UserError(
            f"{type(search).__name__}.bounds",
            expected="(low, high), which PolynomialMutation moves parameters within",
            got="None",
            remedy="Give bounds=(-1.0, 1.0), or use GaussianMutation.",
        )


def cross_pairs(
    crossover: Crossover, rate: float, parents: tf.Tensor, space: Space, key: tf.Tensor
) -> tf.Tensor:
    """Crosses the first half of the parents with the second, float32 [2N, D].

    Args:
      crossover: The operator.
      rate: The probability that a pair is crossed; else the children are the parents.
      parents: float32 [2N, D].
      space: Bounds and units of the parameters.
      key: int32 [2].
    """
    keys = seeding.streams(key, ("children", "which"))
    a, b = tf.split(parents, 2)
    crossed = tf.concat(crossover(a, b, keys["children"], space), axis=0)
    is_crossed = seeding.uniform(keys["which"], [a.shape[0], 1]) < rate
    return tf.where(tf.tile(is_crossed, [2, 1]), crossed, parents)
