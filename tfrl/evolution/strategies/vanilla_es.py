"""The canonical evolution strategy."""

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.evolution.strategies.core import EvolutionStrategy, MeanState
from tfrl.evolution.strategies.recombination import best_first, combine, log_weights
from tfrl.evolution.strategies.settings import check_noise
from tfrl.loading import loadable
from tfrl.ops.schedules import Schedule, make_schedule


@loadable
@struct.logic_dataclass
class VanillaES(EvolutionStrategy):
    """Moves the mean to the weighted mean of the elites; the Gaussian keeps its shape.

      x_i = mean + sigma z_i
      mean = sum_i w_i x_i,  w_i ~ log(mu + 1/2) - log(i),  i = 1 .. mu the best

    Source: Chrabaszcz et al. 2018, algorithm 1, https://arxiv.org/abs/1802.08842 (they use 798
    candidates, 50 elites and sigma 0.05).

    Attributes:
      pop_size: Candidates of a generation, P.
      num_elites: The number of elites, mu; None for P / 16, at least 1.
      noise_std_schedule: sigma by generation: a number or a schedule.
    """

    num_elites: int | None = None
    noise_std_schedule: float | Schedule = 0.05

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.at_least(
            "VanillaES.num_elites", self.num_elites, 1, maximum=self.pop_size, optional=True
        )
        check_noise("VanillaES.noise_std_schedule", self.noise_std_schedule)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> MeanState:
        """Begins at the mean."""
        return MeanState(mean=mean)

    def sample(self, search: MeanState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma z."""
        z = seeding.normal(key, [self.pop_size, *search.mean.shape])
        return search.mean + make_schedule(self.noise_std_schedule)(generation) * z

    def learn(
        self,
        search: MeanState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> MeanState:
        """Recombines the elites."""
        mu = self.num_elites or max(1, self.pop_size // 16)
        elites = best_first(candidates, fitness, mu)
        step = combine(log_weights(mu, mu + 0.5), elites - search.mean)
        return MeanState(mean=search.mean + step)
