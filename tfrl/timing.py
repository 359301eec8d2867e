"""Times functions that do the same, to choose the fastest."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

# A function must be faster by this factor: a choice near the tie would differ from run to run.
MARGIN = 1.15
# Timing stops after this time for each function, and this number of rounds. Each is timed over 6
# calls per round, so that an update that runs every 2 or 3 steps counts equally.
_SECONDS = 0.1
_ROUNDS = 3
_TURN_CALLS = 6
_NEAR = 1.5


def best_seconds(
    calls: Mapping[str, Callable[[], Any]],
    begin: Callable[[], None] = lambda: None,
    seconds: float = _SECONDS,
) -> dict[str, float]:
    """Returns the shortest time of a call of each function; all are traced already.

    The functions take turns, since the speed of a shared machine varies. Short functions are called
    several times a turn: with a delayed actor, some calls have more work. All turns have the same
    number of calls.

    Args:
      calls: The functions by name.
      begin: Restores the state that the calls change, so that each does the same work.
      seconds: How long to time each function.
    """
    best = dict.fromkeys(calls, float("inf"))
    spent, rounds, most, number = 0.0, 0.0, len(calls), 0
    while spent < seconds * most or rounds < _ROUNDS and spent < 10 * seconds * most:
        for name, call in calls.items():
            begin()
            took, done = 0.0, 0
            while done < number or not number and done < _TURN_CALLS and took < seconds:
                start = time.perf_counter()
                wait_for(call())
                took, done = took + time.perf_counter() - start, done + 1
            number = done  # the calls that the first turn had time for
            best[name], spent = min(best[name], took / number), spent + took
        # A near tie takes more rounds.
        rounds += 1 / 3 if max(best.values()) < _NEAR * min(best.values()) and most > 1 else 1
    return best


def wait_for(nest: Any) -> None:
    """Blocks until the tensors of a nest are computed."""
    for x in tf.nest.flatten(nest)[:1]:
        if tf.is_tensor(x):
            x.numpy()
