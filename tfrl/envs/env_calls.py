"""Calls into a user's environment: which one is running, and what it raised.

No TensorFlow here: worker processes and the launcher import this module.
"""

import pathlib
import time
import traceback
from typing import Any, ClassVar

from tfrl.errors import UserError

_TFRL = pathlib.Path(__file__).resolve().parents[1]
# Packages whose frames stand between tfrl and the user's code.
_BETWEEN = ("gymnasium", "pettingzoo", "tensorflow", "tf_agents")


class EnvError(UserError):
    """An exception in a user's environment: one paragraph, and the user's own traceback.

    Attributes:
      user_traceback: The traceback without the frames of the libraries.
    """

    def __init__(self, thing: str, *, expected: str, got: Any, remedy: str, user_traceback: str):
        """Builds the paragraph.

        Args:
          thing: What the error is about.
          expected: What would have been right.
          got: What was found instead.
          remedy: What to do now.
          user_traceback: Text of the user's traceback, or "".
        """
        super().__init__(thing, expected=expected, got=got, remedy=remedy)
        self.user_traceback = user_traceback


class RunningCall:
    """Marks a call into an environment, so that a watchdog can tell whether it hangs.

    Use one object in `with` statements; it is cheap enough for every step.

    Attributes:
      current: Name of the environment and `time.monotonic()` at which its call began, or None.
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
    """Keeps the last UserError of a host call in a graph, of which TensorFlow hands on the text.

    Attributes:
      last: It, or None.
    """

    last: ClassVar[UserError | None] = None

    @classmethod
    def behind(cls, error: BaseException) -> UserError | None:
        """Returns the error that TensorFlow's `error` tells of, or None."""
        return cls.last if cls.last is not None and str(cls.last) in str(error) else None


def env_error(error: Exception, thing: str, remedy: str) -> UserError:
    """Returns what to raise for an exception of an environment; a UserError stays as it is.

    Args:
      error: What the environment raised.
      thing: The call, with the environment's id.
      remedy: How to repeat it.
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

    An exception that has no other frames keeps them all.
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
