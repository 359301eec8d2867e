"""Writes the steps of one environment to tables, as columns."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfrl.replay.reverb.items import Layout, make_items
from tfrl.replay.reverb.signature import TERMINATED, TRUNCATED, VALID, leaves

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay

# The most unconfirmed items of a writer. A flush leaves half of them: it need not wait for the
# newest, whose chunks are not full yet. Above 50 Reverb prints warnings.
MOST_PENDING = 40
# Observations of at least this size in bytes are written in chunks of a fixed length, up to these
# numbers of steps for sequences and n-step items. Reverb would tune the length by the confirmed
# items, and short chunks of frames take more memory. A sequence uses whole chunks; an n-step item
# uses two observations of its chunks.
_FRAME_BYTES, _SEQUENCE_CHUNK, _ITEM_CHUNK = 1024, 16, 2


class Outlet:
    """A `TrajectoryWriter`, with counts of its items.

    It calls Reverb's C++ writer directly: the Python wrapper would flatten and unflatten every
    step, which takes half of the time.

    Attributes:
      most_pending: The most unconfirmed items; the writer then waits until half are confirmed.
      pending: An upper bound of the number of unconfirmed items.
      created: Items created so far.
    """

    def __init__(
        self,
        client: Any,
        keep: int,
        highest: dict[str, float],
        make_room: Callable[[Any], None],
        most_pending: int = MOST_PENDING,
    ):
        """Opens a writer.

        Args:
          client: A `reverb.Client`.
          keep: The number of newest values of each column that items may refer to.
          highest: The priority of new items by table, shared by all streams.
          make_room: Called when the number of unconfirmed items reaches its limit.
          most_pending: The limit.
        """
        self._highest, self._make_room = highest, make_room
        self._owner = client.trajectory_writer(num_keep_alive_refs=keep)
        self._writer = self._owner._writer
        self.most_pending = most_pending
        self.pending = 0
        self.created = 0

    def create(self, tables: list[str], refs: list[list[Any]], squeezed: list[bool]) -> None:
        """Creates an item in each of the tables."""
        for table in tables:
            if self.pending >= self.most_pending:
                self._make_room(self)
            self._writer.CreateItem(table, self._highest[table], refs, squeezed)
            self.pending += 1
            self.created += 1

    def flush(self, left: int, milliseconds: int) -> bool:
        """Waits until all but `left` items are confirmed; returns False after a timeout."""
        if self.pending <= left:
            return True
        try:
            self._writer.Flush(left, milliseconds)
        except RuntimeError as error:
            if "Timeout exceeded" in str(error):
                return False
            raise
        self.pending = min(self.pending, left)
        return True

    def close(self) -> None:
        """Closes the writer; unconfirmed items are lost."""
        self._owner.close()


class Stream(Outlet):
    """The rows of an environment's episode, and their items.

    Attributes:
      rows: The references of `Append`, `[row][column]`, the newest last; as many as an item needs.
      rewards: The rewards of these steps.
      length: Steps of the episode so far.
    """

    def __init__(
        self,
        replay: "ReverbReplay",
        layout: Layout,
        client: Any,
        highest: dict[str, float],
        make_room: Callable[["Stream"], None],
    ):
        """Opens a writer.

        Args:
          replay: The factory.
          layout: The columns.
          client: A `reverb.Client`.
          highest: The priority of new items by table, shared by all streams.
          make_room: Called when the number of unconfirmed items reaches its limit.
        """
        self._keep = max(config.steps for config in replay.table_configs) + 1
        super().__init__(client, self._keep, highest, make_room)
        self._set_chunk_lengths(replay)
        self._layout = layout
        self._transitions, self._sequences = make_items(replay, layout)
        self.rows: list[list[Any]] = []
        self.rewards: list[float] = []
        self.length = 0
        self._open = False

    def _set_chunk_lengths(self, replay: "ReverbReplay") -> None:
        """Sets the chunk length of large observations to suit the items."""
        from reverb import pybind

        sequences = any(config.is_sequence for config in replay.table_configs)
        length = min(self._keep, _SEQUENCE_CHUNK if sequences else _ITEM_CHUNK)
        for column, spec in enumerate(leaves("obs", replay.obs_spec).values()):
            if spec.shape.num_elements() * spec.dtype.size >= _FRAME_BYTES:
                options = pybind.ConstantChunkerOptions(
                    max_chunk_length=length, num_keep_alive_refs=self._keep
                )
                self._writer.ConfigureChunker(column, options)

    def step(
        self,
        obs: list[Any],
        next_obs: list[Any],
        values: list[Any],
        state: list[Any],
        reward: np.float32,
        terminated: bool,
        truncated: bool,
    ) -> None:
        """Appends a step and creates the items that it completes."""
        if not self._open:
            self._begin(obs)
        self.length += 1
        self.rewards.append(float(reward))
        row = next_obs + values
        if state:
            row += state if self._wants_state() else [None] * len(state)
        if self._layout.flags is not None:
            flags = VALID | TERMINATED * terminated | TRUNCATED * truncated
            row += [reward, np.uint8(flags)]
        for one in self._transitions:
            is_full = self.length >= one.n
            row += one.values(self.rewards[-one.n :], terminated) if is_full else (None, None)
        self.rows.append(self._writer.Append(row))
        for one in self._transitions:
            one.stepped(self)
        for sequences in self._sequences:
            sequences.stepped(self)
        if terminated or truncated:
            self._end(terminated, cut=False)
        elif len(self.rows) > 4 * self._keep + 64:
            del self.rows[: -self._keep]
            del self.rewards[: -self._keep]

    def _begin(self, obs: list[Any]) -> None:
        self.rows, self.rewards, self.length = [self._writer.Append(obs)], [], 0
        self._open = True

    def _wants_state(self) -> bool:
        if self._layout.state_always:
            return True
        return any(item.begins(self.length - 1) for item in self._sequences)

    def _end(self, terminated: bool, cut: bool) -> None:
        for item in self._transitions:
            item.ended(self, terminated)
        for sequences in self._sequences:
            sequences.ended(self, cut)
        self._open = False

    def cut(self) -> None:
        """Truncates an unfinished episode."""
        if self._open and self.length:
            self._end(terminated=False, cut=True)
        self._open = False

    def append_at(self, column: int, values: Sequence[Any]) -> list[Any]:
        """Appends values only to the columns from `column` on; returns the row."""
        return self._writer.Append([None] * column + list(values))

    def append_truncated(self, column: int, steps: int) -> list[list[Any]]:
        """Appends the flags of the last steps again, with the last step truncated.

        Appended flags cannot be changed, and an item cannot mix old and new flags: Reverb takes
        references into one chunk for neighbours, even with other values between them.
        """
        flags = [VALID] * (steps - 1) + [VALID | TRUNCATED]
        return [self.append_at(column, [np.uint8(flag)]) for flag in flags]
