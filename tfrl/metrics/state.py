"""How a logger's content looks outside of it, out of plain JSON types.

    {"schema": 1, "elapsed": seconds, "metrics": [
       {"path": [...], "shape": [...], "settings": {...}, "shown": {...}, "fresh": {...}, ...}]}

What `take` hands over has only the fresh blocks, and no `elapsed`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfrl.errors import UserError
from tfrl.metrics.blocks import Block
from tfrl.metrics.metric import Metric, Settings
from tfrl.metrics.paths import Path, as_path, join

SCHEMA = 1

# What one logger hands over of one metric: its shape of values is the third item.
Entry = tuple[Path, Settings, tuple[int, ...], Block]


def header(path: Path, metric: Metric) -> dict[str, Any]:
    """Returns what identifies a metric, beside its blocks."""
    settings = dataclasses.asdict(metric.settings)
    return {"path": list(path), "shape": list(metric.shape), "settings": settings}


def no_state(got: str) -> UserError:
    """Returns the error for something that no logger has returned."""
    return UserError(
        "metrics state",
        expected=f"what MetricsLogger.get_state or take returned, of schema {SCHEMA}",
        got=got,
        remedy="Use a state of this version of tfrl.",
    )


def read(state: Mapping[str, Any]) -> list[tuple[Path, Settings, tuple[int, ...], Any]]:
    """Returns the metrics of a state or of what `take` returned, their blocks still unread."""
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
        got = f"schema {state.get('schema')}" if isinstance(state, Mapping) else repr(state)
        raise no_state(got)
    try:
        return [
            (
                as_path(tuple(m["path"])),
                Settings(**m["settings"]).check(join(tuple(m["path"]))),
                tuple(m["shape"]),
                m,
            )
            for m in state["metrics"]
        ]
    except (KeyError, TypeError) as error:
        raise no_state(repr(error)) from error


def entries(taken: Mapping[str, Any]) -> list[Entry]:
    """Returns what `take` handed over, its blocks read."""
    try:
        return [
            (path, settings, shape, settings.empty_block().load_json(content["fresh"]))
            for path, settings, shape, content in read(taken)
        ]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise no_state(repr(error)) from error
