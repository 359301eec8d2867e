"""MAP-Elites."""

import math
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.core import EvoState
from tfrl.evolution.diversity.archive import GridArchive, coverage, grid_cells, qd_score
from tfrl.evolution.diversity.emitters import Emitter, IsoLineEmitter
from tfrl.evolution.population_search import PopulationSearch, check_bounds
from tfrl.loading import loadable
from tfrl.types import Nest


@struct.dataclass
class MAPElitesState(struct.Struct):
    """The next candidates, float32 [P, D], and the archive."""

    population: tf.Tensor
    archive: GridArchive


@loadable
@struct.logic_dataclass
class MAPElites(PopulationSearch):
    """Keeps the fittest candidate of each cell of a descriptor grid, and varies these elites.

      state = optimizer.tell(state, fitness, descriptors=descriptors)

    Descriptors describe a candidate's behaviour, for example its final position; they are not its
    fitness. `params` is the fittest elite. While the archive is empty, candidates are emitted
    around the initial parameters.

    Source: Mouret & Clune 2015, algorithm 1, https://arxiv.org/abs/1504.04909; in batches.

    Attributes:
      pop_size: Candidates of a generation, P.
      init_std: See `PopulationSearch`.
      bounds: The bounds of the parameters, see `PopulationSearch`.
      grid: The number of cells per descriptor, for example (50, 50).
      descriptor_bounds: (low, high) by descriptor; candidates out of bounds belong to the edge.
      emitter: Creates candidates from elites: `IsoLineEmitter`, `GaussianEmitter`, or a function.
    """

    grid: tuple[int, ...] = (50, 50)
    descriptor_bounds: tuple[tuple[float, float], ...] = ((-1.0, 1.0), (-1.0, 1.0))
    emitter: Emitter = IsoLineEmitter()

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        remedy = "Pass (50, 50) for two descriptors."
        if not checks.sizes("MAPElites.grid", self.grid, remedy=remedy):
            raise UserError(
                "MAPElites.grid", expected="at least one descriptor", got="()", remedy=remedy
            )
        emitter = "an emitter such as IsoLineEmitter()"
        checks.function("MAPElites.emitter", self.emitter, emitter, classes=False)
        bounds: Any = self.descriptor_bounds
        pairs = bounds if isinstance(bounds, tuple | list) else ()
        are_pairs = all(isinstance(x, tuple | list) and len(x) == 2 for x in pairs)
        if not are_pairs or len(pairs) != len(self.grid):
            raise UserError(
                "MAPElites.descriptor_bounds",
                expected=f"(low, high) for each of the {len(self.grid)} descriptors of the grid",
                got=repr(bounds),
                remedy="Pass ((-1.0, 1.0), (-1.0, 1.0)) for two descriptors.",
            )
        for pair in pairs:
            check_bounds("MAPElites.descriptor_bounds", pair)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> MAPElitesState:
        """Draws the first population; the archive is empty."""
        num = math.prod(self.grid)
        archive = GridArchive(
            params=tf.tile(mean[None], [num, 1]),
            fitness=tf.fill([num], -float("inf")),
            descriptors=tf.zeros([num, len(self.grid)]),
        )
        return MAPElitesState(population=self.first_population(mean, key), archive=archive)

    def tell(  # type: ignore[override]  # the search needs descriptors
        self,
        state: EvoState,
        fitness: tf.Tensor,
        population: Nest = None,
        *,
        descriptors: tf.Tensor,
    ) -> EvoState:
        """Returns the state of the next generation.

        Args:
          state: See `EvoOptimizer.tell`.
          fitness: float32 [P].
          population: See `EvoOptimizer.tell`.
          descriptors: float32 [P, K], K the axes of the grid. A candidate with a non-finite
            descriptor is dropped.

        Raises:
          UserError: For a fitness or descriptors of another shape.
        """
        descriptors = tf.cast(tf.convert_to_tensor(descriptors), tf.float32)
        wanted = [self.pop_size, len(self.grid)]
        if not descriptors.shape.is_compatible_with(wanted):
            raise UserError(
                "descriptors of MAPElites.tell",
                expected=f"float32 {wanted}, in the order of the candidates",
                got=f"shape {descriptors.shape.as_list()}",
                remedy="Pass one number per candidate and axis of the grid.",
            )
        descriptors = tf.ensure_shape(descriptors, wanted)
        return self._tell(state, fitness, population, descriptors=descriptors)

    def learn(  # type: ignore[override]
        self,
        search: MAPElitesState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
        *,
        descriptors: tf.Tensor,
    ) -> MAPElitesState:
        """Inserts the candidates, and emits the next candidates from the elites."""
        known = tf.reduce_all(tf.math.is_finite(descriptors), axis=1)
        descriptors = tf.where(known[:, None], descriptors, 0.0)
        archive = search.archive.insert(
            grid_cells(descriptors, self.grid, self.descriptor_bounds),
            candidates,
            tf.where(known, fitness, -float("inf")),
            descriptors,
        )
        keys = seeding.streams(key, ("elites", "emitter"))
        filled = tf.math.is_finite(archive.fitness)
        chosen = pick_elites(filled, [2, self.pop_size], keys["elites"])
        x, y = tf.unstack(tf.gather(archive.params, chosen))
        emitted = self.emitter(x, y, keys["emitter"])
        return MAPElitesState(population=self.space(x.shape[1]).clip(emitted), archive=archive)

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `coverage`, the share of cells with an elite, and `qd_score`, their fitness."""
        archive = state.search.archive
        return {"coverage": coverage(archive), "qd_score": qd_score(archive)}

    def centre(self, search: MAPElitesState) -> tf.Tensor:
        """Returns the fittest elite."""
        return tf.gather(search.archive.params, tf.argmax(search.archive.fitness))


def pick_elites(filled: tf.Tensor, shape: list[int], key: tf.Tensor) -> tf.Tensor:
    """Draws indices of True entries with replacement; 0 if there are none.

    Args:
      filled: bool [C].
      shape: The shape of the result.
      key: int32 [2].

    Returns:
      int32 of that shape.
    """
    order = tf.argsort(tf.cast(~filled, tf.int32), stable=True)  # filled cells first
    count = tf.maximum(tf.reduce_sum(tf.cast(filled, tf.int32)), 1)
    return tf.gather(order, seeding.randint(key, shape, 0, count))
