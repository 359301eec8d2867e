"""The port of a server: taken or free."""

import errno
import socket

from tfrl.errors import UserError


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
