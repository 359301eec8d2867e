"""What can be read of a multi-agent episode: lengths, agents, columns, returns."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tfrl.episodes import nests
from tfrl.episodes.agent_log import AgentLog
from tfrl.episodes.lookback_buffer import Indices, resolve
from tfrl.episodes.single_agent_episode import SingleAgentEpisode
from tfrl.errors import UserError

Nest = Any
AgentID = str | int


class MultiAgentReader:
    """The agents' logs and what is read of them; `MultiAgentEpisode` fills them."""

    id_: str
    t_started: int
    t: int
    len_lookback_buffer: int
    is_terminated: bool
    is_truncated: bool
    agent_to_module_mapping_fn: Callable[[AgentID, Any], str]
    _begun: bool
    _logs: dict[AgentID, AgentLog]
    _infos: dict[int, dict[Any, Any]]
    _modules: dict[AgentID, str]
    _agent_episodes: dict[AgentID, SingleAgentEpisode] | None

    # Basic facts.

    def __len__(self) -> int:
        """The number of the environment's steps, the lookback not counted."""
        return self.t - self.t_started

    def env_steps(self) -> int:
        """Returns the number of the environment's steps, as `len`."""
        return len(self)

    def agent_steps(self) -> int:
        """Returns the number of steps of all agents together."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    @property
    def has_begun(self) -> bool:
        """Whether there was a reset."""
        return self._begun

    @property
    def is_done(self) -> bool:
        """Whether the whole episode ended."""
        return self.is_terminated or self.is_truncated

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have been given an observation."""
        return {agent for agent, log in self._logs.items() if log.obs_t}

    @property
    def agent_episodes(self) -> dict[AgentID, SingleAgentEpisode]:
        """`{agent_id: SingleAgentEpisode}` of the agents' own steps, to be read only."""
        if self._agent_episodes is None:
            self._agent_episodes = {a: self._episode(a) for a in self._logs if a in self.agent_ids}
        return self._agent_episodes

    def module_for(self, agent_id: AgentID) -> str:
        """Returns the module that acts for an agent, the same throughout the episode."""
        if agent_id not in self._modules:
            self._modules[agent_id] = self.agent_to_module_mapping_fn(agent_id, self)
        return self._modules[agent_id]

    def get_agents_to_act(self) -> set[AgentID]:
        """Returns the agents with an observation that they have not acted on."""
        if self.is_done:
            return set()
        return {agent for agent, log in self._logs.items() if log.must_act}

    def get_agents_that_stepped(self) -> set[AgentID]:
        """Returns the agents that acted in the last step."""
        return set(self.get_actions(-1)) if len(self) + self.len_lookback_buffer else set()

    def hanging_rewards(self) -> dict[AgentID, float]:
        """Returns, by agent, the sum of the rewards that are in no step of the agent.

        They came before its first observation, or since its last one.
        """
        return {agent: log.hanging_reward(self.t_started) for agent, log in self._logs.items()}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Returns the sum of all agents' rewards in their steps, or with those that hang."""
        total = sum(episode.get_return() for episode in self.agent_episodes.values())
        return total + (sum(self.hanging_rewards().values()) if include_hanging_rewards else 0.0)

    # Reading data, by the environment's steps.

    def get_observations(
        self,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Nest]:
        """Returns the observations that agents were given at some of the environment's steps.

        Args:
          indices: A position, 0 for the start of this chunk, gives `{agent_id: observation}`; a
            slice, a list, or None for all without the lookback, those stacked in order of time.
            Agents without any are left out.
          agent_ids: Which agents; all if None.
          neg_index_as_lookback: Whether -1 is the item before item 0; otherwise it is the last.

        Raises:
          UserError: For positions that do not exist.
        """
        return self._read("obs", indices, agent_ids, neg_index_as_lookback)

    def get_actions(
        self,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Nest]:
        """Returns the actions that agents took at some steps; see `get_observations`."""
        return self._read("action", indices, agent_ids, neg_index_as_lookback)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Nest]:
        """Returns what policies gave beside actions, all or under `key`; see `get_observations`."""
        found = self._read("extras", indices, agent_ids, neg_index_as_lookback)
        return found if key is None else {a: x[key] for a, x in found.items() if key in x}

    def get_rewards(
        self,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Any]:
        """Returns the rewards that agents were given at some steps; see `get_observations`."""
        return self._read("reward", indices, agent_ids, neg_index_as_lookback)

    def get_infos(self, index: int = -1, *, neg_index_as_lookback: bool = False) -> dict[Any, Any]:
        """Returns what the environment gave as infos at one position; see `get_observations`."""
        size = len(self) + 1
        position = resolve(
            "infos", index, size, self.len_lookback_buffer, neg_index_as_lookback, False
        )
        return self._infos.get(self.t_started + int(position), {})  # type: ignore[arg-type]

    def env_to_agent_step(self, agent_id: AgentID, env_step: int) -> int | None:
        """Returns which of the agent's observations it was given at a position of this chunk.

        Args:
          agent_id: The agent.
          env_step: 0 for the start of this chunk, negative for the lookback.

        Returns:
          The index into `agent_episodes[agent_id]`, negative for its lookback; None for none.
        """
        log, time = self._known(agent_id), self.t_started + env_step
        if time not in log.obs_t:
            return None
        return log.obs_t.index(time) - self.agent_episodes[agent_id].len_lookback_buffer

    def agent_to_env_step(self, agent_id: AgentID, agent_step: int) -> int:
        """Returns at which position of this chunk the agent was given its observation.

        Args:
          agent_id: The agent.
          agent_step: Index into `agent_episodes[agent_id]`, negative for its lookback.

        Returns:
          The position, negative before this chunk.

        Raises:
          UserError: When the agent has no such observation.
        """
        log, lookback = self._known(agent_id), self.agent_episodes[agent_id].len_lookback_buffer
        size = len(log.obs_t) - lookback
        position = resolve(f"obs of agent {agent_id}", agent_step, size, lookback, True, False)
        return log.obs_t[lookback + int(position)] - self.t_started  # type: ignore[arg-type]

    # Within.

    def _known(self, agent_id: AgentID) -> AgentLog:
        if agent_id in self.agent_ids:
            return self._logs[agent_id]
        raise UserError(
            f"agent {agent_id!r}",
            expected=f"one of {sorted(map(str, self.agent_ids))}",
            got="an agent that was given no observation",
            remedy="See episode.agent_ids.",
        )

    def _episode(self, agent_id: AgentID) -> SingleAgentEpisode:
        def infos(t: int) -> Mapping[str, Any]:
            return self._infos.get(t, {}).get(agent_id, {})

        return self._logs[agent_id].episode(
            self.t_started,
            infos,
            id_=f"{self.id_}/{agent_id}",
            agent_id=agent_id,
            module_id=self.module_for(agent_id),
            multi_agent_episode_id=self.id_,
        )

    def _read(
        self,
        column: str,
        indices: Indices,
        agent_ids: Collection[AgentID] | None,
        neg_index_as_lookback: bool,
    ) -> dict[AgentID, Any]:
        """Items of a column by agent, at positions of the environment's steps."""
        size = len(self) + (1 if column == "obs" and self._begun else 0)
        positions = resolve(
            column, indices, size, self.len_lookback_buffer, neg_index_as_lookback, False
        )
        single = isinstance(positions, int)
        shift = self.t_started + (1 if column == "reward" else 0)
        times = [p + shift for p in ([positions] if isinstance(positions, int) else positions)]
        found: dict[AgentID, Any] = {}
        for agent, log in self._logs.items():
            if agent_ids is not None and agent not in agent_ids:
                continue
            have = getattr(log, "action_t" if column == "extras" else f"{column}_t")
            at = {t: i for i, t in enumerate(have)}
            rows = [at[t] for t in times if t in at]
            late = column == "obs" and log.late_obs is not None and log.end_t in times
            if late:
                items = [log.obs.get(i) for i in rows] + [log.late_obs]
                found[agent] = items[0] if single else nests.stack(items)
                continue
            if not rows:
                continue
            if column == "reward":
                numbers = np.array([log.reward[i] for i in rows], np.float32)
                found[agent] = numbers[0] if single else numbers
            else:
                found[agent] = getattr(log, column).get(rows[0] if single else rows)
        return found
