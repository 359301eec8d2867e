"""Merges running statistics after every replica has added different rows."""

from typing import Any

from tfrl.distribute.replicas import Replicas
from tfrl.ops import statistics
from tfrl.ops.statistics import RunningStatistics

Nest = Any


def merge_over_replicas(replicas: Replicas, before: Nest, after: Nest) -> Nest:
    """Returns `after` with every `RunningStatistics` extended to all replicas' rows.

    Call it inside `replicas.run`. The difference to the common statistics before gives each
    replica's new rows; these are gathered and merged in the order of the replicas.

    Args:
      replicas: The replicas.
      before: A nest whose statistics are equal on every replica.
      after: The same nest after each replica has added its rows.
    """
    if not replicas.several:
        return after

    def common(before: RunningStatistics, after: RunningStatistics) -> RunningStatistics:
        own = statistics.difference(after, before)
        joined = statistics.merge_stacked(replicas.gather(own))
        return statistics.merge(before, joined)

    return _map(common, before, after)


def _map(fn: Any, before: Nest, after: Nest) -> Nest:
    """Replaces every `RunningStatistics` of `after` with `fn(before, after)`."""
    if isinstance(after, RunningStatistics):
        return fn(before, after)
    layout = getattr(type(after), "_tfrl_layout", None)
    if layout is not None:
        changes = {n: _map(fn, getattr(before, n), getattr(after, n)) for n in layout.dynamic}
        same = all(changes[n] is getattr(after, n) for n in changes)
        return after if same else after.replace(**changes)
    if isinstance(after, dict):
        return type(after)({k: _map(fn, before[k], v) for k, v in after.items()})
    if isinstance(after, tuple) and hasattr(after, "_fields"):
        return type(after)(*(_map(fn, b, a) for b, a in zip(before, after, strict=True)))
    if isinstance(after, tuple | list):
        return type(after)(_map(fn, b, a) for b, a in zip(before, after, strict=True))
    return after
