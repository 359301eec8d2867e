"""Pieces that make one batch per module: concatenation, normalisation, tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.episodes import lookback_buffer
from tfrl.errors import UserError
from tfrl.learners.connectors.columns import RowFunction
from tfrl.learners.connectors.connector import Connector
from tfrl.learners.connectors.episode_rows import EpisodeRows, columns_by_module, rows_by_module
from tfrl.learners.connectors.transitions import learns_from_transitions

Nest = Any


class Batch(Connector):
    """Concatenates the rows (or sequences) of a module's episodes: `{module_id: {column: nest}}`.

    Every batch has a bool column `mask` of valid rows.
    """

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Concatenates; see `Connector`."""
        by_module = rows_by_module(batch, self.name)
        return {module_id: _batched(module_id, parts) for module_id, parts in by_module.items()}


class NormalizeObservations(Connector):
    """Normalises `obs` with the behaviour state's statistics.

    For modules with `normalized(state, obs)` whose state has a normaliser, since losses do not
    normalise. It comes after the values, which normalise themselves.
    """

    def __init__(self) -> None:
        """Compiles nothing yet."""
        self._functions: dict[str, tuple[Any, RowFunction]] = {}

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Changes `obs`; see `Connector`."""
        for module_id, columns in columns_by_module(batch, self.name).items():
            module, state = modules[module_id], states[module_id]
            if getattr(state, "normalizer", None) is None or not hasattr(module, "normalized"):
                continue
            if learns_from_transitions(module):  # with the statistics at learning time
                continue
            normalized = function_of(self._functions, module_id, module, module.normalized)
            obs = as_spec(columns["obs"], getattr(module, "obs_spec", None))
            columns["obs"] = normalized(state, obs)
        return batch


class ToTensors(Connector):
    """Makes tensors of all columns: `{module_id: struct.TensorDict}`.

    Observations and actions get the dtypes of the module's specs; float64 becomes float32.
    """

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Converts; see `Connector`."""
        tensors = {}
        for module_id, columns in columns_by_module(batch, self.name).items():
            module = modules[module_id]
            specs = {
                "obs": getattr(module, "obs_spec", None),
                "next_obs": getattr(module, "obs_spec", None),
                "action": getattr(module, "action_spec", None),
            }
            tensors[module_id] = struct.TensorDict(
                {
                    name: tf.nest.map_structure(tf.constant, as_spec(nest, specs.get(name)))
                    for name, nest in columns.items()
                }
            )
        return tensors


def as_spec(nest: Nest, spec: Nest) -> Nest:
    """Casts arrays to the dtypes of a spec of the same structure, else float64 to float32."""
    wanted = struct.paths(spec)
    if wanted.keys() == struct.paths(nest).keys():
        return tf.nest.pack_sequence_as(
            nest,
            [
                x.astype(s.dtype.as_numpy_dtype, copy=False)
                for x, s in zip(struct.paths(nest).values(), wanted.values(), strict=True)
            ],
        )
    return lookback_buffer.map_leaves(
        lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, nest
    )


def function_of(
    functions: dict[str, tuple[Any, RowFunction]], module_id: str, module: Any, fn: Any
) -> RowFunction:
    """Returns the compiled function of a module, recreated if the module changed."""
    if module_id not in functions or functions[module_id][0] is not module:
        functions[module_id] = (module, RowFunction(fn))
    return functions[module_id][1]


def _batched(module_id: str, parts: list[EpisodeRows]) -> dict[str, Nest]:
    """The concatenated columns of one module's episodes."""
    for rows in parts:
        lead = next(iter(struct.paths(rows.columns).values())).shape[0]
        rows.columns.setdefault("mask", np.ones([lead], bool))
    first = parts[0]
    batched = {}
    for name in {n: None for rows in parts for n in rows.columns}:
        lacking = [rows.episode.id_ for rows in parts if name not in rows.columns]
        kinds = [_kind(rows.columns[name]) for rows in parts if name in rows.columns]
        if lacking or any(kind != kinds[0] for kind in kinds):
            differ = next((str(k) for k in kinds if k != kinds[0]), "")
            raise UserError(
                f"the column {name!r} of module {module_id!r}",
                expected=f"{kinds[0]}, as in the first episode, in all {len(parts)} episodes",
                got=f"no such column in episodes {lacking[:3]}" if lacking else differ,
                remedy="Collect all episodes of a module with one policy and environment.",
            )
        batched[name] = (
            lookback_buffer.concat([rows.columns[name] for rows in parts])
            if len(parts) > 1
            else first.columns[name]
        )
    return batched


def _kind(nest: Nest) -> dict[str, Any]:
    """Shapes without the leading axis, and dtypes."""
    return {p: (str(x.dtype), list(x.shape[1:])) for p, x in struct.paths(nest).items()}
