"""NSGA-II."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.genetic.crossover import SBX, Crossover
from tfrl.evolution.many_objectives.core import ManyObjectivesSearch
from tfrl.evolution.many_objectives.fronts import crowding_distance, non_dominated_ranks
from tfrl.loading import loadable


@struct.dataclass
class NSGA2State(struct.Struct):
    """The state of `NSGA2`.

    Attributes:
      population: The next offspring, float32 [P, D].
      parents: float32 [P, D].
      parent_fitness: float32 [P, M]; -inf before the first generation.
      units: int32 [D], the unit of each parameter.
    """

    population: tf.Tensor
    parents: tf.Tensor
    parent_fitness: tf.Tensor
    units: tf.Tensor


@loadable
@struct.logic_dataclass
class NSGA2(ManyObjectivesSearch):
    """Parents and offspring compete by front, and within a front by crowding distance.

    The first P by rank, then by greater crowding distance, survive. Binary tournaments by this
    order, crossover and mutation create their offspring. `params` is the knee of the survivors'
    front, see `knee_point`.

    Source: Deb et al. 2002, https://doi.org/10.1109/4235.996017.

    Attributes:
      pop_size: The number of parents and of offspring per generation: P, an even number.
      init_std: See `PopulationSearch`; by default the first population is uniform in the bounds.
      bounds: See `PopulationSearch`; the defaults need them.
      num_objectives: M.
      crossover: See `MatingSearch`.
      crossover_rate: The probability that a pair is crossed.
      mutation: See `MatingSearch`; applied to every offspring.
    """

    crossover: Crossover = SBX(eta=15.0)
    crossover_rate: float = 0.9

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.even("NSGA2.pop_size", self.pop_size, "two parents have two children")

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> NSGA2State:
        """Draws the first population."""
        population = self.first_population(mean, key)
        unknown = tf.fill([self.pop_size, self.num_objectives], -float("inf"))
        units = tf.range(mean.shape[0])
        return NSGA2State(
            population=population, parents=population, parent_fitness=unknown, units=units
        )

    def learn(
        self,
        search: NSGA2State,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> NSGA2State:
        """Chooses the parents, and creates their offspring."""
        merged = tf.concat([search.parents, candidates], axis=0)
        fitness = tf.concat([search.parent_fitness, fitness], axis=0)
        ranks = non_dominated_ranks(fitness)
        crowding = crowding_distance(fitness, ranks)
        order = tf.argsort(-crowding, stable=True)
        order = tf.gather(order, tf.argsort(tf.gather(ranks, order), stable=True))[: self.pop_size]
        parents, ranks, crowding = (tf.gather(x, order) for x in (merged, ranks, crowding))
        keys = seeding.streams(key, ("tournament", "offspring"))
        winners = tf.gather(parents, _tournaments(ranks, crowding, keys["tournament"]))
        return NSGA2State(
            population=self._offspring(winners, search.units, keys["offspring"]),
            parents=parents,
            parent_fitness=tf.gather(fitness, order),
            units=search.units,
        )

    def _offspring(self, winners: tf.Tensor, units: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Creates offspring from the winners of tournaments, both float32 [P, D]."""
        keys = seeding.streams(key, ("crossover", "mutation"))
        space = self.space(winners.shape[1], units)
        children = self.crossed(winners, self.crossover_rate, space, keys["crossover"])
        return space.clip(self.mutation(children, keys["mutation"], space))


def _tournaments(ranks: tf.Tensor, crowding: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Returns winners by rank, then by greater crowding distance, then at random: int32 [P].

    Every candidate enters two tournaments, one in each of two random orders; neighbours in an order
    are a tournament. The first half of the result mates with the second.
    """
    size = ranks.shape[0]
    orders = tf.argsort(seeding.uniform(key, [2, size]), stable=True)
    one, other = tf.unstack(tf.reshape(orders, [size, 2]), axis=1)
    rank, other_rank = tf.gather(ranks, one), tf.gather(ranks, other)
    less_crowded = tf.gather(crowding, other) > tf.gather(crowding, one)
    other_wins = (other_rank < rank) | ((other_rank == rank) & less_crowded)
    winners = tf.where(other_wins, other, one)
    return tf.concat([winners[::2], winners[1::2]], axis=0)
