"""How long a worker may take, and how often it may die."""

import dataclasses
import math
import numbers
from typing import Any

from tfrl.errors import UserError

_REMEDIES = {
    "start_timeout": "It bounds importing and making the environment.",
    "reset_timeout": "It bounds one reset of the environment.",
    "step_timeout": "It bounds one step of the environment.",
    "cleanup_time": "It bounds closing all environments; what is left is killed.",
    "backoff": "It is the wait before a worker's first restart; each next one doubles it.",
    "max_backoff": "It bounds the wait before a restart.",
}


@dataclasses.dataclass(frozen=True)
class WorkerLimits:
    """Times in seconds, and counts.

    Attributes:
      start_timeout: To start a process, import, and make the environment.
      reset_timeout: For a reset of the environment.
      step_timeout: For a step of the environment.
      cleanup_time: To close the environments; then they are killed.
      max_restarts: How often one worker may be restarted after it died or hung.
      backoff: Wait before a restart; doubled at every restart without a complete episode between.
      max_backoff: The longest wait.
    """

    start_timeout: float = 120.0
    reset_timeout: float = 60.0
    step_timeout: float = 60.0
    cleanup_time: float = 5.0
    max_restarts: int = 10
    backoff: float = 0.1
    max_backoff: float = 10.0

    def __post_init__(self) -> None:
        for name, remedy in _REMEDIES.items():
            may_be_zero = name in ("cleanup_time", "backoff", "max_backoff")
            _check_seconds(name, getattr(self, name), may_be_zero, remedy)
        count = self.max_restarts
        if isinstance(count, bool) or not isinstance(count, numbers.Integral) or count < 0:
            raise UserError(
                "max_restarts of the environment workers",
                expected="an integer of at least 0",
                got=repr(count),
                remedy="It bounds the restarts of each worker.",
            )

    def wait(self, restarts: int) -> float:
        """Returns the seconds to wait before a restart that follows `restarts` others."""
        return min(self.max_backoff, self.backoff * 2.0 ** min(restarts, 60))


def _check_seconds(name: str, value: Any, may_be_zero: bool, remedy: str) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
        raise UserError(
            f"{name} of the environment workers",
            expected=f"a finite number of seconds {'of at least' if may_be_zero else 'above'} 0",
            got=repr(value),
            remedy=remedy,
        )


def check_timeout(timeout: Any) -> float | None:
    """Returns the timeout of `get_state`, or raises a UserError."""
    if timeout is None:
        return None
    number = isinstance(timeout, numbers.Real) and not isinstance(timeout, bool)
    if not number or not timeout >= 0:
        raise UserError(
            "timeout of get_state",
            expected="seconds of at least 0, or None to wait as long as the workers' own timeouts",
            got=repr(timeout),
            remedy="With 0 only what has arrived already is returned.",
        )
    return float(timeout)
