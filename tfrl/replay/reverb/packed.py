"""Writes transitions as bytes, alone or in blocks of several.

The items of a rollout are made together, for all environments, and one writer sends them: a writer
for each environment costs several times as much. Most of the cost of a Reverb item does not depend
on its size: a block of 16 transitions costs little more than a block of 1.
"""

import collections
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrl.replay.reverb.signature import PackedItems
from tfrl.replay.reverb.stream import MOST_PENDING, Outlet

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay

_SQUEEZED = [True]  # for the one column of a packed item
# Milliseconds in which a server in this process takes items, unless a limiter holds them back.
_SOON_MS = 20
# The most unconfirmed blocks: a collector waits for a limiter with few transitions that it holds.
_MOST_PENDING_BLOCKS = 8
# The most transitions and bytes of a block that is chosen, and the batches that draw from it.
_MOST, _MOST_BYTES, _BATCHES = 64, 16_384, 4


def in_blocks(replay: "ReverbReplay", batch_size: int, most: int) -> "ReverbReplay":
    """Returns the factory with `block_size` and `batches_per_block`, chosen where they are None.

    Each transition of a batch comes from another block, so the table must have more blocks than
    that. Sampling reads whole blocks, so a block must have few bytes.

    Args:
      replay: The factory, with `packed` resolved.
      batch_size: N.
      most: The most transitions of a block, since they wait until it is full.
    """
    return replay.replace(
        block_size=replay.block_size or _size(replay, batch_size, most),
        batches_per_block=replay.batches_per_block or _BATCHES,
    )


def _size(replay: "ReverbReplay", batch_size: int, most: int) -> int:
    """Returns a power of two; 1 for items that have no blocks."""
    if replay.table().kind != "uniform" or replay.tables or not replay.packed:
        return 1
    blocks = replay.capacity // replay.num_servers // batch_size
    most = min(_MOST, _MOST_BYTES // PackedItems(replay).dtype.itemsize, most, blocks)
    return 1 << max(most.bit_length() - 1, 0)


class PackedStream(Outlet):
    """The steps of all environments, and their items.

    There is one column for each n. Blocks are always full, so that all transitions in the table
    have equal probability. The rest waits for the next transitions; flush, cut and close do not
    send it.
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
          replay: The factory.
          packing: The byte layout of its items.
          client: A `reverb.Client`.
          highest: The priority of new items by table.
          make_room: Called when the number of unconfirmed items reaches its limit.
        """
        self._size, self._packing = replay.block, packing
        most = MOST_PENDING if self._size == 1 else _MOST_PENDING_BLOCKS
        super().__init__(client, 1, highest, make_room, most)
        tables: dict[int, list[str]] = {}
        for config in replay.table_configs:
            tables.setdefault(config.n_step or 1, []).append(config.name)
        self._columns = [(_Steps(replay, packing, n), tables[n]) for n in sorted(tables)]
        self._partial_block = np.empty([0, packing.dtype.itemsize], np.uint8)
        # Items that a limiter holds back, for a server in this process: the thread that adds a
        # rollout may be the one whose samples the limiter waits for.
        self._held: collections.deque[tuple[int, np.ndarray]] = collections.deque()
        limits = replay.address is None and any(c.limits_inserts for c in replay.table_configs)
        self._most_held = MOST_PENDING * replay.num_envs // self._size if limits else 0

    def add(self, columns: Mapping[str, np.ndarray]) -> None:
        """Adds steps that continue the last ones.

        Args:
          columns: The columns of a trajectory, `[T, B, ...]` by path.
        """
        rows = self._packing.rows(columns)
        self._send([steps.add(rows, columns) for steps, _ in self._columns])

    def cut(self) -> None:
        """Truncates the unfinished episodes."""
        self._send([steps.cut() for steps, _ in self._columns])

    def _send(self, made: list[np.ndarray]) -> None:
        """Sends items `[N, bytes]` of each column; of blocks, waiting and new ones in full ones."""
        for column, items in enumerate(made):
            if self._size > 1:
                items = np.concatenate([self._partial_block, items])
                in_blocks = len(items) // self._size * self._size
                self._partial_block = items[in_blocks:].copy()
                items = items[:in_blocks].reshape(-1, self._size * items.shape[1])
            self._held.extend((column, item) for item in items)
        self._send_held()

    def _send_held(self) -> None:
        """Sends the items that are held; waits for a limiter only with too many."""
        held, self._held = self._held, collections.deque()  # an error of a wait drops the rest
        while held:
            may_stay = self.pending >= self.most_pending and len(held) <= self._most_held
            if may_stay and not super().flush(self.most_pending // 2, _SOON_MS):
                self._held = held
                return
            column, item = held.popleft()
            refs = self._writer.Append([None] * column + [item])
            self.create(self._columns[column][1], [refs[column : column + 1]], _SQUEEZED)

    def flush(self, left: int, milliseconds: int) -> bool:
        """See `Outlet`; also sends what is held."""
        if left:  # called while items are sent
            return super().flush(left, milliseconds)
        self._send_held()
        return super().flush(0, milliseconds) and not self._held


class _Steps:
    """The newest steps of all environments, and the items of up to n steps that they make."""

    def __init__(self, replay: "ReverbReplay", packing: PackedItems, n: int):
        """Begins without steps."""
        self._n, self._late = n, packing.late
        self._discounts = np.array([replay.discount**k for k in range(n + 1)])
        # The newest steps of each environment, with incomplete items, aligned to the end of time.
        rows = n - 1, replay.num_envs
        self._tail = np.empty([*rows, packing.dtype.itemsize], np.uint8)
        self._tail_rewards, self._tail_valid = np.zeros(rows), np.zeros(rows, np.bool_)

    def add(self, rows: np.ndarray, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the items `[N, bytes]` that new steps complete.

        Args:
          rows: The steps as items of one step, `[T, B, bytes]`.
          columns: The columns of their trajectory.
        """
        nothing = np.zeros_like(self._tail_valid)
        return self._items(
            np.concatenate([self._tail, rows]),
            np.concatenate([self._tail_rewards, columns["reward"]]),
            np.concatenate([nothing, columns["termination"]]),
            np.concatenate([nothing, columns["truncation"]]),
            np.concatenate([self._tail_valid, columns["valid"]]),
        )

    def cut(self) -> np.ndarray:
        """Returns the items of the unfinished episodes, truncated."""
        nothing = np.zeros_like(self._tail_valid)
        ends = np.ones_like(nothing)
        ends[:-1] = False  # the tails are aligned to the end of time
        return self._items(self._tail, self._tail_rewards, nothing, ends, self._tail_valid)

    def _items(
        self,
        rows: np.ndarray,
        rewards: np.ndarray,
        termination: np.ndarray,
        truncation: np.ndarray,
        valid: np.ndarray,
    ) -> np.ndarray:
        """Returns the items that the steps `[T, B]` complete; keeps the other steps.

        An item begins at a step and has up to n steps, fewer if its episode ends before. With n = 2
        and steps a, b, c, where b ends an episode, the items are (a, b) and (b), and c is kept.
        """
        envs, times = np.nonzero(valid.T)  # steps sorted by environment, then time
        if not len(envs):
            return rows[times, envs]
        rows, rewards = rows[times, envs], rewards[times, envs].astype(np.float64)
        terminated = termination[times, envs]
        ended = terminated | truncation[times, envs]
        index = np.arange(len(envs))
        newest = np.searchsorted(envs, envs, side="right") - 1  # of each environment
        # The step that ends an episode, or the number of steps.
        end = np.where(ended, index, len(index))
        end = np.minimum.accumulate(end[::-1])[::-1]
        last = np.minimum(index + self._n - 1, end)  # last step of the item that begins here
        complete = last <= newest
        self._keep(rows, rewards, envs, newest - index, ~complete)
        first, last = index[complete], last[complete]
        first = first[np.argsort(times[last], kind="stable")]  # ordered by last step
        last = np.minimum(first + self._n - 1, end[first])
        total = np.zeros(len(first))
        for j in range(self._n):
            has = first + j <= last
            total[has] += self._discounts[j] * rewards[first[has] + j]
        discount = np.where(terminated[last], 0.0, self._discounts[last - first + 1])
        items, late = rows[first], self._late
        items[:, late:] = rows[last, late:]
        values = np.stack([total, discount], axis=1).astype(np.float32)
        items[:, late : late + 8] = values.view(np.uint8)
        return items

    def _keep(
        self,
        rows: np.ndarray,
        rewards: np.ndarray,
        envs: np.ndarray,
        age: np.ndarray,
        incomplete: np.ndarray,
    ) -> None:
        """Keeps the steps with incomplete items; `age` counts steps back from the newest."""
        self._tail_valid[:] = False
        places = self._n - 2 - age[incomplete], envs[incomplete]
        self._tail[places], self._tail_rewards[places] = rows[incomplete], rewards[incomplete]
        self._tail_valid[places] = True
