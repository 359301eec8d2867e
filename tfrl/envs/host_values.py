"""Whether the numbers of host environments are finite: one look a step, details on failure."""

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.backend import Step
from tfrl.errors import UserError
from tfrl.types import Nest

_REMEDY = (
    "Find the division or the diverging simulation that it comes from. A value above 3.4e38 "
    "becomes inf in float32; clip it in the environment or a wrapper."
)


def check_finite(
    name: str, step: Step, unpaid: np.ndarray, unseen: np.ndarray, steps: np.ndarray
) -> None:
    """Raises a UserError unless rewards and observations that somebody sees are finite.

    Args:
      name: The environment's id.
      step: What the environments answered.
      unpaid: bool `[B]`, rows whose rewards do not count.
      unseen: bool `[B]`, rows that nobody sees.
      steps: int `[B]`, the steps of the running episodes; 0 for a reset.
    """
    _refuse(name, "reward", np.asarray(step.reward), unpaid, steps)
    _check_nest(name, "observation", step.obs, unseen, steps)
    if step.final_obs is not None:
        _check_nest(name, "final observation", step.final_obs, unseen, steps)


def is_finite(step: Step) -> bool:
    """Whether all rewards and observations of a step are finite."""
    if not _all_finite(step.reward):
        return False
    leaves = [step.obs] if isinstance(step.obs, np.ndarray) else tf.nest.flatten(step.obs)
    if step.final_obs is not None:
        leaves = [*leaves, *tf.nest.flatten(step.final_obs)]
    return all(x.dtype.kind != "f" or _all_finite(x) for x in leaves)


def _all_finite(x: np.ndarray) -> bool:
    """Counting takes half the time of `all`."""
    return np.count_nonzero(np.isfinite(x)) == x.size


def _check_nest(name: str, field: str, nest: Nest, unseen: np.ndarray, steps: np.ndarray) -> None:
    for path, leaf in struct.paths(nest).items():
        if leaf.dtype.kind == "f":
            _refuse(name, field if path == "." else f"{field}/{path}", leaf, unseen, steps)


def _refuse(
    name: str, field: str, values: np.ndarray, skipped: np.ndarray, steps: np.ndarray
) -> None:
    bad = ~np.isfinite(values)
    rows = np.flatnonzero(bad.reshape(len(values), -1).any(1) & ~skipped)
    if not rows.size:
        return
    row = rows[0]
    at = tuple(int(i) for i in np.argwhere(bad[row])[0])
    place = f" at index {list(at)}" if at else ""
    more = f", and such in {len(rows) - 1} more environments" if len(rows) > 1 else ""
    raise UserError(
        f"{field} of {name}, environment {row}, step {steps[row]}",
        expected="finite numbers",
        got=f"{values[(row, *at)]}{place}{more}",
        remedy=_REMEDY,
    )
