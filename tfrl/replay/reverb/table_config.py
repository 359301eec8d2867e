"""What one Reverb table holds, and how it is sampled."""

from typing import Any

from tfrl import struct
from tfrl.errors import UserError, did_you_mean
from tfrl.replay.numeric import is_count, is_number

KINDS = ("uniform", "prioritized", "fifo", "lifo")
# Kinds that give each item once; their limiter stops writers where the table is full.
ONCE = ("fifo", "lifo")
_LIMITS = ("min_size", "samples_per_insert", "tolerance")
_ITEMS = ("n_step", "sequence_length", "sequence_period", "episode_length")


@struct.logic_dataclass
class TableConfig(struct.Struct):
    """One table of a `ReverbReplay`; what is None is as the maker's argument of that name.

    The arguments that say what an item is (`n_step`, `sequence_length`, `sequence_period`,
    `episode_length`) belong together: with one of them given, the others are not taken over. A
    table of kind "fifo" or "lifo" takes over no limit but the capacity.

    Attributes:
      name: The table's name on the server.
      kind: "uniform", "prioritized", "fifo" or "lifo".
      capacity: Items, at most.
      alpha: The exponent of priorities.
      n_step: Steps of an item, at most.
      sequence_length: L, for items that are sequences.
      sequence_period: Steps from the start of a sequence to that of the next.
      episode_length: The longest episode, for items that are whole episodes.
      min_size: Items before anything is sampled.
      samples_per_insert: Samples for each item that is inserted; 0 for no limit.
      tolerance: Samples that may be missing or too many.
    """

    name: str
    kind: str | None = None
    capacity: int | None = None
    alpha: float | None = None
    n_step: int | None = None
    sequence_length: int | None = None
    sequence_period: int | None = None
    episode_length: int | None = None
    min_size: int | None = None
    samples_per_insert: float | None = None
    tolerance: float | None = None

    def resolved(self, replay: Any) -> "TableConfig":
        """Returns it with what is None taken from a maker, checked.

        Raises:
          UserError: Naming the table's argument.
        """
        own_items = any(getattr(self, name) is not None for name in _ITEMS)
        taken = {}
        for name in (f for f in type(self).__dataclass_fields__ if f != "name"):  # type: ignore[attr-defined]
            value = getattr(self, name)
            own = (own_items and name in _ITEMS) or (self.kind in ONCE and name in _LIMITS)
            taken[name] = getattr(replay, name) if value is None and not own else value
        taken.update(n_step=taken["n_step"] or 1, min_size=taken["min_size"] or 1)
        found = TableConfig(name=self.name, **taken)
        _check(found)
        return found

    @property
    def period(self) -> int:
        """Steps from the start of a sequence to that of the next of the same episode."""
        return self.sequence_period or self.steps

    @property
    def steps(self) -> int:
        """Steps of an item, at most."""
        return self.sequence_length or self.episode_length or self.n_step or 1

    @property
    def whole_episodes(self) -> bool:
        """Whether items are whole episodes."""
        return self.episode_length is not None

    @property
    def is_sequence(self) -> bool:
        """Whether items are `Sequences` (episodes too), and not a `Transition`."""
        return self.sequence_length is not None or self.whole_episodes

    @property
    def limits_inserts(self) -> bool:
        """Whether writers are stopped until items are sampled."""
        return self.kind in ONCE or bool(self.samples_per_insert)

    def error_buffer(self) -> float:
        """How many samples may be missing or too many, for the limiter of the ratio."""
        ratio, least = float(self.samples_per_insert or 0.0), self.min_size or 1
        return self.tolerance or max(1.0, ratio) * max(10.0, 0.1 * least)


def _check(table: TableConfig) -> None:
    _check_numbers(table)
    if table.kind not in KINDS:
        _refuse(
            table,
            "kind",
            f"one of {', '.join(KINDS)}",
            table.kind,
            did_you_mean(str(table.kind), KINDS),
        )
    if table.kind in ONCE:
        for name, plain in (("min_size", 1), ("samples_per_insert", 0)):
            if (getattr(table, name) or plain) != plain:
                remedy = "A table of this kind gives each item once, as soon as it is there."
                _refuse(table, name, f"none for kind={table.kind!r}", getattr(table, name), remedy)
    if (table.min_size or 1) > (table.capacity or 1):
        remedy = "It could never be sampled."
        _refuse(table, "min_size", f"at most capacity={table.capacity}", table.min_size, remedy)
    least = max(1.0, table.samples_per_insert or 0.0)
    if table.samples_per_insert and table.error_buffer() < least:
        remedy = "A smaller one could stop samples and inserts for ever."
        _refuse(table, "tolerance", f"at least {least:g}", table.tolerance, remedy)
    _check_items(table)


def _check_numbers(table: TableConfig) -> None:
    counts = ("capacity", "min_size", *_ITEMS)
    for name in counts:
        value = getattr(table, name)
        if value is None and name not in ("capacity", "min_size"):
            continue
        if not is_count(value):
            _refuse(table, name, "an int of at least 1", value, "Give a positive whole number.")
    if not is_number(table.alpha, 0.0, 1.0):
        _refuse(table, "alpha", "a number from 0 to 1", table.alpha, "Give such a number.")
    for name in ("samples_per_insert", "tolerance"):
        value = getattr(table, name)
        if value is not None and not is_number(value, least=0.0):
            wanted = "a finite number of at least 0, or None"
            _refuse(table, name, wanted, value, "Give such a number.")


def _check_items(table: TableConfig) -> None:
    if table.whole_episodes and table.sequence_length is not None:
        remedy = "Give one of them; a second table may have the other."
        _refuse(table, "episode_length", "None with sequence_length", table.episode_length, remedy)
    if table.is_sequence and table.n_step != 1:
        remedy = "Compute n-step returns of sequences in the loss, with n_step=1 here."
        _refuse(table, "n_step", "1 for sequences and episodes", table.n_step, remedy)
    if table.sequence_period is not None:
        if table.sequence_length is None:
            remedy = "Give sequence_length too, or leave sequence_period out."
            wanted = "None without sequence_length"
            _refuse(table, "sequence_period", wanted, table.sequence_period, remedy)
        if table.period > table.steps:
            wanted = f"at most sequence_length={table.sequence_length}"
            remedy = "A longer period would leave steps out."
            _refuse(table, "sequence_period", wanted, table.sequence_period, remedy)


def _refuse(table: TableConfig, name: str, expected: str, got: Any, remedy: str) -> None:
    raise UserError(
        f"ReverbReplay table {table.name!r}, {name}",
        expected=expected,
        got=repr(got),
        remedy=remedy,
    )
