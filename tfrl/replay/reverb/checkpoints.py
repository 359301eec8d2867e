"""The checkpoint folder of a Reverb server: keeps the newest few, each complete or absent.

Reverb itself keeps one checkpoint and removes all other files beside it. So Reverb writes to a
separate folder, `.writing`, and each finished checkpoint is moved to `ckpt-<n>`. A manifest detects
damage: Reverb takes an empty file for an empty table.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import shutil
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.replay.core import check_made_with, replace_folder
from tfrl.replay.reverb.signature import packs
from tfrl.replay.reverb.tables import TABLES_FILE, remove_start
from tfrl.storage import files, remote, working_copy
from tfrl.storage.files import from_json

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


_VALUES, _VALUES_SCHEMA = "values.json", 1
# Subfolder with the tables of a server in this process.
_TABLES = "tables"
_SCHEMA = 1
_MANIFEST = "manifest.json"
_DONE = "DONE"
_RECORDS = ".tfrecord"
_READ_BYTES = 2**16
_NAME = re.compile(r"ckpt-(\d+)")


def save(
    folder: str,
    replay: "ReverbReplay",
    values: dict[str, float],
    write_tables: Callable[[pathlib.Path], Any],
) -> None:
    """Writes a buffer to a folder; replaces an existing folder once all is written.

    Args:
      folder: The path of the folder.
      replay: The factory.
      values: The client's numbers.
      write_tables: Writes Reverb's checkpoint to the path of its argument.
    """
    content = {"schema": _VALUES_SCHEMA, "tables": made_with(replay), "values": values}

    def write(fresh: pathlib.Path) -> None:
        fresh.mkdir()
        write_tables(fresh / _TABLES)
        (fresh / _VALUES).write_text(json.dumps(content, indent=1))

    replace_folder(folder, write)


def restore(
    folder: str, replay: "ReverbReplay", packed: bool | None, elsewhere: bool
) -> tuple[dict[str, float], pathlib.Path, "ReverbReplay"]:
    """Reads a folder of `save`.

    Args:
      folder: The path of the folder.
      replay: The factory.
      packed: Whether its items must be packed; None for either.
      elsewhere: Whether an external server has the items, in its own form.

    Returns:
      The numbers, the path of Reverb's checkpoint (absent for an external server), and the factory
      in the form of its items.

    Raises:
      UserError: For a missing folder, or the folder of a buffer with other settings.
    """
    root = pathlib.Path(folder)
    try:
        content = from_json((root / _VALUES).read_text())
        tables, values = dict(content["tables"]), content["values"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"replay buffer {folder}",
            expected="a folder that ReverbBuffer.save wrote",
            got=f"{type(error).__name__}: {error}",
        ) from error
    block_size = 1
    for stored in tables.values():
        block_size = stored.pop("block_size", 1)  # older folders lack these
        stored.setdefault("packed", False)
        if elsewhere:  # the server's form was compared when it answered
            stored.update(packed=bool(replay.packed))
    result = any(stored["packed"] for stored in tables.values())
    either = packed is None and (packs(replay) or not result)
    form = replay.replace(packed=result, block_size=None) if either else replay
    own = made_with(form)
    for settings in own.values():
        del settings["block_size"]  # any form of the same transitions
    saved, own = ({f"table {n!r},": x[n] for n in x} for x in (tables, own))
    check_made_with("ReverbReplay ", folder, saved, own)
    return values, root / _TABLES, form if elsewhere else form.replace(block_size=block_size)


def check_servers(folder: str, servers: int) -> None:
    """Raises a UserError for a folder of another number of servers; see `ShardedBuffer.save`."""
    saved = len([p for p in pathlib.Path(folder).glob("[0-9]*") if p.is_dir()]) or 1
    if saved != servers:
        raise UserError(
            "the replay servers",
            expected=f"{saved}, as in the checkpoint",
            got=servers,
            remedy="Use the servers of the run, or refill empty ones with "
            "--gin_bindings='OffPolicyWorkflow.checkpoint_replay = False'.",
        )


def made_with(replay: "ReverbReplay") -> dict[str, dict[str, Any]]:
    """Returns the settings that saved tables depend on, `{table: {argument: value}}`."""
    names = [n for n in replay.table_configs[0].__dataclass_fields__ if n != "name"]
    return {
        config.name: {
            **{n: getattr(config, n) for n in names},
            "discount": replay.discount,
            "packed": bool(replay.packed),
            "block_size": replay.block,
        }
        for config in replay.table_configs
    }


def place_of(folder: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the local checkpoint folder of a server: for a remote folder its working copy.

    Args:
      folder: A path, or an address like gs://bucket/replay; this process becomes its writer.

    Raises:
      UserError: The remote folder cannot be written.
    """
    if not remote.is_remote(folder):
        return pathlib.Path(folder).expanduser().absolute()
    copy = working_copy.working_copy(os.fspath(folder), mark=_MANIFEST)
    copy.claim()
    return copy.local


class ReverbCheckpoints:
    """The checkpoint folder of a server; one server at a time may use it.

    Attributes:
      directory: The folder.
      writing: The folder that Reverb writes to.
    """

    def __init__(self, directory: pathlib.Path, max_to_keep: int, log: Callable[[str], None]):
        """Creates the folder and locks it.

        Args:
          directory: The folder of the checkpoints.
          max_to_keep: The number of checkpoints to keep.
          log: Takes lines about checkpoints that Reverb did not write wholly.

        Raises:
          UserError: It cannot be written, or another server uses it.
        """
        self.directory, self.max_to_keep = directory, max_to_keep
        self.writing = directory / ".writing"
        # Reverb removes what stands beside its next checkpoint.
        self._finished = directory / ".writing-finished"
        self._log = log
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = files.DirectoryLock(directory)
            files.remove_temporaries(directory)
            self.writing.mkdir(exist_ok=True)
            self._finished.mkdir(exist_ok=True)
            self.adopt_finished()
            for unfinished in self.writing.iterdir():
                shutil.rmtree(unfinished)
        except BlockingIOError as error:
            raise UserError(
                f"replay checkpoints in {directory}",
                expected="a folder that no other server uses",
                got="a folder that another server is using",
                remedy="End that server, or choose another folder.",
            ) from error
        except OSError as error:
            raise self.unwritable(error) from error

    def unwritable(self, error: OSError) -> UserError:
        """Returns the error for a folder that cannot be written."""
        return files.unwritable(f"replay checkpoints in {self.directory}", error)

    def newest_first(self) -> list[pathlib.Path]:
        """Returns the checkpoints, newest first."""
        result = [path for path in self.directory.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(result, key=_number, reverse=True)

    def adopt(self, written: pathlib.Path) -> pathlib.Path:
        """Moves a checkpoint that Reverb wrote to its place, and removes the oldest.

        Args:
          written: A finished checkpoint within `writing`.

        Returns:
          Its new path.

        Raises:
          OSError: The disk is full, for example.
        """
        finished = self._finished / written.name
        os.rename(written, finished)
        return self._adopt(finished)

    def _adopt(self, finished: pathlib.Path) -> pathlib.Path:
        newest = self.newest_first()
        number = _number(newest[0]) + 1 if newest else 1
        final = self.directory / f"ckpt-{number:06d}"
        try:
            seal(finished)
        except IncompleteError:
            files.remove_directory(finished)
            raise
        files.replace_directory(finished, final)
        for old in self.newest_first()[self.max_to_keep :]:
            files.remove_directory(old)
        working_copy.publish(final)
        return final

    def close(self) -> None:
        """Unlocks the folder."""
        self._lock.close()

    def adopt_finished(self) -> None:
        """Adopts checkpoints that clients requested; Reverb would keep only the last.

        Raises:
          OSError: The disk is full, for example.
        """
        for written in self.writing.iterdir():
            if (written / _DONE).is_file():
                with contextlib.suppress(FileNotFoundError):  # Reverb has removed it
                    os.rename(written, self._finished / written.name)
        for finished in sorted(self._finished.iterdir()):
            try:
                self._adopt(finished)
            except IncompleteError as error:
                self._log(f"A replay checkpoint is not complete, and was removed: {error}.")


def _number(folder: pathlib.Path) -> int:
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else 0


class IncompleteError(OSError):
    """A full disk took the end of a file."""


def seal(folder: pathlib.Path) -> None:
    """Writes the manifest of a finished checkpoint, once its files are on disk.

    Raises:
      IncompleteError: A file has no end. Reverb ignores errors of closing a file.
    """
    for path in sorted(folder.glob(f"*{_RECORDS}")):
        _check_end(path)
    tables = folder / TABLES_FILE
    try:
        earlier = remove_start(folder)
    except tf.errors.ResourceExhaustedError as error:
        raise _incomplete(tables) from error
    _check_end(tables)
    sizes = {}
    for path in sorted(folder.iterdir()):
        if path.name != _MANIFEST:
            files.sync_file(path)
            sizes[path.name] = path.stat().st_size
    manifest = {"schema": _SCHEMA, "sizes": sizes, "starts": earlier}
    files.write_text(folder / _MANIFEST, files.to_json(manifest, indent=2))


def _check_end(path: pathlib.Path) -> None:
    if not _has_end(path):
        raise _incomplete(path)


def _incomplete(path: pathlib.Path) -> IncompleteError:
    return IncompleteError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _has_end(path: pathlib.Path) -> bool:
    """Whether a file is a whole zlib stream, as Reverb writes also without any record."""
    stream = zlib.decompressobj()
    with open(path, "rb") as file, contextlib.suppress(zlib.error):
        while block := file.read(_READ_BYTES):
            stream.decompress(block)
        return stream.eof
    return False


def starts(folder: pathlib.Path) -> dict[str, list[int]]:
    """Returns the starts of servers that led to a checkpoint, see `tables.remove_start`.

    Args:
      folder: The checkpoint; one without a manifest or of an earlier version has none.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        return {}
    return dict(files.from_json(path.read_text(encoding="utf-8")).get("starts", {}))


def damage(folder: pathlib.Path) -> str | None:
    """Returns the damage of a checkpoint's files, or None; Reverb checks their content.

    Args:
      folder: A checkpoint with a manifest.
    """
    try:
        manifest = files.from_json((folder / _MANIFEST).read_text(encoding="utf-8"))
        schema, sizes = manifest["schema"], dict(manifest["sizes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{_MANIFEST} cannot be read ({type(error).__name__})"
    if schema != _SCHEMA:
        return f"{_MANIFEST} has schema {schema}, which this version does not know"
    for name, size in sizes.items():
        path = folder / name
        actual = path.stat().st_size if path.is_file() else None
        if actual != size:
            return f"{name} has {actual} bytes instead of {size}" if path.exists() else f"no {name}"
    return None


def first_usable(
    folders: list[pathlib.Path],
    use: Callable[[pathlib.Path], None],
    log: Callable[[str], None],
    where: pathlib.Path,
) -> pathlib.Path | None:
    """Uses the newest checkpoint that is not damaged.

    Args:
      folders: The checkpoints, newest first.
      use: Takes a checkpoint; raises `DamagedError` if it is damaged.
      log: Takes a line about each damaged checkpoint.
      where: Their folder, for the message.

    Returns:
      The checkpoint in use; None if `folders` is empty.

    Raises:
      UserError: There are checkpoints, but none is usable.
    """
    reasons = []
    for folder in folders:
        working_copy.fetch(folder)
        reason = damage(folder)
        if reason is None:
            try:
                use(folder)
            except DamagedError as error:
                reason = str(error)
            else:
                return folder
        reasons.append(f"{folder.name}: {reason}")
        log(f"Replay checkpoint {folder} is damaged ({reason}).")
    if reasons:
        raise UserError(
            f"replay checkpoints in {where}",
            expected="a usable checkpoint",
            got="; ".join(reasons),
            remedy="Move the folder away to start with empty tables; its files are intact.",
        )
    return None


def unwritten(address: str, error: Exception) -> UserError:
    """Returns the error for a checkpoint that Reverb could not write.

    Args:
      address: The address of the server.
      error: Reverb's error.
    """
    return UserError(
        f"a checkpoint of the Reverb server at {address}",
        expected="a completed write",
        got=first_line(error),
        remedy="Free space on the server's disk; the previous checkpoint is intact.",
    )


def first_line(error: BaseException) -> str:
    """Returns the first line of a C++ error."""
    lines = str(getattr(error, "message", None) or error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


class DamagedError(Exception):
    """The content of a checkpoint is damaged; the text says how."""
