"""Factories of replay buffers on Reverb, and the configuration of their tables."""

from typing import TYPE_CHECKING, Any, NoReturn

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.replay.core import check_items, check_specs
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.replay.reverb.sharded import AnyReverbBuffer

KINDS = ("uniform", "prioritized", "fifo", "lifo")
# Kinds that return each item once; a full table stops the writers.
ONCE = ("fifo", "lifo")
_LIMITS = ("min_size", "samples_per_insert", "tolerance")
_ITEMS = ("n_step", "sequence_length", "sequence_period", "episode_length")


@struct.logic_dataclass
class TableConfig(struct.Struct):
    """One table of a `ReverbReplay`; None takes the factory's value.

    The arguments that define items (`n_step`, `sequence_length`, `sequence_period`,
    `episode_length`) belong together: if one is set, none is taken from the factory. A table of
    kind "fifo" or "lifo" takes only the capacity of the factory's limits.

    Attributes:
      name: The table's name on the server.
      kind: "uniform", "prioritized", "fifo" or "lifo".
      capacity: The most items.
      alpha: The exponent of priorities.
      n_step: The most steps of an item.
      sequence_length: L, for items that are sequences.
      sequence_period: Steps from the start of a sequence to the start of the next.
      episode_length: The longest episode, for items that are whole episodes.
      min_size: Items before anything is sampled.
      samples_per_insert: Samples per inserted item; 0 for no limit.
      tolerance: Deviation from `samples_per_insert` in samples, either way.
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
        """Returns the configuration with None replaced by a factory's values, checked.

        Raises:
          UserError: For a wrong value; it names the table's argument.
        """
        own_items = any(getattr(self, name) is not None for name in _ITEMS)
        taken = {}
        for name in (f for f in type(self).__dataclass_fields__ if f != "name"):
            value = getattr(self, name)
            own = (own_items and name in _ITEMS) or (self.kind in ONCE and name in _LIMITS)
            taken[name] = getattr(replay, name) if value is None and not own else value
        taken.update(n_step=taken["n_step"] or 1, min_size=taken["min_size"] or 1)
        result = TableConfig(name=self.name, **taken)
        _check(result)
        return result

    @property
    def period(self) -> int:
        """Steps from the start of a sequence to the start of the next of the same episode."""
        return self.sequence_period or self.steps

    @property
    def steps(self) -> int:
        """The most steps of an item."""
        return self.sequence_length or self.episode_length or self.n_step or 1

    @property
    def whole_episodes(self) -> bool:
        """Whether items are whole episodes."""
        return self.episode_length is not None

    @property
    def is_sequence(self) -> bool:
        """Whether items are `Sequences` (or episodes) instead of `Transition`s."""
        return self.sequence_length is not None or self.whole_episodes

    @property
    def limits_inserts(self) -> bool:
        """Whether a limiter may stop writers until items are sampled."""
        return self.kind in ONCE or bool(self.samples_per_insert)

    def error_buffer(self) -> float:
        """Returns the error buffer of the limiter of the ratio, in samples."""
        ratio, least = float(self.samples_per_insert or 0.0), self.min_size or 1
        return self.tolerance or max(1.0, ratio) * max(10.0, 0.1 * least)


def _check(table: TableConfig) -> None:
    def name(argument: str) -> str:
        return f"ReverbReplay table {table.name!r}, {argument}"

    checks.one_of(name("kind"), table.kind, KINDS)
    for argument in ("capacity", "min_size"):
        checks.at_least(name(argument), getattr(table, argument), 1)
    for argument in _ITEMS:
        checks.at_least(name(argument), getattr(table, argument), 1, optional=True)
    checks.probability(name("alpha"), table.alpha)
    for argument in ("samples_per_insert", "tolerance"):
        checks.number(name(argument), getattr(table, argument), 0, optional=True)
    if (table.min_size or 1) > (table.capacity or 1):
        raise UserError(
            name("min_size"),
            expected=f"at most capacity={table.capacity}",
            got=repr(table.min_size),
            remedy="Lower min_size; the table could never be sampled.",
        )
    least = max(1.0, table.samples_per_insert or 0.0)
    if table.samples_per_insert and table.error_buffer() < least:
        raise UserError(
            name("tolerance"),
            expected=f"at least {least:g}",
            got=repr(table.tolerance),
            remedy="Raise it; a smaller tolerance can block samples and inserts forever.",
        )
    if table.whole_episodes and table.sequence_length is not None:
        raise UserError(
            name("episode_length"),
            expected="None with sequence_length",
            got=repr(table.episode_length),
            remedy="Set only one of them; a second table can have the other.",
        )
    check_items(name, table)


# The name of the table if `tables` is not set.
TABLE = "replay"
# The addresses to bind: reachable from this machine only, or from any.
LOOPBACK, ANYWHERE = "127.0.0.1", "0.0.0.0"  # nosec B104
# Reverb takes milliseconds and whole seconds as C integers; longer times would overflow.
MOST_SECONDS = 1e6


def check_bind(bind: str) -> None:
    """Checks the argument `bind` of a server."""
    checks.one_of(
        "bind of the Reverb server",
        bind,
        (LOOPBACK, ANYWHERE),
        remedy=f"Use {LOOPBACK} for this machine only, {ANYWHERE} for all machines.",
    )


@struct.logic_dataclass
class ReverbReplay(struct.Struct):
    """Creates Reverb tables, and buffers that write to them and sample from them.

    An item never crosses the end of an episode: an item there has k < n steps. It bootstraps from
    the true successor with gamma^k, or with 0 if the episode terminated.

    Attributes:
      obs_spec: Nest of specs of one observation.
      action_spec: Nest of specs of one action.
      capacity: The most items; the oldest is removed first.
      num_envs: B of the added trajectories.
      n_step: The most steps of an item; fewer only at the end of an episode.
      discount: gamma, from 0 to 1.
      kind: "uniform", "prioritized" (in proportion to priority^alpha), "fifo" or "lifo" (each item
        once, in order or the newest first; a full table stops the writers).
      alpha: The exponent of priorities, from 0 to 1.
      sequence_length: L, for items that are sequences; None for n-step items.
      sequence_period: Steps from the start of a sequence to the start of the next of the same
        episode, from 1 to L (L - period steps overlap); None for L.
      episode_length: The longest episode, for items that are whole episodes.
      policy_extras_spec: Dict of specs of the stored `policy_extras`, or None.
      env_extras_spec: Dict of specs of the stored `env_extras`, or None.
      min_size: Items before anything is sampled.
      samples_per_insert: Samples per inserted item; the limiter stops the side that is ahead. None
        for no limit.
      tolerance: Deviation from `samples_per_insert` in samples before the limiter stops a side;
        None for the greater of 10 inserts and a tenth of `min_size`, in samples.
      tables: Several tables that one stream feeds, as `TableConfig`s; () for one, "replay". The
        first is the default of `sample` and `update_priorities`.
      timeout: Seconds that a call waits for the server, or for a limiter.
      reconnect_seconds: Seconds to wait for a lost server; None to raise an error.
      packed: Whether an n-step item is stored as one column of bytes, which halves the cost of
        sampling, or as one column per leaf, which other programs can read by name. None takes the
        form of an external server, or of the folder that `restore` reads; a new server in this
        process then packs items of at most 1,024 bytes. Sequences are never packed.
      block_size: Transitions that are stored as one Reverb item. For small transitions a block
        costs little more than a single one. A batch has one transition of each sampled block,
        drawn uniformly. Above 1 there is one table of kind "uniform", and `packed` is True.
        `min_size`, `capacity` and the limits still count transitions, rounded to blocks;
        `tolerance` is at least two blocks. None for 1; an `OffPolicyWorkflow` with a server in this
        process and `distributed_replay` then choose a size.
      batches_per_block: Batches in a row of a dataset that draw from the same sampled blocks, since
        a block is sampled and read whole; at most the transitions of a block. A sampled block then
        counts as so many samples for `samples_per_insert`, also in `sample`, which takes one batch
        of it. None for 1; where a size of blocks is chosen, 4.
      address: "host:port" of a server, or of each of `num_servers`, separated by commas; None for a
        server in this process.
      num_servers: External servers that share capacity, `min_size` and `tolerance`;
        `bin/launch.py` starts as many. In this process there is one.
      bind: The bind address of a server in this process: "127.0.0.1" to be reachable from this
        machine only, "0.0.0.0" to be reachable from any.
    """

    obs_spec: Nest
    action_spec: Nest
    capacity: int
    num_envs: int
    n_step: int = 1
    discount: float = 0.99
    kind: str = "uniform"
    alpha: float = 0.6
    sequence_length: int | None = None
    sequence_period: int | None = None
    episode_length: int | None = None
    policy_extras_spec: Nest = None
    env_extras_spec: Nest = None
    min_size: int = 1
    samples_per_insert: float | None = None
    tolerance: float | None = None
    tables: tuple[TableConfig, ...] = ()
    timeout: float = 60.0
    reconnect_seconds: float | None = None
    packed: bool | None = None
    block_size: int | None = None
    batches_per_block: int | None = None
    address: str | None = None
    num_servers: int = 1
    bind: str = LOOPBACK
    table_configs: Any = struct.derived()

    def __post_init__(self) -> None:
        """Checks every argument, and resolves the tables."""
        check_specs(self)
        checks.at_least("ReverbReplay.num_envs", self.num_envs, 1)
        checks.probability("ReverbReplay.discount", self.discount)
        checks.number("ReverbReplay.timeout", self.timeout, 0, MOST_SECONDS, False)
        reconnect = self.reconnect_seconds
        checks.number("ReverbReplay.reconnect_seconds", reconnect, 0, MOST_SECONDS, False, True)
        checks.instance("ReverbReplay.tables", self.tables, tuple, "a tuple of TableConfig")
        check_bind(self.bind)
        if len(set(self.addresses)) != len(self.addresses):
            _refuse("address", "each server once", self.address or "", "Name each server once.")
        checks.at_least("ReverbReplay.num_servers", self.num_servers, 1)
        configs = self.tables or (TableConfig(name=TABLE),)
        for config in configs:
            checks.instance("ReverbReplay.tables", config, TableConfig, "a tuple of TableConfig")
        self.table_configs = tuple(config.resolved(self) for config in configs)
        names = [config.name for config in self.table_configs]
        if len(set(names)) < len(names) or "" in names:
            remedy = "Use a different name for each table."
            _refuse("tables", "different names", ", ".join(names), remedy)
        _check_packed(self)
        _check_blocks(self)

    def table(self, name: str | None = None) -> TableConfig:
        """Returns the resolved table of a name; the first for None.

        Raises:
          UserError: For an unknown name.
        """
        for config in self.table_configs:
            if name in (None, config.name):
                return config
        names = ", ".join(config.name for config in self.table_configs)
        _refuse("table", f"one of {names}", repr(name), "Give the name of a table.")

    def part(self, count: int) -> "ReverbReplay":
        """Returns the factory for one of several processes, with its share of environments.

        A server in the process also has a share of capacity, `min_size` and `tolerance`. An
        external server has the tables of all processes.

        Args:
          count: The number of processes.

        Raises:
          UserError: If the processes do not divide the environments.
        """
        if count == 1:
            return self
        if self.num_envs % count:
            near = -(-self.num_envs // count) * count
            wanted = f"a multiple of the {count} processes, which share the environments"
            _refuse("num_envs", wanted, str(self.num_envs), f"The nearest above is {near}.")
        own = self.num_envs // count
        if self.address is not None:
            return self.replace(num_envs=own)
        return self._divided(count).replace(num_envs=own)

    def _divided(self, count: int) -> "ReverbReplay":
        """Returns the factory with 1 / `count` of all limits."""
        if not self.tables:
            return self.replace(**_shares(self, count))
        # Resolved tables: a table may have one limit and its factory another.
        tables = tuple(table.replace(**_shares(table, count)) for table in self.table_configs)
        return self.replace(tables=tables, capacity=-(-self.capacity // count))

    def signature(self, table: str | None = None) -> dict[str, Any]:
        """Returns the signature of a table's items, flat: `{path: tf.TensorSpec}`.

        Packed items have one leaf, whose path lists its contents.

        Args:
          table: The table's name; None for the first.
        """
        from tfrl.replay.reverb.signature import stored_signature

        return stored_signature(self, self.table(table))

    @property
    def block(self) -> int:
        """Transitions per Reverb item."""
        return self.block_size or 1

    @property
    def batches_each(self) -> int:
        """Batches of a dataset that draw from the same sampled items."""
        return min(self.batches_per_block or 1, self.block)

    @property
    def addresses(self) -> list[str]:
        """The addresses of the servers."""
        return [] if self.address is None else [x.strip() for x in self.address.split(",")]

    @property
    def of_one_server(self) -> "ReverbReplay":
        """The factory for one of its servers, with a share of the limits."""
        if self.num_servers == 1:
            return self
        return self._divided(self.num_servers).replace(num_servers=1)

    def make_tables(self) -> list[Any]:
        """Returns empty `reverb.Table`s with signatures, for a server.

        Items are packed if `packed` is True; not for None.

        Raises:
          UserError: If Reverb is not installed.
        """
        from tfrl.replay.reverb.tables import make_tables

        return make_tables(self)

    def init(self, batch_size: int | None = None) -> "AnyReverbBuffer":
        """Connects to the servers, or starts one in this process.

        Args:
          batch_size: The batch size of its datasets. A new server in this process then has blocks
            of a suitable size if `block_size` is None; None for blocks of 1.

        Returns:
          A `ReverbBuffer`; a `ShardedBuffer` for several servers.

        Raises:
          UserError: If the server's tables differ from this factory's, if a server does not answer,
            or if Reverb is not installed.
        """
        if self.address is not None and self.num_servers != len(self.addresses):
            _refuse(
                "num_servers",
                f"as many as there are addresses: {self.address}",
                str(self.num_servers),
                "Separate addresses by commas.",
            )
        if self.num_servers > 1 and self.address is not None:
            from tfrl.replay.reverb.sharded import ShardedBuffer

            return ShardedBuffer(self)
        from tfrl.replay.reverb.buffer import ReverbBuffer

        # In this process there is only one server.
        return ReverbBuffer(self.replace(num_servers=1), batch_size)


def _shares(limits: Any, count: int) -> dict[str, Any]:
    """Returns one process's share of the limits of a factory or a table."""
    sizes = {name: getattr(limits, name) for name in ("capacity", "min_size")}
    shares: dict[str, Any] = {n: -(-x // count) for n, x in sizes.items() if x is not None}
    if limits.tolerance is not None:
        least = max(1.0, limits.samples_per_insert or 0.0)  # less could stop both sides forever
        shares["tolerance"] = max(limits.tolerance / count, least)
    return shares


def _check_packed(replay: ReverbReplay) -> None:
    from tfrl.replay.reverb.signature import packs

    checks.one_of("ReverbReplay.packed", replay.packed, (True, False, None))
    if replay.packed and not packs(replay):
        wanted = "False or None for sequences, and for leaves that are empty or not numeric"
        _refuse("packed", wanted, "True", "Leave it out.")


def _check_blocks(replay: ReverbReplay) -> None:
    checks.at_least("ReverbReplay.block_size", replay.block_size, 1, optional=True)
    checks.at_least("ReverbReplay.batches_per_block", replay.batches_per_block, 1, optional=True)
    if replay.block == 1:
        return
    kinds = [config.kind for config in replay.table_configs]
    if kinds != ["uniform"] or not replay.packed:
        wanted = '1 unless there is one table of kind="uniform" with packed=True'
        _refuse("block_size", wanted, str(replay.block_size), "Leave it out.")
    least = min(config.capacity or 1 for config in replay.table_configs)
    checks.at_least("ReverbReplay.capacity", least, replay.block)


def _refuse(name: str, expected: str, got: str, remedy: str) -> NoReturn:
    raise UserError(f"ReverbReplay.{name}", expected=expected, got=got, remedy=remedy)
