"""Random actions for `check_env` that are valid, and what leaves none: masks, missing bounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfrl import specs, struct
from tfrl.envs.action_masks import real_choices
from tfrl.envs.checker_values import MAX_LISTED, note
from tfrl.errors import UserError
from tfrl.types import Nest


def sample_actions(spec: Nest, rng: np.random.Generator, size: int, mask: Nest = None) -> Nest:
    """Draws valid actions; bounded elements are uniform, unbounded ones are near their bound or 0.

    Args:
      spec: The nest of specs of one action.
      rng: What to draw with.
      size: How many (B).
      mask: A nest of masks like the action's, bool `[B, ...]`, or None.

    Returns:
      A nest of arrays `[B, ...]`.
    """
    if isinstance(spec, Mapping):
        part = {} if mask is None else mask
        return {k: sample_actions(s, rng, size, part.get(k)) for k, s in spec.items()}
    if isinstance(spec, tuple):
        each = [None] * len(spec) if mask is None else mask
        return tuple(sample_actions(s, rng, size, m) for s, m in zip(spec, each, strict=True))
    shape, dtype = (size, *spec.shape.as_list()), spec.dtype.as_numpy_dtype
    low, high = specs.bounds(spec)
    if mask is not None:
        drawn = rng.random(np.shape(mask))
        if isinstance(spec, specs.BinarySpec):
            return ((drawn < 0.5) & mask).reshape(shape).astype(dtype)
        mask = real_choices(spec, mask)
        return np.argmax(np.where(mask, drawn, -1.0), -1).reshape(shape).astype(dtype) + low
    if spec.dtype.is_bool:
        return rng.random(shape) < 0.5
    if spec.dtype.is_integer:
        return rng.integers(low, high, shape, dtype, endpoint=True)
    # Bounds of 1e30 stand for none, and their difference would overflow.
    has_low, has_high = low > -1e30, high < 1e30
    near, far = (np.where(has_low, low, 0.0), np.where(has_high, high, 0.0))
    step, normal = rng.exponential(size=shape), rng.normal(size=shape)
    value = np.where(has_low, near + step, np.where(has_high, far - step, normal))
    value = np.where(has_low & has_high, near + (far - near) * rng.random(shape), value)
    return np.clip(value.astype(dtype), low, high)


def check_mask(thing: str, spec: Nest, mask: Nest, rows: Any = True) -> None:
    """Raises a UserError where a mask leaves no action to take.

    Args:
      thing: What the mask is, for messages.
      spec: The nest of specs of one action.
      mask: A nest of masks like the action's, bool `[B, ...]`.
      rows: Bool `[B]`: those that go on.
    """
    if isinstance(spec, Mapping):
        for key, part in spec.items():
            check_mask(f"{thing}/{key}", part, mask[key], rows)
    elif isinstance(spec, tuple):
        for i, part in enumerate(spec):
            check_mask(f"{thing}/{i}", part, mask[i], rows)
    elif not isinstance(spec, specs.BinarySpec):
        none = ~np.any(real_choices(spec, mask), -1)
        none &= np.reshape(rows, np.shape(rows) + (1,) * (none.ndim - np.ndim(rows)))
        if none.any():
            raise UserError(
                thing,
                expected="at least one valid action",
                got="none" + (f" at {np.argwhere(none).tolist()}" if none.ndim else ""),
                remedy="Allow an action that does nothing, or end the episode.",
            )


def note_unbounded(thing: str, spec: Nest) -> None:
    """Logs which elements of float actions have no bound on one side or on both."""
    for path, leaf in struct.paths(spec).items():
        if not leaf.dtype.is_floating:
            continue
        low, high = specs.bounds(leaf)
        bad = ~(np.isfinite(low) & np.isfinite(high))
        if bad.any():
            bounds = [f"[{a}, {b}]" for a, b in zip(low[bad], high[bad], strict=True)]
            places = np.argwhere(bad)
            shown = [f"{b} at {i.tolist()}" for b, i in zip(bounds, places, strict=True)]
            note(
                thing if path == "." else f"{thing} {path}",
                expected="finite bounds",
                got=", ".join(shown[:MAX_LISTED]),
                remedy="Policies begin near 0 with a spread of about 1: give the Box the range "
                "that the task can use, by gymnasium.wrappers.RescaleAction or ClipAction.",
            )
