"""A Reverb server in this process, with checkpoints that survive."""

import os
import pathlib
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.replay.numeric import SECONDS, is_count, is_seconds
from tfrl.replay.reverb import checkpoints, library, limits
from tfrl.replay.reverb.calls import CHECKPOINT_SECONDS, within
from tfrl.replay.reverb.heartbeat import is_broken_connection
from tfrl.replay.reverb.library import without_progress_lines
from tfrl.replay.reverb.ports import LOOPBACK, check_bind, check_port, keep_to_loopback
from tfrl.storage import files

reverb = library.reverb()

_CONNECT_SECONDS = 20.0
_STOP_SECONDS = 60.0
# Folders in the temporary one begin so, and go on with the number of the process.
_SCRATCH = "tfrl-reverb-"


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


class ReverbServer:
    """Serves tables, from the last checkpoint on if there is one.

    Attributes:
      port: Where it listens.
      address: `localhost:<port>`.
      restored: Items by table that the start restored; None if it began with empty tables.
      restored_from: The checkpoint that they are of.
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
    ):
        """Restores and starts to serve.

        Args:
          tables: `reverb.Table`s, to serve.
          port: Where; None for a free port.
          bind: "127.0.0.1" for this machine alone, "0.0.0.0" for whoever reaches its port: Reverb
            asks nobody who they are.
          checkpoint_dir: Folder of checkpoints: the newest is restored, `stop` writes one. None for
            a server that forgets.
          checkpoint_interval: Also writes one every so many seconds; requests wait meanwhile.
          max_to_keep: How many checkpoints stay in `checkpoint_dir`.
          restore_from: A checkpoint that `save` wrote, in place of the newest of `checkpoint_dir`.
          log: Takes lines about damaged checkpoints and failed ones; by default `warnings.warn`.
          on_checkpoint: Is told of the folder of each checkpoint in `checkpoint_dir`, once it is
            there; called in another thread for those of `checkpoint_interval`.

        Raises:
          UserError: The port is taken; the folder cannot be written or is in use; no checkpoint of
            it is usable; the checkpoint has other tables or limits than `tables`.
        """
        _check_numbers(checkpoint_dir, checkpoint_interval, max_to_keep)
        self._log = log or _warn
        self._tell = on_checkpoint or (lambda path: None)
        self._saving = threading.RLock()
        self._ending = threading.Event()
        self._stopped = False
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
            folder = pathlib.Path(checkpoint_dir).expanduser().absolute()
            self._checkpoints = checkpoints.ReverbCheckpoints(folder, max_to_keep)
        try:
            self._start(list(tables), port, restore_from)
            self.port: int = self._running.port
            self.address = f"localhost:{self.port}"
            self._client = reverb.Client(self.address)
            if self.restored_from is not None:
                info = _repeated(lambda: self._client.server_info(timeout=60))
                self.restored = {name: info[name].current_size for name in sorted(info)}
        except BaseException:
            self._end()
            raise
        if checkpoint_interval is not None:
            threading.Thread(
                target=self._save_regularly, args=(checkpoint_interval,), daemon=True
            ).start()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return not self._stopped

    def checkpoint(self) -> pathlib.Path:
        """Writes a checkpoint into `checkpoint_dir`; requests wait meanwhile.

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
                remedy="Give checkpoint_dir, or save(folder).",
            )
        with self._saving:
            try:
                self._checkpoints.adopt_finished()
                path = self._checkpoints.adopt(self._write())
            except OSError as error:
                raise self._checkpoints.unwritable(error) from error
            self._tell(path)
            return path

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint to a folder of the caller's, in place of one that is there.

        Args:
          folder: For `restore_from`.

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
                raise UserError(
                    f"replay checkpoint {target}",
                    expected="a folder that can be written",
                    got=files.reason(error),
                    remedy="Choose another folder, or make room there.",
                ) from error

    def stop(self, *, checkpoint: bool = True) -> None:
        """Writes a last checkpoint, if there is a `checkpoint_dir`, and ends; once only.

        Args:
          checkpoint: Whether to write it.

        Raises:
          UserError: The checkpoint failed. The server has ended all the same.
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
                expected="a server that runs",
                got="one that was stopped",
                remedy="Make a new one.",
            )
        return self._server

    def _start(
        self,
        tables: list[Any],
        port: int | None,
        restore_from: str | os.PathLike[str] | None,
    ) -> None:
        """Starts the server from a checkpoint, or empty where there is none."""
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
            self._serve(tables, port, None)

    def _restore(self, tables: list[Any], port: int | None, folder: pathlib.Path) -> None:
        try:
            limits.check_limits(folder, limits.read_tables(folder), tables)
        except (tf.errors.OpError, OSError) as error:
            raise checkpoints.DamagedError(f"its tables cannot be read: {_first(error)}") from error
        try:
            # Copies, since a failed restoration leaves tables half filled.
            self._serve([table.replace() for table in tables], port, folder)
        except RuntimeError as error:
            raise checkpoints.DamagedError(_first(error)) from error

    def _serve(self, tables: list[Any], port: int | None, folder: pathlib.Path | None) -> None:
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
        """Where Reverb writes; nothing else may be there, since it removes that."""
        if self._checkpoints is not None:
            return self._checkpoints.writing
        if self._scratch is None:
            raise RuntimeError("the server was stopped")
        return self._scratch

    def _write(self) -> pathlib.Path:
        """Lets Reverb write a checkpoint; returns its temporary place."""
        self._running  # noqa: B018  (raises for a stopped server)
        try:
            where, write = f"Reverb server at {self.address}", self._client.checkpoint
            with without_progress_lines():
                return pathlib.Path(
                    _repeated(
                        lambda: within(CHECKPOINT_SECONDS, write, where, "writing a checkpoint")
                    )
                )
        except RuntimeError as error:
            raise UserError(
                f"a checkpoint of the Reverb server at {self.address}",
                expected="to be written",
                got=_first(error),
                remedy=f"See to the disk of {self._writing}.",
            ) from error

    def _save_regularly(self, seconds: float) -> None:
        while not self._ending.wait(seconds):
            with self._saving:
                if self._ending.is_set():
                    return
                try:
                    self.checkpoint()
                except UserError as error:
                    # It serves on: the next one may work again, and the last one tells.
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
        """Lets the folders go."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _remove_abandoned() -> None:
    """Removes what killed processes of this user left in the temporary folder."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*-*"):
        process = folder.name.removeprefix(_SCRATCH).partition("-")[0]
        if process.isdigit() and not pathlib.Path("/proc", process).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _repeated(call: Callable[[], Any]) -> Any:
    """Calls until the connection holds: gRPC may have one to an earlier server of the port."""
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return call()
        except RuntimeError as error:
            if not is_broken_connection(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _first(error: BaseException) -> str:
    """The first line of an error of C++."""
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _check_numbers(folder: object, interval: float | None, max_to_keep: int) -> None:
    if interval is not None and not (is_seconds(interval) and folder is not None):
        raise UserError(
            "ReverbServer's checkpoint_interval",
            expected=f"{SECONDS}, and a checkpoint_dir",
            got=f"{interval!r} with checkpoint_dir={folder!r}",
            remedy="None writes a checkpoint at the end only.",
        )
    if not is_count(max_to_keep):
        raise UserError(
            "ReverbServer's max_to_keep",
            expected="a whole number of at least 1",
            got=repr(max_to_keep),
            remedy="3 is usual.",
        )
