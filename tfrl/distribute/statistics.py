"""Running statistics that every replica has added rows of its own to become common again."""

from typing import Any

from tfrl.distribute.replicas import Replicas
from tfrl.ops import statistics
from tfrl.ops.statistics import RunningStatistics

Nest = Any


def merge_over_replicas(replicas: Replicas, before: Nest, after: Nest) -> Nest:
    """Returns `after` with every `RunningStatistics` in it that of all replicas' rows.

    To be called inside `replicas.run`. Each replica's new rows are what its statistics hold beyond
    the common ones from before; they are gathered and joined, in the order of the replicas.

    Args:
      replicas: The replicas.
      before: A nest whose statistics are the same on every replica.
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
    """`after` with `fn(before, after)` in the place of every `RunningStatistics`."""
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
