"""Atomic file writes, synced folders, strict JSON."""

import errno
import fcntl
import itertools
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

from tfrl.errors import UserError

# Prefix of temporary names: they match no restore pattern and may be removed.
TEMPORARY = ".tmp-"
# Prefix of a folder that is being replaced, until its successor is in place.
REPLACED = ".replaced-"

_numbers = itertools.count()

_REASONS = {
    errno.EACCES: "no write permission",
    errno.EPERM: "no write permission",
    errno.EROFS: "a read-only file system",
    errno.ENOTDIR: "a path that leads through a file",
    errno.EEXIST: "a file in place of a folder",
    errno.ENOSPC: "a full disk",
    errno.ELOOP: "a symbolic link, which is not followed",
    errno.ENOENT: "a path where no folder can be created",
}


def reason(error: Exception) -> str:
    """Returns the reason of a write error of the system or TensorFlow, with the path."""
    if not isinstance(error, OSError):
        text = re.sub(r"\{\{.*?\}\} ?", "", str(error)).strip() or type(error).__name__
        return "a full disk" if "No space left on device" in text else text.splitlines()[0]
    text = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return f"{text} ({error.filename})" if error.filename else text


def unwritable(
    thing: str,
    error: Exception,
    *,
    kind: str = "folder",
    remedy: str = "Choose a different path, or free disk space.",
) -> UserError:
    """Returns the error for a folder or file that cannot be written."""
    expected = f"a writable {kind}"
    return UserError(thing, expected=expected, got=reason(error), remedy=remedy)


def temporary_name(directory: pathlib.Path, owner: str = "") -> pathlib.Path:
    """Returns an unused path `.tmp-[<owner>-]<pid>-<n>` in `directory`; creates nothing."""
    start = f"{TEMPORARY}{owner}-" if owner else TEMPORARY
    while True:  # A killed process with the same id may have left the path.
        path = directory / f"{start}{os.getpid()}-{next(_numbers)}"
        if not os.path.lexists(path):
            return path


def open_no_link(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file unless it is a symbolic link: an `opener` for `open`.

    Raises:
      OSError: With ELOOP for a link.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync_file(path: pathlib.Path) -> None:
    """Waits until the content of a file (or the entries of a folder) are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryLock:
    """Locks a folder for one process until `close` or the end of the process.

    It writes nothing to the folder. On a file system without locks it has no effect.
    """

    def __init__(self, directory: pathlib.Path):
        """Takes the lock.

        Args:
          directory: An existing folder.

        Raises:
          BlockingIOError: Another process, or another lock of this process, holds it.
        """
        self._descriptor: int | None = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL):
                self.close()
                raise

    def is_of(self, directory: pathlib.Path) -> bool:
        """Returns whether the path still refers to the locked folder."""
        if self._descriptor is None or not directory.is_dir():
            return False
        return os.path.samestat(os.fstat(self._descriptor), os.stat(directory))

    def close(self) -> None:
        """Unlocks the folder; further calls have no effect."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically: `path` is replaced only once the content is on disk."""
    temporary = temporary_name(path.parent)
    try:
        with open(temporary, "xb") as file:  # never follows a link
            file.write(content)
        sync_file(temporary)
        os.replace(temporary, path)
    except Exception:
        temporary.unlink(missing_ok=True)
        raise
    sync_file(path.parent)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file (UTF-8, newlines unchanged) atomically."""
    write_bytes(path, text.encode("utf-8"))


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns strict JSON: NumPy and tensor values become numbers, non-finite ones null."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def from_json(text: str) -> Any:
    """Parses JSON that may be damaged or untrusted.

    Raises:
      ValueError: The text is no JSON, or its brackets are nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None


def plain(value: Any) -> Any:
    """Converts `value` to JSON types: dict, list, str, int, float, bool and None.

    float32 numbers become the shortest decimal that reads back as the same float32. Non-finite
    numbers become None, since JSON does not have them.

    Args:
      value: Nested dicts, lists and tuples of Python, NumPy or tensor values, and paths.

    Raises:
      TypeError: For any other object.
    """
    import numpy as np  # imported here, since --help imports this module

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [plain(v) for v in items]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return plain(list(value)) if value.ndim else plain(value[()])
    if isinstance(value, np.floating) and value.dtype.itemsize < 8:
        value = float(str(value))
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool | str | int | float):
        return value
    raise TypeError(f"expected a JSON-serializable value, got {type(value).__name__}: {value!r}")


def replace_directory(temporary: pathlib.Path, final: pathlib.Path) -> None:
    """Moves a finished folder to its final name; replaces an existing folder.

    A rename cannot replace a folder that is not empty, so the old one is first renamed to
    `.replaced-<name>`. A reader in between, or after a kill in between, finds it there, and
    `recover_replaced` restores it.

    Args:
      temporary: The finished folder, on the same file system.
      final: The final path.
    """
    aside = final.parent / f"{REPLACED}{final.name}"
    if final.exists():
        if aside.exists():
            shutil.rmtree(aside)
        os.rename(final, aside)
    try:
        os.rename(temporary, final)
    except OSError:
        if aside.exists():
            os.rename(aside, final)
        raise
    sync_file(final.parent)
    if aside.exists():
        shutil.rmtree(aside)


def recover_replaced(directory: pathlib.Path) -> None:
    """Finishes or undoes all replacements in `directory` that a kill has interrupted."""
    for aside in sorted(directory.glob(f"{REPLACED}*")):
        recover(directory / aside.name.removeprefix(REPLACED))


def recover(final: pathlib.Path) -> None:
    """Finishes or undoes the replacement of one folder that a kill has interrupted."""
    aside = final.parent / f"{REPLACED}{final.name}"
    if aside.exists():
        if final.exists():
            shutil.rmtree(aside)
        else:
            os.rename(aside, final)


def remove_temporaries(directory: pathlib.Path, owner: str = "") -> None:
    """Removes temporary files of killed writers in `directory`: all, or one owner's."""
    one = re.compile(re.escape(f"{TEMPORARY}{owner}-") + r"\d+-\d+")
    for left in sorted(directory.glob(f"{TEMPORARY}*")):
        if owner and not one.fullmatch(left.name):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def remove_directory(directory: pathlib.Path) -> None:
    """Removes a folder; a kill in between leaves a temporary folder, not a partial one."""
    doomed = temporary_name(directory.parent)
    os.rename(directory, doomed)
    shutil.rmtree(doomed)
