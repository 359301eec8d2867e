"""The check of actions that a caller steps environments on the host with."""

from typing import Any

import numpy as np

from tfrl import specs, struct
from tfrl.errors import UserError
from tfrl.types import Nest


def check_action(name: str, action_spec: Nest, action: Nest, num_envs: int) -> None:
    """Raises a UserError for actions that the spec does not have.

    Continuous actions may leave their bounds, which environments or wrappers clip.

    Args:
      name: The environment's id.
      action_spec: The nest of specs of one action.
      action: What was given, a nest `[B, ...]`.
      num_envs: B.
    """
    wanted, given = struct.paths(action_spec), struct.paths(action)
    if wanted.keys() != given.keys():
        raise _wrong(
            name, f"the items {', '.join(wanted)}", ", ".join(given) or "nothing", "action_spec"
        )
    for path, spec in wanted.items():
        _check_leaf(f"{name}/{path}" if path != "." else name, spec, given[path], num_envs)


def _check_leaf(name: str, spec: Any, value: Any, num_envs: int) -> None:
    array = np.asarray(value)
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    shape = (num_envs, *spec.shape.as_list())
    whole = "biu" if isinstance(spec, specs.BinarySpec) else "iu"
    kinds = {"f": "iuf", "b": "biu"}.get(dtype.kind, whole)
    if array.shape != shape or array.dtype.kind not in kinds + dtype.kind:
        raise _wrong(
            name, f"{dtype.name} {list(shape)}", f"{array.dtype.name} {list(array.shape)}", "it"
        )
    if dtype.kind == "f":
        bad = ~np.isfinite(array)
        text = "finite numbers"
    elif specs.is_discrete(spec):
        low, high = specs.bounds(spec)
        bad = (array < low) | (array > high)
        text = f"whole numbers from {_shown(low)} to {_shown(high)}"
    else:
        return
    if bad.any():
        first = tuple(np.argwhere(bad)[0].tolist())
        raise _wrong(name, text, f"{array[first]} at {list(first)}", "it")


def _shown(bound: np.ndarray) -> str:
    return str(np.unique(bound)[0]) if np.unique(bound).size == 1 else str(bound.tolist())


def _wrong(name: str, expected: str, got: str, what: str) -> UserError:
    return UserError(
        f"action for {name}",
        expected=expected,
        got=got,
        remedy=f"Act within env.action_spec{'' if what == 'it' else ', with its nest'}.",
    )
