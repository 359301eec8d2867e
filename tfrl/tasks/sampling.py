"""`iter_samples` and `collect_samples`: sample trajectories of a model from a worker pool."""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks
from tfrl.envs.workers import WorkerPool
from tfrl.errors import UserError
from tfrl.experiment.progress import Progress
from tfrl.tasks.sampler import Sampler, Sampling, SamplingBounds, SamplingCounts, splittable
from tfrl.tasks.samples import GetActions, SampledTrajectory

PostprocessTrajectory = Callable[[SampledTrajectory], SampledTrajectory]
PostprocessTrajectories = Callable[[list[SampledTrajectory]], Sequence[SampledTrajectory]]


def iter_samples(
    pool: WorkerPool | Sampler,
    get_actions: GetActions,
    *,
    total_samples: int | None,
    clip_length: int = 1,
    min_trajectory_length: int | None = None,
    max_trajectory_length: int | None = None,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    max_wait_time: float | None = 0.1,
    max_discarded_in_a_row: int | None = 100_000,
    optimal: bool = False,
    postprocess_trajectory: PostprocessTrajectory | None = None,
    progress: bool | Progress = False,
    counts: SamplingCounts | None = None,
) -> Iterator[SampledTrajectory]:
    """Returns an iterator over trajectories with exactly `total_samples` samples in all.

    A trajectory ends with the episode, at `max_trajectory_length` (which ends the episode and
    resets its environment), when its worker is lost, and when the total is reached. All workers'
    steps count as they are taken, so short episodes are not preferred. Trajectories shorter than
    `min_trajectory_length` are discarded, counted and replaced, with a warning for the first, the
    10th, the 100th, ... To reach the total exactly, a trajectory may lose samples at its start,
    never at its end. A trajectory that is too short for that may be replaced by a longer one. The
    last few trajectories are held back until others have enough samples to spare.

    The model is called with the present states, `min_batch_size` or more if so many arrive within
    `max_wait_time`. Near the end, a worker that does not answer for `max_wait_time` loses its share
    to waiting workers. (In a synchronous pool nothing overlaps, and a slow environment delays the
    others.)

    Args:
      pool: The workers, which are reset: every call begins new episodes. Or a `Sampler` over them,
        with which episodes continue.
      get_actions: `get_actions(states [N, ...], optimal)` returns actions `[N, ...]`, or a pair of
        actions and a dict of extras `[N, ...]` to store with the samples; nests of NumPy arrays or
        eager tensors. If actions themselves are a pair with a dict, return `(actions, {})`.
      total_samples: Env steps to yield; None for an infinite stream.
      clip_length: Steps that a clip of these samples spans.
      min_trajectory_length: Shorter trajectories are discarded; at least `clip_length`, which is
        the value of None.
      max_trajectory_length: The length at which an episode is truncated; None for no bound.
      min_batch_size: States to wait for.
      max_batch_size: The most states of one call of `get_actions`; the size of the pool if None or
        larger.
      max_wait_time: Seconds. None waits for `max_batch_size` states, or all that can arrive.
      max_discarded_in_a_row: The most samples discarded without a usable trajectory; more are an
        error, since sampling might never end. None for no bound.
      optimal: Passed to `get_actions`: whether to act greedily, without exploration.
      postprocess_trajectory: Called with every trajectory; returns one of the same length.
      progress: Whether to show a progress bar; or a `Progress` to use, which is not closed.
      counts: The counts of this call are added to it.

    Returns:
      An iterator of `SampledTrajectory`. To stop early, close it or drop it.

    Raises:
      UserError: At once for contradictory bounds. While iterating, if the number of actions is not
        the number of states, if a hook changes the length, or after too many discarded samples.
      WorkerError: While iterating, for an error of an environment; see `WorkerPool.get_state`.
    """
    sampler = pool if isinstance(pool, Sampler) else Sampler(pool)
    bounds = checked_bounds(
        len(sampler.pool),
        total_samples=total_samples,
        clip_length=clip_length,
        min_trajectory_length=min_trajectory_length,
        max_trajectory_length=max_trajectory_length,
        min_batch_size=min_batch_size,
        max_batch_size=max_batch_size,
        max_wait_time=max_wait_time,
        max_discarded_in_a_row=max_discarded_in_a_row,
    )
    _check_progress(progress, total_samples)
    counted = sampler.counts if counts is None else counts

    def run() -> Iterator[SampledTrajectory]:
        with _shown(progress, bounds) as on_progress:
            sampling = Sampling(sampler, get_actions, bounds, optimal, counted, on_progress)
            for trajectory in sampling.run():
                if sampler.on_trajectory is not None:
                    sampler.on_trajectory(trajectory)
                yield _postprocessed(trajectory, postprocess_trajectory)

    return run()


def collect_samples(
    pool: WorkerPool | Sampler,
    get_actions: GetActions,
    *,
    total_samples: int,
    clip_length: int = 1,
    min_trajectory_length: int | None = None,
    max_trajectory_length: int | None = None,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    max_wait_time: float | None = 0.1,
    max_discarded_in_a_row: int | None = 100_000,
    optimal: bool = False,
    postprocess_trajectory: PostprocessTrajectory | None = None,
    postprocess_trajectories: PostprocessTrajectories | None = None,
    progress: bool | Progress = False,
    counts: SamplingCounts | None = None,
) -> list[SampledTrajectory]:
    """Returns trajectories with exactly `total_samples` samples in all; see `iter_samples`.

    Args:
      pool: The workers, or a `Sampler` over them.
      get_actions: Observations `[N, ...]` and `optimal` to actions `[N, ...]`, or with extras.
      total_samples: Env steps to return.
      clip_length: Steps that a clip of these samples spans.
      min_trajectory_length: Shorter trajectories are discarded; `clip_length` if None.
      max_trajectory_length: The length at which an episode is truncated; None for no bound.
      min_batch_size: States to wait for.
      max_batch_size: The most states of one call of `get_actions`; None for the size of the pool.
      max_wait_time: Seconds; None waits for `max_batch_size` states.
      max_discarded_in_a_row: The most samples discarded without a usable trajectory; more are an
        error, since sampling might never end. None for no bound.
      optimal: Passed to `get_actions`.
      postprocess_trajectory: Called with every trajectory; returns one of the same length.
      postprocess_trajectories: Called once with the list of all trajectories, after the other hook
        with each; returns the list to return.
      progress: Whether to show a progress bar; or a `Progress` to use.
      counts: The counts of this call are added to it.

    Raises:
      UserError: See `iter_samples`; also if the hook returns no trajectories.
      WorkerError: See `iter_samples`.
    """
    check_total(total_samples)
    trajectories = list(
        iter_samples(
            pool,
            get_actions,
            total_samples=total_samples,
            clip_length=clip_length,
            min_trajectory_length=min_trajectory_length,
            max_trajectory_length=max_trajectory_length,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            max_wait_time=max_wait_time,
            max_discarded_in_a_row=max_discarded_in_a_row,
            optimal=optimal,
            postprocess_trajectory=postprocess_trajectory,
            progress=progress,
            counts=counts,
        )
    )
    if postprocess_trajectories is None:
        return trajectories
    return checked_trajectories(postprocess_trajectories(trajectories))


def check_total(total_samples: Any) -> None:
    """Raises a UserError for a collection without a total."""
    if total_samples is None:
        raise UserError(
            "total_samples",
            expected="a whole number of at least 1",
            got="None",
            remedy="Pass total_samples; only iter_samples supports endless streams.",
        )


def checked_trajectories(result: Any) -> list[SampledTrajectory]:
    """Returns the result of `postprocess_trajectories`, checked; raises a UserError for others."""
    return [_checked(t) for t in _sequence(result)]


def checked_bounds(
    num_workers: int,
    *,
    total_samples: int | None,
    clip_length: int,
    min_trajectory_length: int | None,
    max_trajectory_length: int | None,
    min_batch_size: int,
    max_batch_size: int | None,
    max_wait_time: float | None,
    max_discarded_in_a_row: int | None,
) -> SamplingBounds:
    """Returns the bounds with defaults filled in; see `iter_samples`.

    Raises:
      UserError: For a bound that is no positive integer, or contradictory bounds.
    """

    def count(name: str, value: Any) -> int:
        counted = "states" if "batch" in name else "samples"
        return checks.at_least(name, value, 1, remedy=f"Pass a number of {counted}.")

    def optional(name: str, value: Any, otherwise: Any) -> Any:
        return otherwise if value is None else count(name, value)

    total = optional("total_samples", total_samples, sys.maxsize)
    clip = count("clip_length", clip_length)
    shortest = optional("min_trajectory_length", min_trajectory_length, clip)
    longest = optional("max_trajectory_length", max_trajectory_length, None)
    _check_lengths(total, clip, shortest, longest)
    at_least = count("min_batch_size", min_batch_size)
    at_most = optional("max_batch_size", max_batch_size, num_workers)
    _check_batches(at_least, at_most, num_workers)
    remedy = "Pass the time in seconds, or 0 to not wait."
    wait = checks.number("max_wait_time", max_wait_time, 0, optional=True, remedy=remedy)
    discards = optional("max_discarded_in_a_row", max_discarded_in_a_row, None)
    at_most = min(at_most, num_workers)
    if wait is None:
        at_least, wait = at_most, math.inf
    return SamplingBounds(total, shortest, longest, at_least, at_most, float(wait), discards)


def _check_lengths(total: int, clip: int, shortest: int, longest: int | None) -> None:
    if shortest < clip:
        raise UserError(
            "min_trajectory_length",
            expected=f"at least the clip length, {clip}",
            got=str(shortest),
            remedy="Raise it, or leave it out for the clip length.",
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
            remedy="Raise it to fit at least one trajectory.",
        )
    endless = total == sys.maxsize
    if not endless and longest is not None and not splittable(total, shortest, longest):
        count = total // shortest
        raise UserError(
            "total_samples",
            expected=f"a sum of trajectories of {shortest} to {longest} samples",
            got=str(total),
            remedy=f"Use {count * longest} or {(count + 1) * shortest}, the nearest sums.",
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
            remedy="Lower it, or create a larger pool: each worker waits with one state.",
        )


def _postprocessed(
    trajectory: SampledTrajectory, hook: PostprocessTrajectory | None
) -> SampledTrajectory:
    if hook is None:
        return trajectory
    result = _checked(hook(trajectory), "postprocess_trajectory")
    if len(result) != len(trajectory):
        raise UserError(
            "postprocess_trajectory",
            expected=f"{len(trajectory)} samples, as in its argument",
            got=str(len(result)),
            remedy="Change only values and extras, not the number of samples.",
        )
    for name, x in (result.extras or {}).items():
        shapes = [np.shape(leaf) for leaf in tf.nest.flatten(x)]
        wrong = [shape for shape in shapes if shape[:1] != (len(result),)]
        if wrong:
            raise UserError(
                f"postprocess_trajectory: extras[{name!r}]",
                expected=f"an array [{len(result)}, ...], one row per sample",
                got=f"shape {list(wrong[0])}",
                remedy="Return one row per sample.",
            )
    return result


def _checked(result: object, hook: str = "postprocess_trajectories") -> SampledTrajectory:
    if isinstance(result, SampledTrajectory):
        return result
    raise UserError(
        hook,
        expected="a SampledTrajectory"
        if hook == "postprocess_trajectory"
        else "a list of SampledTrajectory",
        got=type(result).__name__,
        remedy="Return trajectory.replace(...).",
    )


def _sequence(result: Sequence[SampledTrajectory]) -> Sequence[SampledTrajectory]:
    if isinstance(result, list | tuple):
        return result
    raise UserError(
        "postprocess_trajectories",
        expected="a list of SampledTrajectory",
        got=type(result).__name__,
        remedy="Return the list of trajectories.",
    )


def _check_progress(progress: bool | Progress, total: int | None) -> None:
    if progress and total is None:
        raise UserError(
            "progress",
            expected="False for an endless stream",
            got=repr(progress),
            remedy="Leave it out, or pass total_samples.",
        )


@contextlib.contextmanager
def _shown(progress: bool | Progress, bounds: SamplingBounds) -> Iterator[Callable[[int], None]]:
    if isinstance(progress, Progress):
        yield progress.update
    elif progress:
        with Progress(bounds.total_samples, "samples") as bar:
            yield bar.update
    else:
        yield lambda done: None
