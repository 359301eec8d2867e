"""The interface of replay buffers, independent of their storage."""

import abc
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl import checks, specs, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.types import Nest, Sequences, Trajectory, Transition

# The policy extra with the recurrent state before a step.
STATE_IN = "state_in"
EXTRAS = ("policy_extras", "env_extras")
FLAGS = ("termination", "truncation", "valid")


class ReplayBuffer(abc.ABC):
    """A replay buffer: add trajectories, sample items.

    The buffer holds its state (in variables or a server), never a carried value. A factory
    (`InGraphReplay`) holds the logic and makes buffers with `init()`.
    """

    @abc.abstractmethod
    def add(self, trajectory: Trajectory) -> None:
        """Adds steps `[T, B, ...]`, which continue the previous ones.

        Args:
          trajectory: Steps of all environments; invalid rows are skipped.
        """

    @abc.abstractmethod
    def cut(self) -> None:
        """Declares that the environments were restarted: the next steps are new episodes.

        Unfinished episodes are truncated at their last step.
        """

    @abc.abstractmethod
    def sample(
        self, key: tf.Tensor, batch_size: int, beta: float | tf.Tensor = 1.0
    ) -> Transition | Sequences:
        """Draws items with replacement.

        Args:
          key: int32 [2]; equal keys and content give equal rows. A buffer on a server uses its own
            random numbers.
          batch_size: N, static.
          beta: Exponent of the importance weights `weight`, 0 (none) to 1 (full correction).

        Returns:
          N items.
        """

    @abc.abstractmethod
    def update_priorities(self, index: tf.Tensor, priorities: tf.Tensor) -> None:
        """Sets priorities of sampled items.

        Args:
          index: int64 [N], as sampled; overwritten items are skipped.
          priorities: float [N], not negative, such as absolute TD errors. For repeated items the
            highest is used; non-finite values are ignored.
        """

    @abc.abstractmethod
    def can_sample(self, batch_size: int = 1) -> tf.Tensor:
        """Returns whether the buffer has `batch_size` items; a bool scalar."""

    @abc.abstractmethod
    def size(self) -> tf.Tensor:
        """Returns the number of items; an int64 scalar."""

    @abc.abstractmethod
    def state_values(self) -> dict[str, Any]:
        """Returns the state, `{path: array or tensor}`, for a checkpoint."""

    @abc.abstractmethod
    def load_values(self, values: Mapping[str, Any]) -> None:
        """Restores the result of `state_values`, to the bit."""

    @abc.abstractmethod
    def save(self, folder: str) -> None:
        """Writes the buffer into a folder; replaces an existing one when complete."""

    @abc.abstractmethod
    def restore(self, folder: str) -> None:
        """Reads what `save` wrote."""


def check_specs(replay: Any) -> None:
    """Checks the specs of a buffer factory."""
    owner = type(replay).__name__
    for name in ("obs_spec", "action_spec", *(f"{extras}_spec" for extras in EXTRAS)):
        nest = getattr(replay, name)
        for path, spec in struct.paths(nest).items():
            if not specs.is_spec(spec) or not spec.shape.is_fully_defined():
                raise UserError(
                    f"{owner}.{name} {path}",
                    expected="a tf.TensorSpec of a fully known shape",
                    got=repr(spec),
                    remedy="Pass the specs of the environment and the agent.",
                )
        if "extras" in name and nest is not None:
            checks.instance(f"{owner}.{name}", nest, dict, "a dict of specs, or None")


def check_items(name: Callable[[str], str], items: Any) -> None:
    """Checks for arguments of sequences and n-step items that exclude each other.

    Args:
      name: Returns the name of an argument in messages.
      items: A buffer factory, or a table.
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
        remedy = "Use at most sequence_length; a longer period skips steps."
        checks.at_least(
            name("sequence_period"), items.sequence_period, 1, maximum=length, remedy=remedy
        )


def trajectory_specs(replay: Any) -> dict[str, Nest]:
    """Returns the specs of the stored fields of a trajectory."""
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
    """Returns the stored extras of a trajectory.

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
            remedy=did_you_mean(missing[0], have) if have else "Request them from the rollout.",
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
                remedy="Pass the index of the batch and one priority for each of its items.",
            )


def check_made_with(
    owner: str, folder: str, saved: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    """Raises an error for a folder of a buffer with other arguments.

    Args:
      owner: Prefix of arguments in messages.
      folder: The folder.
      saved: The arguments of its buffer; dicts are compared item by item.
      own: The arguments of the reading buffer.
    """
    saved, own = _flat(saved), _flat(own)
    for name in [*own, *saved]:
        if own.get(name, "nothing") != saved.get(name, "nothing"):
            raise UserError(
                f"{owner}{name}",
                expected=f"{saved.get(name, 'nothing')!r}, as in the buffer saved in {folder}",
                got=repr(own.get(name, "nothing")),
                remedy="Create the buffer with the arguments of the saved one.",
            )


def _flat(arguments: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in arguments.items():
        items = value.items() if isinstance(value, Mapping) else [("", value)]
        result.update({f"{name} {path}".strip(): item for path, item in items})
    return result


def replace_folder(folder: str, write: Callable[[pathlib.Path], None]) -> None:
    """Writes a folder; replaces an existing one when complete.

    Args:
      folder: Its path.
      write: Writes a folder at the given path.
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
