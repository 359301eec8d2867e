"""Runs several commands at a time; they end with this process."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import flags

flags.DEFINE_integer("parallel", 1, "Number of trainings at the same time.", lower_bound=1)

# Runs a command, with output to a log or the screen; returns its exit code.
Call = Callable[[Sequence[str], pathlib.Path | None], int]
INTERRUPTED = 143


def run_parallel(jobs: Iterable[Callable[[Call], None]], parallel: int) -> None:
    """Runs jobs, `parallel` at a time; their commands divide the cores.

    SIGTERM and Ctrl-C reach every running command, which saves; no further command starts.

    Args:
      jobs: Functions; each gets a function that runs a command and waits for its end.
      parallel: The number of jobs at a time.

    Raises:
      SystemExit: After SIGTERM.
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
            process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
            running.append(process)
            if stopped.is_set():  # just now
                process.terminate()
            return process.wait()

    def stop(*_: Any) -> None:
        stopped.set()
        for process in running:
            if process.poll() is None:
                process.terminate()
        raise SystemExit(INTERRUPTED)

    before = signal.signal(signal.SIGTERM, stop)
    pool = concurrent.futures.ThreadPoolExecutor(parallel)
    try:
        for future in [pool.submit(job, call) for job in jobs]:
            future.result()
    except BaseException:  # Ctrl-C reached the commands too
        stopped.set()
        raise
    finally:
        pool.shutdown(cancel_futures=stopped.is_set())
        signal.signal(signal.SIGTERM, before)
