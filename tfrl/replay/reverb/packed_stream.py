"""The steps of one environment on their way into tables of packed items."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrl.replay.reverb.items import n_step_return
from tfrl.replay.reverb.signature import PackedItems
from tfrl.replay.reverb.stream import Outlet

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay

_SQUEEZED = [True]


class PackedStream(Outlet):
    """The steps of an environment's episode as bytes, and the items made of them.

    Each item is a value of its own in a column, one for each n, and a chunk of its own: Reverb
    decodes nothing else to sample it.
    """

    def __init__(
        self,
        replay: "ReverbReplay",
        packing: PackedItems,
        client: Any,
        highest: dict[str, float],
        make_room: Callable[[Any], None],
    ):
        """Opens a writer.

        Args:
          replay: The maker.
          packing: Its items' bytes.
          client: A `reverb.Client`.
          highest: The priority of new items by table, shared by all streams.
          make_room: Called where as many items are unconfirmed as may be.
        """
        super().__init__(client, 1, highest, make_room)
        steps: dict[int, list[str]] = {}
        for config in replay.table_configs:
            steps.setdefault(config.n_step or 1, []).append(config.name)
        self._tables = [(n, steps[n]) for n in sorted(steps)]
        self._late, self._keep = packing.late, max(steps)
        self._powers = [replay.discount**j for j in range(self._keep + 1)]
        self._rows: list[np.ndarray] = []
        self._rewards: list[float] = []
        self._length = 0

    def step(self, row: np.ndarray, reward: float, terminated: bool, truncated: bool) -> None:
        """Makes the items that are complete by a step.

        Args:
          row: uint8 [bytes], the step as an item of one step.
          reward: Its reward.
          terminated: Whether it ends the episode so.
          truncated: Likewise.
        """
        self._length += 1
        self._rows.append(row)
        self._rewards.append(reward)
        for column, (n, tables) in enumerate(self._tables):
            if self._length >= n:
                self._make(column, tables, n, terminated)
        if terminated or truncated:
            self._end(terminated)
        elif len(self._rows) > 4 * self._keep + 64:
            del self._rows[: -self._keep]
            del self._rewards[: -self._keep]

    def cut(self) -> None:
        """Truncates the episode that goes on, if one does."""
        if self._length:
            self._end(terminated=False)

    def _end(self, terminated: bool) -> None:
        """Makes the items that the end leaves short, the oldest first."""
        for column, (n, tables) in enumerate(self._tables):
            for k in range(min(self._length, n - 1), 0, -1):
                self._make(column, tables, k, terminated)
        self._rows, self._rewards, self._length = [], [], 0

    def _make(self, column: int, tables: list[str], k: int, terminated: bool) -> None:
        """Makes the item of the last k steps."""
        item = self._rows[-1]
        if k > 1:
            item, late = self._rows[-k].copy(), self._late
            values = n_step_return(self._powers, self._rewards[-k:], terminated)
            item[late:] = self._rows[-1][late:]
            item[late : late + 8] = np.array(values, np.float32).view(np.uint8)
        refs = self._writer.Append([None] * column + [item])
        self.create(tables, [refs[column : column + 1]], _SQUEEZED)
