"""Gymnasium environments in spawned processes, with timeouts, named errors and no orphans.

No TensorFlow here: the processes import this module.
"""

import contextlib
import inspect
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker
from gymnasium.vector.utils import (
    CloudpickleWrapper,
    batch_space,
    clear_mpi_env_vars,
    create_shared_memory,
    read_from_shared_memory,
)

from tfrl.envs.env_calls import EnvError, env_error
from tfrl.errors import UnavailableError

CLEANUP_TIME = 5.0  # seconds that a process has to close its environment
_REPORT_TIME = 5.0  # seconds to wait for an error report
_START = "the start"
_LOG = logging.getLogger(__name__)


class VectorWorkerError(EnvError):
    """A process of `vectorization="async"` raised, died, or did not answer in time."""

    def __init__(self, thing: str, *, expected: str, got: Any, remedy: str, trace: str = ""):
        """Builds the message; `trace` is the traceback of the process, or ""."""
        super().__init__(thing, expected=expected, got=got, remedy=remedy, user_traceback=trace)


class VectorWorkerLostError(VectorWorkerError):
    """A process was killed, or did not answer in time: the same command may succeed later."""

    exit_code = UnavailableError.exit_code


class ProcessVectorEnv(AsyncVectorEnv):
    """Gymnasium's AsyncVectorEnv with errors that name the process and the cause.

    A failure ends all processes. With a `successor`, a dead or silent process is replaced.
    """

    def __init__(
        self,
        name: str,
        factories: Sequence[Callable[[], gymnasium.Env]],
        autoreset_mode: AutoresetMode,
        timeout: float,
        copy: bool = False,
        successor: Callable[[Any], Callable[[], gymnasium.Env]] | None = None,
    ):
        """Starts one process for each environment.

        Args:
          name: The environment's id, for messages.
          factories: One for each environment.
          autoreset_mode: The autoreset mode.
          timeout: Seconds that a reset, a step or the start may take.
          copy: Whether to return copies of observations.
          successor: Maps a factory to the factory of a replacement process. The replacement answers
            the pending command of the dead or silent process. None: a failure ends all.
        """
        self._name = name
        self._timeout = timeout
        self._make_shared(factories, autoreset_mode, copy)
        try:
            for index, factory in enumerate(factories):
                pipe, process = self._process(index, factory)
                self.parent_pipes.append(pipe)
                self.processes.append(process)
            self._check_spaces()
        except BaseException:
            self._end()
            raise
        if successor is not None:
            for index, factory in enumerate(factories):
                self.parent_pipes[index] = _LastingPipe(self, index, successor(factory))

    def _make_shared(
        self,
        factories: Sequence[Callable[[], gymnasium.Env]],
        autoreset_mode: AutoresetMode,
        copy: bool,
    ) -> None:
        """Sets the attributes of the base class: spaces, and memory shared with the processes.

        Replaces its constructor, which does not keep the shared memory. A replacement process needs
        it.
        """
        self._context = multiprocessing.get_context("spawn")
        self.env_fns, self.num_envs = factories, len(factories)
        self.shared_memory, self.copy, self.observation_mode = True, copy, "same"
        self.autoreset_mode = autoreset_mode
        env = factories[0]()
        self.metadata = {**env.metadata, "autoreset_mode": autoreset_mode}
        self.render_mode = env.render_mode
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        env.close()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        buffer = (self.single_observation_space, self.num_envs)
        self._memory = create_shared_memory(*buffer, ctx=self._context)
        self.observations = read_from_shared_memory(buffer[0], self._memory, n=self.num_envs)
        self.error_queue = self._context.Queue()
        self.parent_pipes: list[Any] = []
        self.processes: list[Any] = []
        self._state = AsyncState.DEFAULT

    def _process(self, index: int, factory: Callable[[], gymnasium.Env]) -> tuple[Any, Any]:
        """Starts the process of one environment; returns its pipe and the process."""
        own, its = self._context.Pipe()
        arguments = (CloudpickleWrapper(factory), its, own, self._memory, self.error_queue)
        process = self._context.Process(
            target=work, args=(index, *arguments, self.autoreset_mode), daemon=True
        )
        with clear_mpi_env_vars():
            process.start()
        its.close()
        return own, process

    def replace(self, index: int, factory: Callable[[], gymnasium.Env]) -> Any:
        """Replaces a process; returns the pipe to the new one."""
        process = self.processes[index]
        process.kill()
        process.join()
        end = f"ended (exit code {process.exitcode})"
        _LOG.warning("Worker %d of %s %s; starting a replacement", index, self._name, end)
        pipe, self.processes[index] = self._process(index, factory)
        return pipe

    @property
    def _pipes(self) -> list[Any]:
        """The pipes to the current processes."""
        return [p.pipe if isinstance(p, _LastingPipe) else p for p in self.parent_pipes]

    def within(self, pipe: Any) -> Any:
        """Receives from a pipe within the timeout."""
        if not pipe.poll(self._timeout):
            raise multiprocessing.TimeoutError
        return pipe.recv()

    def _check_spaces(self) -> None:
        """Checks the spaces with a timeout; upstream waits forever."""
        self.call_async("render_mode")
        self._answered(_START, self.call_wait)
        super()._check_spaces()

    def step_async(self, actions: Any) -> None:
        """Sends actions to the processes."""
        with self._ended_with("step"):
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        """Returns the results of the step."""
        return self._answered("step", super().step_wait)

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Starts a reset in the processes."""
        with self._ended_with("reset"):
            super().reset_async(seed=seed, options=options)

    def reset_wait(self, timeout: float | None = None) -> Any:
        """Returns the results of the reset."""
        return self._answered("reset", super().reset_wait)

    def _answered(self, what: str, wait: Callable[..., Any]) -> Any:
        """Waits for the answers of the processes."""
        with self._ended_with(what):
            return wait(self._timeout)

    @contextlib.contextmanager
    def _ended_with(self, what: str) -> Any:
        """Ends all processes if one fails."""
        try:
            with self._worker_errors(what):
                yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _worker_errors(self, what: str) -> Any:
        """Raises errors that name the silent or dead process."""
        try:
            yield
        except multiprocessing.TimeoutError as error:
            silent = [i for i, p in enumerate(self._pipes) if p is None or not p.poll(0)]
            raise VectorWorkerLostError(
                self._name,
                expected=f"an answer to {what} within {self._timeout:g} s",
                got=f"no answer from worker {_listed(silent)}",
                remedy="Fix the hanging environment, or pass a larger timeout (in seconds).",
            ) from error
        except (EOFError, ConnectionError) as error:
            multiprocessing.connection.wait([p.sentinel for p in self.processes], timeout=5.0)
            time.sleep(0.1)  # for the exit codes of others that end at the same time
            codes = {i: p.exitcode for i, p in enumerate(self.processes) if p.exitcode is not None}
            dead = [f"{i} (exit code {code})" for i, code in codes.items()]
            killed = not codes or any(code < 0 for code in codes.values())
            hint = "A negative exit code is the number of the signal that killed it."
            if what == _START:
                hint = (
                    "Guard the script's entry point with `if __name__ == '__main__':`, since the "
                )
                hint += "worker processes import it."
            raise (VectorWorkerLostError if killed else VectorWorkerError)(
                self._name,
                expected="worker processes that run until close()",
                got=f"the end of worker {_listed(dead)} during {what}",
                remedy=hint,
                # Drops the frames of the pipe: Python 3.12 may crash when it collects their
                # buffers in a cycle, see https://github.com/python/cpython/issues/111049.
            ) from error.with_traceback(None)

    def _raise_if_errors(self, successes: Sequence[bool]) -> None:
        """Raises the reported errors; upstream only logs them, and may wait forever."""
        failed = [i for i, success in enumerate(successes) if not success]
        if not failed:
            return
        _, _, words, trace = self.error_queue.get(timeout=_REPORT_TIME)
        thing, expected, got, remedy = words
        raise VectorWorkerError(thing, expected=expected, got=got, remedy=remedy, trace=trace)

    def close_extras(self, *_: Any, **__: Any) -> None:
        """Closes the environments, and kills processes that take too long."""
        deadline = time.monotonic() + CLEANUP_TIME
        pipes = [p for p in self._pipes if p is not None and not p.closed]
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        while pipes and time.monotonic() < deadline and any(p.is_alive() for p in self.processes):
            # An unread answer would keep its process from ending.
            ready: Any = multiprocessing.connection.wait(pipes, timeout=0.05)
            for pipe in ready:
                try:
                    pipe.recv()
                except (EOFError, OSError):
                    pipes.remove(pipe)
        self._end(deadline)

    def _end(self, deadline: float = 0.0) -> None:
        """Joins the processes until a deadline, then kills them."""
        for process in getattr(self, "processes", ()):
            if process.pid is None:
                continue  # failed to start
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in getattr(self, "parent_pipes", ()):
            if pipe is not None:
                pipe.close()
        self.closed = True


class _LastingPipe:
    """A pipe to an environment that outlives its process: a new process answers in its place."""

    def __init__(
        self, vector: ProcessVectorEnv, index: int, successor: Callable[[], gymnasium.Env]
    ):
        """Takes the pipe of environment `index` and the factory of its next processes."""
        self.pipe: Any = vector.parent_pipes[index]
        self._vector, self._index, self._successor = vector, index, successor
        self._open_command: Any = None

    def send(self, command: Any) -> None:
        """Sends a command; if the process is dead, its successor receives it."""
        self._open_command = command
        with contextlib.suppress(ConnectionError):
            self.pipe.send(command)

    def poll(self, timeout: float = 0.0) -> bool:
        """Waits for an answer; kills a process that times out."""
        if not self.pipe.poll(timeout):
            self._vector.processes[self._index].kill()
        return True

    def recv(self) -> Any:
        """Returns the answer; a new process answers if the old one is dead.

        Raises:
          EOFError: If the new process dies as well.
        """
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.pipe.close()
            self.pipe = self._vector.replace(self._index, self._successor)
            self.pipe.send(self._open_command)
            return self._vector.within(self.pipe)

    def close(self) -> None:
        """Closes it."""
        self.pipe.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self.pipe.closed)


def _listed(things: Sequence[Any]) -> str:
    return ", ".join(str(thing) for thing in things)


def work(
    index: int,
    factory: Any,
    pipe: Any,
    parent_pipe: Any,
    shared_memory: Any,
    error_queue: Any,
    autoreset_mode: AutoresetMode,
) -> None:
    """Runs one environment in its process; takes the arguments of Gymnasium's worker.

    Gymnasium wraps the `EnvFactory` in an object with the attribute `fn`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reports: Any = _ErrorQueue(error_queue, getattr(factory.fn, "name", "the environments"))
    common = (index, factory, pipe, parent_pipe, shared_memory, reports, autoreset_mode)
    # Gymnasium 1.4 adds an optional step limit, which is unused here.
    unlimited = [None] * (len(inspect.signature(_async_worker).parameters) - len(common))
    try:
        _async_worker(*common, *unlimited)
    except (EOFError, ConnectionError):
        return  # the parent is gone
    except Exception as error:
        # Upstream reports no errors during construction of the environment.
        reports.put((index, type(error), error, ""))
        pipe.send((None, False))


class _ErrorQueue:
    """Queues errors as text, as some exceptions cannot be pickled or rebuilt."""

    def __init__(self, queue: Any, name: str):
        self._queue = queue
        self._name = name

    def put(self, report: tuple[int, type[BaseException], Any, str]) -> None:
        index, _, value, _ = report
        thing = f"worker {index} of {self._name}"
        message = env_error(value, thing, "Create one environment in this process to debug it.")
        words = (message.thing, message.expected, str(message.got), message.remedy)
        self._queue.put((index, RuntimeError, words, getattr(message, "user_traceback", "")))


def _end_with_parent() -> None:
    """Ends this process once its parent has ended for any reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
