"""Policy gradients with parameter-based exploration."""

import tensorflow as tf

from tfrl import checks, struct
from tfrl.evolution.core import EvoState
from tfrl.evolution.fitness import FitnessShaping, centered_ranks
from tfrl.evolution.strategies.core import EvolutionStrategy, directions
from tfrl.evolution.strategies.recombination import combine
from tfrl.evolution.strategies.settings import (
    as_optimizer,
    check_mirrored,
    check_rate,
    check_shaping,
    shaped,
)
from tfrl.evolution.strategies.spread import bounded_std
from tfrl.learning.optimizers import Optimizer, Slots
from tfrl.loading import loadable
from tfrl.ops.schedules import Schedule, make_schedule


@struct.dataclass
class PGPEState(struct.Struct):
    """The mean and standard deviations sigma, float32 [D], and the optimizer's slots."""

    mean: tf.Tensor
    sigma: tf.Tensor
    slots: Slots


@loadable
@struct.logic_dataclass
class PGPE(EvolutionStrategy):
    """Moves mean and standard deviations of a Gaussian with independent coordinates.

      x_i+ = mean + e_i,  x_i- = mean - e_i,  e_i = sigma z_i,  i = 1 .. N,  N = P / 2
      g_mean = 1/N sum_i e_i (w_i+ - w_i-) / 2
      g_sigma = 1/N sum_i (e_i^2 - sigma^2) / sigma ((w_i+ + w_i-) / 2 - b)

    The weights w are the shaped fitness, and the baseline b is their mean. The optimizer takes a
    step along g_mean; sigma takes a step along g_sigma.

    Source: Sehnke et al. 2010, algorithm 2, https://doi.org/10.1016/j.neunet.2009.12.004; the bound
    of the change of sigma is from Toklu et al. 2020, https://arxiv.org/abs/2008.02387.

    Attributes:
      pop_size: Candidates of a generation, P; even, a pair for each direction.
      init_std: The initial sigma.
      lr_schedule: Learning rate of the mean by generation: a number or a schedule.
      std_lr_schedule: Learning rate of sigma by generation: a number or a schedule.
      max_std_change: The greatest relative change of sigma per step.
      optimizer: An optimizer or its name, for the mean: sgd, adam, ...
      fitness_shaping_fn: Converts the fitness [P] to weights [P]; `finite` keeps it unchanged.
    """

    init_std: float = 0.1
    lr_schedule: float | Schedule = 0.2
    std_lr_schedule: float | Schedule = 0.1
    max_std_change: float = 0.2
    optimizer: str | Optimizer = "sgd"
    fitness_shaping_fn: FitnessShaping = centered_ranks

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_mirrored("PGPE", self.pop_size)
        checks.positive("PGPE.init_std", self.init_std)
        check_rate("PGPE.lr_schedule", self.lr_schedule)
        check_rate("PGPE.std_lr_schedule", self.std_lr_schedule)
        checks.probability("PGPE.max_std_change", self.max_std_change)
        as_optimizer("PGPE.optimizer", self.optimizer)
        check_shaping("PGPE", self.fitness_shaping_fn)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> PGPEState:
        """Begins at the mean, with equal sigmas and fresh slots."""
        sigma = tf.fill(mean.shape, float(self.init_std))
        return PGPEState(mean=mean, sigma=sigma, slots=self._optimizer.init(mean))

    def sample(self, search: PGPEState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma z, then mean - sigma z."""
        z = directions(key, self.pop_size, search.mean.shape[0], mirrored=True)
        return search.mean + search.sigma * z

    def learn(
        self,
        search: PGPEState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> PGPEState:
        """Takes a step of the optimizer and a step of sigma."""
        sigma, num = search.sigma, self.pop_size // 2
        weights = shaped(self.fitness_shaping_fn, fitness)
        w_plus, w_minus = tf.split(weights, 2)
        x_plus, x_minus = tf.split(candidates, 2)
        e = (x_plus - x_minus) / 2.0
        g_mean = combine((w_plus - w_minus) / 2.0, e) / num
        rate = make_schedule(self.lr_schedule)(generation)
        mean, slots = self._optimizer.update(-g_mean, search.slots, search.mean, rate)

        baseline = tf.reduce_mean(weights)
        spread = (tf.square(e) - tf.square(sigma)) / sigma
        g_sigma = combine((w_plus + w_minus) / 2.0 - baseline, spread) / num
        most = self.max_std_change * sigma
        rate = make_schedule(self.std_lr_schedule)(generation)
        change = tf.clip_by_value(rate * g_sigma, -most, most)
        return PGPEState(mean=mean, sigma=bounded_std(sigma + change), slots=slots)

    def metrics(self, state: EvoState) -> dict[str, tf.Tensor]:
        """Returns `step_size`: the mean standard deviation."""
        return {"step_size": tf.reduce_mean(state.search.sigma)}

    @property
    def _optimizer(self) -> Optimizer:
        return as_optimizer("PGPE.optimizer", self.optimizer)
