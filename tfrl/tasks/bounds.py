"""How much is sampled, in pieces of which size, and how long a batch may be waited for."""

import dataclasses
import math
import numbers
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfrl.envs.workers import WorkerState
from tfrl.episodes import lookback_buffer
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
    result = get_actions(lookback_buffer.stack([state.obs for state in states]), optimal)
    extras: dict[str, Any] = {}
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        result, extras = result
    if extras:
        extras = _checked(extras, "extras", len(states))
    return _checked(result, "action", len(states)), extras


def _checked(value: Nest, name: str, count: int) -> Nest:
    thing = f"{name} of get_actions"
    value = lookback_buffer.as_arrays(value, thing)
    found = lookback_buffer.num_items(value, thing)
    if found != count:
        raise UserError(
            thing,
            expected=f"arrays [{count}, ...], a row for each of the states",
            got=f"[{found}, ...]",
            remedy="Return one action for each state, in their order.",
        )
    return value


@dataclasses.dataclass(frozen=True)
class SamplingBounds:
    """Checked bounds of one call of `iter_samples`.

    Attributes:
      total_samples: How many samples; `sys.maxsize` for a stream without an end.
      min_trajectory_length: Samples of the shortest trajectory that is given out.
      max_trajectory_length: Samples of the longest one; None for no bound.
      min_batch_size: States that a batch is waited for.
      max_batch_size: States of the largest batch; at most the workers.
      max_wait_time: Seconds that a state is kept waiting for others at most.
      max_discarded_in_a_row: Samples that may be discarded without a trajectory that can be used;
        None for no bound.
    """

    total_samples: int
    min_trajectory_length: int
    max_trajectory_length: int | None
    min_batch_size: int
    max_batch_size: int
    max_wait_time: float
    max_discarded_in_a_row: int | None


def checked_bounds(
    num_workers: int,
    *,
    total_samples: int | None,
    clip_length: int,
    min_trajectory_length: int | None,
    max_trajectory_length: int | None,
    min_batch_size: int,
    max_batch_size: int | None,
    max_wait_time: float,
    max_discarded_in_a_row: int | None,
) -> SamplingBounds:
    """Returns the bounds with what was left open filled in; see `iter_samples`.

    Raises:
      UserError: For a bound that is no positive integer, or bounds that contradict each other.
    """
    total = sys.maxsize if total_samples is None else _positive("total_samples", total_samples)
    clip = _positive("clip_length", clip_length)
    shortest = clip
    if min_trajectory_length is not None:
        shortest = _positive("min_trajectory_length", min_trajectory_length)
    longest = max_trajectory_length
    if longest is not None:
        longest = _positive("max_trajectory_length", longest)
    _check_lengths(total, clip, shortest, longest)
    at_least = _positive("min_batch_size", min_batch_size)
    at_most = num_workers
    if max_batch_size is not None:
        at_most = _positive("max_batch_size", max_batch_size)
    _check_batches(at_least, at_most, num_workers)
    wait = _seconds(max_wait_time)
    discards = max_discarded_in_a_row
    if discards is not None:
        discards = _positive("max_discarded_in_a_row", discards)
    at_most = min(at_most, num_workers)
    return SamplingBounds(total, shortest, longest, at_least, at_most, wait, discards)


def splittable(samples: int, shortest: int, longest: int) -> bool:
    """Whether so many samples are a sum of trajectories of `shortest` to `longest` samples."""
    # As many as possible leave the most room: k of them make every number from k shortest up.
    return shortest * (samples // shortest) <= samples <= longest * (samples // shortest)


def next_splittable(samples: int, shortest: int, longest: int | None) -> int:
    """Returns the least number from `samples` up that such trajectories, or none, add up to.

    It is at most `shortest - 1` more.
    """
    if samples <= 0:
        return 0
    if longest is None:
        return max(samples, shortest)
    if splittable(samples, shortest, longest):
        return samples
    return shortest * (samples // shortest + 1)


def _check_lengths(total: int, clip: int, shortest: int, longest: int | None) -> None:
    if shortest < clip:
        raise UserError(
            "min_trajectory_length",
            expected=f"at least the clip length, {clip}",
            got=str(shortest),
            remedy="No clip fits into a shorter trajectory. Leave it out for the clip length.",
        )
    if longest is not None and longest < shortest:
        raise UserError(
            "max_trajectory_length",
            expected=f"at least min_trajectory_length, {shortest}",
            got=str(longest),
            remedy="Raise it, or lower min_trajectory_length.",
        )
    if total < shortest:
        raise UserError(
            "total_samples",
            expected=f"at least min_trajectory_length, {shortest}",
            got=str(total),
            remedy="Not one trajectory would fit: raise it.",
        )
    endless = total == sys.maxsize
    if not endless and longest is not None and not splittable(total, shortest, longest):
        count = total // shortest
        raise UserError(
            "total_samples",
            expected=f"a sum of trajectories of {shortest} to {longest} samples",
            got=str(total),
            remedy=f"The nearest are {count * longest} and {(count + 1) * shortest}.",
        )


def _check_batches(at_least: int, at_most: int, num_workers: int) -> None:
    if at_least > at_most:
        raise UserError(
            "min_batch_size",
            expected=f"at most max_batch_size, {at_most}",
            got=str(at_least),
            remedy="Lower it, or raise max_batch_size.",
        )
    if at_least > num_workers:
        raise UserError(
            "min_batch_size",
            expected=f"at most the number of workers, {num_workers}",
            got=str(at_least),
            remedy="A worker waits with one state: lower it, or make a larger pool.",
        )


def _positive(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise UserError(
            name,
            expected="an integer of at least 1",
            got=repr(value),
            remedy="It counts samples." if "batch" not in name else "It counts states.",
        )
    return int(value)


def _seconds(value: Any) -> float:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise UserError(
            "max_wait_time",
            expected="a finite number of seconds of at least 0",
            got=repr(value),
            remedy="With 0 no state waits for others.",
        )
    return float(value)
