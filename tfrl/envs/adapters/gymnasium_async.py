"""Gymnasium's environments in spawned processes, with timeouts, names in errors, and no orphans.

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

CLEANUP_TIME = 5.0  # seconds that a process has to close its environment
_REPORT_TIME = 5.0  # seconds that a report of an error may be under way
_START = "the start"
_LOG = logging.getLogger(__name__)


class VectorWorkerError(EnvError):
    """A process of `vectorization="async"` raised, died, or did not answer in time."""

    def __init__(self, thing: str, *, expected: str, got: Any, remedy: str, trace: str = ""):
        """Builds the paragraph; `trace` is the traceback of the process, or ""."""
        super().__init__(thing, expected=expected, got=got, remedy=remedy, user_traceback=trace)


class ProcessVectorEnv(AsyncVectorEnv):
    """Gymnasium's AsyncVectorEnv, whose failures say which process and why.

    A failure ends all processes. With a `successor` one that is dead or silent is replaced.
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
        """Starts a process an environment.

        Args:
          name: The environment's id, for messages.
          factories: One for each environment.
          autoreset_mode: What happens at an end.
          timeout: Seconds that a reset, a step or the start may take.
          copy: Whether observations given out are copies.
          successor: Makes of a factory that of a process which takes the place of a dead or silent
            one, and answers the command that it left open. None: a failure ends all.
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
        """Sets what the base class works with: spaces, and memory shared with the processes.

        In the place of its constructor, which does not keep the shared memory. A process that takes
        another's place needs it.
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
        """Starts the process of one environment; returns the pipe to it, and itself."""
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
        """Starts another process in the place of one; returns the pipe to it."""
        process = self.processes[index]
        process.kill()
        process.join()
        end = f"ended (exit code {process.exitcode})"
        _LOG.warning("Worker %d of %s %s; another one is started", index, self._name, end)
        pipe, self.processes[index] = self._process(index, factory)
        return pipe

    @property
    def _pipes(self) -> list[Any]:
        """The pipes to the processes of the moment."""
        return [p.pipe if isinstance(p, _LastingPipe) else p for p in self.parent_pipes]

    def within(self, pipe: Any) -> Any:
        """Returns what comes through a pipe in time."""
        if not pipe.poll(self._timeout):
            raise multiprocessing.TimeoutError
        return pipe.recv()

    def _check_spaces(self) -> None:
        """Waits for the processes before they are asked; upstream waits without an end."""
        self.call_async("render_mode")
        self._answered(_START, self.call_wait)
        super()._check_spaces()

    def step_async(self, actions: Any) -> None:
        """Sends actions to the processes."""
        with self._ended_with("step"):
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        """Returns what the step gave."""
        return self._answered("step", super().step_wait)

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Starts a reset in the processes."""
        with self._ended_with("reset"):
            super().reset_async(seed=seed, options=options)

    def reset_wait(self, timeout: float | None = None) -> Any:
        """Returns what the reset gave."""
        return self._answered("reset", super().reset_wait)

    def _answered(self, what: str, wait: Callable[..., Any]) -> Any:
        """Waits for the processes."""
        with self._ended_with(what):
            return wait(self._timeout)

    @contextlib.contextmanager
    def _ended_with(self, what: str) -> Any:
        """Ends all processes if one fails."""
        try:
            with self._told(what):
                yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _told(self, what: str) -> Any:
        """Says which process is silent or dead."""
        try:
            yield
        except multiprocessing.TimeoutError as error:
            silent = [i for i, p in enumerate(self._pipes) if p is None or not p.poll(0)]
            raise VectorWorkerError(
                self._name,
                expected=f"an answer to {what} within {self._timeout:g} s",
                got=f"none from worker {_listed(silent)}",
                remedy="Its environment hangs, or needs more time: give timeout=(seconds).",
            ) from error
        except (EOFError, ConnectionError) as error:
            time.sleep(0.1)  # for the exit codes
            dead = [f"{i} (exit code {p.exitcode})" for i, p in enumerate(self.processes)
                    if p.exitcode is not None]  # fmt: skip
            hint = "A negative exit code is the number of the signal that killed it."
            if what == _START:
                hint = "A script must do its work under `if __name__ == '__main__':`, since the "
                hint += "processes import it."
            raise VectorWorkerError(
                self._name,
                expected="processes that live as long as the environments",
                got=f"the end of worker {_listed(dead)} during {what}",
                remedy=hint,
                # Without the frames of the pipe: Python 3.12 may crash where it collects their
                # buffers in a cycle, see https://github.com/python/cpython/issues/111049.
            ) from error.with_traceback(None)

    def _raise_if_errors(self, successes: Sequence[bool]) -> None:
        """Raises what the processes report; upstream would log it, and may wait without an end."""
        failed = [i for i, success in enumerate(successes) if not success]
        if not failed:
            return
        _, _, words, trace = self.error_queue.get(timeout=_REPORT_TIME)
        thing, expected, got, remedy = words
        raise VectorWorkerError(thing, expected=expected, got=got, remedy=remedy, trace=trace)

    def close_extras(self, *_: Any, **__: Any) -> None:
        """Closes the environments, and kills the processes that take too long."""
        deadline = time.monotonic() + CLEANUP_TIME
        pipes = [p for p in self._pipes if p is not None and not p.closed]
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.send(("close", None))
        while pipes and time.monotonic() < deadline and any(p.is_alive() for p in self.processes):
            # An answer that nobody has read would keep its process from ending.
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
                continue  # it could not be started
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in getattr(self, "parent_pipes", ()):
            if pipe is not None:
                pipe.close()
        self.closed = True


class _LastingPipe:
    """A pipe to an environment that outlives its process: another one answers in its place."""

    def __init__(
        self, vector: ProcessVectorEnv, index: int, successor: Callable[[], gymnasium.Env]
    ):
        """Takes the pipe of environment `index`, and the factory of processes to come."""
        self.pipe: Any = vector.parent_pipes[index]
        self._vector, self._index, self._successor = vector, index, successor
        self._open_command: Any = None

    def send(self, command: Any) -> None:
        """Sends a command; one that a dead process does not take is for its successor."""
        self._open_command = command
        with contextlib.suppress(ConnectionError):
            self.pipe.send(command)

    def poll(self, timeout: float = 0.0) -> bool:
        """Waits for an answer; a process that gives none in time is killed."""
        if not self.pipe.poll(timeout):
            self._vector.processes[self._index].kill()
        return True

    def recv(self) -> Any:
        """Returns the answer, of a new process where the old one is dead.

        Raises:
          EOFError: If that dies as well.
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
    """Runs one environment in a process of its own; arguments as of Gymnasium's worker.

    It wraps the `EnvFactory` in an object whose `fn` it is.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reports: Any = _Reports(error_queue, getattr(factory.fn, "name", "the environments"))
    common = (index, factory, pipe, parent_pipe, shared_memory, reports, autoreset_mode)
    # Since Gymnasium 1.4 there may be a limit of steps at a time, which is not asked for.
    unlimited = [None] * (len(inspect.signature(_async_worker).parameters) - len(common))
    try:
        _async_worker(*common, *unlimited)
    except (EOFError, ConnectionError):
        return  # the parent is gone
    except Exception as error:
        # While the environment is made, upstream reports nothing.
        reports.put((index, type(error), error, ""))
        pipe.send((None, False))


class _Reports:
    """Puts errors into the queue as text: not every exception can be pickled, or made again."""

    def __init__(self, queue: Any, name: str):
        self._queue = queue
        self._name = name

    def put(self, report: tuple[int, type[BaseException], Any, str]) -> None:
        index, _, value, _ = report
        thing = f"worker {index} of {self._name}"
        message = env_error(value, thing, "Make one environment in this process to debug it.")
        words = (message.thing, message.expected, str(message.got), message.remedy)
        self._queue.put((index, RuntimeError, words, getattr(message, "user_traceback", "")))


def _end_with_parent() -> None:
    """Ends this process when its parent has, however that came about."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
