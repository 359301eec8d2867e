"""Particle swarm optimization."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.population_search import PopulationSearch
from tfrl.loading import loadable


@struct.dataclass
class PSOState(struct.Struct):
    """The state of `PSO`.

    Attributes:
      population: Positions x, float32 [P, D].
      velocities: v, float32 [P, D].
      best: The best position p of each particle, float32 [P, D].
      best_fitness: The fitness at the best positions, float32 [P]; -inf before the first
        generation.
    """

    population: tf.Tensor
    velocities: tf.Tensor
    best: tf.Tensor
    best_fitness: tf.Tensor


@loadable
@struct.logic_dataclass
class PSO(PopulationSearch):
    """Particles move towards their own best position and the swarm's.

      v <- w v + c1 r1 (p - x) + c2 r2 (g - x)
      x <- x + v

    r1 and r2 are uniform in [0, 1), drawn for each parameter. Velocities begin at 0.

    Source: Kennedy & Eberhart 1995, https://doi.org/10.1109/ICNN.1995.488968; inertia: Shi &
    Eberhart 1998, https://doi.org/10.1109/ICEC.1998.699146. The defaults are the constriction
    factor of Clerc & Kennedy 2002, https://doi.org/10.1109/4235.985692.

    Attributes:
      pop_size: Particles, P.
      init_std: See `PopulationSearch`.
      bounds: See `PopulationSearch`.
      inertia: w.
      cognitive: c1.
      social: c2.
      max_velocity: The bound of |v| in each parameter, or None.
    """

    inertia: float = 0.7298
    cognitive: float = 1.49618
    social: float = 1.49618
    max_velocity: float | None = None

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        for name in ("inertia", "cognitive", "social"):
            checks.number(f"PSO.{name}", getattr(self, name), 0)
        checks.number("PSO.max_velocity", self.max_velocity, 0, closed=False, optional=True)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> PSOState:
        """Draws the first swarm, at rest."""
        population = self.first_population(mean, key)
        return PSOState(
            population=population,
            velocities=tf.zeros_like(population),
            best=population,
            best_fitness=tf.fill([self.pop_size], -float("inf")),
        )

    def learn(
        self,
        search: PSOState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> PSOState:
        """Moves the swarm."""
        better = fitness > search.best_fitness
        own = tf.where(better[:, None], candidates, search.best)
        own_fitness = tf.where(better, fitness, search.best_fitness)
        shared = tf.gather(own, tf.argmax(own_fitness))

        r1, r2 = tf.unstack(seeding.uniform(key, [2, *candidates.shape]))
        velocities = (
            self.inertia * search.velocities
            + self.cognitive * r1 * (own - candidates)
            + self.social * r2 * (shared - candidates)
        )
        if self.max_velocity is not None:
            velocities = tf.clip_by_value(velocities, -self.max_velocity, self.max_velocity)
        return PSOState(
            population=self.space(candidates.shape[1]).clip(candidates + velocities),
            velocities=velocities,
            best=own,
            best_fitness=own_fitness,
        )

    def centre(self, search: PSOState) -> tf.Tensor:
        """Returns the best position of the swarm so far."""
        return tf.gather(search.best, tf.argmax(search.best_fitness))
