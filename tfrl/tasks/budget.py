"""How many samples are left, and who may take them, so that the total comes out exactly."""

import sys

from tfrl.tasks.bounds import SamplingBounds, next_splittable
from tfrl.tasks.samples import SampledTrajectory


class Budget:
    """Counts samples down; the trajectories that it releases add up to the total exactly.

    A trajectory that has begun holds as many samples as it needs to become long enough. So the end
    of sampling leaves none that is too short, and nobody begins one for which not enough is left.

    An episode may still end where the rest is no sum of trajectories of the allowed lengths. Then
    it is planned to leave samples out at the starts of trajectories. For that the last ones are
    kept back until others have as much to spare. Where not even that helps, the shortest of them
    is thrown away: what a policy's longest episodes can make up is reached.

    Attributes:
      remaining: Samples of the total that are not in accepted trajectories.
      trimmed: Samples that were left out of released trajectories.
    """

    def __init__(self, bounds: SamplingBounds):
        """Begins with the total."""
        self.remaining = bounds.total_samples
        self.trimmed = 0
        self._unreleased = bounds.total_samples
        self._shortest = bounds.min_trajectory_length
        self._longest = bounds.max_trajectory_length
        self._endless = bounds.total_samples == sys.maxsize
        # As long as they were sampled: how much goes is settled when they are released.
        self._kept_back: list[SampledTrajectory] = []

    def reserved(self, size: int) -> int:
        """Returns what a trajectory of `size` samples, the one under way included, holds."""
        return max(self._shortest, size) if size else 0

    def next_cost(self, size: int) -> int:
        """Returns what a trajectory of `size` samples takes from the rest for one more."""
        return self.reserved(size + 1) - self.reserved(size)

    def accept(self, trajectory: SampledTrajectory, held: int) -> SampledTrajectory | None:
        """Takes a trajectory that is over off the rest.

        Args:
          trajectory: Not longer than allowed.
          held: What the trajectories under way hold of the rest.

        Returns:
          What is thrown away for it; None for nothing. It is the trajectory itself if it is too
          short, or if what it would leave cannot be made up and none before it was shorter.
        """
        if len(trajectory) < self._shortest:
            return trajectory
        known = [*self._kept_back, trajectory]
        if self._keep(known, held):
            return None
        # The newest of the shortest.
        position = min(reversed(range(len(known))), key=lambda i: len(known[i]))
        thrown_away = known.pop(position)
        if thrown_away is not trajectory:
            # It fits: the rest may stay as it was, with what is longer now left out.
            self._keep(known, held)
        return thrown_away

    def release(self) -> list[SampledTrajectory]:
        """Returns accepted trajectories that will not be changed any more, oldest first."""
        count = len(self._kept_back)
        if self._endless:
            pass
        elif self.remaining:
            count = self._num_certain()
        else:
            self._trim()
        released, self._kept_back = self._kept_back[:count], self._kept_back[count:]
        self._unreleased -= _num_samples(released)
        return released

    def _keep(self, known: list[SampledTrajectory], held: int) -> bool:
        """Plans with these trajectories, if the rest can be made up beside them."""
        bare = self._unreleased - _num_samples(known)
        rest = bare
        if not self._endless:
            rest = next_splittable(max(bare, held), self._shortest, self._longest)
        if rest - bare > self._to_spare(known):
            return False
        self._kept_back, self.remaining = known, rest
        return True

    def _surplus(self) -> int:
        """How many samples of those kept back are too many for the rest that is planned."""
        return self.remaining + _num_samples(self._kept_back) - self._unreleased

    def _num_certain(self) -> int:
        """How many of the oldest can go, because those after them have enough to spare."""
        # From no rest to the next one that can be made up it is further than this.
        needed = self._shortest - 1 + self._surplus()
        count = 0
        while self._kept_back[count:] and self._to_spare(self._kept_back[count + 1 :]) >= needed:
            count += 1
        return count

    def _to_spare(self, trajectories: list[SampledTrajectory]) -> int:
        return _num_samples(trajectories) - self._shortest * len(trajectories)

    def _trim(self) -> None:
        """Leaves the surplus out at the starts of trajectories, of the newest first."""
        surplus = self._surplus()
        self.trimmed += surplus
        for position in reversed(range(len(self._kept_back))):
            trajectory = self._kept_back[position]
            taken = min(surplus, len(trajectory) - self._shortest)
            if taken:
                self._kept_back[position] = trajectory.newest(len(trajectory) - taken)
                surplus -= taken


def _num_samples(trajectories: list[SampledTrajectory]) -> int:
    return sum(map(len, trajectories))
