"""The rows of one episode in the pipeline."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from tfrl.errors import UserError

Nest = Any


@dataclasses.dataclass
class EpisodeRows:
    """Columns of the steps of one agent's episode.

    Attributes:
      episode: The source.
      columns: `{name: nest}`, leaves `[T, ...]`; after `AddTimeDimAndMask` `[S, L, ...]`.
      final_obs: The true successor of the last step, leaves `[1, ...]`. A piece that changes the
        column `obs` must also change it, since values are computed for both.
      sequence_starts: The steps where sequences start, once there is a time dimension.
    """

    episode: SingleAgentEpisode
    columns: dict[str, Nest]
    final_obs: Nest = None
    sequence_starts: list[int] | None = None

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.episode)


def rows_by_episode(
    batch: dict[Any, Any], episodes: Sequence[Any], piece: str
) -> dict[tuple[int, Any], EpisodeRows]:
    """Returns the rows by (episode index, agent id); creates them if needed.

    Episodes without a step have no rows.

    Raises:
      UserError: Without any step, or if the rows are past this stage.
    """
    if batch:
        if all(isinstance(rows, EpisodeRows) for rows in batch.values()):
            return batch
        raise UserError(
            f"the connector {piece}",
            expected="rows grouped by episode",
            got="a batch grouped by module",
            remedy="Put it before AgentToModule.",
        )
    for index, episode in enumerate(episodes):
        for part in _single_agent_episodes(episode):
            if len(part):
                batch[index, part.agent_id] = EpisodeRows(part.to_numpy(), {})
    if not batch:
        raise UserError(
            "episodes",
            expected="at least one episode with a step",
            got=f"{len(episodes)} without a step" if len(episodes) else "an empty list",
            remedy="Collect experience before the update.",
        )
    return batch


def rows_by_module(batch: dict[Any, Any], piece: str) -> dict[str, list[EpisodeRows]]:
    """Returns the batch, `{module_id: [EpisodeRows]}`.

    Raises:
      UserError: If it is before or past this stage.
    """
    if all(isinstance(rows, list) for rows in batch.values()):
        return batch
    raise UserError(
        f"the connector {piece}",
        expected="rows of episodes grouped by module",
        got="a batch before AgentToModule or after Batch",
        remedy="Put it after AgentToModule and before Batch.",
    )


def columns_by_module(batch: dict[Any, Any], piece: str) -> dict[str, dict[str, Nest]]:
    """Returns the batch, `{module_id: {column: nest of arrays}}`.

    Raises:
      UserError: If it is before this stage.
    """
    if all(isinstance(rows, dict) for rows in batch.values()):
        return batch
    raise UserError(
        f"the connector {piece}",
        expected="columns grouped by module",
        got="rows of single episodes",
        remedy="Put it after Batch.",
    )


def column(rows: EpisodeRows, name: str, piece: str) -> Nest:
    """Returns a column.

    Raises:
      UserError: If no piece has added it.
    """
    if name in rows.columns:
        return rows.columns[name]
    raise UserError(
        f"the connector {piece}",
        expected=f"a column {name!r}",
        got=f"columns {sorted(rows.columns)}",
        remedy="Put AddObservationsFromEpisodes and AddColumnsFromEpisodes before it.",
    )


def _single_agent_episodes(episode: Any) -> list[SingleAgentEpisode]:
    if isinstance(episode, MultiAgentEpisode):
        return list(episode.agent_episodes.values())
    if isinstance(episode, SingleAgentEpisode):
        return [episode]
    raise UserError(
        "episodes",
        expected="SingleAgentEpisodes and MultiAgentEpisodes",
        got=type(episode).__name__,
        remedy="Create them from a rollout with SingleAgentEpisode.from_trajectory.",
    )
