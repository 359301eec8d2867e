"""Messages between a pool and its workers' processes or threads, and their errors."""

import enum
from typing import Any, NamedTuple

import gymnasium

from tfrl import checks
from tfrl.errors import UserError


class WorkerMode(enum.Enum):
    """Where the environment of an `AsyncEnvironmentWorker` runs."""

    PROCESS = "process"
    THREAD = "thread"

    @classmethod
    def of(cls, mode: "WorkerMode | str") -> "WorkerMode":
        """Returns the mode of a name; raises a UserError that lists the names."""
        names = [m.value for m in cls]
        value = mode.value if isinstance(mode, WorkerMode) else str(mode)
        checks.one_of("mode of the environment workers", value, names)
        return cls(value)


class NoState(enum.Enum):
    """Why `get_state` returns no state. It is false, every state is true."""

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
    """One observation of one worker's environment, with its reward and end flags.

    An episode of n steps arrives as n + 1 states: the reset observation (`step` 0), then one after
    each action; the last of them has the terminal observation, its reward and the end flags. The
    worker then resets by itself, and the first state of its next episode arrives.

    Attributes:
      worker_id: Which worker, from 0.
      generation: Number of resets of the pool or of single workers at the start of the episode.
      episode: The number of the worker's episode, which determines its seed.
      step: Number of earlier actions in the episode.
      obs: The observation, a nest of NumPy arrays with the dtypes of the observation space.
      reward: The reward of the last action; 0.0 at step 0.
      terminated: The episode ended by the task's own rules.
      truncated: The environment, `max_episode_steps` or a fault truncated the episode.
      info: The environment's own dict.
      lost: The worker died or hung after this observation, which repeats the last state. It is no
        transition: a following action has no result. `truncated` is True.
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
        """Whether this is a reset observation."""
        return self.step == 0 and not self.lost

    @property
    def last(self) -> bool:
        """Whether the episode is over; no action may follow."""
        return self.terminated or self.truncated


class RunnerSettings(NamedTuple):
    """Settings of a worker, besides its factory."""

    worker_id: int
    seed: int
    max_episode_steps: int | None = None


class Load(NamedTuple):
    """To a process, first: the pickled factory; the process reports unpickling errors."""

    factory: bytes
    settings: RunnerSettings


class Begin(NamedTuple):
    """To a worker: drop all other work and start this episode, the first of a generation."""

    generation: int
    episode: int


class Act(NamedTuple):
    """To a worker: take this action, if its generation is current."""

    generation: int
    action: Any


class Ready(NamedTuple):
    """From a worker: the environment is created."""

    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    imported_tensorflow: bool


class Failure(NamedTuple):
    """From a worker, its last message: the environment raised or returned an invalid value.

    Attributes:
      worker_id: Which worker.
      phase: The phase of the failure.
      generation: Of the episode.
      episode: Of the worker, or -1 before the first.
      step: Actions taken in the episode.
      expected: The expected outcome.
      got: The actual outcome.
      remedy: The remedy.
      thing: The subject of the error, if the check of a returned value knows it better.
      traceback: The worker's traceback as text; empty for a refused value.
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


# The expected outcome of each phase, and the remedy if the environment raised in it.
_EXPECTED = {
    Phase.IMPORT: "a factory that loads in a new Python process",
    Phase.FACTORY: "a factory that returns a gymnasium.Env",
    Phase.RESET: "a reset that returns obs and an info dict",
    Phase.STEP: "a step that returns obs, reward, terminated, truncated and info",
    Phase.SEND: "picklable obs and info, since they leave the worker's process",
}
_REMEDY = {
    Phase.IMPORT: "Define the factory in a module on sys.path, or let it refer only to picklable "
    "objects.",
    Phase.FACTORY: "Call the factory once in this process to debug it.",
    Phase.RESET: "Reproduce it with env_factory().reset(seed=...) in this process.",
    Phase.STEP: "Reproduce it in this process with force_sync=True and the same seed.",
    Phase.SEND: "Remove unpicklable items from info in a gymnasium.Wrapper.",
}


class WorkerError(UserError):
    """A fault in an environment worker: one paragraph, then the worker's traceback, if any.

    Attributes:
      worker_id: The worker.
      worker_traceback: The traceback of the worker's process or thread, or "".
    """

    def __init__(
        self,
        thing: str,
        *,
        expected: str,
        got: str,
        remedy: str,
        worker_id: int,
        worker_traceback: str = "",
    ):
        """Builds the message and appends the traceback.

        Args:
          thing: The subject of the error.
          expected: The expected value or behaviour.
          got: The actual one.
          remedy: The remedy.
          worker_id: The worker.
          worker_traceback: Text of the worker's traceback.
        """
        super().__init__(thing, expected=expected, got=got, remedy=remedy)
        self.worker_id = worker_id
        self.worker_traceback = worker_traceback
        if worker_traceback:
            self.args = (f"{self.args[0]}\n\nIn worker {worker_id}:\n{worker_traceback}",)


def describe(error: BaseException) -> str:
    """Returns the type and the message of an exception, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raised(
    error: BaseException, traceback: str, phase: Phase, worker_id: int, place: tuple[int, int, int]
) -> Failure:
    """Returns the record of an exception; `place` is (generation, episode, step).

    A UserError of the library keeps its message, without a traceback.
    """
    if isinstance(error, UserError):
        words = (error.expected, str(error.got), error.remedy, error.thing)
        return Failure(worker_id, phase, *place, *words)
    words = (_EXPECTED[phase], describe(error), _REMEDY[phase], "")
    return Failure(worker_id, phase, *place, *words, traceback)


def environment_error(failure: Failure) -> WorkerError:
    """Returns the exception that reports a worker's failure to the caller."""
    where = ""
    if failure.phase in (Phase.RESET, Phase.STEP, Phase.SEND):
        where = f", episode {failure.episode}, step {failure.step}"
    thing = failure.thing or failure.phase.value
    return WorkerError(
        f"environment of worker {failure.worker_id}{where}: {thing}",
        expected=failure.expected,
        got=failure.got,
        remedy=failure.remedy,
        worker_id=failure.worker_id,
        worker_traceback=failure.traceback,
    )


def too_many_restarts(worker_id: int, max_restarts: int, reasons: list[str]) -> WorkerError:
    """Returns the exception for a worker that died or hung once too often."""
    return WorkerError(
        f"environment worker {worker_id}",
        expected=f"at most max_restarts = {max_restarts} deaths or hangs",
        got=f"{len(reasons)}: {'; '.join(reasons[-3:])}" + (" (the last 3)" * (len(reasons) > 3)),
        remedy="Run the environment alone, raise the timeout, or raise max_restarts; a signal or "
        "an exit code indicates a fault in native code or a lack of memory.",
        worker_id=worker_id,
    )
