"""The heartbeat of a process of a distributed run that neither plays nor learns."""

import threading
from collections.abc import Callable

import numpy as np

from tfrl import checks
from tfrl.replay.reverb.cancellable_call import leave_behind
from tfrl.replay.reverb.library import reverb
from tfrl.roles.tables import HEARTBEATS

_SECONDS = 2.0
_CLOSE_SECONDS = 2.0


class HeartbeatSender:
    """Tells the learner, from a thread, that this process runs.

    While the server does not answer, the thread waits for it, and the process goes on.
    """

    def __init__(self, address: str, task_id: int, log: Callable[[str], None]):
        """Begins.

        Args:
          address: "host:port" of the server of parameters and reports.
          task_id: The number of this process, see `tables`.
          log: Takes a line at the first error.

        Raises:
          UserError: For an address of another form.
        """
        checks.address(address)
        self._address, self._log = address, log
        self._client = reverb().Client(address)
        self._row = [np.int64(0), np.int64(0), np.int32(task_id)]  # no env steps, learner steps
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        logged = False
        while not self._ending.is_set():
            try:
                self._client.insert(self._row, {HEARTBEATS: 1.0})
            except Exception as error:  # noqa: BLE001  (Reverb's errors have no common base)
                if not logged:
                    self._log(f"Note: the server at {self._address} takes no heartbeat: {error}")
                    logged = True
            self._ending.wait(_SECONDS)

    def close(self) -> None:
        """Ends; does not wait for a server that does not answer."""
        self._ending.set()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            leave_behind(self._client)
