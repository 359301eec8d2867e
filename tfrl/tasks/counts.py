"""What happened while sampling, in numbers, and the warnings about it."""

import dataclasses
import logging

from tfrl.errors import UserError
from tfrl.tasks.samples import SampledTrajectory

_LOG = logging.getLogger(__name__)
# Environments whose episodes are all too short would otherwise be sampled for ever.
_MOST_DISCARDED_IN_A_ROW = 100


@dataclasses.dataclass
class SamplingCounts:
    """Counts of one or more calls of `iter_samples`, to which it is given.

    Environment steps with a known result are `samples + discarded_samples + trimmed_samples`.

    Attributes:
      samples: Given out.
      trajectories: Given out.
      episodes: Trajectories given out that end where the environment ended its episode.
      discarded_trajectories: Too short to be given out.
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
    """Warns of the first trajectory that is discarded and, at the end, of how many there were."""

    def __init__(self, counts: SamplingCounts, shortest: int):
        """Begins a call.

        Args:
          counts: Added to.
          shortest: min_trajectory_length.
        """
        self._counts = counts
        self._shortest = shortest
        self._before = counts.discarded_trajectories, counts.discarded_samples
        self._in_a_row: list[int] = []

    def accepted(self) -> None:
        """Hears that a trajectory was not discarded."""
        self._in_a_row.clear()

    def add(self, trajectory: SampledTrajectory, remaining: int) -> None:
        """Counts a trajectory that is discarded.

        Args:
          trajectory: Too short, or not of use for what remains.
          remaining: Samples of the total that are left.

        Raises:
          UserError: When a hundred are discarded in a row: there may be no end to it.
        """
        counts, row, length = self._counts, self._in_a_row, len(trajectory)
        if counts.discarded_trajectories == self._before[0]:
            message = "Discarded a trajectory of %d samples of worker %d: %s."
            _LOG.warning(message, length, trajectory.worker_id, self._reason(length, remaining))
        counts.discarded_trajectories += 1
        counts.discarded_samples += length
        row.append(length)
        if len(row) >= _MOST_DISCARDED_IN_A_ROW:
            raise UserError(
                "iter_samples",
                expected=f"trajectories that can be used: {self._reason(max(row), remaining)}",
                got=f"{len(row)} in a row of {min(row)} to {max(row)} samples",
                remedy="Lower the clip length or min_trajectory_length, or make the episodes "
                "longer.",
            )

    def close(self) -> None:
        """Warns of the sum, where there was more than the first."""
        trajectories = self._counts.discarded_trajectories - self._before[0]
        if trajectories > 1:
            samples = self._counts.discarded_samples - self._before[1]
            message = "Discarded %d trajectories with %d samples (min_trajectory_length is %d)."
            _LOG.warning(message, trajectories, samples, self._shortest)

    def _reason(self, length: int, remaining: int) -> str:
        if length < self._shortest:
            return f"min_trajectory_length is {self._shortest}"
        return (
            f"the {remaining} samples that are left cannot be made up of trajectories of "
            f"{self._shortest} samples or more beside it"
        )
