"""Files that are whole or absent: atomic writes, synced folders, strict JSON."""

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

# Names that start so are temporary: they match no restore pattern and may be removed.
TEMPORARY = ".tmp-"
# A folder that is being replaced rests under this name until its successor is in place.
REPLACED = ".replaced-"

_numbers = itertools.count()

_REASONS = {
    errno.EACCES: "no permission to write there",
    errno.EPERM: "no permission to write there",
    errno.EROFS: "a read-only file system",
    errno.ENOTDIR: "a path that leads through a file",
    errno.EEXIST: "a file in place of a folder",
    errno.ENOSPC: "a full disk",
    errno.ELOOP: "a symbolic link, which is not followed",
    errno.ENOENT: "a place where no folder can be made",
}


def reason(error: Exception) -> str:
    """Returns in words, with the path, why the system, or TensorFlow, refused to write."""
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
    remedy: str = "Choose another place, or make room on the disk.",
) -> UserError:
    """Returns the error of a folder, or a file, that the system refuses to write."""
    expected = f"a {kind} that can be written"
    return UserError(thing, expected=expected, got=reason(error), remedy=remedy)


def temporary_name(directory: pathlib.Path, owner: str = "") -> pathlib.Path:
    """Returns a fresh path `.tmp-[<owner>-]<pid>-<n>` in `directory`; nothing is created."""
    start = f"{TEMPORARY}{owner}-" if owner else TEMPORARY
    while True:  # A killed process of the same id may have left one.
        path = directory / f"{start}{os.getpid()}-{next(_numbers)}"
        if not os.path.lexists(path):
            return path


def open_no_link(path: str | os.PathLike[str], flags: int) -> int:
    """Opens a file unless it is a symbolic link: an `opener` for `open`.

    Raises:
      OSError: Also for a link, with the error number ELOOP.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync_file(path: pathlib.Path) -> None:
    """Waits until the content of a file (or the entries of a folder) is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DirectoryLock:
    """Holds a folder for one process; closing it or any end of the process lets it go.

    Nothing is written to the folder. Where the file system has no locks, nothing is held.
    """

    def __init__(self, directory: pathlib.Path):
        """Takes the lock.

        Args:
          directory: An existing folder.

        Raises:
          BlockingIOError: Another process (or another object of this one) holds it.
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
        """Returns whether the path still leads to the locked folder."""
        if self._descriptor is None or not directory.is_dir():
            return False
        return os.path.samestat(os.fstat(self._descriptor), os.stat(directory))

    def close(self) -> None:
        """Lets the folder go; more calls have no effect."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Writes a file that takes the place of `path` when it is whole and on the disk, or never."""
    temporary = temporary_name(path.parent)
    try:
        with open(temporary, "xb") as file:  # never through a link
            file.write(content)
        sync_file(temporary)
        os.replace(temporary, path)
    except Exception:
        temporary.unlink(missing_ok=True)
        raise
    sync_file(path.parent)


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a text file (UTF-8, newlines as they are) atomically."""
    write_bytes(path, text.encode("utf-8"))


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns strictly valid JSON: NumPy and tensor values as numbers, non-finite ones as null."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def from_json(text: str) -> Any:
    """Parses JSON that may be damaged or of others.

    Raises:
      ValueError: It is no JSON, or its brackets are nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("brackets nested too deeply") from None


def plain(value: Any) -> Any:
    """Returns `value` out of JSON's types: dict, list, str, int, float, bool and None.

    float32 numbers become the shortest decimal that reads back as the same float32. Non-finite
    numbers become None, since JSON has no word for them.

    Args:
      value: Nested dicts, lists and tuples of Python, NumPy or tensor values, and paths.

    Raises:
      TypeError: For any other object, which would otherwise be stored in a form of its own.
    """
    import numpy as np  # not with the module, which --help imports too

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
    raise TypeError(f"expected a value that JSON can hold, got {type(value).__name__}: {value!r}")


def replace_directory(temporary: pathlib.Path, final: pathlib.Path) -> None:
    """Moves a finished folder to its final name, in place of one that may be there.

    A rename cannot replace a folder that is not empty, so the old one first steps aside to
    `.replaced-<name>`. Whoever reads in between, or after a kill in between, finds it there:
    `recover_replaced` puts it back.

    Args:
      temporary: The finished folder, on the same file system.
      final: Where it belongs.
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
    """Finishes what a kill inside `replace_directory` left behind in `directory`."""
    for aside in sorted(directory.glob(f"{REPLACED}*")):
        recover(directory / aside.name.removeprefix(REPLACED))


def recover(final: pathlib.Path) -> None:
    """Finishes what a kill inside `replace_directory` left behind of one folder."""
    aside = final.parent / f"{REPLACED}{final.name}"
    if aside.exists():
        if final.exists():
            shutil.rmtree(aside)
        else:
            os.rename(aside, final)


def remove_temporaries(directory: pathlib.Path, owner: str = "") -> None:
    """Removes what killed writers left in `directory`: all, or those of one owner."""
    one = re.compile(re.escape(f"{TEMPORARY}{owner}-") + r"\d+-\d+")
    for left in sorted(directory.glob(f"{TEMPORARY}*")):
        if owner and not one.fullmatch(left.name):
            continue
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def remove_directory(directory: pathlib.Path) -> None:
    """Removes a folder so that a kill in the middle leaves a temporary, not half of the folder."""
    doomed = temporary_name(directory.parent)
    os.rename(directory, doomed)
    shutil.rmtree(doomed)
