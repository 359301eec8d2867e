"""Returns of whole episodes, out of trajectories that may be parts of them."""

from collections.abc import Iterable

import numpy as np

from tfrl.tasks.samples import SampledTrajectory


class EpisodeReturns:
    """Adds up the rewards of episodes over the trajectories that they were sampled in.

    An episode of which a part is missing (discarded, trimmed or lost) is left out.
    """

    def __init__(self) -> None:
        """Begins without an episode."""
        # {worker: (episode, next step, return so far)}
        self._open: dict[int, tuple[int, int, float]] = {}

    def add(self, trajectories: Iterable[SampledTrajectory]) -> list[tuple[float, int]]:
        """Takes trajectories, of each worker in order; returns (return, length) of what ended."""
        ended = []
        for t in trajectories:
            episode, at, total = self._open.pop(t.worker_id, (-1, -1, 0.0))
            if t.start == 0:
                episode, at, total = t.episode, 0, 0.0
            if (episode, at) != (t.episode, t.start):
                continue
            total += float(np.sum(t.reward, dtype=np.float64))
            at += len(t)
            if t.cut:
                self._open[t.worker_id] = (episode, at, total)
            else:
                ended.append((total, at))
        return ended
