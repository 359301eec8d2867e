"""Exploitation and exploration of population-based training, as functions.

Source: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.loading import loadable

SCALES = ("log", "linear", "one_minus")

# exploit(fitness [P], key) -> int32 [P], the member whose state each member continues with
Exploit = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@loadable
@struct.logic_dataclass
class Hyperparameter(struct.Struct):
    """A hyperparameter of the members: a leaf of the state.

    Attributes:
      path: The end of its path in the state, for example "learning_rate" or "extra/clip"; sets
        every leaf whose path has this end.
      low: The least value.
      high: The greatest value.
      scale: The scale of draws and changes: "log" by factors, "linear" by parts of the range,
        "one_minus" by factors of 1 - value, for discounts: value = 1 - e^-g.
    """

    path: str
    low: float
    high: float
    scale: str = "log"

    def __post_init__(self) -> None:
        """Checks the range."""
        name = f"Hyperparameter {self.path!r}"
        checks.one_of(f"{name}: scale", self.scale, SCALES)
        checks.number(
            f"{name}: low",
            self.low,
            0 if self.scale == "log" else -math.inf,
            closed=self.scale != "log",
        )
        # Above, 1 - high is 0 in float32.
        most = 1.0 - 1e-7 if self.scale == "one_minus" else math.inf
        checks.number(f"{name}: high", self.high, self.low, most, closed=False, below=True)

    def coordinate(self, value: Any) -> tf.Tensor:
        """Returns values on the scale: log v, v, or log (1 - v)."""
        value = tf.convert_to_tensor(value, tf.float32)
        if self.scale == "one_minus":
            return tf.math.log(1.0 - value)
        return tf.math.log(value) if self.scale == "log" else value

    def value(self, coordinate: tf.Tensor) -> tf.Tensor:
        """Returns the values of coordinates, within the range."""
        value = coordinate
        if self.scale != "linear":
            value = tf.exp(coordinate)
        if self.scale == "one_minus":
            value = 1.0 - value
        return tf.clip_by_value(value, self.low, self.high)

    def draw(self, key: tf.Tensor, num: int) -> tf.Tensor:
        """Draws values [num], uniform in the coordinate."""
        ends = self.coordinate([self.low, self.high])
        return self.value(ends[0] + (ends[1] - ends[0]) * seeding.uniform(key, [num]))


# Exploitation: int32 [P].


@loadable
@struct.logic_dataclass
class Truncation(struct.Struct):
    """Each of the worst fraction of the members copies one of the best fraction.

    Source: Jaderberg et al. 2017, section 4.1.1, https://arxiv.org/abs/1711.09846.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        """Checks the fraction."""
        checks.number("Truncation.fraction", self.fraction, 0, 0.5, closed=False)

    def __call__(self, fitness: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns the parent of each member."""
        size = fitness.shape[0]
        number = max(1, round(self.fraction * size)) if size > 1 else 0
        order = tf.argsort(fitness, direction="DESCENDING", stable=True)
        if not number:
            return tf.range(size)
        healthy = tf.reduce_sum(tf.cast(fitness > -math.inf, tf.int32))  # not lost
        best = seeding.randint(key, [number], 0, number) % tf.clip_by_value(healthy, 1, number)
        chosen = tf.gather(order, best)
        return tf.tensor_scatter_nd_update(
            tf.range(size), order[size - number :, tf.newaxis], chosen
        )


@loadable
@struct.logic_dataclass
class Tournament(struct.Struct):
    """Each member meets a random other member, and copies it if that is fitter.

    Source: Jaderberg et al. 2017, section 4.1.1 (binary tournament).
    """

    def __call__(self, fitness: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns the parent of each member."""
        size = fitness.shape[0]
        own = tf.range(size)
        other = (own + seeding.randint(key, [size], 1, max(2, size))) % size
        return tf.where(tf.gather(fitness, other) > fitness, other, own)


@loadable
@struct.logic_dataclass
class Pairs(struct.Struct):
    """Members meet in random pairs; the loser copies the winner.

    With `CSOExplore` it is the competitive swarm of Cheng and Jin 2015,
    https://doi.org/10.1109/TCYB.2014.2322602. In an odd population one member stays unchanged.
    """

    def __call__(self, fitness: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns the parent of each member."""
        size = fitness.shape[0]
        order = tf.argsort(seeding.uniform(key, [size]))
        half = size // 2
        a, b = order[:half], order[half : 2 * half]
        a_wins = tf.gather(fitness, a) >= tf.gather(fitness, b)
        winner, loser = tf.where(a_wins, a, b), tf.where(a_wins, b, a)
        return tf.tensor_scatter_nd_update(tf.range(size), loser[:, tf.newaxis], winner)


# Exploration: coordinates float32 [P] of the members that copied another.


@loadable
@struct.logic_dataclass
class Perturb(struct.Struct):
    """Multiplies or divides by `factor`, or resamples from the range with a probability.

    For a linear hyperparameter it adds or subtracts the part `factor - 1` of the range.

    Attributes:
      factor: A number above 1.
      resample_probability: The probability of resampling.
      log_uniform: Whether to draw the factor log-uniformly between 1 / factor and factor.
    """

    factor: float = 1.2
    resample_probability: float = 0.0
    log_uniform: bool = False

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.number("Perturb.factor", self.factor, 1, closed=False)
        checks.probability("Perturb.resample_probability", self.resample_probability)

    def __call__(
        self,
        hyperparameter: Hyperparameter,
        own: tf.Tensor,
        parents: tf.Tensor,
        velocity: tf.Tensor,
        key: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns new coordinates [P] from the parents' coordinates, and the velocity."""
        keys = seeding.streams(key, ["step", "whether", "anew"])
        size = own.shape[0]
        if hyperparameter.scale == "linear":
            width = (self.factor - 1.0) * (hyperparameter.high - hyperparameter.low)
        else:
            width = math.log(self.factor)
        step = seeding.uniform(keys["step"], [size], -1.0, 1.0)
        step = width * (step if self.log_uniform else tf.sign(step))
        perturbed = tf.gather(own, parents) + step
        anew = hyperparameter.coordinate(hyperparameter.draw(keys["anew"], size))
        draws = seeding.uniform(keys["whether"], [size]) < self.resample_probability
        return tf.where(draws, anew, perturbed), velocity


@loadable
@struct.logic_dataclass
class CSOExplore(struct.Struct):
    """The loser's hyperparameters move towards the winner's and the mean.

      v = r1 v + r2 (winner - x) + phi r3 (mean - x),  x = x + v

    Source: Cheng and Jin 2015, equations 6 and 7, https://doi.org/10.1109/TCYB.2014.2322602.

    Attributes:
      phi: Weight of the mean.
    """

    phi: float = 0.1

    def __call__(
        self,
        hyperparameter: Hyperparameter,
        own: tf.Tensor,
        parents: tf.Tensor,
        velocity: tf.Tensor,
        key: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns new coordinates [P], and the velocity [P]."""
        r1, r2, r3 = tf.unstack(seeding.uniform(key, [3, own.shape[0]]))
        pull = r2 * (tf.gather(own, parents) - own)
        moved = r1 * velocity + pull + self.phi * r3 * (tf.reduce_mean(own) - own)
        return own + moved, moved
