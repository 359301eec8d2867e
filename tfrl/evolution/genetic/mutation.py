"""Mutation: random changes of candidates. Operators are values, called like functions."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfrl import checks, seeding
from tfrl.evolution.population_search import Space
from tfrl.loading import loadable

# mutation(x [N, D], key, space) -> [N, D]
Mutation = Callable[[tf.Tensor, tf.Tensor, Space], tf.Tensor]


@loadable
@dataclasses.dataclass(frozen=True)
class GaussianMutation:
    """Adds Gaussian noise to a share of the parameters.

    Source: Such et al. 2017, algorithm 1, https://arxiv.org/abs/1712.06567, with rate 1.

    Attributes:
      std: Standard deviation of the noise.
      rate: The probability that a parameter is mutated.
    """

    std: float = 0.1
    rate: float = 1.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.positive("GaussianMutation.std", self.std)
        checks.probability("GaussianMutation.rate", self.rate)

    def __call__(self, x: tf.Tensor, key: tf.Tensor, space: Space) -> tf.Tensor:
        """Returns mutated candidates, float32 [N, D].

        Args:
          x: float32 [N, D].
          key: int32 [2].
          space: Bounds and units of the parameters.
        """
        keys = seeding.streams(key, ("noise", "which"))
        mutated = x + self.std * seeding.normal(keys["noise"], x.shape)
        if self.rate == 1.0:
            return mutated
        return tf.where(seeding.uniform(keys["which"], x.shape) < self.rate, mutated, x)


@loadable
@dataclasses.dataclass(frozen=True)
class ERLMutation:
    """The mutation of evolutionary RL: relative noise, sometimes strong noise, or a reset.

    A share of the weights is mutated, each by one of

      w <- w + super_strength |w| z,  with probability super_prob
      w <- z,                         with probability reset_prob
      w <- w + strength |w| z,        else;  z ~ N(0, 1)

    Source: Khadka & Tumer 2018, algorithm 3, https://arxiv.org/abs/1805.07917; the noise is added,
    as in the authors' code.

    Attributes:
      rate: The probability that a weight is mutated.
      strength: The strength of the usual noise, relative to the weight.
      super_strength: The strength of the strong noise, relative to the weight.
      super_prob: The probability of strong noise.
      reset_prob: The probability that the weight is resampled.
    """

    rate: float = 0.1
    strength: float = 0.1
    super_strength: float = 10.0
    super_prob: float = 0.05
    reset_prob: float = 0.05

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.probability("ERLMutation.rate", self.rate)
        checks.positive("ERLMutation.strength", self.strength)
        checks.positive("ERLMutation.super_strength", self.super_strength)
        checks.probability("ERLMutation.super_prob", self.super_prob)
        checks.number(
            "ERLMutation.reset_prob",
            self.reset_prob,
            0,
            1 - self.super_prob,
            remedy="Lower it, so that super_prob + reset_prob is at most 1.",
        )

    def __call__(self, x: tf.Tensor, key: tf.Tensor, space: Space) -> tf.Tensor:
        """Returns mutated candidates, float32 [N, D]; see `GaussianMutation`."""
        keys = seeding.streams(key, ("noise", "which", "kind"))
        z = seeding.normal(keys["noise"], x.shape)
        kind = seeding.uniform(keys["kind"], x.shape)
        strength = tf.where(
            kind < self.super_prob, float(self.super_strength), float(self.strength)
        )
        reset = (kind >= self.super_prob) & (kind < self.super_prob + self.reset_prob)
        mutated = tf.where(reset, z, x + strength * tf.abs(x) * z)
        return tf.where(seeding.uniform(keys["which"], x.shape) < self.rate, mutated, x)


@loadable
@dataclasses.dataclass(frozen=True)
class PolynomialMutation:
    """Moves a parameter within its bounds, usually by a small step.

      x <- x + d (high - low)
      d = (2u + (1 - 2u) (1 - l)^(eta + 1))^(1 / (eta + 1)) - 1,              u <= 1/2
          1 - (2(1 - u) + (2u - 1) (1 - h)^(eta + 1))^(1 / (eta + 1)),        else

    l and h are the shares of the range below and above x. It needs bounds.

    Source: Deb & Goyal 1996, "A combined genetic adaptive search (GeneAS) for engineering design";
    bounds as in Deb's NSGA-II code.

    Attributes:
      eta: The distribution index; greater values make smaller moves.
      rate: The probability that a parameter is mutated; None for 1 / D.
    """

    eta: float = 20.0
    rate: float | None = None

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.number("PolynomialMutation.eta", self.eta, 0)
        if self.rate is not None:
            checks.probability("PolynomialMutation.rate", self.rate)

    def __call__(self, x: tf.Tensor, key: tf.Tensor, space: Space) -> tf.Tensor:
        """Returns mutated candidates, float32 [N, D]; see `GaussianMutation`."""
        keys = seeding.streams(key, ("move", "which"))
        rate = 1.0 / x.shape[1] if self.rate is None else self.rate
        u = seeding.uniform(keys["move"], x.shape)
        width = space.high - space.low
        power, root = self.eta + 1.0, 1.0 / (self.eta + 1.0)
        inside = space.clip(x)
        below, above = (inside - space.low) / width, (space.high - inside) / width
        down = (2.0 * u + (1.0 - 2.0 * u) * (1.0 - below) ** power) ** root - 1.0
        up = 1.0 - (2.0 * (1.0 - u) + (2.0 * u - 1.0) * (1.0 - above) ** power) ** root
        moved = space.clip(inside + tf.where(u <= 0.5, down, up) * width)
        return tf.where(seeding.uniform(keys["which"], x.shape) < rate, moved, x)
