"""What every replay buffer does, wherever it keeps its items."""

import abc
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrl.types import Sequences, Trajectory, Transition


class ReplayBuffer(abc.ABC):
    """Experience that is added as trajectories and sampled as items.

    What changes lives in the buffer (variables, or a server), never in a carried value. A maker
    (`InGraphReplay`) holds the logic and makes buffers by `init()`.
    """

    @abc.abstractmethod
    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]`, which go on where the last ones stopped.

        Args:
          trajectory: Steps of all environments; rows that are not valid are left out.
        """

    @abc.abstractmethod
    def cut(self) -> None:
        """Says that the next steps do not go on from the last: environments were begun anew.

        Episodes that had not ended are then truncated where they stopped.
        """

    @abc.abstractmethod
    def sample(
        self, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor = 1.0
    ) -> Transition | Sequences:
        """Draws items with replacement.

        Args:
          key: int32 [2]; the same key draws the same rows of the same content. A buffer on a server
            draws with random numbers of its own.
          batch_size: N, static.
          beta: How much prioritised sampling is corrected by `weight`, 0 (not) to 1 (fully).

        Returns:
          N items.
        """

    @abc.abstractmethod
    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets priorities of items that were sampled.

        Args:
          index: int64 [N], as sampled; items that are no longer there are left out.
          priorities: float [N], not negative, such as absolute TD errors. Of an item that occurs
            twice the highest counts; what is not finite changes nothing.
        """

    @abc.abstractmethod
    def can_sample(self, batch_size: int = 1) -> tf.Tensor:
        """Returns whether there are `batch_size` items; a bool scalar."""

    @abc.abstractmethod
    def size(self) -> tf.Tensor:
        """Returns how many items can be sampled; an int64 scalar."""

    @abc.abstractmethod
    def state_values(self) -> dict[str, Any]:
        """Returns all that changes, `{path: array or tensor}`, for a checkpoint."""

    @abc.abstractmethod
    def load_values(self, values: Mapping[str, Any]) -> None:
        """Puts back what `state_values` gave, to the bit."""

    @abc.abstractmethod
    def save(self, folder: str) -> None:
        """Writes the buffer into a folder; one that is there is replaced when all is written."""

    @abc.abstractmethod
    def restore(self, folder: str) -> None:
        """Reads what `save` wrote."""
