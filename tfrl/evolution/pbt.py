"""Population-based training as functions: who takes over from whom, and what is tried next.

Source: Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.loading import loadable

SCALES = ("log", "linear", "one_minus")

# exploit(fitness [P], key) -> int32 [P], whose state each member goes on with
Exploit = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@loadable
@struct.logic_dataclass
class Hyperparameter(struct.Struct):
    """A number that members differ in: a leaf of the state.

    Attributes:
      path: The end of its path in the state, "learning_rate" or "extra/clip" say; every leaf whose
        path ends so is set.
      low: The least value.
      high: The greatest.
      scale: How values are spread and changed: "log" by factors, "linear" by parts of the range,
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
        checks.number(f"{name}: high", self.high, self.low, closed=False)
        if self.scale == "one_minus":
            checks.number(f"{name}: high", self.high, self.low, 1.0 - 1e-7)

    def coordinate(self, value: Any) -> tf.Tensor:
        """Returns values as they are spread and changed: log v, v, or log (1 - v)."""
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
    """The last fraction of the members goes on with one of the first fraction each.

    Source: Jaderberg et al. 2017, section 4.1.1, https://arxiv.org/abs/1711.09846.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        """Checks the fraction."""
        checks.number("Truncation.fraction", self.fraction, 0, 0.5, closed=False)

    def __call__(self, fitness: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns whose state each member goes on with."""
        size = fitness.shape[0]
        number = max(1, round(self.fraction * size)) if size > 1 else 0
        order = tf.argsort(fitness, direction="DESCENDING", stable=True)
        if not number:
            return tf.range(size)
        chosen = tf.gather(order, seeding.randint(key, [number], 0, number))
        return tf.tensor_scatter_nd_update(
            tf.range(size), order[size - number :, tf.newaxis], chosen
        )


@loadable
@struct.logic_dataclass
class Tournament(struct.Struct):
    """Each member meets another one, and goes on with its state where that is fitter.

    Source: Jaderberg et al. 2017, section 4.1.1 (binary tournament).
    """

    def __call__(self, fitness: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns whose state each member goes on with."""
        size = fitness.shape[0]
        own = tf.range(size)
        other = (own + seeding.randint(key, [size], 1, max(2, size))) % size
        return tf.where(tf.gather(fitness, other) > fitness, other, own)


@loadable
@struct.logic_dataclass
class Pairs(struct.Struct):
    """Members meet in pairs; the loser goes on with the winner's state.

    With `CSOExplore` the competitive swarm of Cheng and Jin 2015,
    https://doi.org/10.1109/TCYB.2014.2322602. Of an odd number one stays as it is.
    """

    def __call__(self, fitness: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns whose state each member goes on with."""
        size = fitness.shape[0]
        order = tf.argsort(seeding.uniform(key, [size]))
        half = size // 2
        a, b = order[:half], order[half : 2 * half]
        a_wins = tf.gather(fitness, a) >= tf.gather(fitness, b)
        winner, loser = tf.where(a_wins, a, b), tf.where(a_wins, b, a)
        return tf.tensor_scatter_nd_update(tf.range(size), loser[:, tf.newaxis], winner)


# Exploration: coordinates float32 [P] of the members that took over.


@loadable
@struct.logic_dataclass
class Perturb(struct.Struct):
    """Multiplies by `factor` or divides by it; with a probability draws anew from the range.

    Of a linear hyperparameter a part of the range is added or taken away: `factor - 1` of it.

    Attributes:
      factor: Above 1.
      resample_probability: Of drawing anew.
      log_uniform: Whether the factor is drawn log-uniformly between both, instead.
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
        """Returns coordinates [P] to try from those of the parents, and the velocity."""
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
        """Returns coordinates [P] to try, and the velocity [P]."""
        r1, r2, r3 = tf.unstack(seeding.uniform(key, [3, own.shape[0]]))
        pull = r2 * (tf.gather(own, parents) - own)
        moved = r1 * velocity + pull + self.phi * r3 * (tf.reduce_mean(own) - own)
        return own + moved, moved
