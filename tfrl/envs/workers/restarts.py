"""How often a worker has died or hung, and how long to wait before it is started again."""

import logging

from tfrl.envs.workers.errors import WorkerError, too_many_restarts
from tfrl.envs.workers.limits import WorkerLimits

_LOG = logging.getLogger(__name__)


class Restarts:
    """Counts a worker's faults.

    Attributes:
      total: Restarts in all of the worker's life.
    """

    def __init__(self, worker_id: int, limits: WorkerLimits):
        """Begins with none."""
        self.total = 0
        self._worker_id = worker_id
        self._limits = limits
        self._reasons: list[str] = []
        self._in_a_row = 0

    def fault(self, reason: str) -> float | WorkerError:
        """Counts a death or a hang.

        Args:
          reason: What happened, for the log and the final error.

        Returns:
          The seconds to wait before the restart, or the error if there are too many. After that
          the count begins anew, for callers that reset the worker all the same.
        """
        limits = self._limits
        self._reasons.append(reason)
        number = len(self._reasons)
        if number > limits.max_restarts:
            error = too_many_restarts(self._worker_id, limits.max_restarts, self._reasons)
            self._reasons, self._in_a_row = [], 0
            return error
        wait = limits.wait(self._in_a_row)
        message = "Environment worker %d: %s; restart %d of at most %d in %.1f s."
        _LOG.warning(message, self._worker_id, reason, number, limits.max_restarts, wait)
        self.total += 1
        self._in_a_row += 1
        return wait

    def recovered(self) -> None:
        """Hears of a complete episode: the next wait is the shortest again."""
        self._in_a_row = 0
