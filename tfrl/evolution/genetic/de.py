"""Differential evolution."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.population_search import PopulationSearch
from tfrl.loading import loadable


@struct.dataclass
class DEState(struct.Struct):
    """The state of `DE`.

    Attributes:
      population: The next trials u, float32 [P, D].
      targets: x, float32 [P, D].
      target_fitness: float32 [P]; -inf before the first generation.
    """

    population: tf.Tensor
    targets: tf.Tensor
    target_fitness: tf.Tensor


@loadable
@struct.logic_dataclass
class DE(PopulationSearch):
    """A trial replaces its target if it is at least as fit.

      v_i = x_base + F (x_r2 - x_r3)
      u_ij = v_ij where rand < CR or j = j_rand, else x_ij

    The base is x_r1 for rand/1/bin and the fittest target for best/1/bin; r1, r2 and r3 differ from
    each other and from i. The first trials are the first population.

    Source: Storn & Price 1997, section 2, https://doi.org/10.1023/A:1008202821328.

    Attributes:
      pop_size: Targets, P, at least 4.
      init_std: See `PopulationSearch`.
      bounds: See `PopulationSearch`.
      variant: "rand/1/bin" or "best/1/bin".
      differential_weight: F.
      crossover_rate: CR.
    """

    variant: str = "rand/1/bin"
    differential_weight: float = 0.5
    crossover_rate: float = 0.9

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.at_least(
            "DE.pop_size",
            self.pop_size,
            4,
            remedy="Use at least 4: mutation needs three other candidates.",
        )
        checks.one_of("DE.variant", self.variant, ("rand/1/bin", "best/1/bin"))
        checks.positive("DE.differential_weight", self.differential_weight)
        checks.probability("DE.crossover_rate", self.crossover_rate)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> DEState:
        """Draws the first population."""
        population = self.first_population(mean, key)
        unknown = tf.fill([self.pop_size], -float("inf"))
        return DEState(population=population, targets=population, target_fitness=unknown)

    def learn(
        self,
        search: DEState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> DEState:
        """Chooses the targets, and creates trials from them."""
        better = fitness >= search.target_fitness
        x = tf.where(better[:, None], candidates, search.targets)
        fitness = tf.where(better, fitness, search.target_fitness)

        keys = seeding.streams(key, ("others", "crossover", "one"))
        r1, r2, r3 = tf.unstack(others(self.pop_size, 3, keys["others"]))
        base = r1 if self.variant == "rand/1/bin" else tf.argmax(fitness)
        v = tf.gather(x, base) + self.differential_weight * (tf.gather(x, r2) - tf.gather(x, r3))
        size = x.shape[1]
        crossed = seeding.uniform(keys["crossover"], x.shape) < self.crossover_rate
        j_rand = seeding.randint(keys["one"], [self.pop_size, 1], 0, size)
        trials = tf.where(crossed | (tf.range(size) == j_rand), self.space(size).clip(v), x)
        return DEState(population=trials, targets=x, target_fitness=fitness)

    def centre(self, search: DEState) -> tf.Tensor:
        """Returns the fittest target."""
        return tf.gather(search.targets, tf.argmax(search.target_fitness))


def others(pop_size: int, num: int, key: tf.Tensor) -> tf.Tensor:
    """Draws for each index `num` other indices, all different.

    Returns:
      int32 [num, P].
    """
    taken = tf.range(pop_size)[None]
    for k, key_k in enumerate(tf.unstack(seeding.split(key, num))):
        place = seeding.randint(key_k, [pop_size], 0, pop_size - 1 - k)
        for other in tf.unstack(tf.sort(taken, axis=0)):  # skips the taken indices
            place += tf.cast(place >= other, tf.int32)
        taken = tf.concat([taken, place[None]], axis=0)
    return taken[1:]
