"""The genetic algorithm."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.genetic.mating import MatingSearch
from tfrl.evolution.genetic.selection import Selection, TournamentSelection
from tfrl.evolution.population_search import Space
from tfrl.loading import loadable


@struct.dataclass
class GAState(struct.Struct):
    """The state of `GA`.

    Attributes:
      population: float32 [P, D], the elites first, the fittest elite at 0.
      best: float32 [D], the fittest of the last generation.
      units: int32 [D], the unit of each parameter.
    """

    population: tf.Tensor
    best: tf.Tensor
    units: tf.Tensor


@loadable
@struct.logic_dataclass
class GA(MatingSearch):
    """Keeps the elites; the rest are mutated children of selected parents.

    Elites are evaluated again in every generation, as a noisy fitness requires.

    Source: Khadka & Tumer 2018, algorithm 1, https://arxiv.org/abs/1805.07917; see the operators
    for their sources.

    Attributes:
      pop_size: Candidates of a generation, P.
      init_std: See `PopulationSearch`.
      bounds: See `PopulationSearch`.
      elites: The number of fittest candidates that stay unchanged, less than P.
      selection: Chooses parents: `TournamentSelection`, `TruncationSelection`, or a function.
      crossover: See `MatingSearch`.
      crossover_rate: The probability that a pair is crossed; else the children are the parents.
      mutation: See `MatingSearch`.
      mutation_rate: The probability that a child is mutated.
    """

    elites: int = 1
    selection: Selection = TournamentSelection()
    crossover_rate: float = 0.9
    mutation_rate: float = 0.9

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.at_least("GA.elites", self.elites, 0, maximum=self.pop_size - 1)
        selection = "an operator such as TournamentSelection()"
        checks.function("GA.selection", self.selection, selection, classes=False)
        checks.probability("GA.crossover_rate", self.crossover_rate)
        checks.probability("GA.mutation_rate", self.mutation_rate)

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
        """Creates the next population."""
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
        """Returns children of selected parents, float32 [P - elites, D]."""
        keys = seeding.streams(key, ("selection", "crossover", "mutation", "is_mutated"))
        num = self.pop_size - self.elites
        pairs = (num + 1) // 2
        parents = tf.gather(candidates, self.selection(fitness, 2 * pairs, keys["selection"]))
        children = self.crossed(parents, self.crossover_rate, space, keys["crossover"])[:num]
        mutated = self.mutation(children, keys["mutation"], space)
        is_mutated = seeding.uniform(keys["is_mutated"], [num, 1]) < self.mutation_rate
        return tf.where(is_mutated, mutated, children)

    def centre(self, search: GAState) -> tf.Tensor:
        """Returns the fittest of the last generation."""
        return search.best
