"""What happened while sampling, in numbers, and the warnings about it."""

import dataclasses
import logging

from tfrl.errors import UserError
from tfrl.tasks.samples import SampledTrajectory

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class SamplingCounts:
    """Counts of one or more calls of `iter_samples`, to which it is given.

    Environment steps with a known result are `samples + discarded_samples + trimmed_samples`.

    Attributes:
      samples: Given out.
      trajectories: Given out.
      episodes: Trajectories given out that end where the environment ended its episode.
      discarded_trajectories: Too short to be given out, or of no use for the exact total.
      discarded_samples: In them.
      trimmed_samples: Left out at the start of trajectories so that the total comes out exactly.
      dropped_actions: Actions without a sample: their worker was lost, or the others waited for it
        longer than `max_wait_time` at the end.
      batches: Calls of `get_actions`.
      states: In them.
    """

    samples: int = 0
    trajectories: int = 0
    episodes: int = 0
    discarded_trajectories: int = 0
    discarded_samples: int = 0
    trimmed_samples: int = 0
    dropped_actions: int = 0
    batches: int = 0
    states: int = 0


class Discards:
    """Counts trajectories that are discarded, and warns of the first, the 10th, the 100th, ..."""

    def __init__(self, counts: SamplingCounts, shortest: int, most_in_a_row: int | None):
        """Begins a call.

        Args:
          counts: Added to.
          shortest: min_trajectory_length.
          most_in_a_row: Samples that may be discarded without one trajectory that can be used.
        """
        self._counts = counts
        self._shortest = shortest
        self._most_in_a_row = most_in_a_row
        self._trajectories = self._samples = self._longest = 0
        self._in_a_row = 0
        self._next_warning = 1

    def accepted(self) -> None:
        """Hears that a trajectory was not discarded."""
        self._in_a_row = 0

    def add(self, trajectory: SampledTrajectory, remaining: int) -> None:
        """Counts a trajectory that is discarded.

        Args:
          trajectory: Too short, or not of use for what remains.
          remaining: Samples of the total that are left.

        Raises:
          UserError: More samples than `most_in_a_row` were discarded since the last trajectory
            that could be used: there may be no end to it.
        """
        length = len(trajectory)
        self._counts.discarded_trajectories += 1
        self._counts.discarded_samples += length
        self._trajectories += 1
        self._samples += length
        self._longest = max(self._longest, length)
        self._in_a_row += length
        if self._trajectories == self._next_warning:
            self._next_warning *= 10
            self._warn(trajectory, self._reason(length, remaining))
        if self._most_in_a_row is not None and self._in_a_row >= self._most_in_a_row:
            raise UserError(
                "iter_samples",
                expected=f"trajectories that can be used: {self._reason(length, remaining)}",
                got=f"none in the last {self._in_a_row} env steps; the longest of all that were "
                f"discarded had {self._longest} samples",
                remedy="Lower the clip length or min_trajectory_length, make the episodes longer, "
                "or raise max_discarded_in_a_row (None: go on for ever).",
            )

    def close(self) -> None:
        """Warns of the sum, where there was more than the first."""
        if self._trajectories > 1:
            message = "Discarded %d trajectories with %d samples (min_trajectory_length is %d)."
            _LOG.warning(message, self._trajectories, self._samples, self._shortest)

    def _warn(self, trajectory: SampledTrajectory, reason: str) -> None:
        length, worker_id = len(trajectory), trajectory.worker_id
        if self._trajectories == 1:
            message = "Discarded a trajectory of %d samples of worker %d: %s."
            _LOG.warning(message, length, worker_id, reason)
        else:
            message = (
                "Discarded %d trajectories with %d samples so far, the longest of %d; %d samples "
                "since the last one that could be used. The newest has %d samples of worker %d: %s."
            )
            numbers = (self._trajectories, self._samples, self._longest, self._in_a_row)
            _LOG.warning(message, *numbers, length, worker_id, reason)

    def _reason(self, length: int, remaining: int) -> str:
        if length < self._shortest:
            return f"min_trajectory_length is {self._shortest}"
        return (
            f"the {remaining} samples that are left cannot be made up of trajectories of "
            f"{self._shortest} samples or more beside it"
        )
