"""Action masks in observations: splitting, joining and using them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrl import specs
from tfrl.types import Nest

MASK = "action_mask"
OBSERVATION = "observation"


def split_mask(obs: Nest) -> tuple[Nest, Nest]:
    """Splits an observation (or its spec) from its action mask.

    A mask is the item `action_mask` of a Dict observation, as added by the wrapper `ActionMask`. If
    `observation` is the only other item, it is the observation.

    Args:
      obs: A nest of observations or of specs.

    Returns:
      The rest, and the mask or None.
    """
    if not isinstance(obs, Mapping) or MASK not in obs:
        return obs, None
    rest = {name: x for name, x in obs.items() if name != MASK}
    return (rest[OBSERVATION] if set(rest) == {OBSERVATION} else rest), obs[MASK]


def join_mask(obs: Nest, mask: Nest) -> Nest:
    """The inverse of `split_mask`: adds the item, or makes a Dict of observation and mask."""
    if mask is None:
        return obs
    if isinstance(obs, Mapping):
        return {**obs, MASK: mask}
    return {OBSERVATION: obs, MASK: mask}


def real_choices(spec: Any, mask: np.ndarray) -> np.ndarray:
    """Sets a mask to False for non-existing values.

    The mask of a MultiDiscrete has a row of `max(nvec)` bools for each element; element k uses only
    the first `nvec[k]`.

    Args:
      spec: The spec of one action, a leaf.
      mask: bool `[B, ...]`.
    """
    if not spec.dtype.is_integer or not spec.shape.rank or isinstance(spec, specs.BinarySpec):
        return mask
    low, high = (bound.astype(np.int64).ravel() for bound in specs.bounds(spec))
    return mask & (np.arange(mask.shape[-1]) <= (high - low)[:, np.newaxis])


def first_valid(spec: Nest, mask: Nest, action: Nest, rows: np.ndarray) -> Nest:
    """Replaces the actions of some rows by the first valid one of every element.

    Args:
      spec: The nest of specs of one action.
      mask: A nest of masks like the action's, bool `[B, ...]`; None for a part without one. Masks
        of wrong shape are not checked here.
      action: The nest of actions `[B, ...]`.
      rows: bool `[B]`.

    Returns:
      The nest of arrays; bits are 0, which is always valid.
    """
    if mask is None:
        return action
    if isinstance(spec, Mapping):
        return {k: first_valid(s, mask.get(k), action[k], rows) for k, s in spec.items()}
    if isinstance(spec, tuple):
        parts = zip(spec, mask, action, strict=True)
        return tuple(first_valid(s, m, a, rows) for s, m, a in parts)
    action, mask = np.asarray(action), np.asarray(mask, bool)
    if isinstance(spec, specs.BinarySpec):
        valid = np.zeros_like(action)
    elif not spec.dtype.is_integer or mask.shape[1:] != _shape(spec):
        return action
    else:
        low = specs.bounds(spec)[0]
        first = np.argmax(real_choices(spec, mask), -1).reshape(action.shape)
        valid = (first + low).astype(action.dtype)
    return np.where(rows.reshape(rows.shape + (1,) * (action.ndim - 1)), valid, action)


def _shape(spec: Any) -> tuple[int, ...]:
    """The shape of the mask of one integer, or of an array of them."""
    low, high = (bound.astype(np.int64) for bound in specs.bounds(spec))
    values = int((high - low).max()) + 1
    return (low.size, values) if spec.shape.rank else (values,)
