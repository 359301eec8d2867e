"""The maker of replay buffers on Reverb, and what it checks."""

from typing import Any, NoReturn

from tfrl import specs, struct
from tfrl.errors import UserError
from tfrl.replay.numeric import SECONDS, is_count, is_number, is_seconds
from tfrl.replay.reverb.ports import LOOPBACK, check_bind
from tfrl.replay.reverb.table_config import TableConfig
from tfrl.types import Nest

# The name of the table where `tables` is not given.
TABLE = "replay"


@struct.logic_dataclass
class ReverbReplay(struct.Struct):
    """Makes Reverb tables and buffers that write to them and sample from them.

    Items never go over the end of an episode: there an item has fewer steps, and it bootstraps from
    the true successor with gamma^k, or with 0 where the episode terminated.

    Attributes:
      obs_spec: Nest of specs of one observation.
      action_spec: Nest of specs of one action.
      capacity: Items, at most; the oldest goes first.
      num_envs: B, of the trajectories that are added.
      n_step: Steps of an item, at most; fewer only at the end of an episode.
      discount: gamma, from 0 to 1.
      kind: "uniform", "prioritized" (in proportion to priority^alpha), "fifo" or "lifo" (each item
        once, in order or the newest first; a full table stops the writers).
      alpha: The exponent of priorities, from 0 to 1.
      sequence_length: L, for items that are sequences; None for n-step items.
      sequence_period: Steps from the start of a sequence to that of the next of the same episode,
        from 1 to L (L - period steps overlap); None for L.
      episode_length: The longest episode, for items that are whole episodes.
      policy_extras_spec: Dict of specs of those `policy_extras` that are stored, or None.
      env_extras_spec: Dict of specs of those `env_extras` that are stored, or None.
      min_size: Items before anything is sampled.
      samples_per_insert: Samples for each item that is inserted: whoever is ahead is stopped. None
        for no limit.
      tolerance: Samples that may be missing or too many before anybody is stopped; None for the
        greatest of 10 inserts and a tenth of `min_size`, in samples.
      tables: Several tables that are fed by one stream, as `TableConfig`s; () for one, "replay".
        The first is the one that `sample` and `update_priorities` mean.
      timeout: Seconds that a call waits for the server, or for whoever is to sample or insert.
      reconnect_seconds: Seconds to wait for a server that was lost; None to end in an error.
      packed: Whether an n-step item is stored as one column of bytes, which is sampled at about
        half the cost, or as a column for each leaf, which other programs can read by name. None for
        what a server elsewhere, or the folder that `restore` reads, has; a new server in this
        process, which nobody else reads, then packs items of at most 1,024 bytes. Never for
        sequences.
      address: "host:port" of a server; None for one in this process.
      bind: Who reaches a server in this process: "127.0.0.1" for this machine alone, "0.0.0.0" for
        whoever reaches its port.
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
    address: str | None = None
    bind: str = LOOPBACK
    table_configs: Any = struct.derived()

    def __post_init__(self) -> None:
        """Checks every argument, and resolves the tables."""
        _check_specs(self)
        _check_numbers(self)
        check_bind(self.bind)
        configs = self.tables or (TableConfig(name=TABLE),)
        self.table_configs = tuple(config.resolved(self) for config in configs)
        names = [config.name for config in self.table_configs]
        if len(set(names)) < len(names) or "" in names:
            remedy = "Give each table a name of its own."
            _refuse("tables", "different names", ", ".join(names), remedy)
        _check_packed(self)

    def table(self, name: str | None = None) -> TableConfig:
        """Returns the table of a name, resolved; the first one for None.

        Raises:
          UserError: For a name that no table has.
        """
        for config in self.table_configs:
            if name in (None, config.name):
                return config
        names = ", ".join(config.name for config in self.table_configs)
        _refuse("table", f"one of {names}", repr(name), "Give the name of a table.")

    def part(self, count: int) -> "ReverbReplay":
        """Returns the maker of what one of several processes has, with its share of environments.

        In a server of its own it has its share of capacity, `min_size` and `tolerance` too; a
        server elsewhere has the tables of all.

        Args:
          count: How many processes share it, evenly.

        Raises:
          UserError: If they do not divide the environments.
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
        if not self.tables:
            return self.replace(num_envs=own, **_shares(self, count))
        # As they are resolved: a table may have one limit and its maker another.
        tables = tuple(table.replace(**_shares(table, count)) for table in self.table_configs)
        return self.replace(num_envs=own, tables=tables, capacity=-(-self.capacity // count))

    def signature(self, table: str | None = None) -> dict[str, Any]:
        """Returns the signature of a table's items, flat: `{path: tf.TensorSpec}`.

        Packed items have one leaf, whose path lists those in it.

        Args:
          table: Its name; None for the first one.
        """
        from tfrl.replay.reverb.packing import stored_signature

        return stored_signature(self, self.table(table))

    def make_tables(self) -> list[Any]:
        """Returns the tables as `reverb.Table`s, empty, with signatures, for a server.

        Items are packed if `packed` says so, and not for None.

        Raises:
          UserError: Where Reverb is not installed.
        """
        from tfrl.replay.reverb.tables import make_tables

        return make_tables(self)

    def init(self) -> Any:
        """Connects to the server, or starts one in this process.

        Returns:
          A `ReverbBuffer`.

        Raises:
          UserError: For tables of the server that are not those of this maker, for a server that
            does not answer, and where Reverb is not installed.
        """
        from tfrl.replay.reverb.buffer import ReverbBuffer

        return ReverbBuffer(self)


def _shares(limits: Any, count: int) -> dict[str, Any]:
    """The limits of a maker or a table that several processes share: what one of them has."""
    sizes = {name: getattr(limits, name) for name in ("capacity", "min_size")}
    shares: dict[str, Any] = {n: -(-x // count) for n, x in sizes.items() if x is not None}
    if limits.tolerance is not None:
        least = max(1.0, limits.samples_per_insert or 0.0)  # less could stop both sides for ever
        shares["tolerance"] = max(limits.tolerance / count, least)
    return shares


def _check_specs(replay: ReverbReplay) -> None:
    for name in ("obs_spec", "action_spec", "policy_extras_spec", "env_extras_spec"):
        nest = getattr(replay, name)
        for path, spec in struct.paths(nest).items():
            if not specs.is_spec(spec) or not spec.shape.is_fully_defined():
                wanted = "a tf.TensorSpec of a fully known shape"
                remedy = "Give the specs that the environment and the agent have."
                _refuse(f"{name} {path}", wanted, repr(spec), remedy)
        if "extras" in name and nest is not None and not isinstance(nest, dict):
            remedy = "Name the extras that are to be stored."
            _refuse(name, "a dict of specs, or None", type(nest).__name__, remedy)


def _check_numbers(replay: ReverbReplay) -> None:
    count = replay.num_envs
    if not is_count(count):
        remedy = "Give a positive whole number."
        _refuse("num_envs", "an int of at least 1", repr(count), remedy)
    if not is_number(replay.discount, 0.0, 1.0):
        wanted = "a number from 0 to 1"
        _refuse("discount", wanted, repr(replay.discount), "Give such a number.")
    for name in ("timeout", "reconnect_seconds"):
        value = getattr(replay, name)
        if value is None and name == "reconnect_seconds":
            continue
        if not is_seconds(value):
            _refuse(name, SECONDS, repr(value), "Give such a number.")
    wrong = [t for t in replay.tables if not isinstance(t, TableConfig)]
    if wrong or not isinstance(replay.tables, tuple):
        wanted, remedy = "a tuple of TableConfig", "Give such a tuple, or leave it out."
        _refuse("tables", wanted, repr(wrong[0] if wrong else replay.tables), remedy)


def _check_packed(replay: ReverbReplay) -> None:
    from tfrl.replay.reverb.packing import packs

    if replay.packed not in (None, True, False):
        remedy = "None takes what the server has."
        _refuse("packed", "True, False or None", repr(replay.packed), remedy)
    if replay.packed and not packs(replay):
        wanted = "False or None for sequences, and for leaves that are no numbers or empty"
        _refuse("packed", wanted, "True", "Leave it out.")


def _refuse(name: str, expected: str, got: str, remedy: str) -> NoReturn:
    raise UserError(f"ReverbReplay.{name}", expected=expected, got=got, remedy=remedy)
