"""Remote files through tf.io.gfile, for example `gs://bucket/run`.

It uses only the operations of every object store: list, read, write, remove. An object exists once
its write has ended. Of several files that belong together, one is written last and marks that all
of them exist. The first operation imports TensorFlow.
"""

import os
import pathlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tfrl.errors import UnavailableError, UserError
from tfrl.storage import files

# A single letter is a drive.
# Without a slash only schemes of stores: a local file may have a colon in its name.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:(?=/)|(?i:gs|s3|hdfs|ram):)")
# Files that are written last to a folder, in this order, and removed first: a reader that finds
# them may rely on the others.
_MARKS = ("saved_model.pb", "metadata.json", "manifest.json", "COMPLETE")

# Seconds: the timeout of a first answer; the time for retries of an operation; the delays between
# retries, which double.
CONNECT_SECONDS = 60.0
PATIENCE_SECONDS = 120.0
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 20.0

_BLOCK = 1 << 20  # bytes
_TRANSFERS = 8  # concurrent transfers: small files take a round trip each
_TRANSIENT = (
    "UnavailableError",
    "DeadlineExceededError",
    "AbortedError",
    "InternalError",
    "ResourceExhaustedError",
    "UnknownError",
)
_REMEDIES = {
    "NotFoundError": "Create the bucket first, or fix its name.",
    "PermissionDeniedError": "Grant access to the account of this machine; for gs:// see "
    "GOOGLE_APPLICATION_CREDENTIALS, or `gcloud auth application-default login`.",
    "UnimplementedError": "Use gs://, or install a tensorflow-io plugin for this scheme.",
}

T = TypeVar("T")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path has a scheme, like `gs://bucket/run`.

    Raises:
      UserError: Fewer than two slashes follow the scheme, as after a conversion by pathlib; or
        nothing follows them.
    """
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme and not text.startswith("//", scheme.end()):
        rest = text[scheme.end() :].lstrip("/")
        raise UserError(
            f"path {text}",
            expected="two slashes after the scheme, or a local path",
            got="one slash" if text.startswith("/", scheme.end()) else "none",
            remedy=f"Write {scheme[0]}//{rest} (as a str, since pathlib removes a slash), or "
            f"./{text} for a local folder of that name.",
        )
    if scheme and not text[scheme.end() :].strip("/"):
        raise UserError(
            f"path {text}",
            expected="a name after the scheme, such as gs://bucket/run",
            got="none",
            remedy="A variable in the command may be empty.",
        )
    return scheme is not None


def check_local(flag: str, path: str | None) -> None:
    """Raises a UserError for a remote value of a flag that takes only local folders."""
    if path is not None and is_remote(path):
        raise UserError(
            f"--{flag}={path}",
            expected="a folder of this machine",
            got="a remote folder",
            remedy="Choose a local folder, and copy it when the command has ended.",
        )


def join(url: str, name: str) -> str:
    """Returns the address of `name` below `url`."""
    return f"{url.rstrip('/')}/{name}"


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def _call(url: str, function: Callable[..., T], *arguments: Any) -> T:
    """Calls an operation; retries while the store may be busy.

    Raises:
      FileNotFoundError: The file does not exist.
      UserError: The store refuses, or cannot be reached for too long.
    """
    import tensorflow as tf

    end, delay = time.monotonic() + PATIENCE_SECONDS, _FIRST_DELAY
    while True:
        try:
            return function(*arguments)
        except tf.errors.NotFoundError as error:
            raise FileNotFoundError(f"nothing at {url}") from error
        except (tf.errors.OpError, OSError) as error:
            if not _is_transient(error) or time.monotonic() + delay > end:
                raise failure(url, error) from error
        # Random delays, so that several machines retry at different times.
        time.sleep(delay * random.SystemRandom().uniform(0.5, 1.0))
        delay = min(2.0 * delay, _LONGEST_DELAY)


def _is_transient(error: Exception) -> bool:
    full = "No space left on device" in str(error)
    return isinstance(error, TimeoutError) or (type(error).__name__ in _TRANSIENT and not full)


def failure(url: str, error: Exception) -> UserError:
    """Returns the error for a store that cannot be used."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
    remedy = "Check its name and the network; the same command continues from the last checkpoint."
    return (UnavailableError if _is_transient(error) else UserError)(
        f"storage {url}",
        expected="reachable storage with read and write access",
        got=files.reason(error),
        remedy=_REMEDIES.get(type(cause).__name__, remedy),
    )


def connect(url: str) -> None:
    """Waits a bounded time for an answer of the store about an address, which need not exist.

    Raises:
      UserError: There is no answer, or the store refuses.
    """
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(_call(url, _gfile().exists, url))
        except BaseException as error:  # raised by the waiting thread
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if not answer:
        unreachable = TimeoutError(f"no response within {CONNECT_SECONDS:.0f} s")
        lost = failure(url, unreachable)
        lost.exit_at_once = True  # type: ignore[attr-defined]  # the thread still waits
        raise lost
    if isinstance(answer[0], UserError):
        raise answer[0]
    if isinstance(answer[0], BaseException) and not isinstance(answer[0], FileNotFoundError):
        raise answer[0]


def exists(url: str) -> bool:
    """Returns whether a file, or any file below a folder, exists."""
    try:
        return bool(_call(url, _gfile().exists, url))
    except FileNotFoundError:
        return False


def read_bytes(url: str) -> bytes:
    """Reads a file.

    Raises:
      FileNotFoundError: The file does not exist.
      UserError: The store refuses, or cannot be reached for too long.
    """

    def read() -> bytes:
        with _gfile().GFile(url, "rb") as file:
            # Reads to the end: the size that gs:// reports may be some seconds old.
            return b"".join(iter(lambda: file.read(_BLOCK), b""))

    return _call(url, read)


def write_bytes(url: str, content: bytes) -> None:
    """Writes a small file."""

    def write() -> None:
        _make_way(url)
        with _gfile().GFile(url, "wb") as file:
            file.write(content)

    _writing(url, write)


def download(url: str, path: pathlib.Path) -> None:
    """Copies a file to this machine; creates its folder.

    Raises:
      FileNotFoundError: The file no longer exists.
      UserError: The store refuses, or cannot be reached for too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _call(url, lambda: _gfile().copy(url, str(path), overwrite=True))


def upload(path: pathlib.Path, url: str) -> None:
    """Copies a file of this machine to the store."""

    def write() -> None:
        _make_way(url)
        _gfile().copy(str(path), url, overwrite=True)

    _writing(url, write)


def copy(url: str, target: str) -> None:
    """Copies a file within the store."""

    def write() -> None:
        _make_way(target)
        _gfile().copy(url, target, overwrite=True)

    _writing(target, write)


def _make_way(url: str) -> None:
    """Creates the folder of a file, if the store has folders."""
    if not _is_flat(url):
        _gfile().makedirs(url.rpartition("/")[0])
    if url.startswith("ram://") and _gfile().exists(url):
        _gfile().remove(url)  # TensorFlow's RamFileSystem would append to it


def _writing(url: str, write: Callable[[], None]) -> None:
    try:
        _call(url, write)
    except FileNotFoundError as error:
        raise failure(url, error) from error


def remove(url: str) -> None:
    """Removes a file, if it exists."""
    try:
        _call(url, _gfile().remove, url)
    except FileNotFoundError:
        pass


def tree(url: str, wanted: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Lists the files below an address, as relative paths.

    Args:
      url: The address; the list is empty if it does not exist.
      wanted: Takes a relative path; returns whether to list the file, or to enter the folder.
    """
    result: list[str] = []
    folders = [""]
    while folders:
        within = folders.pop()
        for entry in _entries(join(url, within) if within else url):
            name = f"{within}/{entry.rstrip('/')}" if within else entry.rstrip("/")
            if wanted(name):
                (folders if _is_folder(url, name, entry) else result).append(name)
    return sorted(result)


def _entries(url: str) -> list[str]:
    try:
        entries = _call(url, _gfile().listdir, url)
    except FileNotFoundError:
        return []
    if url.startswith("ram://"):  # It also lists the rest of siblings' names that start with `url`.
        entries = [e for e in entries if _gfile().exists(join(url, e))]
    # A placeholder of an empty folder has no name; a path with dots could leave a copy.
    return [e for e in entries if e.rstrip("/") not in ("", ".", "..")]


def _is_folder(url: str, name: str, entry: str) -> bool:
    if entry.endswith("/") or _is_flat(url):
        return entry.endswith("/")
    return bool(_call(url, _gfile().isdir, join(url, name)))


def _is_flat(url: str) -> bool:
    """Whether a store has no folders; its lists then mark prefixes with a trailing slash."""
    return url.startswith("gs://")


def each(function: Callable[[str], Any], names: Iterable[str]) -> None:
    """Calls a function on several names at a time; raises the first error of the calls."""
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        for _ in pool.map(function, names):
            pass


def _marks(names: Iterable[str]) -> list[str]:
    """Returns the marks among the files of a folder, in the order of writing."""
    marks = [name for name in names if name.rpartition("/")[2] in _MARKS]
    return sorted(marks, key=lambda n: (_MARKS.index(n.rpartition("/")[2]), -n.count("/"), n))


def upload_folder(folder: pathlib.Path, url: str) -> None:
    """Uploads a folder; replaces an existing one. Until it is complete, it lacks its mark.

    Args:
      folder: A finished folder.
      url: The address of the remote folder.
    """
    names = [p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*")) if p.is_file()]
    marks, there = _marks(names), tree(url)
    for mark in reversed(_marks(there)):
        remove(join(url, mark))
    each(lambda n: remove(join(url, n)), [n for n in there if n not in names])
    each(lambda n: upload(folder / n, join(url, n)), [n for n in names if n not in marks])
    for mark in marks:
        upload(folder / mark, join(url, mark))


def remove_folder(url: str) -> None:
    """Removes a folder, its mark first."""
    there = tree(url)
    for mark in reversed(_marks(there)):
        remove(join(url, mark))
    each(lambda n: remove(join(url, n)), there)
