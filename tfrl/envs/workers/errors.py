"""What a fault of a worker looks like to the caller."""

from tfrl.envs.workers.protocol import Failure, Phase
from tfrl.errors import UserError

# What each phase should have done, and what to do when the environment raised in it.
_EXPECTED = {
    Phase.IMPORT: "the environment's factory to load in a fresh Python process",
    Phase.FACTORY: "the factory to return a gymnasium.Env",
    Phase.RESET: "reset to return an observation and an info dict",
    Phase.STEP: "step to return obs, reward, terminated, truncated and info",
    Phase.SEND: "observation and info to be picklable, as they leave the worker's process",
}
_REMEDY = {
    Phase.IMPORT: "Define the factory in a module that can be imported there, or let it refer to "
    "nothing but what pickles; its modules must be importable from sys.path.",
    Phase.FACTORY: "Call the factory once in this process to debug it.",
    Phase.RESET: "Reproduce it with env_factory().reset(seed=...) in this process.",
    Phase.STEP: "Reproduce it in this process with force_sync=True and the same seed.",
    Phase.SEND: "Drop what cannot be pickled from info in a gymnasium.Wrapper.",
}


class WorkerError(UserError):
    """A fault in an environment worker: one paragraph, then the worker's traceback if it has one.

    Attributes:
      worker_id: The worker.
      worker_traceback: The traceback of the process or thread in which it happened, or "".
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
        """Builds the paragraph and appends the traceback.

        Args:
          thing: What the error is about.
          expected: What would have been right.
          got: What was found instead.
          remedy: What to do now.
          worker_id: The worker.
          worker_traceback: Text of the traceback over there.
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

    What the library itself refused (a UserError) is told in its own words, without a traceback.
    """
    if isinstance(error, UserError):
        words = (error.expected, str(error.got), error.remedy, error.thing)
        return Failure(worker_id, phase, *place, *words)
    words = (_EXPECTED[phase], describe(error), _REMEDY[phase], "")
    return Failure(worker_id, phase, *place, *words, traceback)


def environment_error(failure: Failure) -> WorkerError:
    """Returns the exception that tells the caller of a worker's failure."""
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
        remedy="A signal or an exit code points at the environment's native code or at a lack of "
        "memory, a hang at a too short timeout. Run the environment alone, or raise max_restarts.",
        worker_id=worker_id,
    )
