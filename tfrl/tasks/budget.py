"""How many samples are left, and who may take them, so that the total comes out exactly."""

import sys

from tfrl.tasks.bounds import SamplingBounds
from tfrl.tasks.samples import SampledTrajectory


class Budget:
    """Counts samples down; the trajectories that it releases add up to the total exactly.

    A trajectory that has begun holds as many samples as it needs to become long enough. So the end
    of sampling leaves none that is too short, and nobody begins one for which not enough is left.

    An episode may still end where a rest is left that is too small for another trajectory. Then
    trajectories of before are shortened until it is not. For that the last ones are kept back
    until others have as much to spare.

    Attributes:
      remaining: Samples of the total that are not in accepted trajectories.
    """

    def __init__(self, bounds: SamplingBounds):
        """Begins with the total."""
        self.remaining = bounds.total_samples
        self._shortest = bounds.min_trajectory_length
        self._endless = bounds.total_samples == sys.maxsize
        self._kept_back: list[SampledTrajectory] = []

    def reserved(self, size: int) -> int:
        """Returns what a trajectory of `size` samples, the one under way included, holds."""
        return max(self._shortest, size) if size else 0

    def next_cost(self, size: int) -> int:
        """Returns what a trajectory of `size` samples takes from the rest for one more."""
        return self.reserved(size + 1) - self.reserved(size)

    def accept(self, trajectory: SampledTrajectory) -> int | None:
        """Takes a trajectory that is over off the rest.

        Returns:
          How many samples were left out of accepted trajectories for it; None where it was not
          accepted: it is too short, or what it would leave cannot be made up.
        """
        length = len(trajectory)
        rest = self.remaining - length
        lacking = self._shortest - rest if 0 < rest < self._shortest else 0
        known = [*self._kept_back, trajectory]
        if length < self._shortest or self._to_spare(known) < lacking:
            return None
        self._kept_back = known
        self._shorten(lacking)
        self.remaining = rest + lacking
        return lacking

    def release(self) -> list[SampledTrajectory]:
        """Returns accepted trajectories that will not be shortened any more, oldest first."""
        needed = self._shortest - 1
        count = len(self._kept_back)
        if self.remaining and not self._endless:
            count = 0
            while (
                self._kept_back[count:] and self._to_spare(self._kept_back[count + 1 :]) >= needed
            ):
                count += 1
        released, self._kept_back = self._kept_back[:count], self._kept_back[count:]
        return released

    def _to_spare(self, trajectories: list[SampledTrajectory]) -> int:
        return sum(len(t) - self._shortest for t in trajectories)

    def _shorten(self, samples: int) -> None:
        """Leaves so many samples out at the starts of trajectories, of the newest first."""
        for position in reversed(range(len(self._kept_back))):
            trajectory = self._kept_back[position]
            taken = min(samples, len(trajectory) - self._shortest)
            if taken:
                self._kept_back[position] = trajectory.newest(len(trajectory) - taken)
                samples -= taken
