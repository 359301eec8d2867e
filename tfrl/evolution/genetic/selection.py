"""Selection of parents. Operators are values, called like functions."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfrl import checks, seeding
from tfrl.loading import loadable

# selection(fitness [P], num, key) -> int32 [num], indices of parents
Selection = Callable[[tf.Tensor, int, tf.Tensor], tf.Tensor]


@loadable
@dataclasses.dataclass(frozen=True)
class TournamentSelection:
    """A parent is the fittest of `size` candidates, drawn with replacement.

    Source: Goldberg & Deb 1991, section 2.4, https://doi.org/10.1016/B978-0-08-050684-5.50008-2.

    Attributes:
      size: Candidates of a tournament.
    """

    size: int = 3

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.at_least("TournamentSelection.size", self.size, 1)

    def __call__(self, fitness: tf.Tensor, num: int, key: tf.Tensor) -> tf.Tensor:
        """Returns indices of parents, int32 [num].

        Args:
          fitness: float32 [P].
          num: The number of parents.
          key: int32 [2].
        """
        entrants = seeding.randint(key, [num, self.size], 0, fitness.shape[0])
        winners = tf.argmax(tf.gather(fitness, entrants), axis=1, output_type=tf.int32)
        return tf.gather(entrants, winners, batch_dims=1)


@loadable
@dataclasses.dataclass(frozen=True)
class TruncationSelection:
    """Parents are drawn uniformly, with replacement, from the fittest share.

    Source: Such et al. 2017, algorithm 1, https://arxiv.org/abs/1712.06567.

    Attributes:
      share: The share of candidates that may be parents, above 0; at least one candidate.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        """Checks the settings."""
        checks.number("TruncationSelection.share", self.share, 0, 1, closed=False)

    def __call__(self, fitness: tf.Tensor, num: int, key: tf.Tensor) -> tf.Tensor:
        """Returns indices of parents, int32 [num]; see `TournamentSelection`."""
        best = max(1, round(self.share * fitness.shape[0]))
        order = tf.argsort(fitness, direction="DESCENDING", stable=True)
        return tf.gather(order, seeding.randint(key, [num], 0, best))
