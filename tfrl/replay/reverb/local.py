"""A Reverb server in this process, with the calls of a `Connection`."""

import math
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tfrl.replay.reverb.calls import too_long, within
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.server import ReverbServer
from tfrl.replay.reverb.tables import make_tables

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay

T = TypeVar("T")


class LocalServer:
    """Serves the tables of a maker on a free port; it lives as long as this process.

    Only this machine reaches it, unless `ReverbReplay.bind` says otherwise. Nothing else can happen
    to it that does not happen to its caller: `check` does nothing, and `guard` looks at the time
    alone.

    Attributes:
      address: "localhost:port".
      client: The `reverb.Client`.
    """

    lost = False
    reconnections = 0

    def __init__(self, replay: "ReverbReplay", restore_from: pathlib.Path | None = None):
        """Starts it.

        Args:
          replay: The maker.
          restore_from: What `checkpoint` wrote; None for empty tables.

        Raises:
          UserError: For a checkpoint that is damaged, or that has other tables or limits.
        """
        self._timeout = replay.timeout
        self._server = ReverbServer(
            make_tables(replay), bind=replay.bind, restore_from=restore_from
        )
        self.address = self._server.address
        self.client = reverb().Client(self.address)

    def server_info(self) -> dict[str, Any]:
        """Returns `{table: reverb TableInfo}`.

        Raises:
          ServerSilentError: It does not answer in time.
        """
        seconds = math.ceil(self._timeout)
        try:
            return self.client.server_info(timeout=seconds)
        except reverb().errors.DeadlineExceededError as error:
            raise too_long(seconds, self._name, "asking for tables") from error

    def check(self, what: str = "using it") -> None:
        """Returns at once."""

    def guard(
        self, fn: Callable[[], T], what: str, timeout: float | None = None, again: bool = True
    ) -> T:
        """Returns what `fn` returns; see `Connection.guard`.

        Raises:
          ServerSilentError: It takes longer than `timeout`.
        """
        return fn() if timeout is None else within(timeout, fn, self._name, what)

    @property
    def _name(self) -> str:
        return f"Reverb server of this process at {self.address}"

    def keep(self, thing: T) -> T:
        """Returns what it is given."""
        return thing

    def release(self, thing: Any) -> None:
        """Does nothing."""

    def checkpoint(self, folder: pathlib.Path) -> None:
        """Writes content, priorities and counts of all tables into a new folder."""
        self._server.save(folder)

    def close(self) -> None:
        """Ends the server; its items are gone."""
        self._server.stop()
