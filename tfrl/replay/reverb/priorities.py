"""Priorities of items on the server."""

from typing import Any

import numpy as np

from tfrl.errors import UserError
from tfrl.replay.adding import check_given

# The least priority^alpha, as in the graph: an item of priority 0 can still be sampled.
_LEAST = 2.0**-24
_SMALLEST = 1e-300  # Reverb leaves out what is exactly 0.


def updates(index: Any, priorities: Any, alpha: float) -> dict[int, float]:
    """Returns what Reverb is told, `{key: priority}`.

    Args:
      index: int64 [N], the bits of the keys.
      priorities: float [N]; of a key that occurs twice the highest counts, what is not finite is
        left out.
      alpha: The table's exponent, which Reverb applies.

    Raises:
      UserError: For a negative priority, and for shapes that differ.
    """
    check_given(index=index, priorities=priorities)
    keys = np.asarray(index)
    values = np.asarray(priorities, np.float64)
    if keys.dtype != np.int64 or keys.ndim != 1 or keys.shape != values.shape:
        raise UserError(
            "index",
            expected=f"int64 [{', '.join(map(str, values.shape))}], as it was sampled with the "
            "items of the priorities",
            got=f"{keys.dtype} {list(keys.shape)}",
            remedy="Give the index of the batch and one priority for each of its items.",
        )
    if np.any(values < 0.0):
        raise UserError(
            "priorities",
            expected="no negative number",
            got=f"{np.nanmin(values):g}",
            remedy="Give absolute TD errors.",
        )
    finite = np.isfinite(values)
    keys, values = keys[finite].view(np.uint64), values[finite]
    # With alpha 0 every priority counts as 1, but for the 0 that Reverb leaves out.
    least = _LEAST ** (1.0 / alpha) if alpha > 0.0 else 0.0
    values = np.maximum(values, max(least, _SMALLEST))
    unique, at = np.unique(keys, return_inverse=True)
    highest = np.zeros(len(unique))
    np.maximum.at(highest, at, values)
    return dict(zip(unique.tolist(), highest.tolist(), strict=True))
