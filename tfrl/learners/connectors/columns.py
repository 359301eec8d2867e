"""Connectors that make, rename and map columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.episodes import DEFAULT_MODULE_ID, lookback_buffer
from tfrl.errors import UserError
from tfrl.learners.connectors.connector import MODULES_TO_TRAIN, Connector
from tfrl.learners.connectors.episode_rows import EpisodeRows, column, rows_by_episode
from tfrl.traces import counted_separately

Nest = Any
_LEAST = 8
# AddStates adds recurrent states once per sequence.
STATES = ("state_in", "state_out")


class RowFunction:
    """A pure function `fn(state, rows) -> rows`, traced once per power of two of rows.

    Rows are padded with zeros (False in a mask), and the result is cut: the number of steps changes
    between calls, and every new number would retrace.
    """

    def __init__(self, fn: Callable[[Any, Nest], Nest]):
        """Compiles nothing yet.

        Args:
          fn: Takes a state and a nest `[N, ...]`; returns a nest `[N, ...]` whose rows do not
            depend on later rows.
        """
        self._fn = fn
        self._compiled: dict[tuple[int, ...], Any] = {}

    def __call__(self, state: Any, rows: Nest, *, axes: int = 1) -> Nest:
        """Returns the result for arrays `[N, ...]`, as arrays.

        Args:
          state: Values or variables, passed to the function.
          rows: A nest of arrays `[N, ...]`.
          axes: Number of leading axes padded to a power of two, equal in all leaves.
        """
        sizes = next(iter(struct.paths(rows).values())).shape[:axes]
        padded = lookback_buffer.map_leaves(lambda x: tf.constant(_padded(x, sizes)), rows)
        longest = tuple(map(padded_size, sizes))
        if longest not in self._compiled:
            # One function per size, since TensorFlow warns of several traces of one function.
            self._compiled[longest] = tf.function(counted_separately(self._fn))
        result = self._compiled[longest](struct.values(state), padded)
        return tf.nest.map_structure(lambda x: x.numpy()[tuple(map(slice, sizes))], result)

    @property
    def traces(self) -> int:
        """The number of traces."""
        return sum(fn.experimental_get_tracing_count() for fn in self._compiled.values())


def padded_size(size: int) -> int:
    """The smallest power of two >= max(size, 8)."""
    return max(_LEAST, 1 << (size - 1).bit_length())


def _padded(x: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """An array with zeros after the leading `sizes`, up to powers of two."""
    missing = [(0, padded_size(n) - n) for n in sizes]
    return np.pad(x, missing + [(0, 0)] * (x.ndim - len(sizes)))


class AgentToModule(Connector):
    """Turns rows by episode and agent into `{module_id: [EpisodeRows]}`.

    An episode of a multi-agent episode has its module there, by `agent_to_module_mapping_fn`. One
    without a module is the default module's, or that of the only module. Where
    `shared_data["modules_to_train"]` names modules, rows of others go no further.
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
        """Regroups the rows; see `Connector`."""
        batch = rows_by_episode(batch, episodes, self.name)
        only = next(iter(modules)) if len(modules) == 1 else DEFAULT_MODULE_ID
        mapped: dict[str, list[EpisodeRows]] = {}
        for rows in batch.values():
            mapped.setdefault(rows.episode.module_id or only, []).append(rows)
        unknown = sorted(set(mapped) - set(modules))
        if unknown:
            agents = sorted(str(r.episode.agent_id) for m in unknown for r in mapped[m])
            raise UserError(
                "the modules of the episodes",
                expected=f"modules of the learner, {sorted(modules)}",
                got=f"{sorted(mapped)}, of which {unknown} are unknown (agents {agents})",
                remedy="Add the modules, or let agent_to_module_mapping_fn return known ones.",
            )
        # For what needs whole episodes, such as observation statistics.
        shared_data["module_episodes"] = {
            m: [r.episode for r in rows] for m, rows in mapped.items()
        }
        if MODULES_TO_TRAIN in shared_data:
            return {m: rows for m, rows in mapped.items() if m in shared_data[MODULES_TO_TRAIN]}
        return mapped


class AddObservationsFromEpisodes(Connector):
    """Adds `obs`, the observation o_t of every step, and keeps the last successor."""

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Adds the column; see `Connector`."""
        batch = rows_by_episode(batch, episodes, self.name)
        for rows in batch.values():
            obs = rows.episode.get_observations()  # [T + 1, ...]
            rows.columns["obs"] = lookback_buffer.take(obs, slice(0, -1))
            rows.final_obs = lookback_buffer.take(obs, slice(-1, None))
        return batch


class AddNextObservationsFromEpisodes(Connector):
    """Adds `next_obs`, the true successor o_{t+1} of every step, for algorithms that store it."""

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Adds the column; see `Connector`."""
        batch = rows_by_episode(batch, episodes, self.name)
        for rows in batch.values():
            after = lookback_buffer.take(column(rows, "obs", self.name), slice(1, None))
            rows.columns["next_obs"] = lookback_buffer.concat([after, rows.final_obs])
        return batch


class AddColumnsFromEpisodes(Connector):
    """Adds `action`, `reward`, `termination`, `truncation`, and the policy's extras by their names.

    Recurrent states are left to `AddStates`.
    """

    def __init__(self, extras: Sequence[str] | None = None):
        """Makes the piece.

        Args:
          extras: The names of the policy's extras to add, which every episode must have; all of an
            episode's if None.
        """
        self.extras = None if extras is None else tuple(extras)

    def __call__(
        self,
        *,
        modules: Mapping[str, Any],
        states: Mapping[str, Any],
        batch: dict[Any, Any],
        episodes: Sequence[Any],
        shared_data: dict[str, Any],
    ) -> dict[Any, Any]:
        """Adds the columns; see `Connector`."""
        batch = rows_by_episode(batch, episodes, self.name)
        for rows in batch.values():
            episode = rows.episode
            extras = episode.policy_extras
            names = [n for n in extras if n not in STATES] if self.extras is None else self.extras
            missing = [n for n in names if n not in extras]
            if missing:
                raise UserError(
                    f"episode {episode.id_}",
                    expected=f"the policy's extras {list(names)} at every step",
                    got=f"{sorted(extras)}, without {missing}",
                    remedy="Pass them to add_env_step as extra_model_outputs.",
                )
            rows.columns.update(
                action=episode.action,
                reward=episode.reward,
                termination=episode.termination,
                truncation=episode.truncation,
                **{n: extras[n] for n in names},
            )
        return batch
