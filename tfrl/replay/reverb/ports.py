"""The port of a server: taken or free, and who reaches it."""

import errno
import os
import pathlib
import socket
from collections.abc import Iterator

from tfrl.errors import UserError

LOOPBACK, ANYWHERE = "127.0.0.1", "0.0.0.0"  # nosec B104
_LISTENS = "0A"  # the state of /proc/net/tcp


def check_bind(bind: str) -> None:
    """Checks who is to reach a server.

    Raises:
      UserError: It is neither `LOOPBACK` nor `ANYWHERE`.
    """
    if bind not in (LOOPBACK, ANYWHERE):
        raise UserError(
            "bind of the Reverb server",
            expected=f"{LOOPBACK} for this machine alone, or {ANYWHERE} for any other",
            got=repr(bind),
            remedy="Reverb listens on all addresses or, with the first, on the loopback device.",
        )


def keep_to_loopback(port: int) -> None:
    """Lets nobody but this machine reach a server of this process.

    Reverb listens on `[::]` and has no option for it. Its listening sockets are bound to the
    loopback device, which refuses what comes from elsewhere; between its start and this call, some
    milliseconds, it is open.

    Args:
      port: Where the server listens.

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
            "gin ReverbReplay.bind) leaves the port open: whoever reaches it can read, change and "
            "empty the experience.",
        ) from error


def _listening(port: int) -> Iterator[int]:
    """The descriptors of this process' sockets that listen on a port."""
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
    """Checks that a server may listen on a port; Reverb would share one that is taken.

    Args:
      port: From 1 to 65535.

    Raises:
      UserError: It may not, and why.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        got: str = repr(port)
    else:
        got = _refused(port)
    if got:
        raise UserError(
            f"port {port} of the Reverb server",
            expected="a port from 1 to 65535 on which nobody else listens",
            got=got,
            remedy="Choose another one, or end the program that has it.",
        )


def _refused(port: int) -> str:
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # As gRPC binds: what a server that has ended left behind is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "one that another program listens on"
            return (error.strerror or str(error)).lower()
    return ""
