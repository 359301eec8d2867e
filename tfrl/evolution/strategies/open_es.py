"""OpenAI's evolution strategy."""

import tensorflow as tf

from tfrl import checks, struct
from tfrl.evolution.fitness import FitnessShaping, centered_ranks
from tfrl.evolution.strategies.core import EvolutionStrategy, directions
from tfrl.evolution.strategies.recombination import combine
from tfrl.evolution.strategies.settings import (
    as_optimizer,
    check_mirrored,
    check_noise,
    check_rate,
    check_shaping,
    shaped,
)
from tfrl.learning.optimizers import Optimizer, Slots
from tfrl.loading import loadable
from tfrl.ops.schedules import Schedule, make_schedule


@struct.dataclass
class OpenESState(struct.Struct):
    """The state of `OpenES`.

    Attributes:
      mean: float32 [D].
      slots: The optimizer's slots.
      settings: `{name: float32 scalar}` of `OpenES.hyperparameters`.
    """

    mean: tf.Tensor
    slots: Slots
    settings: dict[str, tf.Tensor]


@loadable
@struct.logic_dataclass
class OpenES(EvolutionStrategy):
    """Moves the mean of a Gaussian of fixed shape along an estimate of the gradient.

      x_i = mean + sigma z_i
      g = sum_i w_i z_i / (P sigma) - weight_decay mean

    The weights w are the shaped fitness; the optimizer takes a step along g.

    Source: Salimans et al. 2017, algorithm 2 and section 2.1, https://arxiv.org/abs/1703.03864.

    Attributes:
      pop_size: Candidates of a generation, P; even for mirrored sampling.
      lr_schedule: Learning rate by generation: a number or a schedule.
      noise_std_schedule: sigma by generation: a number or a schedule.
      mirror_sampling: Whether the second half of the z is minus the first.
      optimizer: An optimizer or its name: adam, sgd, ...
      weight_decay: The factor that pulls the mean to 0.
      fitness_shaping_fn: Converts the fitness [P] to weights [P].
      hyperparameters: A subset of "learning_rate" and "noise_std" to make leaves of the state, in
        place of the schedules, so that members of a population of searches may differ in them.
    """

    lr_schedule: float | Schedule = 0.05
    noise_std_schedule: float | Schedule = 0.1
    mirror_sampling: bool = True
    optimizer: str | Optimizer = "adam"
    weight_decay: float = 0.0
    fitness_shaping_fn: FitnessShaping = centered_ranks
    hyperparameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks the settings."""
        super().__post_init__()
        checks.number("OpenES.weight_decay", self.weight_decay, low=0)
        check_rate("OpenES.lr_schedule", self.lr_schedule)
        check_noise("OpenES.noise_std_schedule", self.noise_std_schedule)
        as_optimizer("OpenES.optimizer", self.optimizer)
        check_shaping("OpenES", self.fitness_shaping_fn)
        checks.boolean("OpenES.mirror_sampling", self.mirror_sampling)
        checks.known("OpenES.hyperparameters", self.hyperparameters, self._schedules)
        if self.mirror_sampling:
            check_mirrored("OpenES", self.pop_size, ", or mirror_sampling=False")

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> OpenESState:
        """Begins at the mean, with fresh slots."""
        settings = {n: self._schedules[n](tf.constant(0, tf.int64)) for n in self.hyperparameters}
        return OpenESState(mean=mean, slots=self._optimizer.init(mean), settings=settings)

    @property
    def _schedules(self) -> dict[str, Schedule]:
        return {
            "learning_rate": make_schedule(self.lr_schedule),
            "noise_std": make_schedule(self.noise_std_schedule),
        }

    def _setting(self, search: OpenESState, name: str, generation: tf.Tensor) -> tf.Tensor:
        own = search.settings.get(name)
        return self._schedules[name](generation) if own is None else own

    def sample(self, search: OpenESState, generation: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns mean + sigma z."""
        noise = directions(key, self.pop_size, search.mean.shape[0], mirrored=self.mirror_sampling)
        return search.mean + self._setting(search, "noise_std", generation) * noise

    def learn(
        self,
        search: OpenESState,
        candidates: tf.Tensor,
        fitness: tf.Tensor,
        generation: tf.Tensor,
        key: tf.Tensor,
    ) -> OpenESState:
        """Takes a step of the optimizer."""
        sigma = self._setting(search, "noise_std", generation)
        weights = shaped(self.fitness_shaping_fn, fitness)
        steps = combine(weights, candidates - search.mean)
        gradient = steps / (self.pop_size * sigma**2) - self.weight_decay * search.mean
        rate = self._setting(search, "learning_rate", generation)
        mean, slots = self._optimizer.update(-gradient, search.slots, search.mean, rate)
        return search.replace(mean=mean, slots=slots)

    @property
    def _optimizer(self) -> Optimizer:
        return as_optimizer("OpenES.optimizer", self.optimizer)
