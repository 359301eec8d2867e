"""Waits, for a bounded time, until a Reverb server answers at an address, and says so."""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfrl.distribute.rendezvous import refusal
from tfrl.errors import UserError
from tfrl.replay.reverb import library
from tfrl.replay.reverb.tables import check_tables

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay

_RETRY_SECONDS = 0.2
# How long a server that takes connections has to answer before a line says that it is waited for.
_ANSWER_SECONDS = 2.0


def await_server(
    address: str, client: Any, seconds: float, log: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Returns once a server has answered.

    Args:
      address: `host:port`.
      client: The `reverb.Client` of this address.
      seconds: How long to wait.
      log: Takes a line where the server is not there at once; why, and how long it is waited for.

    Returns:
      `{table: reverb TableInfo}`.

    Raises:
      UserError: A malformed address, or nobody answers in time.
    """
    check_address(address)
    errors = (RuntimeError, library.reverb().errors.ReverbError)
    deadline = time.monotonic() + seconds
    while True:
        # First, since Reverb waits out its time where nobody listens.
        reason = refusal(address, timeout=1.0)
        left = deadline - time.monotonic()
        if reason is None:
            most = left if log is None else min(left, _ANSWER_SECONDS)
            try:
                return client.server_info(timeout=max(1, math.ceil(most)))  # type: ignore[no-any-return]
            except errors:
                reason = "somebody who listens there but does not answer as Reverb does"
        if log is not None:
            log(f"Waiting up to {seconds:g} s for the replay server at {address}: {reason}.")
            log = None
        if time.monotonic() + _RETRY_SECONDS >= deadline:
            raise UserError(
                f"Reverb server at {address}",
                expected=f"a server that answers within {seconds:g} s",
                got=reason,
                remedy="Start bin/reverb_server.py with the same gin file, and give the address "
                "that it prints.",
            )
        time.sleep(_RETRY_SECONDS)


def await_tables(replay: "ReverbReplay", log: Callable[[str], None]) -> None:
    """Returns once the server of a maker has answered, and has the maker's tables.

    Args:
      replay: A maker with an address.
      log: As of `await_server`.

    Raises:
      UserError: As of `await_server`; and about tables that are others.
    """
    address = str(replay.address)
    check_address(address)
    client = library.reverb().Client(address)
    check_tables(await_server(address, client, replay.timeout, log), replay)


def check_address(address: str) -> None:
    """Checks the form of an address.

    Args:
      address: Should be `host:port`.

    Raises:
      UserError: It is not.
    """
    host, colon, port = str(address).rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UserError(
            "The address of a Reverb server",
            expected="host:port, for example localhost:8000",
            got=repr(address),
            remedy="bin/reverb_server.py prints it when it serves.",
        )
