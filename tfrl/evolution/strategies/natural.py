"""The base of natural evolution strategies: their settings."""

import tensorflow as tf

from tfrl import checks, struct
from tfrl.evolution.fitness import FitnessShaping, log_utilities
from tfrl.evolution.strategies.core import EvolutionStrategy
from tfrl.evolution.strategies.settings import check_rate, check_shaping
from tfrl.ops.schedules import Schedule, make_schedule


@struct.logic_dataclass
class NaturalStrategy(EvolutionStrategy):
    """A strategy that follows the natural gradient of its Gaussian.

    Attributes:
      pop_size: Candidates of a generation, P; see `default_pop_size`.
      init_std: The initial sigma.
      lr_schedule: eta_mean by generation: a number or a schedule.
      std_lr_schedule: eta_sigma by generation: a number or a schedule; None for the value of the
        strategy's paper.
      fitness_shaping_fn: Converts the fitness [P] to utilities [P].
    """

    init_std: float = 0.1
    lr_schedule: float | Schedule = 1.0
    std_lr_schedule: float | Schedule | None = None
    fitness_shaping_fn: FitnessShaping = log_utilities

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        name = type(self).__name__
        checks.positive(f"{name}.init_std", self.init_std)
        check_rate(f"{name}.lr_schedule", self.lr_schedule)
        check_shaping(name, self.fitness_shaping_fn)
        if self.std_lr_schedule is not None:
            check_rate(f"{name}.std_lr_schedule", self.std_lr_schedule)

    def _rates(self, generation: tf.Tensor, default: float) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns eta_mean and eta_sigma of a generation; `default` is the paper's eta_sigma."""
        rate = default if self.std_lr_schedule is None else self.std_lr_schedule
        return make_schedule(self.lr_schedule)(generation), make_schedule(rate)(generation)
