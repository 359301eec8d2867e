"""Writes the trajectories of all environments as items to the tables."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrl.errors import UserError
from tfrl.replay.reverb.factory import ONCE
from tfrl.replay.reverb.items import Columns, make_layout
from tfrl.replay.reverb.packed import PackedStream
from tfrl.replay.reverb.signature import PackedItems
from tfrl.replay.reverb.stream import Outlet, Stream
from tfrl.types import Trajectory

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay

# A flush waits in slices, to notice a lost server and handle signals between them.
_SLICE_SECONDS = 0.5


class Writer:
    """Writes trajectories `[T, B, ...]`; one thread may call it."""

    def __init__(
        self,
        replay: "ReverbReplay",
        client: Any,
        highest: dict[str, float],
        check: Callable[[], bool],
    ):
        """Opens a writer for each environment, or one for packed items.

        Args:
          replay: The factory.
          client: A `reverb.Client`.
          highest: The priority of new items by table, read when an item is created.
          check: Called while it waits; returns whether it bounds the wait by raising an error.
        """
        self._replay, self._check = replay, check
        self._columns = Columns(replay)
        self._streams: list[Any]
        if replay.packed:
            packing = PackedItems(replay)
            self._streams = [PackedStream(replay, packing, client, highest, self._make_room)]
        else:
            self._layout = make_layout(replay)
            self._streams = [
                Stream(replay, self._layout, client, highest, self._make_room)
                for _ in range(replay.num_envs)
            ]
        self._limited = any(config.limits_inserts for config in replay.table_configs)

    @property
    def created(self) -> int:
        """Items created so far, in all tables together."""
        return sum(stream.created for stream in self._streams)

    @property
    def most_pending(self) -> int:
        """The most items of "fifo" and "lifo" tables that were unconfirmed at any one time."""
        if not any(config.kind in ONCE for config in self._replay.table_configs):
            return 0
        return sum(min(stream.created, stream.most_pending) for stream in self._streams)

    def add(self, trajectory: Trajectory) -> None:
        """Adds steps that continue the last ones.

        Raises:
          UserError: For a trajectory that does not match the specs, and if the server does not take
            the items in time.
        """
        columns = self._columns.of(trajectory)
        if self._replay.packed:
            self._streams[0].add(columns)
        else:
            self._add(columns)

    def _add(self, columns: dict[str, np.ndarray]) -> None:
        layout = self._layout
        obs = [columns[path] for path in layout.obs]
        after = [columns["next_" + path] for path in layout.obs]
        step = [columns[path] for path in layout.step]
        state = [columns[path] for path in layout.state]
        reward, valid = columns["reward"], columns["valid"]
        ends = zip(columns["termination"].tolist(), columns["truncation"].tolist(), strict=True)
        for t, (terminated, truncated) in enumerate(ends):
            for b in np.flatnonzero(valid[t]).tolist():
                stream = self._streams[b]
                stream.step(
                    [x[t, b] for x in obs],
                    [x[t, b] for x in after],
                    [x[t, b] for x in step],
                    [x[t, b] for x in state],
                    reward[t, b],
                    terminated[b],
                    truncated[b],
                )

    def cut(self) -> None:
        """Truncates the unfinished episodes."""
        for stream in self._streams:
            stream.cut()
        self.settle()

    def settle(self, patience: float = 0.05) -> None:
        """Sends the pending items; waits for them unless a limiter may hold them back.

        Args:
          patience: Seconds to wait for items that a limiter may be holding back.
        """
        if not self._limited:
            return self.flush()
        for stream in self._streams:
            stream.flush(0, 1)  # finishes their chunks; the rest continues in the background
        deadline = time.monotonic() + patience
        for stream in self._streams:
            left = int(1000 * (deadline - time.monotonic()))
            if left > 0:
                stream.flush(0, left)
        return None

    def flush(self) -> None:
        """Waits until all items are in their tables, except transitions without a full block.

        Raises:
          UserError: If it times out.
        """
        for stream in self._streams:
            self._flush(stream, 0)

    def _make_room(self, stream: Outlet) -> None:
        self._flush(stream, stream.most_pending // 2)

    def _flush(self, stream: Outlet, left: int) -> None:
        deadline = time.monotonic() + self._replay.timeout
        while not stream.flush(left, int(1000 * _SLICE_SECONDS)):
            bounded = self._check()
            if not bounded and time.monotonic() > deadline:
                _refuse_wait(self._replay, stream.pending, self._limited)

    def close(self) -> None:
        """Closes the writers; transitions without a full block are not sent."""
        for stream in self._streams:
            stream.close()


def _refuse_wait(replay: "ReverbReplay", pending: int, limited: bool) -> None:
    remedy = "Check whether the server is overloaded, or raise timeout."
    if limited:
        remedy = (
            "A table that limits inserts (fifo, lifo, samples_per_insert) takes no more until "
            "items are sampled: sample more, or raise capacity, tolerance or timeout."
        )
    raise UserError(
        "ReverbBuffer, writing",
        expected=f"the server to accept items within timeout={replay.timeout:g} s",
        got=f"up to {pending} pending items",
        remedy=remedy,
    )
