"""The base of cross-entropy methods: weighted elites and decaying noise."""

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.evolution.strategies.core import EvolutionStrategy
from tfrl.evolution.strategies.recombination import log_weights
from tfrl.evolution.strategies.settings import check_rate
from tfrl.ops.schedules import ExponentialSchedule, Schedule, make_schedule


@struct.logic_dataclass
class EliteStrategy(EvolutionStrategy):
    """A strategy that fits a Gaussian to its elites, and adds variance.

    Attributes:
      pop_size: Candidates of a generation, P.
      num_elites: The number of elites, K; None for half of the candidates.
      elite_weights: "log" for lambda_i ~ log(1 + K) - log(i), i = 1 the best, or "uniform" for
        1 / K.
      init_std: The standard deviation of the first generation.
      noise_schedule: The variance epsilon that each generation adds: a number or a schedule.
    """

    num_elites: int | None = None
    elite_weights: str = "log"
    init_std: float = 1e-3**0.5
    noise_schedule: float | Schedule = ExponentialSchedule(1e-3, 0.95, 1, end=1e-5)

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        name, size = type(self).__name__, self.pop_size
        checks.at_least(f"{name}.num_elites", self.num_elites, 1, maximum=size, optional=True)
        checks.one_of(f"{name}.elite_weights", self.elite_weights, ("log", "uniform"))
        checks.positive(f"{name}.init_std", self.init_std)
        check_rate(f"{name}.noise_schedule", self.noise_schedule)

    @property
    def _num_elites(self) -> int:
        return self.num_elites or self.pop_size // 2

    @property
    def _weights(self) -> np.ndarray:
        """The weights of the elites, float64 [K], best first."""
        k = self._num_elites
        return log_weights(k, k + 1) if self.elite_weights == "log" else np.full(k, 1 / k)

    def _noise(self, generation: tf.Tensor) -> tf.Tensor:
        """Returns the variance that this generation adds."""
        return make_schedule(self.noise_schedule)(generation)
