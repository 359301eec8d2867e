"""Waits, for a bounded time, until every worker has come.

TensorFlow's own start waits for the others without end. So before it, every worker listens on its
own address and tries to reach all others; who is reached, by this code or by TensorFlow's server,
which takes the address over, has come. Workers may start in any order.
"""

import os
import socket
import threading
import time
from collections.abc import Callable

from tfrl.distribute.workers import Workers
from tfrl.errors import UserError

_RETRY_SECONDS = 0.2
_SAY_AFTER_SECONDS = 5.0


def wait_for_all(
    workers: Workers, seconds: float, log: Callable[[str], None] | None = None
) -> None:
    """Returns once every worker was reached.

    Args:
      workers: Addresses of all, and which is this process'.
      seconds: How long to wait.
      log: Takes a line if the others let it wait.

    Raises:
      UserError: Workers that did not come, all by name; or this worker's own port is taken.
    """
    started = time.monotonic()
    missing = dict.fromkeys(workers.others, "")
    said = False
    with _Listener(workers):
        while missing:
            for place in list(missing):
                reason = refusal(workers.addresses[place], timeout=1.0)
                if reason is None:
                    del missing[place]
                else:
                    missing[place] = reason
            waited = time.monotonic() - started
            if not missing:
                break
            if waited > seconds:
                raise _never_came(workers, missing, seconds)
            if log is not None and not said and waited > _SAY_AFTER_SECONDS:
                log(f"Waiting for {workers.names(missing)}, at most {seconds:g} s.")
                said = True
            time.sleep(_RETRY_SECONDS)


def refusal(address: str, timeout: float) -> str | None:
    """Returns why nobody answers at `host:port`, or None if somebody does.

    Args:
      address: `host:port`.
      timeout: Seconds to wait for the connection.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError as error:
        return _reason(error)
    return None


def _reason(error: OSError) -> str:
    # Names that are not found have numbers of their own, and a time-out has none.
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error) or type(error).__name__).lower()


class _Listener:
    """Accepts connections on this worker's port until it is left."""

    def __init__(self, workers: Workers):
        self._workers = workers

    def __enter__(self) -> "_Listener":
        address = self._workers.addresses[self._workers.index]
        try:
            port = int(address.rpartition(":")[2])
            self._socket = socket.create_server(("", port), backlog=128)
        except OSError as error:
            raise UserError(
                f"TF_CONFIG, {self._workers.name(self._workers.index)}",
                expected="a free port for this worker",
                got=_reason(error),
                remedy="Give every process its own task index, end what uses the port, or choose "
                "another in all processes.",
            ) from error
        self._socket.settimeout(_RETRY_SECONDS)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        while not self._leaving.is_set():
            try:
                self._socket.accept()[0].close()
            except TimeoutError:
                continue
            except OSError:  # a caller that hung up at once; the next may be all right
                self._leaving.wait(_RETRY_SECONDS)


def _never_came(workers: Workers, missing: dict[int, str], seconds: float) -> UserError:
    what = ", ".join(f"{workers.name(i)}: {missing[i]}" for i in sorted(missing))
    return UserError(
        "TF_CONFIG",
        expected=f"all {workers.count} workers to come within {seconds:g} s",
        got=f"no answer from {what}",
        remedy="Start the missing workers, or correct their addresses.",
    )
