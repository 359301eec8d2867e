"""What the system knows of processes, from /proc."""

import os
import pathlib
import signal
import time


def parent(pid):
    """The parent of a process, or None if it is gone or a zombie."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[1])


def children(pid=None):
    """The running children of a process, zombies too: they would be leaks."""
    pid = pid or os.getpid()
    found = set()
    for entry in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            found.update(map(int, (entry / "children").read_text().split()))
        except FileNotFoundError:
            pass  # the thread ended meanwhile
    return found


def descriptors(pid=None):
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid or os.getpid()}/fd"))


def resident_mb(pid=None):
    """Resident memory in MB."""
    pages = int(pathlib.Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait_for(condition, seconds=60.0):
    """Waits until a condition holds; returns whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def gone(pids, seconds=60.0):
    """Waits for processes to be gone; returns whether they are."""
    return wait_for(lambda: all(parent(pid) is None for pid in pids), seconds)


def kill(pids):
    """Kills processes as the system does that is out of memory."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
