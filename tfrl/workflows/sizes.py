"""How the rows of an iteration are cut into minibatches, and divided among replicas."""

from collections.abc import Mapping
from typing import Any

from tfrl.errors import UserError
from tfrl.learners.minibatches import MinibatchPlan, Remainder


def minibatch_sizes(
    modules: Mapping[str, Any],
    members: Mapping[str, tuple[str, ...]],
    *,
    rollout_length: int,
    num_envs: int,
    num_minibatches: int,
    num_epochs: int,
    remainder: Remainder,
) -> dict[str, int]:
    """Returns the rows of a gradient step of each module, over all replicas.

    Args:
      modules: `{module_id: module}`; a module says by `num_rows` how many rows it makes of a
        rollout: steps, or sequences of one that has memory.
      members: `{module_id: ids of the agents that it acts for}` of several agents: so many times
        the rows, in as many minibatches.
      rollout_length: T.
      num_envs: B.
      num_minibatches: Gradient steps of a pass over the rows.
      num_epochs: Passes over the rows.
      remainder: What becomes of rows that do not fill a minibatch.

    Raises:
      UserError: For more minibatches than rows, and for rows that do not divide.
    """
    sizes = {}
    for module_id, module in modules.items():
        count = getattr(module, "num_rows", None)
        steps = rollout_length * num_envs
        rows = steps if count is None else count(rollout_length, num_envs)
        words = f"{rollout_length} steps x {num_envs} environments"
        if rows != steps:
            words = f"sequences of {steps // rows} steps of {num_envs} environments"
        agents = len(members.get(module_id, "1"))
        sizes[module_id] = agents * _size(rows, words, num_minibatches, num_epochs, remainder)
    return sizes


def _size(rows: int, words: str, num_minibatches: int, epochs: int, remainder: Remainder) -> int:
    if num_minibatches > rows:
        raise UserError(
            "num_minibatches",
            expected=f"between 1 and the {rows} rows of an iteration ({words})",
            got=num_minibatches,
            remedy="4 is usual.",
        )
    if rows % num_minibatches and remainder == "error":
        fits = [n for n in range(1, rows + 1) if rows % n == 0]
        near = sorted(sorted(fits, key=lambda n: abs(n - num_minibatches))[:2])
        raise UserError(
            "num_minibatches",
            expected=f"a divisor of the {rows} rows of an iteration ({words})",
            got=num_minibatches,
            remedy=f"The nearest that divide are {' and '.join(map(str, near))}; or choose "
            "remainder='pad', 'drop' or 'wrap'.",
        )
    size = -(-rows // num_minibatches) if remainder != "drop" else rows // num_minibatches
    MinibatchPlan(rows=rows, size=size, epochs=epochs, remainder=remainder)
    return size


def check_divided(
    parts: int, num_envs: Mapping[str, int], minibatch_sizes: Mapping[str, int]
) -> None:
    """Raises a UserError unless the replicas divide environments and minibatches.

    Args:
      parts: How many replicas.
      num_envs: `{what messages call it: number of environments}`.
      minibatch_sizes: `{module_id: rows}`, as from `minibatch_sizes`.
    """
    for name, number in num_envs.items():
        if number % parts:
            near = {n for n in (number // parts * parts, -(-number // parts) * parts)}
            raise UserError(
                name,
                expected=f"a multiple of the {parts} replicas that divide the environments",
                got=number,
                remedy=f"The nearest are {' and '.join(str(n) for n in sorted(near) if n)}.",
            )
    wrong = [size for size in minibatch_sizes.values() if size % parts]
    if wrong:
        raise UserError(
            "num_minibatches",
            expected=f"minibatches whose rows the {parts} replicas can divide",
            got=f"{wrong[0]} rows",
            remedy="Choose num_minibatches so that the rows of an iteration, divided by it, "
            f"are a multiple of {parts}.",
        )
