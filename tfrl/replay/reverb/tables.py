"""Creates Reverb tables from their configuration; checks a server's or checkpoint's tables."""

import importlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tree

from tfrl import tf_private
from tfrl.errors import UserError
from tfrl.replay.reverb.factory import ONCE, TableConfig
from tfrl.replay.reverb.library import reverb
from tfrl.replay.reverb.signature import (
    as_served,
    block_of,
    check_form,
    check_signature,
    item_signature,
    leaves_of,
    stored_signature,
)

if TYPE_CHECKING:
    from tfrl.replay.reverb.factory import ReverbReplay


def make_tables(replay: "ReverbReplay") -> list[Any]:
    """Returns an empty `reverb.Table` for each table of a factory."""
    return [
        _table(config, stored_signature(replay, config), replay) for config in replay.table_configs
    ]


def _table(config: TableConfig, signature: dict[str, Any], replay: "ReverbReplay") -> Any:
    library, capacity = reverb(), (config.capacity or 1) // replay.block
    common = {"name": config.name, "max_size": capacity, "signature": signature}
    if config.kind in ONCE:
        make = library.Table.queue if config.kind == "fifo" else library.Table.stack
        return make(**common)
    uniform = library.selectors.Uniform()
    is_uniform = config.kind == "uniform"
    return library.Table(
        sampler=uniform if is_uniform else library.selectors.Prioritized(config.alpha),
        remover=library.selectors.Fifo(),
        rate_limiter=_limiter(config, replay.block, replay.batches_each),
        **common,
    )


def _limiter(config: TableConfig, block_size: int, batches: int) -> Any:
    # Whole blocks, and no more than the capacity.
    least = min(-(-(config.min_size or 1) // block_size), (config.capacity or 1) // block_size)
    limiters = reverb().rate_limiters
    if not config.samples_per_insert:
        return limiters.MinSize(least)
    # A sample of a block gives a transition to each of several batches.
    ratio = config.samples_per_insert * block_size / batches
    tolerance = config.error_buffer() / batches
    if block_size > 1:  # less than two inserts could stop both sides forever
        tolerance = max(tolerance, 2.0 * ratio)
    return limiters.SampleToInsertRatio(
        samples_per_insert=ratio, min_size_to_sample=least, error_buffer=tolerance
    )


# The table of the reports of processes. A server that has it serves a run with collectors, whose
# learner counts inserts.
HEARTBEATS = "heartbeats"
# An empty table beside it, which no checkpoint has. The names of its specs are lists of numbers, of
# the times of the server's starts and of the inserts of each table then, and the run's settings.
START, _SETTINGS = "server_start", "server_start/settings"
_MOST_STARTS = 100


def make_start(
    inserts: Mapping[str, int], earlier: Mapping[str, Sequence[int]], settings: Mapping[str, str]
) -> Any:
    """Returns the table that tells clients when a server has started, and from which counts.

    Args:
      inserts: The inserts of each table in the restored checkpoint; 0 for empty tables.
      earlier: The earlier starts that led to the checkpoint, see `remove_start`.
      settings: The settings that the run's processes share, by name.
    """
    library = reverb()
    now = max([time.time_ns(), *(n + 1 for n in earlier.get(START, ()))])  # whatever the clock says
    numbers = {START: now, **inserts}
    starts = {name: [*earlier.get(name, ()), n][-_MOST_STARTS:] for name, n in numbers.items()}
    signature = {
        name: tf.TensorSpec([], tf.int64, name=" ".join(map(str, each)))
        for name, each in starts.items()
    }
    signature[_SETTINGS] = tf.TensorSpec([], tf.string, name=json.dumps(dict(settings)))
    return library.Table(
        name=START,
        sampler=library.selectors.Fifo(),
        remover=library.selectors.Fifo(),
        max_size=1,
        rate_limiter=library.rate_limiters.MinSize(1),
        signature=signature,
    )


def starts_of(server_info: Mapping[str, Any], table: str) -> list[tuple[int, int]]:
    """Returns the time of each start that led to a server, and the restored inserts of a table.

    Args:
      server_info: `{name: TableInfo}` from `reverb.Client.server_info`.
      table: The table's name.

    Returns:
      The numbers, the newest last; nothing for a server that does not say them.
    """
    if START not in server_info:
        return []
    starts = _starts(server_info[START].signature)
    return list(zip(starts[START], starts[table], strict=True))


def _starts(signature: Mapping[str, Any]) -> dict[str, list[int]]:
    numbers = {name: spec.name.split() for name, spec in signature.items() if name != _SETTINGS}
    return {name: [int(n) for n in each] for name, each in numbers.items()}


def settings_of(server_info: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings of `make_start`; none for a server that does not say them.

    Args:
      server_info: `{name: TableInfo}` from `reverb.Client.server_info`.
    """
    signature = server_info[START].signature if START in server_info else {}
    return dict(json.loads(signature[_SETTINGS].name)) if _SETTINGS in signature else {}


def check_tables(server_info: Mapping[str, Any], replay: "ReverbReplay") -> None:
    """Compares a server's tables with a factory's: signatures first, then limits.

    Args:
      server_info: `{name: TableInfo}` from `reverb.Client.server_info`.
      replay: The factory.

    Raises:
      UserError: For a missing table, a leaf of a signature that differs, or a limit (size, sampler,
        remover, rate limiter) that differs, for example after a restore of another run's
        checkpoint.
    """
    replay = as_served(replay, server_info)
    for config in replay.table_configs:
        if config.name not in server_info:
            raise UserError(
                f"Reverb table {config.name!r}",
                expected="a table of this name on the server",
                got=f"tables {', '.join(sorted(server_info))}",
                remedy="Start the server with the configuration of this experiment.",
            )
        signature = server_info[config.name].signature
        leaves, _ = leaves_of(signature)
        check_signature(config.name, item_signature(replay, config), leaves)
        check_form(replay, config, signature)
    for table in make_tables(replay):
        _check_limits(table.info, server_info[table.name])


def _check_limits(want: Any, got: Any) -> None:
    for what, wanted in _limits(want).items():
        result = _limits(got)[what]
        if wanted != result:
            raise UserError(
                f"Reverb table {want.name!r}, {what}",
                expected=wanted,
                got=result,
                remedy="Start server and clients with the same gin files, bindings and number of "
                "servers. A server that has restored a checkpoint keeps its limits.",
            )


def _limits(table: Any) -> dict[str, str]:
    """Returns the limits of a `TableInfo`, or of a table in a checkpoint."""
    if hasattr(table, "rate_limiter_info"):
        selectors, limiter = (table.sampler_options, table.remover_options), table.rate_limiter_info
    else:
        selectors, limiter = (table.sampler, table.remover), table.rate_limiter
    sampler, remover = map(_selector, selectors)
    return {
        "capacity": str(table.max_size),
        "samples of an item": str(max(table.max_times_sampled, 0)),
        "sampler": sampler,
        "remover": remover,
        "min_size": str(limiter.min_size_to_sample),
        "samples_per_insert": f"{limiter.samples_per_insert:g}",
        "tolerance": f"a difference from {limiter.min_diff:g} to {limiter.max_diff:g}",
    }


def _selector(options: Any) -> str:
    """Describes a selector: "uniform", or "prioritized (priority_exponent: 0.6)"."""
    result = []
    for field, value in options.ListFields():
        if field.name != "is_deterministic":
            inner = " ".join(str(value).split())
            result.append(field.name if value is True else f"{field.name} ({inner})")
    return " ".join(result)


TABLES_FILE, _ITEMS_FILE = "tables.tfrecord", "items.tfrecord"
_COMPRESSION = "ZLIB"


def read_tables(folder: pathlib.Path) -> list[Any]:
    """Returns the definitions of the tables in a checkpoint, as Reverb's protocol messages.

    Args:
      folder: A checkpoint that Reverb wrote.

    Raises:
      tf.errors.DataLossError: The file is damaged.
    """
    records = tf.data.TFRecordDataset(str(folder / TABLES_FILE), compression_type=_COMPRESSION)
    messages = importlib.import_module("reverb.cc.checkpointing.checkpoint_pb2")
    parse = messages.PriorityTableCheckpoint.FromString
    return [parse(record) for record in records.as_numpy_iterator()]


def read_keys(folder: pathlib.Path, counts: Mapping[str, int]) -> dict[str, list[int]]:
    """Returns the keys of items of tables in a checkpoint.

    Args:
      folder: A checkpoint that Reverb wrote.
      counts: The number of items of each table to find.
    """
    parse = importlib.import_module("reverb.cc.schema_pb2").PrioritizedItem.FromString
    records = tf.data.TFRecordDataset(str(folder / _ITEMS_FILE), compression_type=_COMPRESSION)
    keys: dict[str, list[int]] = {name: [] for name in counts}
    items = map(parse, records.as_numpy_iterator())
    while any(len(keys[name]) < count for name, count in counts.items()):
        item = next(items, None)
        if item is None:
            break
        if item.table in keys:
            keys[item.table].append(item.key)
    return keys


def remove_start(folder: pathlib.Path) -> dict[str, list[int]]:
    """Removes the table of `make_start` from a checkpoint that Reverb wrote; it has no items.

    Returns:
      The starts that led to the checkpoint: their times, and the restored inserts of each table.

    Raises:
      tf.errors.OpError: The file is damaged, or the disk is full.
    """
    saved = read_tables(folder)
    kept = [table for table in saved if table.table_name != START]
    # Without reports of processes, a table of this name is the user's.
    if len(kept) == len(saved) or HEARTBEATS not in {table.table_name for table in saved}:
        return {}
    (start,) = (table for table in saved if table.table_name == START)
    rest = folder / f"{TABLES_FILE}.rest"
    with tf.io.TFRecordWriter(str(rest), _COMPRESSION) as file:
        for table in kept:
            file.write(table.SerializeToString())
    rest.replace(folder / TABLES_FILE)
    return _starts(_signature(start))


def check_limits(folder: pathlib.Path, saved: Sequence[Any], asked: Sequence[Any]) -> None:
    """Checks that the tables of a checkpoint have the definitions of the tables to serve.

    Args:
      folder: The checkpoint, for the message.
      saved: Its definitions, from `read_tables`.
      asked: The `reverb.Table`s to serve.

    Raises:
      UserError: If they differ; it names every differing table and limit.
    """
    by_name = {table.table_name: table for table in saved}
    wanted = {table.name: table for table in asked}
    result = [f"table '{name}', which is not configured" for name in by_name.keys() - wanted.keys()]
    result += [f"no table '{name}'" for name in wanted.keys() - by_name.keys()]
    for name in sorted(by_name.keys() & wanted.keys()):
        result += [
            f"table '{name}' with {text}" for text in _differences(by_name[name], wanted[name])
        ]
    if result:
        remedy = (
            "Restore the checkpoint's configuration, whose limits a restored table keeps, or "
            "serve from another folder with empty tables."
        )
        pairs = [(by_name[name], wanted[name]) for name in by_name.keys() & wanted.keys()]
        for binding in sorted(filter(None, (_binding_of(old, new) for old, new in pairs))):
            remedy = (
                f"To resume, bind ReverbReplay.{binding}, as in the checkpoint, in all processes "
                "of the run (and where the gin file has InGraphReplay, OffPolicyWorkflow.replay = "
                "@ReverbReplay and its arguments, such as ReverbReplay.capacity); or move "
                f"{folder.parent} away to start with empty tables."
            )
        raise UserError(
            f"replay checkpoint {folder}",
            expected="the configured tables and limits",
            got="; ".join(sorted(result)),
            remedy=remedy,
        )


def _binding_of(saved: Any, table: Any) -> str:
    """Returns the binding of `ReverbReplay` that makes a table as it was saved, or ""."""
    before, after = _block_of(_signature(saved)), _block_of(table.info.signature)
    if before != after:
        return f"block_size={before:g}"
    # An earlier version sampled blocks for each batch.
    old, new = saved.rate_limiter, table.info.rate_limiter_info
    several = before > 1 and old.samples_per_insert > new.samples_per_insert
    return "batches_per_block=1" if several else ""


def _differences(saved: Any, table: Any) -> Iterator[str]:
    """Yields `limit = saved value (asked: value)`."""
    old = _limits(saved) | _leaves(_signature(saved))
    new = _limits(table.info) | _leaves(table.info.signature)
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name, "nothing"), new.get(name, "nothing")
        if before != after:
            yield f"{name} = {before} (asked: {after})"


def _signature(saved: Any) -> Any:
    return tf_private.decode_structure(saved.signature) if saved.HasField("signature") else None


def _block_of(signature: Any) -> float:
    """Returns the transitions per item; 1 for tables that are not packed."""
    packed = isinstance(signature, dict) and leaves_of(signature)[1]
    return block_of(signature) if packed else 1


def _leaves(signature: Any) -> dict[str, str]:
    """Returns `{"signature <path>": "float32 [3]"}`."""
    listed, packed = leaves_of(signature) if isinstance(signature, dict) else ({}, False)
    leaves = {"block_size": f"{_block_of(signature):g}"}
    if packed:
        leaves["signature packed"] = "True"
    for path, spec in tree.flatten_with_path(listed if packed else signature):
        name = f"signature {'/'.join(map(str, path)) or '(the whole)'}"
        known = spec is not None and spec.shape.rank is not None
        shape = spec.shape.as_list() if known else "of any shape"
        leaves[name] = "nothing" if spec is None else f"{spec.dtype.name} {shape}"
    return leaves
