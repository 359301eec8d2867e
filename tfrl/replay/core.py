"""What every replay buffer does, wherever it keeps its items."""

import abc
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl import checks, specs, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.types import Nest, Sequences, Trajectory, Transition

# The policy extra that is the recurrent state before a step.
STATE_IN = "state_in"
EXTRAS = ("policy_extras", "env_extras")
FLAGS = ("termination", "truncation", "valid")


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


def check_specs(replay: Any) -> None:
    """Checks the specs that a factory of buffers has."""
    owner = type(replay).__name__
    for name in ("obs_spec", "action_spec", *(f"{extras}_spec" for extras in EXTRAS)):
        nest = getattr(replay, name)
        for path, spec in struct.paths(nest).items():
            if not specs.is_spec(spec) or not spec.shape.is_fully_defined():
                raise UserError(
                    f"{owner}.{name} {path}",
                    expected="a tf.TensorSpec of a fully known shape",
                    got=repr(spec),
                    remedy="Give the specs that the environment and the agent have.",
                )
        if "extras" in name and nest is not None:
            checks.instance(f"{owner}.{name}", nest, dict, "a dict of specs, or None")


def check_items(name: Callable[[str], str], items: Any) -> None:
    """Checks what sequences and n-step items do not have together.

    Args:
      name: Gives the name of an argument in messages.
      items: A factory of buffers, or a table.
    """
    length = items.sequence_length
    if (length or getattr(items, "episode_length", None)) and items.n_step != 1:
        raise UserError(
            name("n_step"),
            expected="1 for sequences",
            got=repr(items.n_step),
            remedy="Compute n-step returns of sequences in the loss, with n_step=1 here.",
        )
    if length and items.sequence_period is not None:
        remedy = "A longer period would leave steps out."
        checks.at_least(
            name("sequence_period"), items.sequence_period, 1, maximum=length, remedy=remedy
        )


def trajectory_specs(replay: Any) -> dict[str, Nest]:
    """Returns the specs of the fields of a trajectory that a buffer stores."""
    extras = {name: getattr(replay, f"{name}_spec") for name in EXTRAS}
    return {
        "obs": replay.obs_spec,
        "action": replay.action_spec,
        "reward": tf.TensorSpec([], tf.float32),
        "next_obs": replay.obs_spec,
        **dict.fromkeys(FLAGS, tf.TensorSpec([], tf.bool)),
        **{name: spec for name, spec in extras.items() if spec is not None},
    }


def stored_extras(replay: Any, name: str, extras: Nest) -> dict[str, Nest]:
    """Returns those extras of a trajectory that a buffer stores.

    Raises:
      UserError: The trajectory lacks one.
    """
    wanted, have = getattr(replay, f"{name}_spec"), extras if isinstance(extras, dict) else {}
    missing = [key for key in wanted if key not in have]
    if missing:
        raise UserError(
            f"trajectory.{name}",
            expected=f"the items {', '.join(wanted)} of {type(replay).__name__}.{name}_spec",
            got=", ".join(have) or "none",
            remedy=did_you_mean(missing[0], have) if have else "Ask the rollout for them.",
        )
    return {key: have[key] for key in wanted}


def check_given(**values: Any) -> None:
    """Raises a UserError about the first argument of `update_priorities` that is None."""
    for name, value in values.items():
        if value is None:
            raise UserError(
                name,
                expected="one number for each item of a batch, [N]",
                got="None",
                remedy="Give the index of the batch and one priority for each of its items.",
            )


def replace_folder(folder: str, write: Callable[[pathlib.Path], None]) -> None:
    """Writes a folder; one that is there is replaced when all is written.

    Args:
      folder: Its path.
      write: Writes a folder of the path that it is given.
    """
    target = pathlib.Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (target.with_name(f".{target.name}.{part}") for part in ("new", "old"))
    for rest in (fresh, old):
        if rest.exists():
            shutil.rmtree(rest)
    write(fresh)
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    if old.exists():
        shutil.rmtree(old)
