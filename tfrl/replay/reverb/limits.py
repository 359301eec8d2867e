"""Compares the tables of a checkpoint with those that a configuration asks for.

Reverb takes whatever limits the checkpoint has: without this a changed configuration would be
without effect, and nobody would be told.
"""

import importlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tree
from tensorflow.python.saved_model import nested_structure_coder

from tfrl.errors import UserError
from tfrl.replay.reverb.packing import leaves_of

_RATE_LIMITER = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
_TABLES_FILE = "tables.tfrecord"


def read_tables(folder: pathlib.Path) -> list[Any]:
    """Returns the definitions of the tables in a checkpoint, as Reverb's messages.

    Args:
      folder: A checkpoint that Reverb wrote.

    Raises:
      tf.errors.DataLossError: The file is damaged.
    """
    records = tf.data.TFRecordDataset(str(folder / _TABLES_FILE), compression_type="ZLIB")
    messages = importlib.import_module("reverb.cc.checkpointing.checkpoint_pb2")
    parse = messages.PriorityTableCheckpoint.FromString
    return [parse(record) for record in records.as_numpy_iterator()]


def check_limits(folder: pathlib.Path, saved: Sequence[Any], asked: Sequence[Any]) -> None:
    """Checks that tables of a checkpoint have the definitions that are asked for.

    Args:
      folder: The checkpoint, for the message.
      saved: Its definitions, of `read_tables`.
      asked: The `reverb.Table`s to serve.

    Raises:
      UserError: They differ; it names every table and limit.
    """
    by_name = {table.table_name: table for table in saved}
    wanted = {table.name: table for table in asked}
    found = [f"table '{name}', which nobody asks for" for name in by_name.keys() - wanted.keys()]
    found += [f"no table '{name}'" for name in wanted.keys() - by_name.keys()]
    for name in sorted(by_name.keys() & wanted.keys()):
        found += [
            f"table '{name}' with {text}" for text in _differences(by_name[name], wanted[name])
        ]
    if found:
        raise UserError(
            f"replay checkpoint {folder}",
            expected="the tables and limits that the configuration asks for",
            got="; ".join(sorted(found)),
            remedy="A restored table keeps its checkpoint's limits: go back to that configuration, "
            "or serve from another folder, whose tables begin empty.",
        )


def _differences(saved: Any, table: Any) -> Iterator[str]:
    """Yields `limit = saved value (asked: value)`."""
    asked = table.info
    pairs = [
        ("max_size", saved.max_size, asked.max_size),
        ("max_times_sampled", saved.max_times_sampled, asked.max_times_sampled),
        ("sampler", _words(saved.sampler), _words(asked.sampler_options)),
        ("remover", _words(saved.remover), _words(asked.remover_options)),
    ]
    for name in _RATE_LIMITER:
        pairs.append(
            (name, getattr(saved.rate_limiter, name), getattr(asked.rate_limiter_info, name))
        )
    for name, old, new in pairs:
        if old != new:
            yield f"{name} = {old} (asked: {new})"
    decode = nested_structure_coder.decode_proto
    old_signature = decode(saved.signature) if saved.HasField("signature") else None
    yield from _signature_differences(old_signature, asked.signature)


def _words(options: Any) -> str:
    """A selector in words, `prioritized (priority_exponent 0.6)` for example."""
    kind = options.WhichOneof("distribution")
    value = getattr(options, kind)
    details = "" if isinstance(value, bool) else " ".join(str(value).replace(":", "").split())
    return f"{kind} ({details})" if details else str(kind)


def _signature_differences(saved: Any, asked: Any) -> Iterator[str]:
    old, new = _leaves(saved), _leaves(asked)
    for path in sorted(old.keys() | new.keys()):
        before, after = old.get(path, "nothing"), new.get(path, "nothing")
        if before != after:
            yield f"signature {path} = {before} (asked: {after})"


def _leaves(signature: Any) -> dict[str, str]:
    """Returns `{path: "float32 [3]"}`."""
    listed, packed = leaves_of(signature) if isinstance(signature, dict) else ({}, False)
    leaves = {"packed": "True"} if packed else {}
    for path, spec in tree.flatten_with_path(listed if packed else signature):
        name = "/".join(map(str, path)) or "(the whole)"
        known = spec is not None and spec.shape.rank is not None
        shape = spec.shape.as_list() if known else "of any shape"
        leaves[name] = "nothing" if spec is None else f"{spec.dtype.name} {shape}"
    return leaves
