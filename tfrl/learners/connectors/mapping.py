"""The piece that hands every agent's rows to the module that acts for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UserError
from tfrl.learners.connectors.connector import MODULES_TO_TRAIN, Connector
from tfrl.learners.connectors.episode_rows import EpisodeRows, rows_by_episode


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
