"""`--engine=ray`: runs a job's processes on the nodes of a Ray cluster, one actor per process."""

import contextlib
import math
import os
import pathlib
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from tfrl.errors import UnavailableError, UserError
from tfrl.extras import require
from tfrl.launch import local_engine
from tfrl.launch.job import SERVER, Role
from tfrl.launch.local_engine import LocalEngine
from tfrl.launch.resources import RoleResources, gpu_kinds, in_bytes, in_cores
from tfrl.launch.termination import Termination

flags.DEFINE_string(
    "ray_address",
    None,
    "A running Ray cluster: host:port, or auto for one on this machine; by default a new cluster "
    "starts on this machine (ray).",
)

_LOOK_SECONDS = 0.2
_ANSWER_SECONDS = 10.0
_OBJECT_STORE_BYTES = 80 * 2**20  # unused; Ray's minimum is 75 MB
_LOST = 137


class RoleProcess:
    """An actor that owns one process, on the node where Ray has placed it.

    The binary runs in a child process, since Ray handles SIGTERM in the actor, and the exit code
    tells whether to restart it.
    """

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._popen: Any = None
        self._reader: Any = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def address(self, host: str | None) -> str:
        """Returns "host:port" with a free port of this node.

        Args:
          host: The node's name; None for its address in the cluster.
        """
        host = host or str(require("ray", "ray").util.get_node_ip_address())
        return f"{host}:{local_engine.free_ports(1)[0]}"

    def start(
        self, arguments: list[str], name: str, folder: str, environment: Mapping[str, str]
    ) -> None:
        """Starts the process.

        Args:
          arguments: The arguments of this node's Python.
          name: The name of the role.
          folder: The working directory, if this node has it.
          environment: Additional environment variables.
        """
        with contextlib.suppress(FileNotFoundError):
            os.chdir(folder)
        self._popen = local_engine.spawn([sys.executable, *arguments], name, environment)
        self._reader = threading.Thread(target=self._read, args=[self._popen.stdout], daemon=True)
        self._reader.start()

    def _read(self, output: Any) -> None:
        with output:
            for line in output:
                self._lines.put(line)

    def poll(self) -> tuple[list[str], int | None]:
        """Returns the output since the last call, and the exit code or None."""
        code = self._popen.poll()
        if code is not None:
            self.kill()
            self._reader.join(_ANSWER_SECONDS)
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return lines, code

    def terminate(self) -> None:
        """Sends SIGTERM to the process."""
        self._popen.terminate()

    def kill(self) -> None:
        """Kills the process and its children."""
        if self._popen is not None:
            local_engine.kill_group(self._popen)


class _RemoteProcess:
    """The process of an actor, with the methods of `subprocess.Popen` that the engine calls."""

    def __init__(
        self,
        ray: Any,
        actor: Any,
        started: Any,
        asked: Mapping[str, str],
        seconds: float,
        keeps: bool,
    ):
        """Returns at once; the thread that reads `stdout` waits for the start.

        Args:
          ray: The library.
          actor: The handle of a `RoleProcess`.
          started: The reference to the result of its `start`.
          asked: The requested resources.
          seconds: Seconds that it may wait for them.
          keeps: Whether the actor stays after its process has ended.
        """
        self._ray, self._actor, self._keeps = ray, actor, keeps
        self._code: int | None = None
        self.lost = False
        self.stdout = self._lines(started, asked, seconds)

    def _lines(self, started: Any, asked: Mapping[str, str], seconds: float) -> Iterator[str]:
        code = None
        try:
            try:
                self._ray.get(started, timeout=seconds)
            except self._ray.exceptions.GetTimeoutError:
                yield f"No node had room for it within {seconds:g} s: {_format_amounts(asked)}.\n"
                fits = _has_node_for(self._ray, asked)
                code = (UnavailableError if fits else UserError).exit_code
            while code is None:
                lines, code = self._ray.get(self._actor.poll.remote())
                yield from lines
                if code is None:
                    time.sleep(_LOOK_SECONDS)
        except self._ray.exceptions.RayError as error:
            yield f"Its actor is lost: {str(error).splitlines()[0]}\n"
            self.lost, code = True, _LOST
        finally:
            if self.lost or not self._keeps:
                self._ray.kill(self._actor)
            self._code = _LOST if code is None else code

    def poll(self) -> int | None:
        return self._code

    def wait(self, timeout: float | None = None) -> None:
        deadline = time.monotonic() + (_ANSWER_SECONDS if timeout is None else timeout)
        while self._code is None:
            if time.monotonic() > deadline:
                if timeout is None:
                    return
                raise subprocess.TimeoutExpired("the process of an actor", timeout)
            time.sleep(_LOOK_SECONDS / 4)

    def terminate(self) -> None:
        self._actor.terminate.remote()

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            if self._code is None:
                self._ray.get(self._actor.kill.remote(), timeout=_ANSWER_SECONDS)
        if self.lost or not self._keeps:
            self._ray.kill(self._actor)


class RayEngine(LocalEngine):
    """The local engine, with processes on the nodes of a Ray cluster.

    Attributes:
      server_lost: Whether the job has ended because a server's node is lost. All processes must
        then restart with new addresses.
    """

    def __init__(
        self,
        ray: Any,
        make_job: Callable[[list[str]], Sequence[Role]],
        log_dir: pathlib.Path,
        *,
        num_servers: int,
        host: str | None,
        resources: RoleResources,
        wait_seconds: float,
        **options: Any,
    ):
        """Places the servers.

        Args:
          ray: The library, connected.
          make_job: Returns the roles from the addresses of the servers.
          log_dir: See `LocalEngine`.
          num_servers: The number of servers.
          host: The servers' host name; None for the address of each server's node.
          resources: Resources of the roles.
          wait_seconds: Seconds that a process may wait for its resources, and for others.
          **options: See `LocalEngine`.

        Raises:
          UserError: No node has room for a server; `UnavailableError` if one has when it is free.
        """
        self._ray, self._resources = ray, resources
        self.server_lost = False
        self._servers = {f"{SERVER}-{i}": self._place(SERVER) for i in range(num_servers)}
        asked = [actor.address.remote(host) for actor in self._servers.values()]
        try:
            addresses = ray.get(asked, timeout=wait_seconds)
        except ray.exceptions.GetTimeoutError as error:
            fits = _has_node_for(ray, resources.of(SERVER))
            raise (UnavailableError if fits else UserError)(
                "--resources of servers",
                expected=f"a node with room for {_format_amounts(resources.of(SERVER))} within "
                f"{wait_seconds:g} s",
                got="none",
                remedy="Check the cluster's resources with `ray status`.",
            ) from error
        super().__init__(make_job(addresses), log_dir, wait_seconds=wait_seconds, **options)

    def _place(self, kind: str) -> Any:
        names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
        amounts = _rays_amounts(self._resources.of(kind))
        options: dict[str, Any] = {names[n]: x for n, x in amounts.items() if n in names}
        options["max_restarts"] = 0
        if "TPU" in amounts:
            options["resources"] = {"TPU": amounts["TPU"]}
        return self._ray.remote(RoleProcess).options(**options).remote()

    def _spawn(self, role: Role) -> _RemoteProcess:
        # A restarted server keeps its address: its actor stays until the end of the job.
        actor = self._servers.get(role.name) or self._place(role.kind)
        _, *arguments = self._command(role)
        environment = self._environment(role)
        started = actor.start.remote(arguments, role.name, os.getcwd(), environment)
        asked = self._resources.of(role.kind)
        keeps = role.name in self._servers
        return _RemoteProcess(self._ray, actor, started, asked, self._wait_seconds, keeps)

    def _kill(self, popen: _RemoteProcess) -> None:
        popen.kill()

    def _kill_all(self) -> None:
        super()._kill_all()
        for actor in self._servers.values():
            self._ray.kill(actor)

    def _look(self) -> int:
        if any(process.popen and process.popen.lost for process in self._of(SERVER)):
            self.server_lost = True
            return _LOST
        return super()._look()

    def restarts_all(self, failures: int) -> bool:
        """Returns whether the job starts again with other servers, and prints it.

        Args:
          failures: How often it has started again already.
        """
        starts = failures < self._max_restarts
        what = f"all processes are started again ({failures + 1} of {self._max_restarts})"
        if not starts:
            what = f"the job has failed after {failures} restarts"
        self._tell(f"The node of a server is lost: {what}.")
        return starts


def _rays_amounts(asked: Mapping[str, str]) -> dict[str, float]:
    """Returns the amounts of a role by Ray's names."""
    names = {"cpu": "CPU", "gpu": "GPU", "memory": "memory", "tpu": "TPU"}
    converted = {"cpu": in_cores, "memory": in_bytes}
    return {names[name]: converted.get(name, float)(x) for name, x in asked.items()}


def _has_node_for(ray: Any, asked: Mapping[str, str]) -> bool:
    """Whether a node of the cluster has enough resources, also if others use them now."""
    amounts = _rays_amounts(asked)
    return any(
        node["Alive"] and all(node["Resources"].get(n, 0.0) >= x for n, x in amounts.items())
        for node in ray.nodes()
    )


def _format_amounts(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={amount}" for name, amount in amounts.items())


def _check_reachable(address: str) -> None:
    """Raises an OSError if nothing answers at host:port, for which Ray would wait for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()


@contextlib.contextmanager
def cluster(ray: Any, address: str | None, num_cpus: float) -> Iterator[None]:
    """Connects to a Ray cluster, or starts one on this machine for the time of the context.

    Args:
      ray: The library.
      address: The address of a running cluster, or None to start one.
      num_cpus: CPUs of a started cluster.

    Raises:
      UserError: The cluster cannot be reached.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    with contextlib.ExitStack() as stack:
        if address is None:
            folder = tempfile.mkdtemp(prefix="tfrl-ray-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            # Else Ray writes a token to the home folder.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            options.update(
                include_dashboard=False,
                num_cpus=num_cpus,
                object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=folder,
            )
        try:
            if address is not None:
                _check_reachable(address)
            ray.init(address=address or "local", **options)
        except OSError as error:  # also Ray's ConnectionError
            raise UserError(
                f"--ray_address={address}",
                expected="a running Ray cluster",
                got=str(error).splitlines()[0].rstrip("."),
                remedy="Start one with `ray start --head`.",
            ) from error
        stack.callback(ray.shutdown)
        for number, handler in handlers.items():  # Ray has replaced them
            signal.signal(number, handler)
        yield


def run(
    make_job: Callable[[list[str], str], Sequence[Role]],
    log_dir: pathlib.Path,
    termination: Termination,
    *,
    num_servers: int,
    resources: RoleResources,
    max_restarts: int,
    wait_seconds: float,
    table_seconds: float,
) -> int:
    """Runs a job on Ray, as the flags say; returns the exit code.

    Args:
      make_job: Returns the roles from the servers' addresses and bind address.
      log_dir: See `LocalEngine`.
      termination: See `LocalEngine.run`.
      num_servers: The number of servers.
      resources: Resources of the roles.
      max_restarts: The most restarts of each process, and of the job after a loss of a server's
        node.
      wait_seconds: Seconds that processes wait for resources.
      table_seconds: See `LocalEngine`.

    Raises:
      UserError: Ray is not installed, its cluster cannot be reached, or no node has room for a
        server.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = require("ray", "ray")
    address = flags.FLAGS.ray_address
    # On one machine all processes get resources, as with the local engine.
    bind = "" if address is None else "0.0.0.0"  # nosec B104
    any_job = make_job(["localhost:1"] * num_servers, bind)
    num_cpus = math.ceil(sum(in_cores(resources.of(role.kind)["cpu"]) for role in any_job))
    with cluster(ray, address, num_cpus):
        failures = 0
        while True:
            started = time.monotonic()
            engine = RayEngine(
                ray,
                lambda addresses: make_job(addresses, bind),
                log_dir,
                num_servers=num_servers,
                host="localhost" if address is None else None,
                resources=resources,
                max_restarts=max_restarts,
                wait_seconds=wait_seconds,
                table_seconds=table_seconds,
                gpu_kinds=gpu_kinds(resources),
            )
            code = engine.run(termination)
            if termination.requested or not engine.server_lost:
                return code
            if time.monotonic() - started > local_engine.HEALTHY_SECONDS:
                failures = 0
            if not engine.restarts_all(failures):
                return code
            failures += 1
