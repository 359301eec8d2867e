"""Calls into a user's environment: the running call, and its errors.

No TensorFlow here: worker processes and the launcher import this module.
"""

import pathlib
import time
import traceback
from typing import Any, ClassVar

from tfrl.errors import UserError

_TFRL = pathlib.Path(__file__).resolve().parents[1]
# The field of `info` that marks the end of an episode by an environment's failure.
LOST = "lost"
# Packages with frames between tfrl and the user's code.
_BETWEEN = ("gymnasium", "pettingzoo", "tensorflow", "tf_agents")


class EnvError(UserError):
    """An exception in a user's environment: one paragraph, and the user's own traceback.

    Attributes:
      user_traceback: The traceback without the frames of the libraries.
    """

    def __init__(self, thing: str, *, expected: str, got: Any, remedy: str, user_traceback: str):
        """Builds the message.

        Args:
          thing: The subject of the error.
          expected: The expected value or behaviour.
          got: The actual one.
          remedy: The remedy.
          user_traceback: Text of the user's traceback, or "".
        """
        super().__init__(thing, expected=expected, got=got, remedy=remedy)
        self.user_traceback = user_traceback


class RunningCall:
    """Marks a call into an environment, so that a watchdog detects hangs.

    Use one object in `with` statements; its cost is small enough for every step.

    Attributes:
      current: Name of the environment and `time.monotonic()` at the start of its call, or None.
    """

    current: ClassVar[tuple[str, float] | None] = None

    def __init__(self, name: str):
        """Takes the name of the environment."""
        self._name = name

    def __enter__(self) -> None:
        """The call begins."""
        RunningCall.current = (self._name, time.monotonic())

    def __exit__(self, *_: Any) -> None:
        """The call has ended."""
        RunningCall.current = None


class HostErrors:
    """Keeps the last UserError of a host call in a graph; TensorFlow passes on only its text.

    Attributes:
      last: The error, or None.
    """

    last: ClassVar[UserError | None] = None

    @classmethod
    def cause_of(cls, error: BaseException) -> UserError | None:
        """Returns the UserError that caused TensorFlow's `error`, or None."""
        return cls.last if cls.last is not None and str(cls.last) in str(error) else None


def env_error(error: Exception, thing: str, remedy: str) -> UserError:
    """Returns the error to raise for an environment's exception; a UserError is unchanged.

    Args:
      error: The environment's exception.
      thing: The call, with the environment's id.
      remedy: How to reproduce it.
    """
    if isinstance(error, UserError):
        return error
    text = " ".join(str(error).split())
    return EnvError(
        thing,
        expected="no exception",
        got=f"{type(error).__name__}{': ' * bool(text)}{text.rstrip('.')}",
        remedy=remedy,
        user_traceback=user_traceback(error),
    )


def user_traceback(error: BaseException) -> str:
    """Returns the traceback of an exception without the frames of tfrl and of libraries below it.

    An exception without other frames keeps all of them.
    """
    report = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = report
    while part is not None:
        own = [frame for frame in part.stack if not _between(frame.filename)]
        part.stack = traceback.StackSummary.from_list(own or part.stack)
        part = part.__cause__ or part.__context__
    return "".join(report.format())


def _between(filename: str) -> bool:
    path = pathlib.Path(filename)
    if path.is_relative_to(_TFRL):
        return True
    folders = path.parts[:-1]
    return any(
        site == "site-packages" and package in _BETWEEN
        for site, package in zip(folders, folders[1:], strict=False)
    )
