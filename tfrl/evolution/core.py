"""The interface of evolution: `init`, `ask` and `tell` over nests of parameters."""

import abc
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.vectors import ravel, unravel
from tfrl.types import Nest


@struct.dataclass
class EvoState(struct.Struct):
    """The state of a search.

    Attributes:
      key: int32 [2]; generation g draws from `fold_in(key, g)`.
      generation: int64 scalar, generations so far.
      params: The centre of the search, a nest like one candidate: the mean of its distribution, or
        the best of its population.
      search: The state of the strategy.
    """

    key: tf.Tensor
    generation: tf.Tensor
    params: Nest
    search: Any


@struct.logic_dataclass
class EvoOptimizer(struct.Struct, abc.ABC):
    """A search for the parameters of highest fitness, as functions of its state.

      population, state = optimizer.ask(state)
      state = optimizer.tell(state, fitness_of(population))

    Every function is pure; two calls of `ask` return the same population. A subclass works on
    vectors: it defines `start`, `sample`, `learn` and `centre`.

    Attributes:
      pop_size: Candidates of a generation, P.
    """

    pop_size: int

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.at_least(f"{type(self).__name__}.pop_size", self.pop_size, 2)

    @property
    def num_objectives(self) -> int:
        """The number of objectives in the fitness of a candidate."""
        return 1

    def init(self, params: Nest, key: tf.Tensor) -> EvoState:
        """Returns the state before the first generation.

        Args:
          params: The start of the search, a nest of float32 tensors, D elements in all.
          key: int32 [2].
        """
        name = f"params of {type(self).__name__}.init"
        leaves = struct.paths(params)
        if not leaves:
            raise UserError(
                name, expected="at least one parameter", got=repr(params), remedy="Pass a nest."
            )
        for path, leaf in leaves.items():
            checks.dtype(f"{name}: {path}", leaf, tf.float32, remedy="Cast it to float32.")
        params = struct.values(params)
        search = self.start(ravel(params), seeding.stream(key, "start"))
        return EvoState(key=key, generation=tf.constant(0, tf.int64), params=params, search=search)

    def ask(self, state: EvoState) -> tuple[Nest, EvoState]:
        """Returns the candidates of this generation, and the state.

        Returns:
          A nest like the parameters with leaves `[P, ...]`, and the state for `tell`.
        """
        return unravel(self._candidates(state), state.params), state

    def tell(self, state: EvoState, fitness: tf.Tensor, population: Nest = None) -> EvoState:
        """Returns the state of the next generation.

        Args:
          state: The state from `ask`.
          fitness: float32 `[P]`, higher is better; `[P, num_objectives]` for several objectives. A
            candidate with non-finite fitness ranks last. If none is finite, the search stays as it
            was.
          population: The evaluated candidates, leaves `[P, ...]`, if they differ from the result of
            `ask`, for example with injected candidates. One with non-finite parameters ranks last.

        Raises:
          UserError: For a fitness or a population of another shape.
        """
        return self._tell(state, fitness, population)

    def _tell(self, state: EvoState, fitness: Any, population: Nest, **more: Any) -> EvoState:
        """`tell`, with further arguments for `learn`."""
        fitness = self.checked_fitness(fitness)
        if population is None:
            candidates = self._candidates(state)
        else:
            candidates = self._vectors("population", population, state.params, [self.pop_size])
            candidates, fitness = self._without_lost(candidates, fitness, state)
        key = seeding.stream(seeding.fold_in(state.key, state.generation), "tell")
        any_known = tf.reduce_any(tf.math.is_finite(fitness))
        # A select: XLA would compile the branches of a condition apart, and copy their results.
        fitness = tf.where(any_known, fitness, 0.0)
        learned = self.learn(state.search, candidates, fitness, state.generation, key, **more)
        search = tf.nest.map_structure(
            lambda new, old: tf.where(any_known, new, old), learned, state.search
        )
        # Before a known fitness the best of a population is none.
        centre = tf.where(any_known, self.centre(search), ravel(state.params))
        return state.replace(
            generation=state.generation + 1, params=unravel(centre, state.params), search=search
        )

    def pull(self, state: EvoState, params: Nest, share: Any) -> EvoState:
        """Returns the state with the mean of its distribution moved towards other parameters.

          mean + share (params - mean)

        Args:
          state: The state between `tell` and `ask`.
          params: A nest like one candidate.
          share: A number or a float32 scalar, from 0 (no move) to 1 (all the way).

        Raises:
          UserError: For a search without a mean, or parameters of another shape.
        """
        mean = getattr(state.search, "mean", None)
        if mean is None:
            raise UserError(
                f"{type(self).__name__}.pull",
                expected="a search whose distribution has a mean, such as OpenES",
                got="a population-based search",
                remedy="Inject candidates with `tell(state, fitness, population)`.",
            )
        target = self._vectors("params", params, state.params, [])
        search = state.search.replace(mean=mean + share * (target - mean))
        centre = unravel(self.centre(search), state.params)
        return state.replace(search=search, params=centre)

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns metrics of the search, `{name: float32 scalar}`, for example a step size."""
        return {}

    def _candidates(self, state: EvoState) -> tf.Tensor:
        """Returns the population of this generation as vectors, float32 [P, D]."""
        key = seeding.stream(seeding.fold_in(state.key, state.generation), "ask")
        return self.sample(state.search, state.generation, key)

    def _vectors(self, name: str, nest: Nest, like: Nest, batch: list[int]) -> tf.Tensor:
        """Returns a nest like the parameters as vectors, float32 `[*batch, D]`."""
        name = f"{name} of {type(self).__name__}"
        wanted, leaves = struct.paths(like), struct.paths(nest)
        if set(leaves) != set(wanted):
            raise UserError(
                name,
                expected=f"the leaves of the parameters: {', '.join(wanted)}",
                got=", ".join(leaves) or "none",
                remedy="Pass what `ask` returns, with some of its rows replaced."
                if batch
                else "Pass a nest like one candidate.",
            )
        for path, leaf in leaves.items():
            checks.dtype(f"{name}: {path}", leaf, tf.float32, remedy="Cast it to float32.")
            shape = [*batch, *wanted[path].shape]
            if not tf.TensorShape(leaf.shape).is_compatible_with(shape):
                raise UserError(
                    f"{name}: {path}",
                    expected=f"float32 {shape}",
                    got=f"shape {list(leaf.shape)}",
                    remedy="Pass one row per candidate, as from `ask`."
                    if batch
                    else "Pass a nest like one candidate.",
                )
        return ravel(nest, batch_dims=len(batch))

    def _without_lost(
        self, candidates: tf.Tensor, fitness: tf.Tensor, state: EvoState
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Replaces candidates with non-finite parameters by the centre, with a fitness of -inf.

        Strategies multiply a lost candidate by a weight of 0 too, which NaN would survive.
        """
        # A sum is finite if all elements are, and needs no tensor of the population's size.
        known = tf.math.is_finite(tf.reduce_sum(candidates, axis=1, keepdims=True))
        candidates = tf.cond(
            tf.reduce_all(known),
            lambda: candidates,
            lambda: tf.where(known, candidates, self.centre(state.search)),
        )
        known = known if fitness.shape.rank == 2 else known[:, 0]
        return candidates, tf.where(known, fitness, -float("inf"))

    def checked_fitness(self, fitness: Any) -> tf.Tensor:
        """Returns a fitness in float32, with -inf for candidates with non-finite fitness.

        Args:
          fitness: `[P]`, or `[P, num_objectives]` for several objectives.

        Raises:
          UserError: For another shape.
        """
        fitness = tf.cast(tf.convert_to_tensor(fitness), tf.float32)
        several = [self.num_objectives] if self.num_objectives > 1 else []
        wanted = [self.pop_size, *several]
        if not fitness.shape.is_compatible_with(wanted):
            remedy = "Pass one number per candidate."
            if self.num_objectives > 1:
                remedy = "Pass one number per candidate and objective."
            elif fitness.shape.rank == 2:
                remedy += " Use NSGA2 or RVEA for several objectives."
            raise UserError(
                f"fitness of {type(self).__name__}.tell",
                expected=f"float32 {wanted}, in the order of the candidates",
                got=f"shape {fitness.shape.as_list()}",
                remedy=remedy,
            )
        fitness = tf.ensure_shape(fitness, wanted)  # of functions of Python it may be unknown
        fitness = tf.where(fitness == 0.0, 0.0, fitness)  # XLA sorts -0.0 before 0.0
        known = tf.math.is_finite(fitness)
        if several:  # one non-finite objective ranks the candidate last in all
            known = tf.reduce_all(known, axis=1, keepdims=True)
        return tf.where(known, fitness, -float("inf"))

    # For a subclass to define, over vectors of D elements.

    @abc.abstractmethod
    def start(self, mean: tf.Tensor, key: tf.Tensor) -> Any:
        """Returns the initial state of the strategy around `mean`, float32 [D]."""

    @abc.abstractmethod
    def sample(self, search: Any, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns the candidates, float32 [P, D]; `generation` int64 drives schedules."""

    @abc.abstractmethod
    def learn(
        self,
        search: Any,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> Any:
        """Returns the state of the strategy after a generation.

        Args:
          search: The state before the generation.
          candidates: float32 [P, D], from `sample`, some maybe replaced.
          fitness: float32 [P], or `[P, M]` for M objectives; -inf for non-finite fitness.
          generation: int64 scalar, the number of the generation, from 0.
          key: int32 [2].
        """

    @abc.abstractmethod
    def centre(self, search: Any) -> tf.Tensor:
        """Returns the centre of the search, float32 [D]."""
