"""A piece for agents that learn from transitions: n-step rewards and true successors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfrl.episodes import lookback_buffer
from tfrl.learners.connectors.connector import Connector
from tfrl.learners.connectors.episode_rows import EpisodeRows, column, rows_by_module


def learns_from_transitions(module: object) -> bool:
    """Whether a module is an off-policy agent, whose losses take a `tfrl.types.Transition`."""
    return bool(getattr(module, "learns_from_replay", False))


class AddNStepTransitions(Connector):
    """Turns the rows of off-policy agents into transitions of up to `n_step` steps.

    A row begins at each step t and spans m steps, n or fewer if the episode ends earlier: `reward`
    is sum_{k<m} gamma^k r_{t+k}, `next_obs` the true successor o_{t+m}, and `discount` gamma^m, or
    0 if the last of these steps terminated. n and gamma are the module's `n_step` and `discount`.
    Rows of other modules are unchanged.
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
        """Changes `reward`, adds `next_obs` and `discount`; see `Connector`."""
        for module_id, parts in rows_by_module(batch, self.name).items():
            module = modules[module_id]
            if learns_from_transitions(module):
                for rows in parts:
                    self._add(rows, int(module.n_step), float(module.discount))
        return batch

    def _add(self, rows: EpisodeRows, n: int, gamma: float) -> None:
        steps = len(rows)
        reward = np.asarray(column(rows, "reward", self.name), np.float64)
        padded = np.pad(reward, (0, n - 1))
        total = sum(gamma**k * padded[k : k + steps] for k in range(n))
        taken = np.minimum(n, steps - np.arange(steps))
        ends = np.asarray(column(rows, "termination", self.name), bool)
        last = np.arange(steps) + taken - 1
        after = lookback_buffer.concat([column(rows, "obs", self.name), rows.final_obs])
        rows.columns.update(
            reward=np.asarray(total, np.float32),
            next_obs=lookback_buffer.map_leaves(lambda x: x[last + 1], after),
            discount=np.where(ends[last], 0.0, gamma**taken).astype(np.float32),
        )
