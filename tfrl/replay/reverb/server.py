"""A Reverb server in this process, with durable checkpoints."""

import errno
import math
import os
import pathlib
import shutil
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from tfrl import checks
from tfrl.errors import UserError
from tfrl.replay.reverb import checkpoints, library
from tfrl.replay.reverb.cancellable_call import CHECKPOINT_SECONDS, too_long, within
from tfrl.replay.reverb.connection import is_broken_connection
from tfrl.replay.reverb.factory import LOOPBACK, MOST_SECONDS, check_bind
from tfrl.replay.reverb.library import without_progress_lines
from tfrl.replay.reverb.tables import (
    HEARTBEATS,
    check_limits,
    make_start,
    make_tables,
    read_tables,
)
from tfrl.storage import files

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


_LISTENS = "0A"  # the state of /proc/net/tcp


def keep_to_loopback(port: int) -> None:
    """Makes a server of this process reachable from this machine only.

    Reverb always listens on `[::]`. This binds its listening sockets to the loopback device, which
    refuses connections from other machines. For some milliseconds between the server's start and
    this call, any machine can connect.

    Args:
      port: The server's port.

    Raises:
      UserError: The system does not allow it.
    """
    try:
        for descriptor in _listening(port):
            with socket.socket(fileno=os.dup(descriptor)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except OSError as error:
        raise UserError(
            f"port {port} of the Reverb server",
            expected="a system that binds it to the loopback device",
            got=(error.strerror or str(error)).lower(),
            remedy="Linux allows it from 5.7 on. Where the network is trusted, bind='0.0.0.0' (in "
            "gin ReverbReplay.bind) opens the port: any client that reaches it can read, change "
            "and delete the experience.",
        ) from error


def _listening(port: int) -> Iterator[int]:
    """Yields the descriptors of this process's sockets that listen on a port."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path("/proc/self/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:  # closed meanwhile
            continue
        if target in inodes:
            yield int(entry)


def check_port(port: int) -> None:
    """Checks that a server may listen on a port; Reverb would share a port that is in use.

    Args:
      port: From 1 to 65535.

    Raises:
      UserError: If it may not, with the reason.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        got: str = repr(port)
    else:
        got = _refused(port)
    if got:
        raise UserError(
            f"port {port} of the Reverb server",
            expected="an unused port from 1 to 65535",
            got=got,
            remedy="Choose another port, or end the program that uses it.",
        )


def _refused(port: int) -> str:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # As gRPC binds: old connections of a stopped server are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "one that another program listens on"
            return (error.strerror or str(error)).lower()
    return ""


reverb = library.reverb()

_CONNECT_SECONDS = 20.0
_STOP_SECONDS = 60.0
# Prefix of temporary folders; the process id follows.
_SCRATCH = "tfrl-reverb-"


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class ReverbServer:
    """Serves tables, restored from the last checkpoint if there is one.

    Attributes:
      port: The server's port.
      address: `localhost:<port>`.
      restored: The number of restored items by table; None if the server began with empty tables.
      restored_from: The restored checkpoint.
    """

    def __init__(
        self,
        tables: Sequence[Any],
        *,
        port: int | None = None,
        bind: str = LOOPBACK,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_interval: float | None = None,
        max_to_keep: int = 3,
        restore_from: str | os.PathLike[str] | None = None,
        log: Callable[[str], None] | None = None,
        on_checkpoint: Callable[[pathlib.Path], None] | None = None,
        settings: Mapping[str, str] | None = None,
    ):
        """Restores and starts to serve.

        Args:
          tables: The `reverb.Table`s to serve.
          port: The port; None for a free one.
          bind: "127.0.0.1" to be reachable from this machine only, "0.0.0.0" to be reachable from
            any: Reverb has no authentication.
          checkpoint_dir: The folder of checkpoints. The server restores the newest, and `stop`
            writes one. None for no checkpoints.
          checkpoint_interval: Seconds between further checkpoints; requests wait meanwhile.
          max_to_keep: The number of checkpoints to keep in `checkpoint_dir`.
          restore_from: A checkpoint of `save`, in place of the newest of `checkpoint_dir`.
          log: Takes lines about damaged and failed checkpoints; by default `warnings.warn`.
          on_checkpoint: Called with the folder of each finished checkpoint in `checkpoint_dir`;
            checkpoints of `checkpoint_interval` call it in another thread.
          settings: For a run with collectors: the settings that its processes share, by name.

        Raises:
          UserError: The port is in use; the folder cannot be written or is in use; none of its
            checkpoints is usable; or the checkpoint has other tables or limits than `tables`.
        """
        _check_numbers(checkpoint_dir, checkpoint_interval, max_to_keep)
        self._log = log or _warn
        self._tell = on_checkpoint or (lambda path: None)
        self._settings = dict(settings or {})
        self._saving = threading.RLock()
        self._ending = threading.Event()
        self._stopped = False
        self._failure = ""  # of the last `adopt_checkpoints`
        self._server: Any = None
        self.restored: dict[str, int] | None = None
        self.restored_from: pathlib.Path | None = None
        check_bind(bind)
        self._bind = bind
        if port is not None:
            check_port(port)
        self._scratch: pathlib.Path | None = None
        self._checkpoints: checkpoints.ReverbCheckpoints | None = None
        if checkpoint_dir is None:
            _remove_abandoned()
            self._scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"{_SCRATCH}{os.getpid()}-"))
        else:
            folder = checkpoints.place_of(checkpoint_dir)
            self._checkpoints = checkpoints.ReverbCheckpoints(folder, max_to_keep, self._log)
        try:
            self._start(list(tables), port, restore_from)
            self.port: int = self._running.port
            self.address = f"localhost:{self.port}"
            self._client = reverb.Client(self.address)
            if self.restored_from is not None:
                info = _repeated(lambda: self._client.server_info(timeout=60))
                names = sorted(table.name for table in tables)
                self.restored = {name: info[name].current_size for name in names}
        except BaseException:
            self._end()
            raise
        if checkpoint_interval is not None:
            threading.Thread(
                target=self._save_regularly, args=(checkpoint_interval,), daemon=True
            ).start()

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return not self._stopped

    def checkpoint(self) -> pathlib.Path:
        """Writes a checkpoint to `checkpoint_dir`; requests wait meanwhile.

        Returns:
          The checkpoint's folder.

        Raises:
          UserError: There is no `checkpoint_dir`, the server has stopped, or writing failed.
        """
        if self._checkpoints is None:
            raise UserError(
                "ReverbServer.checkpoint",
                expected="a server with a checkpoint_dir",
                got="checkpoint_dir=None",
                remedy="Pass checkpoint_dir, or call save(folder).",
            )
        with self._saving:
            try:
                self._checkpoints.adopt_finished()
                path = self._checkpoints.adopt(self._write())
            except OSError as error:
                raise self._checkpoints.unwritable(error) from error
            self._tell(path)
            return path

    def adopt_checkpoints(self) -> None:
        """Takes the checkpoints that clients requested into `checkpoint_dir`; logs failures.

        Without it the next `checkpoint`, `stop` or start does so. Reverb keeps only the last.
        """
        if self._checkpoints is None:
            return
        failure = ""
        with self._saving:
            try:
                self._checkpoints.adopt_finished()
            except OSError as error:
                failure = str(self._checkpoints.unwritable(error))
        if failure and failure != self._failure:
            self._log(failure)
        self._failure = failure

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint to any folder; replaces an existing folder.

        Args:
          folder: The folder, to use as `restore_from`.

        Raises:
          UserError: The server has stopped, or writing failed.
        """
        target = pathlib.Path(folder).expanduser().absolute()
        with self._saving:
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = files.temporary_name(target.parent)
                shutil.move(self._write(), temporary)
                checkpoints.seal(temporary)
                files.replace_directory(temporary, target)
            except OSError as error:
                raise files.unwritable(f"replay checkpoint {target}", error) from error

    def stop(self, *, checkpoint: bool = True) -> None:
        """Writes a last checkpoint to `checkpoint_dir`, if set, and stops the server.

        Further calls have no effect.

        Args:
          checkpoint: Whether to write the checkpoint.

        Raises:
          UserError: The checkpoint failed. The server has stopped nevertheless.
        """
        if self._stopped:
            return
        self._ending.set()
        with self._saving:
            try:
                if checkpoint and self._checkpoints is not None:
                    self.checkpoint()
            finally:
                self._end()

    @property
    def _running(self) -> Any:
        if self._server is None:
            raise UserError(
                "ReverbServer",
                expected="a running server",
                got="a stopped server",
            )
        return self._server

    def _start(
        self,
        tables: list[Any],
        port: int | None,
        restore_from: str | os.PathLike[str] | None,
    ) -> None:
        """Starts the server from a checkpoint, or empty without one."""
        if restore_from is not None:
            source = pathlib.Path(restore_from).expanduser().absolute()
            folders, where = [source], source.parent
        else:
            folders = self._checkpoints.newest_first() if self._checkpoints else []
            where = self._checkpoints.directory if self._checkpoints else pathlib.Path()
        self.restored_from = checkpoints.first_usable(
            folders, lambda folder: self._restore(tables, port, folder), self._log, where
        )
        if self.restored_from is None:
            self._serve(tables, port)

    def _restore(self, tables: list[Any], port: int | None, folder: pathlib.Path) -> None:
        try:
            saved = read_tables(folder)
            check_limits(folder, saved, tables)
        except (tf.errors.OpError, OSError) as error:
            raise checkpoints.DamagedError(
                f"its tables cannot be read: {checkpoints.first_line(error)}"
            ) from error
        try:
            inserts = {table.table_name: table.rate_limiter.insert_count for table in saved}
            # Copies, since a failed restore leaves tables half filled.
            fresh = [table.replace() for table in tables]
            self._serve(fresh, port, folder, inserts, checkpoints.starts(folder))
        except RuntimeError as error:
            raise checkpoints.DamagedError(checkpoints.first_line(error)) from error

    def _serve(
        self,
        tables: list[Any],
        port: int | None,
        folder: pathlib.Path | None = None,
        inserts: Mapping[str, int] | None = None,
        earlier: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Starts the server.

        Args:
          tables: The tables.
          port: See `ReverbServer`.
          folder: The checkpoint to restore; None for empty tables.
          inserts: The inserts of each table in the checkpoint.
          earlier: The starts that led to the checkpoint.
        """
        names = [table.name for table in tables]
        if HEARTBEATS in names:
            counts = inserts or dict.fromkeys(names, 0)
            tables = [*tables, make_start(counts, earlier or {}, self._settings)]
        own = reverb.checkpointers.DefaultCheckpointer(
            str(self._writing), fallback_checkpoint_path=str(folder) if folder else None
        )

        def serve() -> Any:
            return reverb.Server(tables, port=port, checkpointer=own)

        with without_progress_lines():
            what = "reading a checkpoint" if folder else "starting"
            self._server = within(CHECKPOINT_SECONDS, serve, "Reverb server", what)
        if self._bind == LOOPBACK:
            keep_to_loopback(self._server.port)

    @property
    def _writing(self) -> pathlib.Path:
        """The folder that Reverb writes to; Reverb removes all other files in it."""
        if self._checkpoints is not None:
            return self._checkpoints.writing
        if self._scratch is None:
            raise RuntimeError("the server was stopped")
        return self._scratch

    def _write(self) -> pathlib.Path:
        """Lets Reverb write a checkpoint; returns its temporary path."""
        self._running  # noqa: B018  (raises for a stopped server)
        try:
            where, write = f"Reverb server at {self.address}", self._client.checkpoint
            with without_progress_lines():
                return pathlib.Path(
                    _repeated(
                        lambda: within(CHECKPOINT_SECONDS, write, where, "writing a checkpoint")
                    )
                )
        except (RuntimeError, IndexError) as error:  # IndexError: the disk is full
            raise checkpoints.unwritten(self.address, error) from error

    def _save_regularly(self, seconds: float) -> None:
        while not self._ending.wait(seconds):
            with self._saving:
                if self._ending.is_set():
                    return
                try:
                    self.checkpoint()
                except UserError as error:
                    # The server continues: the next checkpoint may succeed, and `stop` raises.
                    self._log(f"No checkpoint was written. {error}")

    def _end(self) -> None:
        self._stopped = True
        if self._server is not None:
            try:
                with without_progress_lines():
                    within(_STOP_SECONDS, lambda: self._server.stop(), "Reverb server", "its end")
                    self._server = None  # The destructor has its lines too.
            finally:
                self._let_go()
        else:
            self._let_go()

    def _let_go(self) -> None:
        """Releases the folders."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _remove_abandoned() -> None:
    """Removes the temporary folders of this user's killed processes."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*-*"):
        process = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if process.isdigit() and not pathlib.Path("/proc", process).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _repeated(call: Callable[[], Any]) -> Any:
    """Repeats a call: gRPC may reuse a connection to an earlier server of the port."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return call()
        except RuntimeError as error:
            if not is_broken_connection(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _check_numbers(folder: object, interval: float | None, max_to_keep: int) -> None:
    checks.number("ReverbServer's checkpoint_interval", interval, 0, MOST_SECONDS, False, True)
    if interval is not None and folder is None:
        raise UserError(
            "ReverbServer's checkpoint_interval",
            expected="a checkpoint_dir",
            got=f"{interval!r} with checkpoint_dir=None",
            remedy="Pass None to write a checkpoint only at the end.",
        )
    checks.at_least("ReverbServer's max_to_keep", max_to_keep, 1)


T = TypeVar("T")


class LocalServer:
    """Serves the tables of a factory on a free port, within this process.

    Only this machine reaches it, unless `ReverbReplay.bind` says otherwise. It cannot be lost
    before its caller: `check` does nothing, and `guard` only applies the timeout.

    Attributes:
      address: "localhost:port".
      client: The `reverb.Client`.
    """

    lost = False
    reconnections = 0
    on_wait: Callable[[], None]  # never called: items are of this process

    def __init__(self, replay: "ReverbReplay", restore_from: pathlib.Path | None = None):
        """Starts the server.

        Args:
          replay: The factory.
          restore_from: A folder of `checkpoint`; None for empty tables.

        Raises:
          UserError: For a damaged checkpoint, or one with other tables or limits.
        """
        self._timeout = replay.timeout
        self._server = ReverbServer(
            make_tables(replay), bind=replay.bind, restore_from=restore_from
        )
        self.address = self._server.address
        self.client = reverb.Client(self.address)

    def server_info(self) -> dict[str, Any]:
        """Returns `{table: reverb TableInfo}`.

        Raises:
          ServerSilentError: The server does not answer in time.
        """
        seconds = math.ceil(self._timeout)
        try:
            return self.client.server_info(timeout=seconds)
        except reverb.errors.DeadlineExceededError as error:
            raise too_long(seconds, self._name, "asking for tables") from error

    def probe(self) -> None:
        """Does nothing."""

    def check(self, what: str = "using it") -> None:
        """Returns at once."""

    def guard(
        self,
        fn: Callable[[], T],
        what: str,
        timeout: float | None = None,
        again: bool = True,
        may_wait: bool = False,
    ) -> T:
        """Returns the result of `fn`; see `Connection.guard`.

        Raises:
          ServerSilentError: The call takes longer than `timeout`.
        """
        return fn() if timeout is None else within(timeout, fn, self._name, what)

    @property
    def _name(self) -> str:
        return f"Reverb server of this process at {self.address}"

    def keep(self, thing: T) -> T:
        """Returns its argument."""
        return thing

    def release(self, thing: Any) -> None:
        """Does nothing."""

    def checkpoint(self, folder: pathlib.Path) -> None:
        """Writes items, priorities and counts of all tables to a new folder."""
        self._server.save(folder)

    def close(self) -> None:
        """Stops the server and drops its items."""
        self._server.stop()
