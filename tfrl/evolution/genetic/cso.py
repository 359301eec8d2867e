"""The competitive swarm optimizer."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.population_search import PopulationSearch
from tfrl.loading import loadable


@struct.dataclass
class CSOState(struct.Struct):
    """The state of `CSO`.

    Attributes:
      population: Positions x, float32 [P, D].
      velocities: v, float32 [P, D].
      best: float32 [D], the fittest of the last generation.
    """

    population: tf.Tensor
    velocities: tf.Tensor
    best: tf.Tensor


@loadable
@struct.logic_dataclass
class CSO(PopulationSearch):
    """Particles meet in random pairs; the loser moves towards the winner, which stays.

      v_l <- r1 v_l + r2 (x_w - x_l) + phi r3 (mean(x) - x_l)
      x_l <- x_l + v_l

    r1, r2 and r3 are uniform in [0, 1), drawn for each parameter. Velocities begin at 0. Winners
    are evaluated again, as a noisy fitness requires.

    Source: Cheng & Jin 2015, equations 6 and 7, https://doi.org/10.1109/TCYB.2014.2322602.

    Attributes:
      pop_size: Particles, P, an even number.
      init_std: See `PopulationSearch`.
      bounds: See `PopulationSearch`.
      phi: The attraction of the swarm's mean; the paper recommends 0 for up to 100 particles.
    """

    phi: float = 0.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.number("CSO.phi", self.phi, 0)
        checks.even("CSO.pop_size", self.pop_size, "particles meet in pairs")

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> CSOState:
        """Draws the first swarm, at rest."""
        population = self.first_population(mean, key)
        return CSOState(population=population, velocities=tf.zeros_like(population), best=mean)

    def learn(
        self,
        search: CSOState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> CSOState:
        """Moves the losers; the winners become the first half of the swarm."""
        keys = seeding.streams(key, ("pairs", "move"))
        order = tf.argsort(seeding.uniform(keys["pairs"], [self.pop_size]), stable=True)
        one, other = tf.split(order, 2)
        wins = tf.gather(fitness, one) >= tf.gather(fitness, other)
        winners, losers = tf.where(wins, one, other), tf.where(wins, other, one)

        x_w, x_l = tf.gather(candidates, winners), tf.gather(candidates, losers)
        v_w, v_l = tf.gather(search.velocities, winners), tf.gather(search.velocities, losers)
        r1, r2, r3 = tf.unstack(seeding.uniform(keys["move"], [3, *x_l.shape]))
        v_l = r1 * v_l + r2 * (x_w - x_l) + self.phi * r3 * (tf.reduce_mean(candidates, 0) - x_l)
        moved = self.space(candidates.shape[1]).clip(x_l + v_l)
        return CSOState(
            population=tf.concat([x_w, moved], axis=0),
            velocities=tf.concat([v_w, v_l], axis=0),
            best=tf.gather(candidates, tf.argmax(fitness)),
        )

    def centre(self, search: CSOState) -> tf.Tensor:
        """Returns the fittest of the last generation."""
        return search.best
