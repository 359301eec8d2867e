"""The values of a replay buffer, compared, assigned, and in files."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.storage import checkpoint_format

if TYPE_CHECKING:
    from tfrl.replay.in_graph import InGraphReplay


def assign_all(variables: Mapping[str, tf.Variable], values: Mapping[str, Any]) -> None:
    """Assigns values by path, or changes nothing.

    Raises:
      UserError: Naming what is missing, unknown, or of another shape or dtype.
    """
    wrong = [f"no {path}" for path in variables if path not in values]
    wrong += [f"an unknown {path}" for path in values if path not in variables]
    for path in variables.keys() & values.keys():
        want, got = variables[path], values[path]
        if tuple(want.shape) != tuple(got.shape) or want.dtype != tf.as_dtype(got.dtype):
            wrong.append(
                f"{path} of {tf.as_dtype(got.dtype).name} {list(got.shape)} for "
                f"{want.dtype.name} {want.shape.as_list()}"
            )
    if wrong:
        raise UserError(
            "the values of a replay buffer",
            expected="those of a buffer of the same maker",
            got="; ".join(sorted(wrong)[:3]),
            remedy="Make the buffer with the specs, the capacity and the num_envs of the one that "
            "was saved.",
        )
    for path, variable in variables.items():
        variable.assign(values[path])


# What the meaning of stored values depends on, beside their shapes.
_MADE_WITH = (
    "capacity",
    "num_envs",
    "n_step",
    "kind",
    "sequence_length",
    "sequence_period",
    "frame_stack",
    "frames_per_step",
    "frame_stack_axis",
    "frame_stack_paths",
)
_SPECS = ("obs_spec", "action_spec", "policy_extras_spec", "env_extras_spec")


def _made_with(replay: InGraphReplay) -> dict[str, Any]:
    """The arguments of a maker as a manifest has them; of specs `{path: "dtype shape"}`."""
    found = {name: getattr(replay, name) for name in _MADE_WITH}
    if replay.kind == "prioritized":
        found["alpha"] = replay.alpha  # priorities are stored as powers
    if replay.frame_stack_paths is not None:
        found["frame_stack_paths"] = list(replay.frame_stack_paths)  # as JSON has it
    for name in _SPECS:
        leaves = struct.paths(getattr(replay, name)).items()
        found[name] = {path: f"{x.dtype.name} {x.shape.as_list()}" for path, x in leaves}
    return found


def _flat(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, each leaf of a spec as one of its own."""
    found: dict[str, Any] = {}
    for name, value in made_with.items():
        leaves = value.items() if isinstance(value, dict) else [("", value)]
        found.update({f"{name} {path}".strip(): leaf for path, leaf in leaves})
    return found


def save(folder: str, replay: InGraphReplay, values: Mapping[str, Any]) -> None:
    """Writes the values of a buffer; a folder that is there is replaced when all is written."""
    target = pathlib.Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (target.with_name(f".{target.name}.{part}") for part in ("new", "old"))
    for rest in (fresh, old):
        if rest.exists():
            shutil.rmtree(rest)
    checkpoint_format.write(
        fresh, checkpoint_format.DataWriter(), 0, values, {"replay": _made_with(replay)}, None
    )
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    if old.exists():
        shutil.rmtree(old)


def restore(folder: str, replay: InGraphReplay) -> Mapping[str, Any]:
    """Reads the values of a buffer that was made in the same way.

    Raises:
      UserError: For a folder that is damaged, or of a buffer that was made in another way.
    """
    try:
        values, content = checkpoint_format.read(pathlib.Path(folder))
    except checkpoint_format.DamagedCheckpointError as error:
        raise UserError(
            f"replay buffer {folder}",
            expected="a folder that ReplayBuffer.save wrote",
            got=str(error),
            remedy="Restore another one.",
        ) from error
    stored, given = content["manifest"].get("replay", {}), _made_with(replay)
    # What another version did not write down cannot be compared, nor need be what it did besides.
    both = stored.keys() & given.keys()
    saved, own = (_flat({name: x[name] for name in x if name in both}) for x in (stored, given))
    for name in [*own, *saved]:
        if own.get(name, "nothing") != saved.get(name, "nothing"):
            raise UserError(
                f"InGraphReplay.{name}",
                expected=f"{saved.get(name, 'nothing')!r}, as the buffer in {folder} was made with",
                got=repr(own.get(name, "nothing")),
                remedy="Make the buffer as it was when it was saved.",
            )
    return values
