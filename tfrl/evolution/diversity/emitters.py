"""Emitters: create candidates from elites. They are values, called like functions."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfrl import checks, seeding
from tfrl.loading import loadable

# emitter(x [P, D], y [P, D], key) -> [P, D], from two elites for each candidate
Emitter = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@loadable
@dataclasses.dataclass(frozen=True)
class IsoLineEmitter:
    """Noise in all directions, and along the line to another elite.

      x + iso_std z + line_std (y - x) z',  z ~ N(0, I), z' ~ N(0, 1)

    Source: Vassiliades & Mouret 2018, equation 2, https://arxiv.org/abs/1804.03906.

    Attributes:
      iso_std: The standard deviation of the noise in all directions.
      line_std: The standard deviation of the noise along the line, relative to the line's length.
    """

    iso_std: float = 0.01
    line_std: float = 0.2

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.number("IsoLineEmitter.iso_std", self.iso_std, 0)
        checks.number("IsoLineEmitter.line_std", self.line_std, 0)

    def __call__(self, x: tf.Tensor, y: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns candidates, float32 [P, D].

        Args:
          x: Elites, float32 [P, D].
          y: Other elites, float32 [P, D].
          key: int32 [2].
        """
        keys = seeding.streams(key, ("iso", "line"))
        iso = self.iso_std * seeding.normal(keys["iso"], x.shape)
        return x + iso + self.line_std * (y - x) * seeding.normal(keys["line"], [x.shape[0], 1])


@loadable
@dataclasses.dataclass(frozen=True)
class GaussianEmitter:
    """Noise in all directions: x + std z.

    Source: Mouret & Clune 2015, https://arxiv.org/abs/1504.04909.

    Attributes:
      std: The standard deviation of the noise.
    """

    std: float = 0.1

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.positive("GaussianEmitter.std", self.std)

    def __call__(self, x: tf.Tensor, y: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns candidates, float32 [P, D]; see `IsoLineEmitter`."""
        return x + self.std * seeding.normal(key, x.shape)
