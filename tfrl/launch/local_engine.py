"""Runs a job as processes of this machine."""

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfrl import checks
from tfrl.errors import UnavailableError, UserError
from tfrl.launch.job import COLLECTOR, EVALUATOR, LEARNER, ROLE_VARIABLE, SERVER, Role
from tfrl.launch.processes import child_of, program
from tfrl.launch.termination import Termination
from tfrl.storage import files

_COLOURS = {SERVER: "magenta", LEARNER: "green", COLLECTOR: "cyan", EVALUATOR: "yellow"}
_LOOK_SECONDS = 0.1
# Characters of a table beside the last lines of the processes.
_TABLE_WIDTH = 62
# The env steps per second in the lines of learner and collectors.
_RATE = re.compile(r"([\d,]+)/s\b")
# Seconds between two tables of the processes.
TABLE_SECONDS = 60.0
# Seconds before the first restart of a failed process, and the most.
_BACK_OFF_SECONDS, _MOST_BACK_OFF_SECONDS = 1.0, 30.0
# After so long a failure has no part in the next.
HEALTHY_SECONDS = 600.0
# Seconds that processes may take to end on request; servers save their tables.
_END_SECONDS = {SERVER: 120.0, LEARNER: 120.0, COLLECTOR: 20.0, EVALUATOR: 20.0}
# Seconds that collectors and evaluators may take to notice the end of the run.
_SEE_SECONDS = 30.0
# Libraries' status lines go only to the log.
_NOISE = ("[reverb/cc/", "absl::InitializeLog", "Compiled cluster using XLA!")
# Seconds that workers may take to notice that one of them is lost; see docs/replicas.md.
_FALL_SECONDS = 15.0


@dataclasses.dataclass
class Process:
    """One process of a job, over all its starts.

    Attributes:
      role: Its role.
      log: The file of its output.
      restarts: The number of restarts.
      last_line: The last line of its output.
      rate: The last env steps per second in its output.
      logged: Whether its log has all lines so far.
    """

    role: Role
    log: pathlib.Path
    restarts: int = 0
    failures: int = 0
    last_line: str = ""
    rate: str = ""
    logged: bool = True
    popen: Any = None
    reader: Any = None
    started: float = 0.0
    starts_at: float | None = None
    seconds: float = 0.0

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self.popen is not None and self.popen.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code, with a shell's codes for signals; None while it runs or waits to start."""
        if self.popen is None or self.starts_at is not None:
            return None
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code

    @property
    def state(self) -> str:
        """Its state, for the user."""
        if self.popen is None:
            return "not started"
        if self.starts_at is not None:
            return f"restarts in {max(self.starts_at - time.monotonic(), 0.0):.0f} s"
        return "runs" if self.code is None else f"exit code {self.code}"


class _Console(Console):
    """A console without which the job goes on, for example after `| head` or a lost ssh."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class LocalEngine:
    """Starts the processes of a job, restarts failed ones, and ends all at the end of the job."""

    def __init__(
        self,
        roles: Sequence[Role],
        log_dir: pathlib.Path,
        *,
        max_restarts: int = 3,
        wait_seconds: float = 600.0,
        table_seconds: float = TABLE_SECONDS,
        gpu_kinds: Collection[str] = (LEARNER,),
        command: Callable[[Role], list[str]] | None = None,
        say: Callable[[str], None] | None = None,
    ):
        """Starts nothing yet.

        Args:
          roles: The processes, in the order of their start.
          log_dir: The folder of the logs, `<role>.log`.
          max_restarts: The most restarts of each process after a failure: a signal, or an exit code
            other than 0 and 2 (a user error). The count starts anew when a process has run for ten
            minutes, not counting a last wait in vain (exit code 75).
          wait_seconds: The most seconds that a process waits for another one.
          table_seconds: Seconds between two tables of the processes; infinity for no table.
          gpu_kinds: The kinds of processes that see the GPUs; TensorFlow reserves their memory.
          command: Returns the command line of a process; by default it runs the role's binary.
          say: Takes a line for the user; the default prints in colour.

        Raises:
          UserError: The folder of the logs cannot be created.
        """
        self._console = _Console(soft_wrap=True, highlight=False)
        self._say = say
        self._command = command or _own_command
        self._gpu_kinds = gpu_kinds
        self._max_restarts, self._wait_seconds = max_restarts, wait_seconds
        self._table_seconds = table_seconds
        self.processes = [Process(role, log_dir / f"{role.name}.log") for role in roles]
        # The workers of a learner fail together and restart together.
        learners = list(self._of(LEARNER))
        others = [[p] for p in self.processes if p.role.kind != LEARNER]
        self._units = [learners, *others] if learners else others
        self._lock = threading.Lock()
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            remedy = "Choose another --root_dir."
            raise files.unwritable(f"--root_dir, {log_dir}", error, remedy=remedy) from error

    def run(self, termination: Termination) -> int:
        """Runs the job.

        Args:
          termination: Reports SIGTERM and Ctrl-C; the learner then saves, and all processes end.

        Returns:
          0 if the learner ends with 0; else the exit code of the first process that failed for
          good, or of the signal.
        """
        failed = 0
        termination.before_exit = self._kill_all
        termination.last_saved = "The same command resumes."
        # A second Ctrl-C raises SystemExit. The last callback runs first, and each runs.
        with termination.deferred(), contextlib.ExitStack() as at_end:
            for last_first in (self._show, self._kill_all, self._end):
                at_end.callback(last_first)
            failed = self._supervise(termination)
        return failed

    def _supervise(self, termination: Termination) -> int:
        """Starts and restarts processes until the job should end; returns its exit code."""
        failed, shown = 0, time.monotonic()
        for process in self.processes:
            failed = self._look()
            if failed or termination.requested:
                break
            self._start(process)
        while not (failed or termination.requested):
            failed = self._look()
            if failed or all(p.code == 0 for p in self._of(LEARNER)):
                break
            if time.monotonic() - shown >= self._table_seconds:
                self._show()
                shown = time.monotonic()
            time.sleep(_LOOK_SECONDS)
        if termination.requested:
            self._tell(f"Stopped by {termination.name}: the same command goes on.")
            return termination.exit_code
        if not failed:
            self._await_end(termination)
        return failed

    # One process.

    def _start(self, process: Process) -> None:
        process.starts_at, process.rate = None, ""
        self._log(process, "")
        process.popen = self._spawn(process.role)
        process.started = time.monotonic()
        process.reader = threading.Thread(
            target=self._read, args=[process, process.popen.stdout], daemon=True
        )
        process.reader.start()

    def _spawn(self, role: Role) -> Any:
        """Starts a process; returns an object with the interface of `Popen`."""
        return spawn(self._command(role), role.name, self._environment(role))

    def _environment(self, role: Role) -> dict[str, str]:
        """Returns the additional environment variables of a process."""
        hidden = {} if role.kind in self._gpu_kinds else {"CUDA_VISIBLE_DEVICES": ""}
        return {**hidden, **dict(role.environment)}

    def _kill(self, popen: Any) -> None:
        """Kills a process and its children."""
        kill_group(popen)

    def _read(self, process: Process, output: Any) -> None:
        """Copies the output of a process to its log and to the user."""
        with contextlib.closing(output):
            for line in output:
                self._log(process, line)
                if not line.strip() or any(sign in line for sign in _NOISE):
                    continue
                process.last_line = line.rstrip()
                if match := _RATE.search(line):
                    process.rate = match[1]
                self._tell(line.rstrip(), process.role)

    def _log(self, process: Process, line: str) -> None:
        """Appends a line to the log; a process whose log cannot be written goes on without."""
        try:
            with open(process.log, "a", encoding="utf-8") as log:
                log.write(line)
        except OSError as error:
            if process.logged:
                self._tell(f"Lines of {process.role.name} are missing from its log: {error}.")
            process.logged = False

    def _tell(self, line: str, role: Role | None = None) -> None:
        if self._say is not None:
            self._say(line if role is None else f"{role.name} | {line}")
            return
        text = Text()
        if role is not None:
            text.append(f"{role.name:<12}| ", style=_COLOURS[role.kind])
        self._print(text.append(line))

    def _print(self, text: Any) -> None:
        """Prints for the user; a full disk under the launcher's output loses lines."""
        with self._lock, contextlib.suppress(OSError):
            self._console.print(text)

    # All of them.

    def _of(self, *kinds: str) -> Iterator[Process]:
        return (p for p in self.processes if p.role.kind in kinds)

    def _look(self) -> int:
        """Restarts failed processes; returns the exit code of one that failed for good, or 0."""
        for unit in list(self._units):
            for process in unit:
                if process.starts_at is not None and time.monotonic() >= process.starts_at:
                    self._start(process)
            failed = next((p for p in unit if _has_failed(p)), None)
            if failed is not None and (code := self._restart(unit, failed)):
                return code
        return 0

    def _restart(self, unit: list[Process], failed: Process) -> int:
        """Schedules the restart of a unit; returns the exit code if it has failed for good."""
        self._let_fall(unit)
        mistake = next((p for p in unit if p.code == UserError.exit_code), None)
        failed = mistake or failed
        code, name = failed.code or 0, failed.role.name
        # A process that ends with this code may have waited so long for another one.
        waited = self._wait_seconds if failed.code == UnavailableError.exit_code else 0.0
        if time.monotonic() - failed.started > HEALTHY_SECONDS + waited:
            for process in unit:
                process.failures = 0
        for process in unit:
            process.seconds += time.monotonic() - process.started
            process.started = time.monotonic()
            self._kill(process.popen)  # children that remain may hold its output open
            process.popen.wait()
            process.reader.join(timeout=5.0)  # reads its last lines first
        if mistake or failed.failures >= self._max_restarts:
            times = f" after {failed.failures} restarts" if failed.failures else ""
            self._tell(
                f"{name} has failed with exit code {code}{times}: {failed.last_line} "
                f"Its log: {failed.log}"
            )
            if failed.role.kind == EVALUATOR:
                self._tell(f"The run goes on without {name}.")
                self._units.remove(unit)
                return 0
            return code or 1
        seconds = min(_BACK_OFF_SECONDS * 2**failed.failures, _MOST_BACK_OFF_SECONDS)
        for process in unit:
            process.restarts += 1
            process.failures += 1
            process.starts_at = time.monotonic() + seconds
        if len(unit) > 1:  # another program may use a port by now
            addresses = [f"localhost:{port}" for port in free_ports(len(unit))]
            for process in unit:
                process.role = process.role.as_worker(addresses)
        self._tell(
            f"{name} has ended with exit code {code}; started again in {seconds:g} s "
            f"({failed.failures} of {self._max_restarts}){_with(unit)}."
        )
        return 0

    def _let_fall(self, unit: Sequence[Process]) -> None:
        """Waits until the workers end, because one of them is lost."""
        deadline = time.monotonic() + _FALL_SECONDS
        while any(p.running for p in unit) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _await_end(self, termination: Termination) -> None:
        """Waits until collectors and evaluators notice the end of the run, or for a signal."""
        deadline = time.monotonic() + _SEE_SECONDS
        while any(p.running for p in self._of(COLLECTOR, EVALUATOR)):
            if termination.requested or time.monotonic() > deadline:
                return
            time.sleep(_LOOK_SECONDS)

    def _end(self) -> None:
        """Ends the running processes; the servers last."""
        for process in self.processes:
            process.starts_at = None
        for kinds in ((LEARNER,), (COLLECTOR, EVALUATOR), (SERVER,)):
            running = [p for p in self._of(*kinds) if p.running]
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    process.popen.terminate()
            seconds = _END_SECONDS[kinds[0]]
            deadline = time.monotonic() + seconds
            for process in running:
                try:
                    process.popen.wait(max(deadline - time.monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    self._tell(f"{process.role.name} did not end within {seconds:g} s: killed.")
                    self._kill(process.popen)
                process.reader.join(timeout=5.0)  # prints its last lines before other output

    def _kill_all(self) -> None:
        """Kills what is left of all processes."""
        for process in self.processes:
            if process.popen is None:
                continue
            self._kill(process.popen)
            process.popen.wait()
            process.reader.join(timeout=5.0)

    def _show(self) -> None:
        """Prints a table of the processes."""
        table = Table("role", "state", "restarts", "age (s)", "steps/s", box=None)
        table.add_column("last line", no_wrap=True)  # its cells fit: else it hides the others
        room = max(self._console.width - _TABLE_WIDTH, 16)
        for process in self.processes:
            age = process.seconds + time.monotonic() - process.started if process.started else 0.0
            cells = (process.role.name, process.state, str(process.restarts), f"{age:.0f}")
            last = Text(process.last_line[:room])
            table.add_row(*cells, process.rate, last, style=_COLOURS[process.role.kind])
        if self._say is None and self._table_seconds < math.inf:
            self._print(table)


def _has_failed(process: Process) -> bool:
    """Whether a process has failed; a server must not end at all."""
    code = process.code
    return code is not None and (code != 0 or process.role.kind == SERVER)


def _with(unit: Sequence[Process]) -> str:
    return f", with all {len(unit)} workers of the learner" if len(unit) > 1 else ""


def spawn(
    command: list[str], name: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts a child process that leads a process group and ends with this process.

    Args:
      command: The command line.
      name: The name of the role.
      environment: Additional environment variables.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**_inherited(), "PYTHONUNBUFFERED": "1", ROLE_VARIABLE: name, **(environment or {})},
        preexec_fn=child_of(os.getpid()),
    )


def _inherited() -> dict[str, str]:
    """The environment without what would keep processes of this machine from each other."""
    kept = {n: x for n, x in os.environ.items() if n != "TF_CONFIG"}  # of another job
    if any(kept.get(name) for name in checks.PROXIES):
        # The first that is set counts: for gRPC no_grpc_proxy, for other libraries no_proxy.
        names = [n for n in ("no_grpc_proxy", "no_proxy", "NO_PROXY") if kept.get(n)]
        for name in names or ["no_proxy"]:
            kept[name] = ",".join(filter(None, [kept.get(name), "localhost", "127.0.0.1"]))
    return kept


def free_ports(count: int) -> list[int]:
    """Returns free ports of this machine."""
    try:
        return _free_ports(count, socket.AF_INET6, "::")
    except OSError:  # a machine without IPv6
        return _free_ports(count, socket.AF_INET, "0.0.0.0")  # nosec B104


def _free_ports(count: int, family: socket.AddressFamily, host: str) -> list[int]:
    probes: list[socket.socket] = []
    try:
        for _ in range(count):
            probes.append(socket.socket(family))
            probes[-1].bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def kill_group(popen: subprocess.Popen[str]) -> None:
    """Kills a child of `spawn` and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)


def _own_command(role: Role) -> list[str]:
    return [*program(role.binary.replace("_", "-")), *role.flags]
