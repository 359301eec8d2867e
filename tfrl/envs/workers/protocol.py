"""What a pool and the processes or threads of its workers say to each other: plain records."""

import enum
from typing import Any, NamedTuple

import gymnasium

from tfrl.errors import UserError, did_you_mean


class WorkerMode(enum.Enum):
    """Where the environment of an `AsyncEnvironmentWorker` runs."""

    PROCESS = "process"
    THREAD = "thread"

    @classmethod
    def of(cls, mode: "WorkerMode | str") -> "WorkerMode":
        """Returns the mode of a name, or raises a UserError that lists the names."""
        names = [m.value for m in cls]
        value = mode.value if isinstance(mode, WorkerMode) else str(mode)
        if value not in names:
            raise UserError(
                "mode of the environment workers",
                expected="'process' or 'thread'",
                got=repr(mode),
                remedy=did_you_mean(value, names),
            )
        return cls(value)


class NoState(enum.Enum):
    """Why `get_state` has no state to give. It counts as false, every state as true."""

    TIMED_OUT = "timed_out"
    """Workers are busy, and none was ready within the timeout."""
    IDLE = "idle"
    """No worker is busy: all that have not failed wait for an action."""

    def __bool__(self) -> bool:
        return False


class Phase(enum.Enum):
    """What a worker was doing when its environment failed."""

    IMPORT = "loading env_factory"
    FACTORY = "env_factory()"
    RESET = "reset()"
    STEP = "step()"
    SEND = "sending the state"


class WorkerState(NamedTuple):
    """One observation of one worker's environment, with what led to it.

    An episode of n steps arrives as n + 1 states: the reset observation (`step` 0), then one after
    each action; the last of them has the terminal observation, its reward and the end flags. The
    worker then resets by itself, and the first state of its next episode arrives.

    Attributes:
      worker_id: Which worker, from 0.
      generation: How many times the pool had been reset when the episode began.
      episode: The episode's number among those of this worker; with it its seed is determined.
      step: How many actions of the episode came before.
      obs: The observation, a nest of NumPy arrays with the dtypes of the observation space.
      reward: Of the last action; 0.0 at step 0.
      terminated: The episode ended by the task's own rules.
      truncated: The episode was cut: by the environment, by `max_episode_steps`, or by a fault.
      info: The environment's own dict.
      lost: The worker died or hung after this observation, which had been delivered before. It is
        no transition: the action that followed it, if any, has no result. `truncated` is True.
    """

    worker_id: int
    generation: int
    episode: int
    step: int
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    lost: bool = False

    @property
    def first(self) -> bool:
        """Whether this is the observation of a reset."""
        return self.step == 0 and not self.lost

    @property
    def last(self) -> bool:
        """Whether the episode is over; no action may follow."""
        return self.terminated or self.truncated


class RunnerSettings(NamedTuple):
    """What runs an environment needs to know beside its factory."""

    worker_id: int
    seed: int
    max_episode_steps: int | None = None


class Load(NamedTuple):
    """To a process, first of all: the pickled factory, opened where errors can be reported."""

    factory: bytes
    settings: RunnerSettings


class Begin(NamedTuple):
    """To a worker: leave whatever you do and begin this episode, the first of a generation."""

    generation: int
    episode: int


class Act(NamedTuple):
    """To a worker: take this action, if its generation is still yours."""

    generation: int
    action: Any


class Ready(NamedTuple):
    """From a worker: the environment is made."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    imported_tensorflow: bool


class Failure(NamedTuple):
    """From a worker, its last message: the environment raised, or returned what it must not.

    Attributes:
      worker_id: Which worker.
      phase: What it was doing.
      generation: Of the episode.
      episode: Of the worker, or -1 before the first.
      step: Actions taken in the episode.
      expected: What would have been right.
      got: What happened instead.
      remedy: What to do.
      thing: What it is about, where the check of a returned value knows it better than the phase.
      traceback: The worker's, as text; empty where a returned value was refused.
    """

    worker_id: int
    phase: Phase
    generation: int
    episode: int
    step: int
    expected: str
    got: str
    remedy: str
    thing: str = ""
    traceback: str = ""
