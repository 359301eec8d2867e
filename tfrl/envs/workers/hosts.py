"""The pool's side of a worker's process or thread: start, wait, kill."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

import cloudpickle

from tfrl.envs.workers.channel import ChildChannel, PoolChannel
from tfrl.envs.workers.child import serve
from tfrl.envs.workers.protocol import Load, RunnerSettings, WorkerMode
from tfrl.envs.workers.runner import EnvFactory
from tfrl.errors import UserError

T = TypeVar("T")


class _Launcher:
    """Runs functions one after another in a daemon thread."""

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
            # Else the objects of the last job would live until the next job.
            del function, future


# By process id: a fork of this process lacks the thread.
_LAUNCHERS: dict[int, _Launcher] = {}
_LOCK = threading.Lock()


def in_lasting_thread(function: Callable[[], T], timeout: float = 60.0) -> T:
    """Runs a function in the lasting thread.

    Args:
      function: The function to run.
      timeout: Seconds to wait for it before a TimeoutError.

    Returns:
      Its result; its exceptions are raised.
    """
    with _LOCK:
        if os.getpid() not in _LAUNCHERS:
            _LAUNCHERS[os.getpid()] = _Launcher()
        launcher = _LAUNCHERS[os.getpid()]
    return launcher.call(function, timeout)


# A fresh interpreter, as multiprocessing would import the user's main script, and usually
# TensorFlow, into every worker.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from tfrl.envs.workers import child; child.main()"
)
# One thread per worker: by default each has a thread per core for its linear algebra.
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# Seconds to wait for the end of a killed process.
_KILL_SECONDS = 5.0
_FIRST_NAP, _LONGEST_NAP = 0.001, 0.02


def _exited(pid: int) -> bool:
    """Whether a child has exited; does not reap it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # Already reaped elsewhere.


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits until a condition holds; returns whether it holds."""
    deadline, nap = time.monotonic() + seconds, _FIRST_NAP
    while not condition():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(nap, left))
        nap = min(2 * nap, _LONGEST_NAP)
    return True


class ProcessHost:
    """A fresh Python process that runs `child.main` in its own session and process group.

    So Ctrl-C at the terminal reaches only the pool, which closes its workers, and an environment's
    subprocesses are killed with it.
    """

    leaves_threads = False

    def __init__(self, pickled_factory: bytes, settings: RunnerSettings):
        """Starts the process.

        Args:
          pickled_factory: The result of `pickled`.
          settings: The worker's.
        """
        ours, theirs = socket.socketpair()
        environment = {**dict.fromkeys(_THREAD_COUNTS, "1"), **os.environ}
        path = [os.getcwd() if entry == "" else entry for entry in sys.path]
        descriptor = theirs.fileno()
        arguments = [json.dumps(path), str(os.getpid()), str(descriptor)]
        command = [sys.executable, "-c", _BOOT, *arguments]
        try:
            with theirs:
                self._process = in_lasting_thread(
                    lambda: subprocess.Popen(
                        command,
                        pass_fds=[descriptor],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )
        except BaseException:
            ours.close()
            raise
        self.channel = PoolChannel(ours)
        self.channel.post(Load(pickled_factory, settings))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def join(self, seconds: float) -> bool:
        """Waits for the process to exit by itself; returns whether it exited."""
        return self._process.returncode is not None or _wait(lambda: _exited(self.pid), seconds)

    def kill(self) -> None:
        """Kills the process and its group, if still alive, and reaps it."""
        self.channel.close()
        if self._process.returncode is not None:
            return
        try:
            # Safe after its exit too: an unreaped process keeps its id.
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The group is gone or, on macOS, holds only the exited process.
            pass
        if _wait(lambda: _exited(self.pid), _KILL_SECONDS):
            self._process.wait()

    @property
    def end(self) -> str:
        """How the process ended, for messages; after `kill`."""
        code = self._process.returncode
        if code is None:
            return "could not be killed"
        if code >= 0:
            return f"died with exit code {code}"
        names = {s.value: s.name for s in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}"


class ThreadHost:
    """A daemon thread of this process that runs `child.serve`."""

    pid = None

    def __init__(self, env_factory: EnvFactory, settings: RunnerSettings):
        """Starts the thread.

        Args:
          env_factory: Makes the environment.
          settings: The worker's.
        """
        ours, theirs = socket.socketpair()
        self.channel = PoolChannel(ours)
        self._thread = threading.Thread(
            target=serve,
            args=[ChildChannel(theirs), env_factory, settings],
            daemon=True,
            name=f"tfrl-worker-{settings.worker_id}",
        )
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Waits for the thread to end; returns whether it ended."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Abandons the thread, which ends when its hanging call returns."""
        self.channel.close()

    @property
    def leaves_threads(self) -> bool:
        """Whether the thread is still alive."""
        return self._thread.is_alive()

    @property
    def end(self) -> str:
        """How the thread ended, for messages."""
        return "was abandoned" if self._thread.is_alive() else "ended"


Host = ProcessHost | ThreadHost


def pickled(env_factory: EnvFactory) -> bytes:
    """Pickles a factory for processes, including lambdas, local and `__main__` functions."""
    try:
        return cloudpickle.dumps(env_factory)
    except Exception as error:
        raise UserError(
            "env_factory",
            expected="a picklable factory, since it is sent to the workers' processes",
            got=f"{type(error).__name__}: {error}",
            remedy="Create unpicklable objects inside the factory, or pass mode='thread'.",
        ) from error


def start(
    mode: WorkerMode, env_factory: EnvFactory, payload: bytes, settings: RunnerSettings
) -> Host:
    """Starts a worker's process or thread; `payload` is the pickled factory of a process."""
    if mode is WorkerMode.THREAD:
        return ThreadHost(env_factory, settings)
    return ProcessHost(payload, settings)


def shut(hosts: Iterable[Host], cleanup_time: float, owner: int) -> int:
    """Ends processes and threads by closing all channels at once, then by force.

    Args:
      hosts: The running processes and threads.
      cleanup_time: Total seconds for closing the environments.
      owner: Id of the process that started them; its forks do nothing.

    Returns:
      The number of threads that did not end.
    """
    if os.getpid() != owner:
        return 0
    hosts = list(hosts)
    for host in hosts:
        host.channel.close()
    deadline = time.monotonic() + cleanup_time
    for host in hosts:
        host.join(deadline - time.monotonic())
        host.kill()
    return sum(host.leaves_threads for host in hosts)
