"""Augmented random search."""

import tensorflow as tf

from tfrl import checks, struct
from tfrl.evolution.fitness import finite
from tfrl.evolution.strategies.core import EvolutionStrategy, MeanState, directions
from tfrl.evolution.strategies.recombination import combine
from tfrl.evolution.strategies.settings import check_mirrored, check_noise, check_rate
from tfrl.loading import loadable
from tfrl.ops.schedules import Schedule, make_schedule


@loadable
@struct.logic_dataclass
class ARS(EvolutionStrategy):
    """Steps along finite differences of the best mirrored directions.

      x_i+ = mean + nu delta_i,  x_i- = mean - nu delta_i
      mean += alpha / (b std) sum_i (f_i+ - f_i-) delta_i

    The sum is over the b directions of highest max(f_i+, f_i-), and std is the standard deviation
    of their 2 b fitness values. V1 and V2 of the paper are the same search; V2 also normalises
    observations, which the workflow does. With all directions it is V1 or V2, with fewer V1-t or
    V2-t; without `scale_by_std` it is the paper's basic random search.

    Source: Mania et al. 2018, algorithms 1 and 2, https://arxiv.org/abs/1803.07055.

    Attributes:
      pop_size: Candidates of a generation, P; even, a pair for each direction.
      num_elites: The number of directions used, b; None for all P / 2.
      lr_schedule: alpha by generation: a number or a schedule.
      noise_std_schedule: nu by generation: a number or a schedule.
      scale_by_std: Whether the step is divided by std.
    """

    num_elites: int | None = None
    lr_schedule: float | Schedule = 0.02
    noise_std_schedule: float | Schedule = 0.03
    scale_by_std: bool = True

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        check_mirrored("ARS", self.pop_size)
        checks.at_least(
            "ARS.num_elites", self.num_elites, 1, maximum=self.pop_size // 2, optional=True
        )
        check_rate("ARS.lr_schedule", self.lr_schedule)
        check_noise("ARS.noise_std_schedule", self.noise_std_schedule)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> MeanState:
        """Begins at the mean."""
        return MeanState(mean=mean)

    def sample(self, search: MeanState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + nu delta, then mean - nu delta."""
        delta = directions(key, self.pop_size, search.mean.shape[0], mirrored=True)
        return search.mean + make_schedule(self.noise_std_schedule)(generation) * delta

    def learn(
        self,
        search: MeanState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> MeanState:
        """Takes a step along the differences."""
        pairs = tf.reshape(finite(fitness), [2, -1])  # [+ and -, P / 2]
        b = self.num_elites or self.pop_size // 2
        best = tf.math.top_k(tf.reduce_max(pairs, axis=0), b).indices
        pairs = tf.gather(pairs, best, axis=1)
        nu = make_schedule(self.noise_std_schedule)(generation)
        plus, minus = tf.split(candidates, 2)
        delta = tf.gather((plus - minus) / (2.0 * nu), best)  # [b, D]
        std = tf.math.reduce_std(pairs) if self.scale_by_std else tf.constant(1.0)
        alpha = make_schedule(self.lr_schedule)(generation)
        # If all are equal, no direction is better, and std is 0.
        weights = tf.math.divide_no_nan(alpha * (pairs[0] - pairs[1]), b * std)
        return MeanState(mean=search.mean + combine(weights, delta))
