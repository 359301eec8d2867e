"""The algorithms, each registered once, by the decorator of its class."""

from collections.abc import Callable
from typing import Any, TypeVar

from tfrl.loading import loadable

A = TypeVar("A", bound=type)

# `{class name: agent class}` in the order of registration.
ALGORITHMS: dict[str, Any] = {}
_listeners: list[Callable[[Any], None]] = []


def algorithm(cls: A) -> A:
    """Registers an agent class under its name, a decorator above `struct.logic_dataclass`.

    Gin files may then name it (`OnPolicyWorkflow.agent = @MyAgent`), `tfrl.MyAgent` is the class,
    messages list it, and checkpoints may name it (see `tfrl.loadable`).

    Args:
      cls: A subclass of `Agent` whose constructor takes `obs_spec` and `action_spec`.
    """
    ALGORITHMS[cls.__name__] = cls
    if "<locals>" not in cls.__qualname__:
        loadable(cls)
    for listener in _listeners:
        listener(cls)
    return cls


def on_algorithm(listener: Callable[[Any], None]) -> None:
    """Calls a function with every algorithm, those that are registered later too."""
    _listeners.append(listener)
    for cls in list(ALGORITHMS.values()):
        listener(cls)


def algorithm_names(*, from_replay: bool) -> str:
    """Returns the names of the algorithms that learn from replay, or of those that do not."""
    return ", ".join(n for n, cls in ALGORITHMS.items() if cls.learns_from_replay == from_replay)
