"""Crossover: two children from two parents. Operators are values, called like functions."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfrl import checks, seeding
from tfrl.evolution.population_search import Space
from tfrl.loading import loadable

# crossover(a [N, D], b [N, D], key, space) -> two children of each pair, both [N, D]
Crossover = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, Space], tuple[tf.Tensor, tf.Tensor]]


def _swap(swapped: tf.Tensor, a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.where(swapped, b, a), tf.where(swapped, a, b)


@loadable
@dataclasses.dataclass(frozen=True)
class UniformCrossover:
    """Swaps each parameter of the parents with a probability.

    Source: Syswerda 1989, "Uniform crossover in genetic algorithms", ICGA.

    Attributes:
      rate: The probability.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.probability("UniformCrossover.rate", self.rate)

    def __call__(
        self, a: tf.Tensor, b: tf.Tensor, key: tf.Tensor, space: Space
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns two children of each pair, both [N, D].

        Args:
          a: First parents, float32 [N, D].
          b: Second parents, float32 [N, D].
          key: int32 [2].
          space: Bounds and units of the parameters.
        """
        return _swap(seeding.uniform(key, a.shape) < self.rate, a, b)


@loadable
@dataclasses.dataclass(frozen=True)
class NPointCrossover:
    """Swaps every other segment between random cuts.

    Source: De Jong 1975, "An analysis of the behavior of a class of genetic adaptive systems".

    Attributes:
      points: The number of cuts; two cuts at one place cancel each other.
    """

    points: int = 1

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.at_least("NPointCrossover.points", self.points, 1)

    def __call__(
        self, a: tf.Tensor, b: tf.Tensor, key: tf.Tensor, space: Space
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns two children of each pair, both [N, D]; see `UniformCrossover`."""
        size = a.shape[1]
        cuts = seeding.randint(key, [a.shape[0], self.points], 1, max(size, 2))
        swapped = tf.zeros(a.shape, tf.bool)
        for k in range(self.points):
            swapped = swapped ^ (tf.range(size) >= cuts[:, k, None])
        return _swap(swapped, a, b)


@loadable
@dataclasses.dataclass(frozen=True)
class NeuronCrossover:
    """Swaps each unit (the input weights of one neuron) with a probability.

    Source: Khadka & Tumer 2018, section 3, https://arxiv.org/abs/1805.07917; the paper swaps a
    random number of rows of each weight matrix.

    Attributes:
      rate: The probability.
    """

    rate: float = 0.5

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.probability("NeuronCrossover.rate", self.rate)

    def __call__(
        self, a: tf.Tensor, b: tf.Tensor, key: tf.Tensor, space: Space
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns two children of each pair, both [N, D]; see `UniformCrossover`."""
        by_unit = seeding.uniform(key, a.shape) < self.rate  # at most D units
        return _swap(tf.gather(by_unit, space.units, axis=1), a, b)


@loadable
@dataclasses.dataclass(frozen=True)
class SBX:
    """Simulated binary crossover: children spread around the parents' mean.

      c = (a + b) / 2 -+ beta |a - b| / 2
      beta = (alpha u)^(1 / (eta + 1)),        u <= 1 / alpha
             (1 / (2 - alpha u))^(1 / (eta + 1)),  else
      alpha = 2 - (1 + 2 room / |a - b|)^-(eta + 1)

    `room` is the distance from the nearer parent to its bound; without bounds alpha is 2. The
    children of a parameter are exchanged with probability 1/2.

    Source: Deb & Agrawal 1995, https://www.complex-systems.com/abstracts/v09_i02_a02/; bounds as in
    Deb's NSGA-II code.

    Attributes:
      eta: The distribution index; greater values keep children nearer to the parents.
      rate: The probability that a parameter is crossed.
    """

    eta: float = 15.0
    rate: float = 0.5

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.number("SBX.eta", self.eta, 0)
        checks.probability("SBX.rate", self.rate)

    def __call__(
        self, a: tf.Tensor, b: tf.Tensor, key: tf.Tensor, space: Space
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns two children of each pair, both [N, D]; see `UniformCrossover`."""
        keys = seeding.streams(key, ("cross", "spread", "exchange"))
        low, high = tf.minimum(a, b), tf.maximum(a, b)
        crossed = (seeding.uniform(keys["cross"], a.shape) < self.rate) & (low < high)
        gap = tf.where(low < high, high - low, 1.0)
        u = seeding.uniform(keys["spread"], a.shape)

        def half_spread(room: tf.Tensor) -> tf.Tensor:
            lost = (1.0 + 2.0 * tf.maximum(room, 0.0) / gap) ** -(self.eta + 1.0)  # 2 - alpha
            alpha_u = (2.0 - lost) * u
            # 2 - alpha u as a sum of positive terms: the difference would lose precision.
            base = tf.where(alpha_u <= 1.0, alpha_u, 1.0 / (2.0 * (1.0 - u) + lost * u))
            return 0.5 * gap * base ** (1.0 / (self.eta + 1.0))

        middle = 0.5 * (low + high)
        lower = space.clip(middle - half_spread(low - space.low))
        upper = space.clip(middle + half_spread(space.high - high))
        exchanged = seeding.uniform(keys["exchange"], a.shape) < 0.5
        first, second = _swap(exchanged, lower, upper)
        return tf.where(crossed, first, a), tf.where(crossed, second, b)
