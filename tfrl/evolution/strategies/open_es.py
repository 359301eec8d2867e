"""OpenAI's evolution strategy."""

from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution.core import EvoOptimizer
from tfrl.evolution.fitness import FitnessShaping, centered_ranks
from tfrl.learning.optimizers import BY_NAME, Optimizer, Slots
from tfrl.loading import loadable
from tfrl.ops.schedules import Schedule, make_schedule


@struct.dataclass
class OpenESState(struct.Struct):
    """What changes.

    Attributes:
      mean: float32 [D].
      slots: The optimizer's.
      settings: `{name: float32 scalar}` of `OpenES.hyperparameters`.
    """

    mean: tf.Tensor
    slots: Slots
    settings: dict[str, tf.Tensor]


@loadable
@struct.logic_dataclass
class OpenES(EvoOptimizer):
    """Ascends the mean of a Gaussian of fixed shape along an estimate of the gradient.

      x_i = mean + sigma z_i
      g = sum_i w_i z_i / (P sigma) - weight_decay mean

    Weights w are the shaped fitness; the optimizer takes a step along g.

    Source: Salimans et al. 2017, algorithm 2 and section 2.1, https://arxiv.org/abs/1703.03864.

    Attributes:
      pop_size: Candidates of a generation, P; even for mirrored sampling.
      lr_schedule: Learning rate by generation: a number or a schedule.
      noise_std_schedule: sigma by generation, likewise.
      mirror_sampling: Whether the second half of the z is minus the first.
      optimizer: An optimizer or the name of one: adam, sgd, ...
      weight_decay: Pulls the mean to 0.
      fitness_shaping_fn: Makes weights [P] of the fitness [P].
      hyperparameters: Of "learning_rate" and "noise_std" those that are leaves of the state, in the
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
        if isinstance(self.optimizer, str):
            checks.one_of("OpenES.optimizer", self.optimizer, BY_NAME)
        checks.known("OpenES.hyperparameters", self.hyperparameters, self._schedules)
        check_mirrored("OpenES", self.pop_size, self.mirror_sampling)

    def start(self, mean: tf.Tensor, key: tf.Tensor) -> OpenESState:
        """Begins with no step taken."""
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
        weights = self.fitness_shaping_fn(fitness)
        steps = tf.linalg.matvec(candidates - search.mean, weights, transpose_a=True)
        gradient = steps / (self.pop_size * sigma**2) - self.weight_decay * search.mean
        rate = self._setting(search, "learning_rate", generation)
        mean, slots = self._optimizer.update(-gradient, search.slots, search.mean, rate)
        return search.replace(mean=mean, slots=slots)

    def centre(self, search: OpenESState) -> tf.Tensor:
        """Returns the mean."""
        return search.mean

    @property
    def _optimizer(self) -> Any:
        return BY_NAME[self.optimizer]() if isinstance(self.optimizer, str) else self.optimizer


def directions(key: tf.Tensor, pop_size: int, size: int, *, mirrored: bool) -> tf.Tensor:
    """Draws standard normals [P, D]; mirrored, row P / 2 + i is minus row i."""
    if not mirrored:
        return seeding.normal(key, [pop_size, size])
    half = seeding.normal(key, [pop_size // 2, size])
    return tf.concat([half, -half], axis=0)


def check_mirrored(name: str, pop_size: int, mirrored: bool) -> None:
    """Raises a UserError for an odd population of mirrored pairs."""
    if mirrored and pop_size % 2:
        raise UserError(
            f"{name}.pop_size",
            expected="an even number, since candidates are sampled in mirrored pairs",
            got=str(pop_size),
            remedy=f"Use {pop_size + 1}, or mirror_sampling=False.",
        )
