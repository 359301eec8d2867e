"""One call of `get_actions` for the states of several workers."""

from collections.abc import Callable, Sequence
from typing import Any

from tfrl.envs.workers import WorkerState
from tfrl.episodes import nests
from tfrl.errors import UserError

Nest = Any
GetActions = Callable[[Nest, bool], Any]


def batched_actions(
    get_actions: GetActions,
    states: Sequence[WorkerState],
    optimal: bool,
) -> tuple[Nest, dict[str, Any]]:
    """Calls `get_actions` with the stacked observations.

    Args:
      get_actions: See `iter_samples`.
      states: N states.
      optimal: Handed on.

    Returns:
      Actions and extras, nests of arrays `[N, ...]`.

    Raises:
      UserError: For something without the leading axis N.
    """
    result = get_actions(nests.stack([state.obs for state in states]), optimal)
    extras: dict[str, Any] = {}
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        result, extras = result
    if extras:
        extras = _checked(extras, "extras", len(states))
    return _checked(result, "action", len(states)), extras


def _checked(value: Nest, name: str, count: int) -> Nest:
    thing = f"{name} of get_actions"
    value = nests.as_arrays(value, thing)
    found = nests.num_items(value, thing)
    if found != count:
        raise UserError(
            thing,
            expected=f"arrays [{count}, ...], a row for each of the states",
            got=f"[{found}, ...]",
            remedy="Return one action for each state, in their order.",
        )
    return value
