"""Child processes, which end with this one; several commands at a time."""

import concurrent.futures
import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tfrl

# Runs a command, with output to a log or the screen; returns its exit code.
Call = Callable[[Sequence[str], pathlib.Path | None], int]
INTERRUPTED = 143
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def child_of(parent: int) -> Callable[[], None]:
    """Returns a child's `preexec_fn`: it leads a process group and gets SIGTERM if its parent dies.

    Signals to the parent's group, such as a terminal's Ctrl-C, do not reach the child: the parent
    passes them on, once.

    Args:
      parent: The parent's process id.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        os.setpgid(0, 0)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent has died meanwhile
            os._exit(1)

    return prepare


def program(name: str) -> list[str]:
    """Returns the command of a binary such as "train".

    Modules of the working directory must not shadow libraries; `launch.app` appends it to the path.
    It is left on the path if tfrl itself is there.
    """
    from_here = pathlib.Path(tfrl.__file__).resolve().parents[1] == pathlib.Path.cwd()
    safe = [] if from_here or sys.version_info < (3, 11) else ["-P"]
    return [sys.executable, *safe, "-m", "tfrl", name]


def run_parallel(jobs: Iterable[Callable[[Call], None]], parallel: int) -> None:
    """Runs jobs, `parallel` at a time; their commands divide the cores.

    After SIGTERM, SIGINT or a job's error, every running command gets SIGTERM and saves; no further
    command starts. A second signal ends the commands at once.

    Args:
      jobs: Functions; each gets a function that runs a command and waits for its end.
      parallel: The number of jobs at a time.

    Raises:
      SystemExit: After SIGTERM.
      KeyboardInterrupt: After SIGINT.
    """
    threads = str(max(1, len(os.sched_getaffinity(0)) // parallel))
    env = {"TF_NUM_INTRAOP_THREADS": threads, **os.environ} if parallel > 1 else None
    running: list[subprocess.Popen[bytes]] = []
    stopped = threading.Event()

    def call(command: Sequence[str], log: pathlib.Path | None = None) -> int:
        opened: Any = contextlib.nullcontext() if log is None else log.open("ab")
        with opened as output:
            if stopped.is_set():
                return INTERRUPTED
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=env, preexec_fn=child_of(os.getpid())
            )
            running.append(process)
            if stopped.is_set():  # just now
                process.terminate()
            return process.wait()

    def stop() -> None:
        stopped.set()
        for process in running:
            if process.poll() is None:
                process.terminate()

    def handle(number: int, _: Any) -> None:
        stop()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(INTERRUPTED)

    before = {n: signal.signal(n, handle) for n in (signal.SIGTERM, signal.SIGINT)}
    pool = concurrent.futures.ThreadPoolExecutor(parallel)
    try:
        for future in [pool.submit(job, call) for job in jobs]:
            future.result()
    except Exception:
        stop()
        raise
    finally:
        pool.shutdown(cancel_futures=stopped.is_set())
        for number, handler in before.items():
            signal.signal(number, handler)
