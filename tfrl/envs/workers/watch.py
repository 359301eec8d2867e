"""A worker's process must not outlive the process that started it, however that one ends."""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 1.0


def die_with_parent(parent: int) -> None:
    """Makes this process end when its parent does.

    On Linux the kernel kills it, even where native code holds the interpreter's lock. Everywhere a
    thread also looks once a second. The end of the pipe, on which a worker waits between steps,
    is what it normally sees first.

    Args:
      parent: The parent's process id. If it is gone already, this process exits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    threading.Thread(target=_watch, args=[parent], daemon=True, name="tfrl-parent-watch").start()


def _watch(parent: int) -> None:
    # The first look also finds a parent that died before the kernel was asked.
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
