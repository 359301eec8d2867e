"""Batches of a Learner: rows by module, sequences of steps as rows."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UserError
from tfrl.types import Nest

LENGTHS = "seq_lens"
# Items with one row per sequence: the initial state of a recurrent network.
PER_SEQUENCE = ("state_in",)
# The leaves that mark valid rows.
MASK_FIELDS = ("mask", "loss_mask")


def as_sequences(
    batch: dict[str, Any], per_sequence: Collection[str] = PER_SEQUENCE
) -> dict[str, Any]:
    """Views the flat rows of padded sequences as sequences.

    The rows of the result are sequences: its leaves have the leading axis S, along which
    minibatches are split, and the item `mask` marks the real steps.

    Args:
      batch: A dict or TensorDict with `seq_lens`, int `[S]`, the steps of each sequence, and
        leaves `[S * T, ...]`: sequence after sequence, each padded to T steps. A bool `mask`
        `[S * T]` may mark further invalid steps.
      per_sequence: Items that are already `[S, ...]`; missing ones are ignored.

    Returns:
      The same type of dict: leaves `[S, T, ...]`, `mask` bool `[S, T]`, `seq_lens` and
      `per_sequence` items unchanged.

    Raises:
      UserError: Lists all leaves whose rows are not S times the same T, and known lengths below 1
        or above T.
    """
    if LENGTHS not in batch:
        raise UserError(
            "the batch",
            expected=f"an item {LENGTHS!r}, the lengths [S] of its sequences",
            got=f"items {sorted(batch)}",
            remedy="Add it, or pass leaves [S, T, ...] with a mask [S, T].",
        )
    lengths = tf.convert_to_tensor(batch[LENGTHS])
    if lengths.shape.rank != 1 or not lengths.dtype.is_integer or lengths.shape[0] in (None, 0):
        raise UserError(
            LENGTHS,
            expected="an integer tensor of static shape [S] with S at least 1",
            got=f"{lengths.dtype.name} of shape {tuple(lengths.shape)}",
            remedy="Pass the number of steps of each sequence.",
        )
    kept = {LENGTHS, *per_sequence}
    flat = {k: v for k, v in batch.items() if k not in kept}
    num, steps = lengths.shape[0], _steps(flat, lengths.shape[0])
    _check_per_sequence({k: batch[k] for k in kept - {LENGTHS} if k in batch}, num)
    _check_lengths(lengths, steps)
    sequences = tf.nest.map_structure(lambda x: _unfold(x, num, steps), flat)
    real = tf.range(steps)[tf.newaxis] < tf.cast(lengths, tf.int32)[:, tf.newaxis]  # [S, T]
    sequences["mask"] = real & sequences["mask"] if "mask" in sequences else real
    sequences.update({k: batch[k] for k in kept if k in batch})
    return type(batch)(sequences)


def as_rows(batch: dict[str, Any], per_sequence: Collection[str] = PER_SEQUENCE) -> dict[str, Any]:
    """The inverse of `as_sequences`: leaves `[S, T, ...]` become `[S * T, ...]`.

    Args:
      batch: The result of `as_sequences`, or rows of it.
      per_sequence: As in `as_sequences`.
    """
    kept = {LENGTHS, *per_sequence}

    def fold(x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        return tf.reshape(x, [-1, *x.shape[2:]])

    flat = {k: tf.nest.map_structure(fold, v) for k, v in batch.items() if k not in kept}
    return type(batch)({**flat, **{k: batch[k] for k in kept if k in batch}})


def _unfold(x: Any, num: int, steps: int) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    return tf.reshape(x, [num, steps, *x.shape[1:]])


def _rows(nest: Any) -> dict[str, int | None]:
    return {
        path: x.shape[0] if getattr(x, "shape", None) else None
        for path, x in struct.paths(tf.nest.map_structure(tf.convert_to_tensor, nest)).items()
    }


def _steps(flat: Mapping[str, Any], num: int) -> int:
    """T, computed from the number of rows of the flat leaves."""
    rows = _rows(dict(flat))
    counts = set(rows.values())
    if len(counts) == 1:
        (count,) = counts
        if count and count % num == 0:
            return count // num
    wrong = rows if len(counts) > 1 else dict(list(rows.items())[:1])
    raise UserError(
        "the batch",
        expected=f"leaves of {num} x T rows, for {num} sequences padded to the same T",
        got=", ".join(f"{path} of {n} rows" for path, n in wrong.items()) or "no leaves",
        remedy=f"Pad every sequence to the longest, and pass the true lengths as {LENGTHS}.",
    )


def _check_per_sequence(items: Mapping[str, Any], num: int) -> None:
    wrong = {path: n for path, n in _rows(dict(items)).items() if n != num}
    if wrong:
        raise UserError(
            "the batch",
            expected=f"{num} rows, one per sequence, in {', '.join(items)}",
            got=", ".join(f"{path} of {n} rows" for path, n in wrong.items()),
            remedy="Pass the state at the start of each sequence.",
        )


def _check_lengths(lengths: tf.Tensor, steps: int) -> None:
    """Rejects wrong lengths, if known (not while tracing)."""
    values = tf.get_static_value(lengths)
    if values is None:
        return
    bad = np.flatnonzero((values < 1) | (values > steps))
    if bad.size:
        shown = ", ".join(f"{values[i]} (sequence {i})" for i in bad[:5])
        more = f" and {bad.size - 5} more" if bad.size > 5 else ""
        raise UserError(
            LENGTHS,
            expected=f"lengths from 1 to {steps}, the padded length of the leaves",
            got=shown + more,
            remedy="Pad every sequence to the longest, and leave out empty sequences.",
        )


def by_module(batch: Nest, module_ids: list[str]) -> dict[str, Nest]:
    """Returns `{module_id: rows}` of a batch; rows without an id belong to the only module.

    Raises:
      UserError: For ids that the learner does not have, or rows without an id for several modules.
    """
    if not _is_rows(batch):
        raise UserError(
            "the batch",
            expected="{module_id: rows}, or the rows of the only module: a dict of columns, or a "
            "record such as PolicyBatch",
            got="None" if batch is None else type(batch).__name__,
            remedy="Name the columns, as in {'obs': obs, 'action': action}.",
        )
    if _has_module_ids(batch, module_ids):
        unknown = sorted(set(map(str, batch)) - set(module_ids))
        if unknown:
            raise UserError(
                "the batch",
                expected=f"rows for modules of this learner, {sorted(module_ids)}",
                got=f"rows for {sorted(map(str, batch))}, of which {unknown} are unknown",
                remedy="Add the modules with add_module, or map the agents to known ones.",
            )
        return dict(batch)
    if isinstance(batch, Mapping) and not batch:
        raise empty("the batch")
    if len(module_ids) != 1:
        raise UserError(
            "the batch",
            expected=f"{{module_id: rows}} for modules among {sorted(module_ids)}",
            got=f"rows without a module id ({type(batch).__name__})",
            remedy="Pass a dict keyed by module id.",
        )
    return {module_ids[0]: batch}


def _has_module_ids(batch: Nest, module_ids: list[str]) -> bool:
    """Whether a batch is `{module_id: rows}`, known ids or not."""
    if not isinstance(batch, Mapping) or not batch:
        return False
    if any(m in batch for m in module_ids):
        return True
    values = list(batch.values())
    if module_ids == [DEFAULT_MODULE_ID] and all(type(x) is dict for x in values):
        return False  # Columns of an unnamed module that are nests, {"obs": {"x": x}}.
    return all(map(_is_rows, values))


def _is_rows(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(type(value), "_tfrl_layout")


def empty(thing: str) -> UserError:
    """The error for a batch without rows."""
    return UserError(
        thing,
        expected="at least one row",
        got="none",
        remedy="Collect experience before the update.",
    )


def as_tensors(batches: dict[str, Nest]) -> dict[str, Nest]:
    """Converts all leaves of `{module_id: rows}` to tensors; NumPy's float64 to float32.

    Raises:
      UserError: Lists all leaves that are not arrays, e.g. ragged lists.
    """
    wrong = []
    for module_id, rows in batches.items():
        for path, x in struct.paths(rows).items():
            try:
                _as_tensor(x)
            except (TypeError, ValueError):
                wrong.append(f"{path!r} of module {module_id!r} ({type(x).__name__})")
    if wrong:
        raise UserError(
            "the batch",
            expected="arrays [N, ...] of numbers",
            got=", ".join(wrong),
            remedy="Pad ragged columns, and mark the valid steps in `mask`.",
        )
    return tf.nest.map_structure(_as_tensor, batches)


def _as_tensor(x: Any) -> tf.Tensor:
    if isinstance(x, tf.RaggedTensor | tf.SparseTensor):
        raise TypeError
    if isinstance(x, np.ndarray | np.generic) and x.dtype == np.float64:
        x = x.astype(np.float32)
    return tf.convert_to_tensor(x)


def num_rows(batch: Nest, module_id: str) -> int | None:
    """Returns the common leading axis of all leaves; None if it is not static.

    Raises:
      UserError: If they differ, or there is no row.
    """
    sizes = {path: x.shape[0] if x.shape.rank else () for path, x in struct.paths(batch).items()}
    if not sizes or len(set(sizes.values())) != 1 or () in sizes.values():
        raise UserError(
            f"the batch of module {module_id!r}",
            expected="leaves with the same number of rows",
            got=str(sizes) if sizes else "no leaves",
            remedy="Give every leaf the leading axis [N].",
        )
    rows = next(iter(sizes.values()))
    if rows == 0:
        raise empty(f"the batch of module {module_id!r}")
    return rows


def whole_sequences(batch: Nest) -> Nest:
    """Views flat rows `[S * T, ...]` with `seq_lens` [S] as sequences.

    Rows that are already sequences `[S, T, ...]` get a `mask` [S, T] of the steps within the
    lengths.
    """
    lengths = batch.get(LENGTHS) if isinstance(batch, Mapping) else None
    if lengths is None or isinstance(lengths, tf.distribute.DistributedValues):
        return batch
    count = np.shape(lengths)[0] if np.ndim(lengths) else None
    if any(np.shape(x)[0] != count for x in struct.paths(batch).values() if np.ndim(x)):
        return as_sequences(dict(batch))
    within = _within_lengths(batch)
    if within is None:
        return batch
    mask = batch.get("mask")
    return type(batch)({**batch, "mask": within if mask is None else _and(mask, within)})


def take(batch: Nest, index: tf.Tensor, *, padded: bool) -> Nest:
    """Returns the rows `index` of a batch.

    If `padded`, -1 is a row with False masks and sequence length 0. The result then has a `mask`:
    of the steps within `seq_lens`, or else with the shape of `loss_mask`, or else [n].
    """
    if not padded:
        return struct.take(batch, index)
    real = index >= 0
    rows = struct.take(batch, tf.maximum(index, 0))
    changed = {m: _and(field(rows, m), real) for m in MASK_FIELDS if field(rows, m) is not None}
    lengths = field(rows, LENGTHS)
    if lengths is not None:
        changed[LENGTHS] = tf.where(real, lengths, tf.zeros_like(lengths))
    if "mask" not in changed:
        counts = _within_lengths(rows)
        if counts is None and "loss_mask" in changed:
            counts = tf.ones_like(changed["loss_mask"], tf.bool)
        changed["mask"] = real if counts is None else _and(counts, real)
    return type(rows)({**rows, **changed}) if isinstance(rows, dict) else rows.replace(**changed)


def _and(mask: Any, other: tf.Tensor) -> tf.Tensor:
    """The conjunction of a mask with another one of the same or fewer axes."""
    mask = tf.convert_to_tensor(mask)
    if mask.shape.rank < other.shape.rank:
        mask = _to_rank(mask, other.shape.rank)
    other = _to_rank(other, mask.shape.rank)
    return mask & other if mask.dtype == tf.bool else mask * tf.cast(other, mask.dtype)


def _to_rank(x: tf.Tensor, rank: int) -> tf.Tensor:
    for _ in range(rank - x.shape.rank):
        x = x[..., tf.newaxis]
    return x


def _within_lengths(batch: Nest) -> tf.Tensor | None:
    """The steps [S, T] within `seq_lens`; None without these or T."""
    lengths = field(batch, LENGTHS)
    if lengths is None:
        return None
    shapes = [
        x.shape
        for path, x in struct.paths(tf.nest.map_structure(tf.convert_to_tensor, batch)).items()
        if path.split("/")[0] not in (LENGTHS, *PER_SEQUENCE)
    ]
    steps = {shape[1] if shape.rank and shape.rank > 1 else None for shape in shapes}
    if len(steps) != 1 or None in steps:
        return None
    return tf.range(steps.pop())[tf.newaxis] < tf.cast(lengths, tf.int32)[:, tf.newaxis]


def counted(batch: Nest) -> tf.Tensor | None:
    """Returns the valid rows (or steps of sequences); None for all.

    A row is valid if `mask` and `loss_mask` are True and, for sequences, within `seq_lens`.

    Returns:
      [N] or [B, T]: bool, or the product of numeric masks.
    """
    masks = [field(batch, name) for name in MASK_FIELDS]
    counts = None
    for mask in [*masks, _within_lengths(batch)]:
        if mask is not None:
            counts = mask if counts is None else _and(counts, mask)
    return counts


def field(nest: Nest, name: str) -> Any:
    """Returns a leaf of a batch, or None if missing."""
    return nest.get(name) if isinstance(nest, Mapping) else getattr(nest, name, None)


def valid_rows(batch: Nest) -> tf.Tensor:
    """Returns the number of valid rows (or steps of sequences); a float32 scalar.

    See `counted`; all rows without a mask.
    """
    mask = counted(batch)
    lengths = field(batch, LENGTHS)
    if mask is not None:
        counts = tf.cast(mask, tf.float32)
        if lengths is not None and counts.shape.rank == 1:  # whole sequences, of unknown T
            counts *= tf.cast(lengths, tf.float32)
        return tf.reduce_sum(counts)
    if lengths is not None:
        return tf.reduce_sum(tf.cast(lengths, tf.float32))
    leaf = next(iter(struct.paths(batch).values()))
    return tf.cast(tf.shape(leaf)[0], tf.float32)
