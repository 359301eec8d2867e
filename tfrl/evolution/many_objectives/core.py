"""The base of multi-objective searches."""

from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.genetic.mating import MatingSearch
from tfrl.evolution.genetic.mutation import Mutation, PolynomialMutation
from tfrl.evolution.many_objectives.fronts import knee_point, pareto_front


@struct.logic_dataclass
class ManyObjectivesSearch(MatingSearch):
    """A search whose state has the `parents`, float32 [P, D], and `parent_fitness` [P, M].

    `params` is the knee of the parents' front, see `knee_point`.

    Attributes:
      init_std: See `PopulationSearch`; by default the first population is uniform in the bounds.
      bounds: See `PopulationSearch`; the defaults need them.
      num_objectives: M.
      crossover: See `MatingSearch`.
      mutation: See `MatingSearch`; applied to every offspring.
    """

    init_std: float | None = None
    num_objectives: int = 2
    mutation: Mutation = PolynomialMutation(eta=20.0)

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.at_least(
            f"{type(self).__name__}.num_objectives",
            self.num_objectives,
            2,
            remedy="Use GA, DE, PSO or an evolution strategy for one objective.",
        )

    def centre(self, search: Any) -> tf.Tensor:
        """Returns the knee of the parents' front."""
        return tf.gather(search.parents, knee_point(search.parent_fitness))

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `front_size`: the number of non-dominated parents."""
        front = pareto_front(state.search.parent_fitness)
        return {"front_size": tf.reduce_sum(tf.cast(front, tf.float32))}
