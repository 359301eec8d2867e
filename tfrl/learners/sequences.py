"""Sequences in a batch: flat rows viewed as `[S, T, ...]`, so that nothing is cut through time."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError

LENGTHS = "seq_lens"
# Items with one row a sequence: what a recurrent network starts from.
PER_SEQUENCE = ("state_in",)


def as_sequences(
    batch: dict[str, Any], per_sequence: Collection[str] = PER_SEQUENCE
) -> dict[str, Any]:
    """Views the flat rows of padded sequences as sequences.

    The rows of the result are the sequences: its leaves have the leading axis S, along which
    minibatches are cut, and the item `mask` says which steps are real.

    Args:
      batch: A dict or TensorDict with `seq_lens`, int `[S]`, the steps of each sequence, and
        leaves `[S * T, ...]`: sequence after sequence, each padded to T steps. A bool `mask`
        `[S * T]` says which steps count, beyond the padding.
      per_sequence: Items that are `[S, ...]` already; those that the batch has not are ignored.

    Returns:
      The same type of dict: leaves `[S, T, ...]`, `mask` bool `[S, T]`, `seq_lens` and
      `per_sequence` items as they were.

    Raises:
      UserError: Naming all leaves whose rows are not S times the same T, and lengths below 1 or
        above T where these are known.
    """
    if LENGTHS not in batch:
        raise UserError(
            "the batch",
            expected=f"an item {LENGTHS!r}, the lengths [S] of its sequences",
            got=f"items {sorted(batch)}",
            remedy="Add it, or give leaves [S, T, ...] with a mask [S, T].",
        )
    lengths = tf.convert_to_tensor(batch[LENGTHS])
    if lengths.shape.rank != 1 or not lengths.dtype.is_integer or lengths.shape[0] in (None, 0):
        raise UserError(
            LENGTHS,
            expected="whole numbers [S], with S known and at least 1",
            got=f"{lengths.dtype.name} of shape {tuple(lengths.shape)}",
            remedy="Give the number of steps of every sequence.",
        )
    kept = {LENGTHS, *per_sequence}
    flat = {k: v for k, v in batch.items() if k not in kept}
    num, steps = lengths.shape[0], _steps(flat, lengths.shape[0])
    _check_per_sequence({k: batch[k] for k in kept - {LENGTHS} if k in batch}, num)
    _check_lengths(lengths, steps)
    found = tf.nest.map_structure(lambda x: _unfold(x, num, steps), flat)
    real = tf.range(steps)[tf.newaxis] < tf.cast(lengths, tf.int32)[:, tf.newaxis]  # [S, T]
    found["mask"] = real & found["mask"] if "mask" in found else real
    found.update({k: batch[k] for k in kept if k in batch})
    return type(batch)(found)


def as_rows(batch: dict[str, Any], per_sequence: Collection[str] = PER_SEQUENCE) -> dict[str, Any]:
    """The way back from `as_sequences`: leaves `[S, T, ...]` become `[S * T, ...]`.

    Args:
      batch: What `as_sequences` returned, or rows of it.
      per_sequence: As there.
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
    """T, out of the number of rows of the flat leaves."""
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
        remedy=f"Pad every sequence to the longest; {LENGTHS} says how many steps are real.",
    )


def _check_per_sequence(items: Mapping[str, Any], num: int) -> None:
    wrong = {path: n for path, n in _rows(dict(items)).items() if n != num}
    if wrong:
        raise UserError(
            "the batch",
            expected=f"one row a sequence, {num}, in {', '.join(items)}",
            got=", ".join(f"{path} of {n} rows" for path, n in wrong.items()),
            remedy="Give the state at the start of every sequence.",
        )


def _check_lengths(lengths: tf.Tensor, steps: int) -> None:
    """Refuses lengths that do not fit, where they are known: not while tracing."""
    values = tf.get_static_value(lengths)
    if values is None:
        return
    bad = np.flatnonzero((values < 1) | (values > steps))
    if bad.size:
        shown = ", ".join(f"{values[i]} (sequence {i})" for i in bad[:5])
        more = f" and {bad.size - 5} more" if bad.size > 5 else ""
        raise UserError(
            LENGTHS,
            expected=f"lengths from 1 to {steps}, the steps that the leaves hold for each",
            got=shown + more,
            remedy="Pad every sequence to the longest, or leave empty ones out.",
        )
