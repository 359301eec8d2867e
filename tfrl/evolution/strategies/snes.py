"""Separable natural evolution strategy."""

import math

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.fitness import FitnessShaping, log_utilities
from tfrl.evolution.strategies.core import EvolutionStrategy
from tfrl.evolution.strategies.recombination import combine
from tfrl.evolution.strategies.settings import check_rate
from tfrl.evolution.strategies.spread import bounded_std, growth
from tfrl.loading import loadable
from tfrl.ops.schedules import Schedule, make_schedule


@struct.dataclass
class SNESState(struct.Struct):
    """The mean and standard deviations sigma, float32 [D]."""

    mean: tf.Tensor
    sigma: tf.Tensor


@loadable
@struct.logic_dataclass
class SNES(EvolutionStrategy):
    """Follows the natural gradient of a Gaussian with independent coordinates.

      x_i = mean + sigma z_i
      mean += eta_mean sigma sum_i u_i z_i
      sigma *= exp(eta_sigma / 2 sum_i u_i (z_i^2 - 1))

    Utilities u are the shaped fitness. An exponent is within [-3, 3], which only candidates from
    outside reach.

    Source: Wierstra et al. 2014, algorithm 6, http://jmlr.org/papers/v15/wierstra14a.html.

    Attributes:
      pop_size: Candidates of a generation, P; see `default_pop_size`.
      init_std: sigma at the start.
      lr_schedule: eta_mean by generation: a number or a schedule.
      std_lr_schedule: eta_sigma, likewise; None for (3 + log D) / (5 sqrt(D)).
      fitness_shaping_fn: Makes utilities [P] of the fitness [P].
    """

    init_std: float = 0.1
    lr_schedule: float | Schedule = 1.0
    std_lr_schedule: float | Schedule | None = None
    fitness_shaping_fn: FitnessShaping = log_utilities

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.positive("SNES.init_std", self.init_std)
        check_rate("SNES.lr_schedule", self.lr_schedule)
        if self.std_lr_schedule is not None:
            check_rate("SNES.std_lr_schedule", self.std_lr_schedule)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> SNESState:
        """Begins with one standard deviation everywhere."""
        return SNESState(mean=mean, sigma=tf.fill(mean.shape, self.init_std))

    def sample(self, search: SNESState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + search.sigma * z

    def learn(
        self,
        search: SNESState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> SNESState:
        """Takes a step of mean and standard deviations."""
        mean, sigma = search.mean, search.sigma
        u = self.fitness_shaping_fn(fitness)
        z = (candidates - mean) / sigma
        d = mean.shape[0]
        rate = self.std_lr_schedule
        rate = (3.0 + math.log(d)) / (5.0 * math.sqrt(d)) if rate is None else rate
        exponent = make_schedule(rate)(generation) / 2.0 * combine(u, tf.square(z) - 1.0)
        return SNESState(
            mean=mean + make_schedule(self.lr_schedule)(generation) * sigma * combine(u, z),
            sigma=bounded_std(sigma * growth(exponent)),
        )
