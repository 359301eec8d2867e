"""How a run of `Workflow.learn` ended, and the time that it took."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass
class RunReport:
    """How a run of `Workflow.learn` ended.

    Attributes:
      stopped_by: "budget", "target_return", "callback", or "worker" for a callback of another
        process of the strategy.
      env_steps: Env steps at the end, over all continuations.
      seconds: Wall seconds of this call of `learn`.
      env_steps_per_second: Env steps of this call per second of training, compilation and
        evaluation left out; per wall second when there was one compiled call only.
    """

    stopped_by: str
    env_steps: int
    seconds: float
    env_steps_per_second: float


@dataclasses.dataclass
class RunTime:
    """Time that a run has taken over all its starts.

    Attributes:
      wall_seconds: In `learn`.
      train_seconds: In compiled calls, the first of every start (which compiles) left out.
      train_steps: Env steps of these calls.
    """

    wall_seconds: float = 0.0
    train_seconds: float = 0.0
    train_steps: int = 0

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "RunTime":
        """Reads it from the manifest of a checkpoint, which may lack it."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: manifest[name] for name in names if name in manifest})

    @property
    def env_steps_per_second(self) -> float | None:
        """The speed of training, or None when there was no call beyond the compiling ones."""
        return self.train_steps / self.train_seconds if self.train_seconds > 0 else None
