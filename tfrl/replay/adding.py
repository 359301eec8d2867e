"""What a buffer takes of a trajectory, and the checks of it."""

from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.replay.in_graph import InGraphReplay
from tfrl.types import Nest, Trajectory

_FLAGS = ("termination", "truncation", "valid")


def columns(replay: InGraphReplay, trajectory: Trajectory) -> dict[str, Nest]:
    """Returns the fields of a trajectory that are stored, as tensors, leaves `[T, B, ...]`.

    Raises:
      UserError: For extras that the trajectory does not have. What else is missing stays None:
        `check_trajectory` names it.
    """
    names = ("obs", "action", "reward", "next_obs", *_FLAGS)
    found = {name: getattr(trajectory, name) for name in names}
    if found["valid"] is None and trajectory.termination is not None:  # all rows are
        found["valid"] = tf.ones(tf.convert_to_tensor(trajectory.termination).shape, tf.bool)
    for name, spec in (
        ("policy_extras", replay.policy_extras_spec),
        ("env_extras", replay.env_extras_spec),
    ):
        if spec is not None:
            found[name] = _named(name, getattr(trajectory, name), spec)
    return tf.nest.map_structure(lambda x: None if x is None else tf.convert_to_tensor(x), found)


def _named(name: str, extras: Nest, spec: dict[str, Nest]) -> dict[str, Nest]:
    """The extras that the spec names."""
    have = extras if isinstance(extras, dict) else {}
    missing = [key for key in spec if key not in have]
    if missing:
        raise UserError(
            f"trajectory.{name}",
            expected=f"the items {', '.join(spec)} of InGraphReplay.{name}_spec",
            got=", ".join(have) or "none",
            remedy=did_you_mean(missing[0], have) if have else "Ask the rollout for them.",
        )
    return {key: have[key] for key in spec}


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


def check_trajectory(replay: InGraphReplay, rows: dict[str, Nest]) -> int:
    """Compares rows with the specs of a buffer.

    Args:
      replay: The buffer's maker.
      rows: As `columns` gives them.

    Returns:
      T.

    Raises:
      UserError: Naming the first leaf that differs by its path, or for a T that is not static.
    """
    batch = (None, replay.num_envs)
    boolean = tf.TensorSpec([], tf.bool)
    wanted = {
        "obs": replay.obs_spec,
        "action": replay.action_spec,
        "reward": tf.TensorSpec([], tf.float32),
        "next_obs": replay.obs_spec,
        **dict.fromkeys(_FLAGS, boolean),
        "policy_extras": replay.policy_extras_spec,
        "env_extras": replay.env_extras_spec,
    }
    for name, nest in rows.items():
        checks.matches_spec(f"trajectory.{name}", nest, wanted[name], batch)
    length = rows["valid"].shape[0]
    if length is None:
        raise UserError(
            "trajectory",
            expected="a number of steps T that is known while tracing",
            got="one that is not",
            remedy="Give the tf.function an input of a static shape.",
        )
    for path, x in struct.paths(rows).items():
        checks.leading_shape(f"trajectory.{path}", x, (length, replay.num_envs), "valid")
    return length
