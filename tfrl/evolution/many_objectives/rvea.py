"""The reference vector guided evolutionary algorithm."""

import itertools
import math

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.genetic.crossover import SBX, Crossover
from tfrl.evolution.many_objectives.core import ManyObjectivesSearch
from tfrl.loading import loadable


@struct.dataclass
class RVEAState(struct.Struct):
    """The state of `RVEA`.

    Attributes:
      population: The next offspring, float32 [P, D].
      parents: One per reference vector, float32 [P, D].
      parent_fitness: float32 [P, M]; -inf for a vector without a candidate.
      vectors: Reference vectors of length 1, float32 [P, M].
      units: int32 [D], the unit of each parameter.
    """

    population: tf.Tensor
    parents: tf.Tensor
    parent_fitness: tf.Tensor
    vectors: tf.Tensor
    units: tf.Tensor


@loadable
@struct.logic_dataclass
class RVEA(ManyObjectivesSearch):
    """Keeps, for each reference vector, the candidate of least angle-penalised distance.

      d = (1 + M (t / t_max)^alpha theta / gamma) |f - z|

    A candidate belongs to its nearest vector. f are the objectives, minimised; z is their least
    value in the generation, theta the angle between f - z and the vector, and gamma the angle from
    the vector to its nearest neighbour. Vectors begin as a simplex lattice, and are scaled to the
    ranges of the objectives every `adaptation_frequency` t_max generations. `params` is the knee of
    the front, see `knee_point`.

    Source: Cheng et al. 2016, https://doi.org/10.1109/TEVC.2016.2519378.

    Attributes:
      pop_size: The number of reference vectors and of offspring per generation: P, the size of a
        simplex lattice; any number for two objectives.
      init_std: See `PopulationSearch`; by default the first population is uniform in the bounds.
      bounds: See `PopulationSearch`; the defaults need them.
      num_objectives: M.
      num_generations: t_max; the penalty stays at its maximum afterwards.
      alpha: The exponent of the penalty's growth; greater values delay it.
      adaptation_frequency: The share of t_max between adaptations.
      crossover: See `MatingSearch`; applied to every pair.
      mutation: See `MatingSearch`; applied to every offspring.
    """

    num_generations: int = 100
    alpha: float = 2.0
    adaptation_frequency: float = 0.1
    crossover: Crossover = SBX(eta=30.0)

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.at_least("RVEA.num_generations", self.num_generations, 1)
        checks.number("RVEA.alpha", self.alpha, 0)
        checks.number("RVEA.adaptation_frequency", self.adaptation_frequency, 0, 1, closed=False)
        _lattice_steps(self.pop_size, self.num_objectives)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> RVEAState:
        """Draws the first population."""
        population = self.first_population(mean, key)
        return RVEAState(
            population=population,
            parents=population,
            parent_fitness=tf.fill([self.pop_size, self.num_objectives], -float("inf")),
            vectors=self._unit_vectors(1.0),
            units=tf.range(mean.shape[0]),
        )

    def learn(
        self,
        search: RVEAState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> RVEAState:
        """Chooses a parent for each vector, adapts the vectors, and creates offspring."""
        merged = tf.concat([search.parents, candidates], axis=0)
        merged_fitness = tf.concat([search.parent_fitness, fitness], axis=0)
        distance = self._penalised_distance(merged_fitness, search.vectors, generation)
        # The whole first population are parents.
        is_first = tf.fill([self.pop_size], generation == 0)
        occupied = tf.reduce_any(tf.math.is_finite(distance), axis=0)
        occupied = tf.where(is_first, tf.math.is_finite(fitness[:, 0]), occupied)
        own = tf.range(self.pop_size) + self.pop_size
        places = tf.where(is_first, own, tf.argmin(distance, axis=0, output_type=tf.int32))
        parents = tf.gather(merged, places)
        chosen = tf.where(occupied[:, None], tf.gather(merged_fitness, places), -float("inf"))
        return RVEAState(
            population=self._offspring(parents, occupied, search.units, key),
            parents=parents,
            parent_fitness=chosen,
            vectors=self._adapted(search.vectors, chosen, occupied, generation),
            units=search.units,
        )

    def _penalised_distance(
        self, fitness: tf.Tensor, vectors: tf.Tensor, generation: tf.Tensor
    ) -> tf.Tensor:
        """Returns d of candidates for their nearest vector, float32 [2P, P]; else infinity."""
        valid = tf.reduce_all(tf.math.is_finite(fitness), axis=1)
        f = tf.where(valid[:, None], -fitness, float("inf"))  # minimised, as in the paper
        f = tf.where(valid[:, None], f - tf.reduce_min(f, axis=0), 0.0)
        length = tf.norm(f, axis=1)
        angle = _angles(f, vectors)
        nearest = tf.argmin(angle, axis=1, output_type=tf.int32)
        time = tf.cast(generation, tf.float32) / self.num_generations
        penalty = self.num_objectives * tf.minimum(time, 1.0) ** self.alpha
        distance = (1.0 + penalty * angle / _gaps(vectors)) * length[:, None]
        own = valid[:, None] & (nearest[:, None] == tf.range(self.pop_size))
        return tf.where(own, distance, float("inf"))

    def _adapted(
        self, vectors: tf.Tensor, fitness: tf.Tensor, occupied: tf.Tensor, generation: tf.Tensor
    ) -> tf.Tensor:
        """Returns the vectors, scaled to the ranges of the parents' objectives when due."""
        least = tf.reduce_min(tf.where(occupied[:, None], fitness, float("inf")), axis=0)
        greatest = tf.reduce_max(tf.where(occupied[:, None], fitness, -float("inf")), axis=0)
        width = greatest - least
        usable = tf.reduce_all(width > 0)
        every = math.ceil(self.adaptation_frequency * self.num_generations)
        due = (generation + 1) % every == 0
        scaled = self._unit_vectors(tf.where(usable, width, 1.0))
        return tf.where(due & usable, scaled, vectors)

    def _unit_vectors(self, scale: tf.Tensor | float) -> tf.Tensor:
        """Returns the lattice's vectors, scaled by objective and normalised to length 1."""
        lattice = tf.constant(simplex_lattice(self.pop_size, self.num_objectives))
        scaled = lattice / tf.norm(lattice, axis=1, keepdims=True) * scale
        return scaled / tf.norm(scaled, axis=1, keepdims=True)

    def _offspring(
        self, parents: tf.Tensor, occupied: tf.Tensor, units: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """Creates offspring from random pairs of the occupied parents, float32 [P, D]."""
        keys = seeding.streams(key, ("pairs", "crossover", "mutation"))
        num = 2 * ((self.pop_size + 1) // 2)
        drawn = tf.gather(parents, shuffled(occupied, num, keys["pairs"]))
        space = self.space(parents.shape[1], units)
        children = self.crossed(drawn, 1.0, space, keys["crossover"])
        children = children[: self.pop_size]
        return space.clip(self.mutation(children, keys["mutation"], space))


def shuffled(valid: tf.Tensor, num: int, key: tf.Tensor) -> tf.Tensor:
    """Returns indices of True entries, all in random order before any is repeated.

    Args:
      valid: bool [N]; index 0 is used if no entry is True.
      num: The number of indices.
      key: int32 [2].

    Returns:
      int32 [num]; after four orders they repeat.
    """
    rounds = 4
    draws = seeding.uniform(key, [rounds, valid.shape[0]])
    orders = tf.argsort(tf.where(valid, draws, 2.0), stable=True)
    count = tf.maximum(tf.reduce_sum(tf.cast(valid, tf.int32)), 1)
    turn = tf.range(num)
    return tf.gather_nd(orders, tf.stack([turn // count % rounds, turn % count], axis=1))


def simplex_lattice(size: int, objectives: int) -> np.ndarray:
    """Returns evenly spaced points with coordinates that sum to 1, float32 [size, objectives].

    Source: Das & Dennis 1998, https://doi.org/10.1137/S1052623496307510.

    Raises:
      UserError: If no lattice has `size` points.
    """
    steps = _lattice_steps(size, objectives)
    points: list[tuple[int, ...]] = [()]
    for _ in range(objectives - 1):
        points = [(*p, i) for p in points for i in range(steps - sum(p) + 1)]
    lattice = np.array([(*p, steps - sum(p)) for p in points], np.float32)
    return lattice / steps


def _lattice_steps(size: int, objectives: int) -> int:
    """Returns the H of the lattice with C(H + M - 1, M - 1) points."""
    counts = (math.comb(h + objectives - 1, objectives - 1) for h in itertools.count(1))
    steps, points = next((h, n) for h, n in enumerate(counts, 1) if n >= size)
    if points != size:
        below = math.comb(steps + objectives - 2, objectives - 1)
        raise UserError(
            "RVEA.pop_size",
            expected=f"the number of points of a simplex lattice with {objectives} objectives",
            got=str(size),
            remedy=f"Use {below} or {points}." if steps > 1 else f"Use {points}.",
        )
    return steps


def _angles(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns angles between vectors [N, M] and [P, M], float32 [N, P]; pi / 2 for zero vectors.

    Computed in float64: if objectives differ much in scale, vectors are so close that float32 loses
    their angles in the arc cosine.
    """
    a, b = (tf.cast(x, tf.float64) for x in (a, b))
    a, b = (x / tf.maximum(tf.norm(x, axis=1, keepdims=True), 1e-30) for x in (a, b))
    cosine = tf.matmul(a, b, transpose_b=True)
    return tf.cast(tf.acos(tf.clip_by_value(cosine, -1.0, 1.0)), tf.float32)


def _gaps(vectors: tf.Tensor) -> tf.Tensor:
    """Returns gamma, the angle from each vector to its nearest neighbour, float32 [P]."""
    angles = tf.linalg.set_diag(_angles(vectors, vectors), tf.fill(vectors.shape[:1], np.pi))
    return tf.maximum(tf.reduce_min(angles, axis=1), 1e-6)
