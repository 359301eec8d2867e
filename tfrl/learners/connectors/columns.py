"""Pieces that read episodes: observations and all other columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfrl.episodes import nests
from tfrl.errors import UserError
from tfrl.learners.connectors.connector import Connector
from tfrl.learners.connectors.episode_rows import column, rows_by_episode

# Recurrent states enter a batch once a sequence, by AddStates.
STATES = ("state_in", "state_out")


class AddObservationsFromEpisodes(Connector):
    """Adds `obs`, the observation o_t of every step, and keeps the last successor at hand."""

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
            rows.columns["obs"] = nests.take(obs, slice(0, -1))
            rows.final_obs = nests.take(obs, slice(-1, None))
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
            after = nests.take(column(rows, "obs", self.name), slice(1, None))
            rows.columns["next_obs"] = nests.concat([after, rows.final_obs])
        return batch


class AddColumnsFromEpisodes(Connector):
    """Adds `action`, `reward`, `termination`, `truncation`, and the policy's extras by their names.

    Recurrent states are left to `AddStates`.
    """

    def __init__(self, extras: Sequence[str] | None = None):
        """Makes the piece.

        Args:
          extras: The names of the policy's extras to add, an error where an episode lacks one;
            all that an episode has if None.
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
                    remedy="Give them to add_env_step as extra_model_outputs.",
                )
            rows.columns.update(
                action=episode.action,
                reward=episode.reward,
                termination=episode.termination,
                truncation=episode.truncation,
                **{n: extras[n] for n in names},
            )
        return batch
