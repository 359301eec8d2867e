"""A thread that starts processes and lives as long as this one.

Linux tells a child of its parent's death when the THREAD that started it ends. Workers started
from a thread that comes and goes, a sampler's say, would be killed with it.
"""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class _Launcher:
    """Runs functions one after another in a daemon thread of its own."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], object], Future]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True, name="tfrl-worker-launcher").start()

    def call(self, function: Callable[[], T], timeout: float) -> T:
        future: Future[T] = Future()
        self._jobs.put((function, future))
        return future.result(timeout)

    def _run(self) -> None:
        while True:
            function, future = self._jobs.get()
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)
            # Else the last job's objects would live until the next one.
            del function, future


# By process id: in a fork of this process the thread does not exist.
_LAUNCHERS: dict[int, _Launcher] = {}
_LOCK = threading.Lock()


def in_lasting_thread(function: Callable[[], T], timeout: float = 60.0) -> T:
    """Runs a function in the thread that lasts.

    Args:
      function: What to run.
      timeout: Seconds to wait for it; then TimeoutError.

    Returns:
      What it returns; what it raises is raised.
    """
    with _LOCK:
        if os.getpid() not in _LAUNCHERS:
            _LAUNCHERS[os.getpid()] = _Launcher()
        launcher = _LAUNCHERS[os.getpid()]
    return launcher.call(function, timeout)
