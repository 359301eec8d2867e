"""Local copies of remote folders, for programs that need local files.

An object store has no rename, no append and no lock. So a run works in a copy on this machine, with
the guarantees of local files: atomic writes, appended rows, videos, event files. `publish` uploads
the changes: rows before the checkpoint that promises them, and every mark last. A kill loses
unpublished changes; the next start copies the remote folder.
"""

import atexit
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

from tfrl.errors import UserError
from tfrl.storage import files, remote

_PREFIX = "tfrl-copy-"
# File that identifies the process that writes to a remote folder.
WRITER = "writer.json"
# Folders that are replaced as a whole; and checkpoints, which are downloaded on demand.
_UNIT = re.compile(r"(?:checkpoints/)?ckpt-\d+(?=/)|policy(?=/)|export/[^/]+(?=/)")
_CHECKPOINT = re.compile(r"(?:checkpoints/)?ckpt-\d+")
# Entries to copy from a remote folder, which may have others; and entries that only a writer needs.
_OWN = (
    "checkpoints",
    "policy",
    "metadata.json",
    "operative_config.gin",
    "summary.json",
    "metrics.csv",
    "metrics.jsonl",
    "evaluations.jsonl",
)
_RECORDS = ("tensorboard", "videos")
# The result of a run, written last.
_LAST = "summary.json"

# (size, modification time, inode) of a file when both sides were last equal.
_Signature = tuple[int, int, int]


class WorkingCopy:
    """The copy of one remote folder.

    Attributes:
      url: The remote folder.
      local: The copy; it is removed when the process ends.
    """

    def __init__(self, url: str, mark: str = "COMPLETE"):
        """Copies the remote folder, except the data of checkpoints: see `fetch`.

        Args:
          url: The remote folder, which need not exist.
          mark: The file that is written last to each folder `ckpt-<n>`.

        Raises:
          UserError: The folder cannot be reached.
        """
        self.url = url.rstrip("/")
        remote.connect(self.url)
        self._mark = mark
        self._id: str | None = None
        # Files of both sides; None for files that are not copied yet.
        self._known: dict[str, _Signature | None] = {}
        self.local = _scratch(self.url)
        self.pull()

    @property
    def writes(self) -> bool:
        """Whether this process is the folder's writer."""
        return self._id is not None

    def pull(self) -> None:
        """Updates the copy to the remote folder; a checkpoint that both have stays.

        Raises:
          UserError: The folder cannot be reached.
        """
        there = set(remote.tree(self.url, self._is_wanted))
        units: dict[str, list[str]] = {}
        for name in sorted(there):
            unit = _CHECKPOINT.match(name)
            if unit and name != unit[0]:
                units.setdefault(unit[0], []).append(name)
        plain = there.difference(*units.values())
        for name in [*self._known, *self._scan()]:
            unit = _CHECKPOINT.match(name)
            if name not in plain and (unit is None or unit[0] not in units):
                self._forget(unit[0] if unit else name)
        remote.each(self._download, sorted(plain))
        for unit_name, names in units.items():
            if f"{unit_name}/{self._mark}" in names:
                self._pull_checkpoint(unit_name, names)
            elif self.writes:  # a kill has interrupted its upload or removal
                remote.remove_folder(remote.join(self.url, unit_name))

    def _is_wanted(self, name: str) -> bool:
        top = name.partition("/")[0]
        wanted = (*_OWN, *_RECORDS) if self.writes else _OWN
        return top in wanted or _CHECKPOINT.fullmatch(top) is not None

    def _pull_checkpoint(self, unit: str, names: list[str]) -> None:
        """Copies mark and manifest of a checkpoint, unless they are copied already."""
        mark = f"{unit}/{self._mark}"
        try:
            content = remote.read_bytes(remote.join(self.url, mark))
        except FileNotFoundError:
            content = b""
        path = self.local / mark
        if path.is_file() and path.read_bytes() == content:
            return
        self._forget(unit)
        if not content:
            return
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        self._known.update(dict.fromkeys(names))
        self._known[mark] = _signature(path)
        for name in names:
            if name.endswith("/manifest.json") and name != mark:
                self._download(name)

    def _download(self, name: str) -> None:
        path = self.local / name
        try:
            remote.download(remote.join(self.url, name), path)
            self._known[name] = _signature(path)
        except FileNotFoundError:  # its writer has just removed it
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Removes a file or folder from the copy."""
        path = self.local / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        for known in [k for k in self._known if k == name or k.startswith(f"{name}/")]:
            del self._known[known]

    def fetch(self, folder: pathlib.Path) -> None:
        """Copies the missing files of a folder; removes it if the remote folder is gone.

        Args:
          folder: A folder within the copy.
        """
        unit = folder.relative_to(self.local).as_posix()
        missing = [n for n, known in self._known.items() if known is None and _below(n, unit)]
        remote.each(self._download, missing)
        if any(name not in self._known for name in missing):
            self._forget(unit)
            self.pull()

    def claim(self) -> None:
        """Makes this process the writer of the folder, and updates the copy.

        An earlier writer that still runs ends at its next `publish`.

        Raises:
          UserError: The folder cannot be written.
        """
        self._sign()
        for path in self.local.iterdir():
            self._forget(path.name)
        self.pull()

    def _sign(self) -> None:
        self._id = uuid.uuid4().hex
        writer = {"id": self._id, "host": socket.gethostname(), "pid": os.getpid()}
        content = files.to_json(writer, indent=2).encode()
        remote.write_bytes(remote.join(self.url, WRITER), content)

    def _check_writer(self) -> None:
        """Raises if another process has become the writer, or the folder was moved away."""
        if self._id is None:
            self._sign()
            return
        try:
            writer = json.loads(remote.read_bytes(remote.join(self.url, WRITER)))
        except (FileNotFoundError, ValueError):
            writer = {}
        if writer.get("id") == self._id:
            return
        if writer:
            got = (
                f"a folder that process {writer.get('pid')} of {writer.get('host')} has taken over"
            )
            remedy = "Run only one process per folder."
        else:
            got = "no folder, since it was moved or deleted"
            remedy = "Restart with its new path; the run continues from its last checkpoint."
        raise UserError(
            f"root_dir {self.url}",
            expected="the folder that this process writes",
            got=got,
            remedy=f"{remedy} Nothing more was written.",
        )

    def publish(self) -> None:
        """Uploads the changes since the last call, in the order that a reader needs.

        Raises:
          UserError: The folder cannot be written, or another process has become the writer.
        """
        self._check_writer()
        now = self._scan()
        changed = [n for n, signature in now.items() if self._known.get(n) != signature]
        gone = [n for n in self._known if n not in now and not self._is_elsewhere(n)]
        units = sorted({u[0] for n in changed if (u := _UNIT.match(n))})
        gone_units = sorted({u[0] for n in gone if (u := _UNIT.match(n))} - set(units))
        remote.each(
            lambda n: remote.remove(remote.join(self.url, n)),
            [n for n in gone if not _UNIT.match(n)],
        )
        self._upload([n for n in changed if not _UNIT.match(n) and n != _LAST])
        for unit in units:
            remote.upload_folder(self.local / unit, remote.join(self.url, unit))
        for unit in gone_units:
            remote.remove_folder(remote.join(self.url, unit))
        self._upload([n for n in changed if n == _LAST])
        waiting = {n: None for n in self._known if n not in now and n not in gone}
        self._known = {**now, **waiting}

    def _is_elsewhere(self, name: str) -> bool:
        """Whether a file exists remotely but is not copied yet."""
        return self._known[name] is None and (self.local / name).parent.is_dir()

    def _upload(self, names: list[str]) -> None:
        remote.each(lambda n: remote.upload(self.local / n, remote.join(self.url, n)), names)

    def _scan(self) -> dict[str, _Signature]:
        """Returns the files of the copy that belong to both sides, without temporary ones."""
        signatures: dict[str, _Signature] = {}
        for parent, folders, names in os.walk(self.local):
            folders[:] = [f for f in folders if not _is_temporary(f)]
            for name in names:
                path = pathlib.Path(parent, name)
                if not _is_temporary(name) and not path.is_symlink():
                    signatures[path.relative_to(self.local).as_posix()] = _signature(path)
        return signatures

    def move_aside(self) -> str:
        """Moves the remote folder to the sibling `<url>.old-<k>`; returns its address.

        It copies every file before it removes the first one: a kill leaves the folder unchanged.
        """
        number = 1
        while remote.tree(aside := f"{self.url}.old-{number}"):
            number += 1
        names = remote.tree(self.url)
        remote.each(lambda n: remote.copy(remote.join(self.url, n), remote.join(aside, n)), names)
        remote.each(lambda n: remote.remove(remote.join(self.url, n)), names)
        return aside


def _below(name: str, folder: str) -> bool:
    return folder == "." or name.startswith(f"{folder}/")


def _is_temporary(name: str) -> bool:
    return name.startswith((files.TEMPORARY, files.REPLACED, ".writing"))


def _signature(path: pathlib.Path) -> _Signature:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


# {local folder: its remote address}
_addresses: dict[str, str] = {}


# Held until the process ends: they show other processes that their folders are in use.
_locks: list[files.DirectoryLock] = []


def _scratch(url: str) -> pathlib.Path:
    """Creates an empty folder for a copy; removes the folders of killed processes."""
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, or of another user
            lock = files.DirectoryLock(folder)
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()
    held = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX))
    _locks.append(files.DirectoryLock(held))
    atexit.register(_remove, held, os.getpid())
    scratch = held / "copy"
    scratch.mkdir()
    _addresses[str(scratch)] = url
    return scratch


def _remove(folder: pathlib.Path, process: int) -> None:
    if os.getpid() == process:  # forks inherit the exit function
        shutil.rmtree(folder, ignore_errors=True)


_copies: dict[str, WorkingCopy] = {}


def working_copy(url: str, mark: str = "COMPLETE") -> WorkingCopy:
    """Returns this process's copy of a remote folder; the first call creates it."""
    url = url.rstrip("/")
    if url not in _copies:
        _copies[url] = WorkingCopy(url, mark)
    return _copies[url]


def copy_of(path: str | os.PathLike[str]) -> WorkingCopy | None:
    """Returns the working copy that contains a local path, or None."""
    return next((c for c in _copies.values() if pathlib.Path(path).is_relative_to(c.local)), None)


def local(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the local path of a folder: for a remote folder its working copy.

    Args:
      path: A path, where `~` is the home folder; or an address, for example gs://bucket/run.

    Raises:
      UserError: A remote folder cannot be reached.
    """
    if remote.is_remote(path):
        parent, _, name = os.fspath(path).rstrip("/").rpartition("/")
        if name == "checkpoints":  # the run's copy contains them
            return working_copy(parent).local / name
        return working_copy(os.fspath(path)).local
    return pathlib.Path(os.path.abspath(os.path.expanduser(path)))


def publish(path: str | os.PathLike[str]) -> None:
    """Uploads the changes of the copy that contains a path; no effect for other paths."""
    copy = copy_of(path)
    if copy is not None:
        copy.publish()


def refresh(path: str | os.PathLike[str]) -> None:
    """Updates the copy that contains a path; no effect for other paths, or for the writer."""
    copy = copy_of(path)
    if copy is not None and not copy.writes:
        copy.pull()


def fetch(folder: pathlib.Path) -> None:
    """Copies the missing files of a folder of a working copy; no effect for other folders."""
    copy = copy_of(folder)
    if copy is not None:
        copy.fetch(folder)


def named(text: Any) -> str:
    """Replaces the paths of working copies in a text with their remote addresses."""
    result = str(text)
    for path, url in _addresses.items():
        result = result.replace(path, url)
    return result


@contextlib.contextmanager
def output(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a local path to write a file or a folder to, which is then uploaded.

    Args:
      path: The final path or address; a local path is yielded unchanged.

    Raises:
      UserError: The address cannot be reached or written.
    """
    if not remote.is_remote(path):
        yield pathlib.Path(path)
        return
    parent, _, name = os.fspath(path).rstrip("/").rpartition("/")
    remote.connect(parent)
    scratch = _scratch(parent)
    try:
        yield scratch / name
        if (scratch / name).is_dir():
            remote.upload_folder(scratch / name, remote.join(parent, name))
        else:
            remote.upload(scratch / name, remote.join(parent, name))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def forget() -> None:
    """Removes all copies, like the end of the process."""
    for copy in _copies.values():
        shutil.rmtree(copy.local, ignore_errors=True)
    _copies.clear()
