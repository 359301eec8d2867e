"""The base of searches by crossover and mutation."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.core import EvoState
from tfrl.evolution.genetic.crossover import Crossover, UniformCrossover
from tfrl.evolution.genetic.mutation import GaussianMutation, Mutation, PolynomialMutation
from tfrl.evolution.population_search import PopulationSearch, Space, unit_numbers
from tfrl.types import Nest


@struct.logic_dataclass
class MatingSearch(PopulationSearch):
    """A search with children as candidates; its state has the `units`, int32 [D].

    Attributes:
      init_std: See `PopulationSearch`.
      bounds: See `PopulationSearch`.
      crossover: Creates two children from two parents: `UniformCrossover`, `NPointCrossover`,
        `NeuronCrossover`, `SBX`, or a function.
      mutation: Changes children: `GaussianMutation`, `ERLMutation`, `PolynomialMutation`, or a
        function.
    """

    crossover: Crossover = UniformCrossover()
    mutation: Mutation = GaussianMutation()

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        name = type(self).__name__
        crossover, mutation = (
            f"an operator such as {n}()" for n in ("UniformCrossover", "GaussianMutation")
        )
        checks.function(f"{name}.crossover", self.crossover, crossover, classes=False)
        checks.function(f"{name}.mutation", self.mutation, mutation, classes=False)
        if isinstance(self.mutation, PolynomialMutation) and self.bounds is None:
            raise UserError(
                f"{name}.bounds",
                expected="(low, high), the range of PolynomialMutation",
                got="None",
                remedy="Pass bounds=(-1.0, 1.0), or use GaussianMutation.",
            )

    def init(self, params: Nest, key: tf.Tensor) -> EvoState:
        """Returns the state before the first generation; see `EvoOptimizer.init`."""
        state = super().init(params, key)
        return state.replace(search=state.search.replace(units=unit_numbers(state.params)))

    def crossed(self, parents: tf.Tensor, rate: float, space: Space, key: tf.Tensor) -> tf.Tensor:
        """Crosses the first half of the parents with the second, float32 [2N, D].

        Args:
          parents: float32 [2N, D].
          rate: The probability that a pair is crossed; else the children are the parents.
          space: Bounds and units of the parameters.
          key: int32 [2].
        """
        keys = seeding.streams(key, ("children", "which"))
        a, b = tf.split(parents, 2)
        children = tf.concat(self.crossover(a, b, keys["children"], space), axis=0)
        is_crossed = seeding.uniform(keys["which"], [a.shape[0], 1]) < rate
        return tf.where(tf.tile(is_crossed, [2, 1]), children, parents)
