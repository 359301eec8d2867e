"""Callbacks: user code at the events of a run, which may also stop it."""

import dataclasses
import enum
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from tfrl.workflows.core import Workflow
    from tfrl.workflows.run_state import State


class _Stop(enum.Enum):
    STOP = "stop"

    def __repr__(self) -> str:
        return "callbacks.STOP"


# Return value of a callback to end the run after the event.
STOP = _Stop.STOP


@dataclasses.dataclass(frozen=True)
class Event:
    """The argument of a callback.

    Attributes:
      env_steps: The env steps so far.
      metrics: The latest metrics: the step's row, the evaluation's result, or the checkpoint's
        metrics.
      state: The workflow's state. The next step consumes it: to keep it, use
        `workflow.snapshot(state)`.
      workflow: The running workflow.
      path: The checkpoint's folder, at `on_checkpoint`.
    """

    env_steps: int
    metrics: Mapping[str, Any]
    state: "State | None" = None
    workflow: "Workflow | None" = None
    path: pathlib.Path | None = None


class Callback:
    """A base class with no-op events; each returns None to continue, or `STOP`."""

    def on_step(self, event: Event) -> _Stop | None:
        """Called after every compiled call of training, with the last metrics row."""
        return None

    def on_evaluate(self, event: Event) -> _Stop | None:
        """Called after every evaluation, with its metrics."""
        return None

    def on_checkpoint(self, event: Event) -> _Stop | None:
        """Called after every saved checkpoint, with its path."""
        return None


_EVENTS = ("on_step", "on_evaluate", "on_checkpoint")


class CallbackList(Callback):
    """Several callbacks as one: all are called in order, and any `STOP` stops."""

    def __init__(self, callbacks: Any = ()):
        """Takes the callbacks, possibly none.

        Args:
          callbacks: An object with one or more of the methods of `Callback`, or several of them.

        Raises:
          UserError: For an object without any of these methods.
        """
        several = callbacks if isinstance(callbacks, Iterable) else (callbacks,)
        self._callbacks = tuple(several)
        for callback in self._callbacks:
            has_method = any(callable(getattr(callback, name, None)) for name in _EVENTS)
            if isinstance(callback, type) or not has_method:
                raise UserError(
                    "callbacks",
                    expected=f"objects with at least one of the methods {', '.join(_EVENTS)}",
                    got=repr(callback),
                    remedy="Pass an object of a subclass of tfrl.experiment.callbacks.Callback.",
                )

    def on_step(self, event: Event) -> _Stop | None:
        """Calls each."""
        return self._call("on_step", event)

    def on_evaluate(self, event: Event) -> _Stop | None:
        """Calls each."""
        return self._call("on_evaluate", event)

    def on_checkpoint(self, event: Event) -> _Stop | None:
        """Calls each."""
        return self._call("on_checkpoint", event)

    def _call(self, name: str, event: Event) -> _Stop | None:
        answer = None
        for callback in self._callbacks:
            method: Callable[[Event], _Stop | None] | None = getattr(callback, name, None)
            result = method(event) if method is not None else None
            if result is STOP:
                answer = STOP
            elif result is not None:
                raise UserError(
                    f"{type(callback).__name__}.{name}",
                    expected="None or callbacks.STOP as its return value",
                    got=repr(result),
                    remedy="Return tfrl.experiment.callbacks.STOP to end the run.",
                )
        return answer


class StopAtReturn(Callback):
    """Ends the run at the first evaluation that reaches a target."""

    def __init__(self, target: float, metric: str = "eval_return_mean"):
        """Sets the target.

        Args:
          target: The minimum value to stop at.
          metric: The name of the evaluation's metric.
        """
        self._target = target
        self._metric = metric

    def on_evaluate(self, event: Event) -> _Stop | None:
        """Stops when the metric has reached the target."""
        if self._metric not in event.metrics:
            raise UserError(
                "StopAtReturn.metric",
                expected="a metric of the evaluation",
                got=self._metric,
                remedy=did_you_mean(self._metric, event.metrics),
            )
        return STOP if float(event.metrics[self._metric]) >= self._target else None
