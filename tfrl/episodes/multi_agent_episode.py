"""An episode, or a chunk of one, of several agents."""

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from tfrl.episodes import lookback_buffer
from tfrl.episodes.agent_log import AgentLog
from tfrl.episodes.episode import BaseEpisode
from tfrl.episodes.lookback_buffer import Indices, resolve
from tfrl.episodes.single_agent_episode import SingleAgentEpisode
from tfrl.errors import UserError


def check_step(
    episode: Any,
    logs: Mapping[Any, AgentLog],
    obs: Mapping[Any, Any],
    action: Mapping[Any, Any],
    reward: Mapping[Any, Any],
    extras: Mapping[Any, Any],
    ends: Mapping[Any, Any],
) -> None:
    """Checks a step before it is added to an episode.

    Args:
      episode: The `MultiAgentEpisode`.
      logs: The logs of its agents so far.
      obs: `{agent_id: observation}`; the following arguments are also by agent.
      action: Actions.
      reward: Rewards.
      extras: Policy extras.
      ends: The agents that end with this step.

    Raises:
      UserError: For inconsistent data; it names all problems.
    """
    asked = {agent for agent, log in logs.items() if log.must_act}
    gone = {agent for agent, log in logs.items() if log.end_t is not None}
    waiting = {a for a in asked if a not in action and a not in ends}
    problems = {
        "actions of agents without a new observation": set(action) - asked - gone,
        "data of ended agents": gone & {*obs, *action, *reward},
        "observations of agents that did not act on their last observation": waiting & set(obs),
        "policy extras without an action, of agents": set(extras) - set(action),
    }
    wrong = [f"{what} {_names(agents)}" for what, agents in problems.items() if agents]
    if wrong:
        raise UserError(
            f"step {episode.t} of episode {episode.id_}",
            expected=f"actions of agents out of {_names(asked)}, and observations of agents that "
            "act next",
            got="; ".join(wrong),
            remedy="Pass an action for each agent with a new observation, until the agent ends.",
        )


def _names(agents: set[Any]) -> str:
    return str(sorted(map(str, agents)))


Nest = Any
AgentID = str | int


AgentDict = Mapping[AgentID, Any]

ALL_AGENTS = "__all__"
DEFAULT_MODULE_ID = "default_policy"


def default_mapping(agent_id: AgentID, episode: Any) -> str:
    """Maps every agent to the module `default_policy`."""
    return DEFAULT_MODULE_ID


class MultiAgentEpisode(BaseEpisode):
    """Steps of an environment whose agents act at different times and end at different times.

    An agent that gets an observation must act on it, at the next env step or later. An agent's step
    goes from an observation to its next observation, and its reward is the sum of the rewards in
    between. `agent_episodes` has every agent's steps, derived from the data stored here.

    An agent's step belongs to the chunk or slice in which it is completed, so that chunks and
    slices partition the agents' steps. Incomplete data at the end of a chunk (an action without its
    successor, and the rewards since, called hanging) continue in the next.
    """

    def __init__(
        self,
        id_: str | None = None,
        *,
        agent_to_module_mapping_fn: Callable[[AgentID, "MultiAgentEpisode"], str] | None = None,
        t_started: int = 0,
    ):
        """Makes an empty episode.

        Args:
          id_: The id of the episode and of its chunks; a random one if None.
          agent_to_module_mapping_fn: `fn(agent_id, episode) -> module_id`, called once for each
            agent of an episode; None maps every agent to the module `default_policy`.
          t_started: The number of the first step within the whole episode.
        """
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn or default_mapping
        self.t_started = t_started
        self.t = t_started
        self.len_lookback_buffer = 0
        self.is_terminated = False
        self.is_truncated = False
        self._begun = False
        self._logs: dict[AgentID, AgentLog] = {}
        self._infos: dict[int, dict[Any, Any]] = {}  # by time
        self._modules: dict[AgentID, str] = {}
        self._agent_episodes: dict[AgentID, SingleAgentEpisode] | None = None

    # Basic facts.

    def agent_steps(self) -> int:
        """Returns the number of steps of all agents together."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    @property
    def has_begun(self) -> bool:
        """Whether the episode has a reset."""
        return self._begun

    @property
    def agent_ids(self) -> set[AgentID]:
        """The agents that have had an observation."""
        return {agent for agent, log in self._logs.items() if log.obs_t}

    @property
    def agent_episodes(self) -> dict[AgentID, SingleAgentEpisode]:
        """`{agent_id: SingleAgentEpisode}` of the agents' steps, read-only."""
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
        """Returns, by agent, the sum of the rewards that belong to no step of the agent.

        They come before the agent's first observation, or after its last one.
        """
        return {agent: log.hanging_reward(self.t_started) for agent, log in self._logs.items()}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Returns the sum of all agents' rewards in steps, optionally with hanging rewards."""
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
        """Returns the agents' observations at some env steps.

        Args:
          indices: For a position (0 is the start of this chunk), the result is `{agent_id:
            observation}`. For a slice, a list, or None for all without the lookback, observations
            are stacked in order of time. Agents without observations are left out.
          agent_ids: The agents; all if None.
          neg_index_as_lookback: Whether -1 is the item before item 0; otherwise it is the last.

        Raises:
          UserError: For missing positions.
        """
        return self._read("obs", indices, agent_ids, neg_index_as_lookback)

    def get_actions(
        self,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Nest]:
        """Returns the agents' actions at some env steps; see `get_observations`."""
        return self._read("action", indices, agent_ids, neg_index_as_lookback)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Nest]:
        """Returns the policy extras, all or of one `key`; see `get_observations`."""
        extras = self._read("extras", indices, agent_ids, neg_index_as_lookback)
        return extras if key is None else {a: x[key] for a, x in extras.items() if key in x}

    def get_rewards(
        self,
        indices: Indices = -1,
        agent_ids: Collection[AgentID] | None = None,
        *,
        neg_index_as_lookback: bool = False,
    ) -> dict[AgentID, Any]:
        """Returns the agents' rewards at some env steps; see `get_observations`."""
        return self._read("reward", indices, agent_ids, neg_index_as_lookback)

    def get_infos(self, index: int = -1, *, neg_index_as_lookback: bool = False) -> dict[Any, Any]:
        """Returns the environment's infos at one position; see `get_observations`."""
        size = len(self) + 1
        position = resolve(
            "infos", index, size, self.len_lookback_buffer, neg_index_as_lookback, False
        )
        return self._infos.get(self.t_started + int(position), {})  # type: ignore[arg-type]

    def env_to_agent_step(self, agent_id: AgentID, env_step: int) -> int | None:
        """Returns the index of the agent's observation at a position of this chunk.

        Args:
          agent_id: The agent.
          env_step: 0 for the start of this chunk, negative for the lookback.

        Returns:
          The index into `agent_episodes[agent_id]`, negative for its lookback; None without an
          observation.
        """
        log, time = self._known(agent_id), self.t_started + env_step
        if time not in log.obs_t:
            return None
        return log.obs_t.index(time) - self.agent_episodes[agent_id].len_lookback_buffer

    def agent_to_env_step(self, agent_id: AgentID, agent_step: int) -> int:
        """Returns the position in this chunk of an agent's observation.

        Args:
          agent_id: The agent.
          agent_step: Index into `agent_episodes[agent_id]`, negative for its lookback.

        Returns:
          The position, negative before this chunk.

        Raises:
          UserError: If the agent has no such observation.
        """
        log, lookback = self._known(agent_id), self.agent_episodes[agent_id].len_lookback_buffer
        size = len(log.obs_t) - lookback
        position = resolve(f"obs of agent {agent_id}", agent_step, size, lookback, True, False)
        return log.obs_t[lookback + int(position)] - self.t_started  # type: ignore[arg-type]

    # Adding data.

    def add_env_reset(self, obs: AgentDict, infos: AgentDict | None = None) -> None:
        """Adds the first observations of the episode.

        Args:
          obs: `{agent_id: o_0}` of the agents that act first.
          infos: `{agent_id: dict}`; further keys are kept.

        Raises:
          UserError: If the episode has begun.
        """
        self._check_reset()
        for agent, o in obs.items():
            self._log(agent).observe(self.t, lookback_buffer.as_arrays(o, f"obs of agent {agent}"))
        self._infos[self.t] = dict(infos or {})
        self._begun = True
        self._agent_episodes = None

    def add_env_step(
        self,
        obs: AgentDict,
        action: AgentDict,
        reward: AgentDict,
        infos: AgentDict | None = None,
        *,
        terminated: AgentDict | bool = False,
        truncated: AgentDict | bool = False,
        extra_model_outputs: Mapping[AgentID, Mapping[str, Nest]] | None = None,
    ) -> None:
        """Adds a step of the environment.

        Args:
          obs: `{agent_id: observation}` of the agents that act next, and of agents that end. A
            truncated agent without an observation ends with its last complete step.
          action: `{agent_id: action}` of the agents that acted.
          reward: `{agent_id: number}` of any agents.
          infos: `{agent_id: dict}`; further keys are kept.
          terminated: `{agent_id: bool}`, with `"__all__"` for the whole episode; a bool means all.
            Without `"__all__"` the episode is done when all its agents are.
          truncated: See `terminated`.
          extra_model_outputs: `{agent_id: {name: value}}` of the agents that acted.

        Raises:
          UserError: For an action of an agent that need not act, data of an agent that has ended,
            or a new observation of an agent that has not acted on its last; it names all problems.
        """
        terminated, truncated = _flags(terminated), _flags(truncated)
        extras = extra_model_outputs or {}
        ends = self._ends(obs, terminated, truncated)
        self._check_goes_on()
        check_step(self, self._logs, obs, action, reward, extras, ends)
        arrays = {a: lookback_buffer.as_arrays(o, f"obs of agent {a}") for a, o in obs.items()}
        acts = {
            a: (
                lookback_buffer.as_arrays(x, f"action of agent {a}"),
                lookback_buffer.as_arrays(dict(extras.get(a, {})), f"policy_extras of agent {a}"),
            )
            for a, x in action.items()
        }
        for a, o in arrays.items():  # checks all first, so that an error adds no partial step
            self._log(a).obs.check(o)
        for a, (x, extra) in acts.items():
            self._log(a).action.check(x)
            self._log(a).extras.check(extra)
        for a, (x, extra) in acts.items():
            self._log(a).act(self.t, x, extra)
        self.t += 1
        for a, r in reward.items():
            self._log(a).reward.append(float(r))
            self._log(a).reward_t.append(self.t)
        for a, o in arrays.items():
            if a not in ends or not self._log(a).obs_t:
                self._log(a).observe(self.t, o)
        for a, (term, trunc) in ends.items():
            last = arrays.get(a) if self._log(a).obs_t[-1] < self.t else None
            self._log(a).end(self.t, last, terminated=term, truncated=trunc)
        self._infos[self.t] = dict(infos or {})
        self._set_done(terminated, truncated)
        self._agent_episodes = None

    def to_numpy(self) -> "MultiAgentEpisode":
        """Stacks all columns and returns the episode; steps may still be added afterwards."""
        for log in self._logs.values():
            for buffer in (log.obs, log.action, log.extras):
                buffer.to_numpy()
        self._agent_episodes = None
        return self

    # Chunks.

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Appends the chunk that continues this one, without its lookback.

        Raises:
          UserError: Unless it belongs to the same episode and starts where this one stops.
        """
        self._check_meets(other)
        for agent, log in other._logs.items():
            self._log(agent).extend(log, self.t)
        self._infos |= {t: i for t, i in other._infos.items() if t > self.t}
        self._modules = {**other._modules, **self._modules}
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._agent_episodes = None

    def _differences(self, other: Any) -> list[str]:
        if self.is_done or other.t_started != self.t:
            return []
        ours, theirs = self._chunk(len(self), len(self), 0), other._chunk(0, 0, 0)
        differ = [a for a, log in ours._logs.items() if not _same_state(log, theirs._logs.get(a))]
        return [f"a different state of agents {differ} at the boundary"] if differ else []

    def validate(self) -> None:
        """Checks every agent's columns.

        Raises:
          UserError: If lengths are inconsistent.
        """
        for episode in self.agent_episodes.values():
            episode.validate()

    def get_state(self) -> dict[str, Any]:
        """Returns everything but the mapping function, as arrays, numbers, strings and lists."""
        return {
            "id_": self.id_,
            "t_started": self.t_started,
            "t": self.t,
            "len_lookback_buffer": self.len_lookback_buffer,
            "is_terminated": self.is_terminated,
            "is_truncated": self.is_truncated,
            "begun": self._begun,
            "agents": [
                {"agent_id": agent, "module_id": self.module_for(agent), **log.get_state()}
                for agent, log in self._logs.items()
            ],
            "infos": [
                {"t": t, "infos": lookback_buffer.as_arrays(infos, "infos")}
                for t, infos in self._infos.items()
            ],
        }

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        agent_to_module_mapping_fn: Callable[[AgentID, "MultiAgentEpisode"], str] | None = None,
    ) -> "MultiAgentEpisode":
        """Makes an episode from the result of `get_state`.

        Args:
          state: The state.
          agent_to_module_mapping_fn: For later agents; agents in the state keep their modules.
        """
        episode = cls(
            state["id_"],
            agent_to_module_mapping_fn=agent_to_module_mapping_fn,
            t_started=state["t_started"],
        )
        for name in ("t", "len_lookback_buffer", "is_terminated", "is_truncated"):
            setattr(episode, name, state[name])
        episode._begun = state["begun"]
        for agent in state["agents"]:
            episode._logs[agent["agent_id"]] = AgentLog.from_state(agent)
            episode._modules[agent["agent_id"]] = agent["module_id"]
        episode._infos = {entry["t"]: dict(entry["infos"]) for entry in state["infos"]}
        return episode

    def __repr__(self) -> str:
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "open"
        agents = ", ".join(map(str, self._logs))
        return f"MultiAgentEpisode({self.id_}, steps {self.t_started} to {self.t}, {end}, {agents})"

    # Internals.

    def _known(self, agent_id: AgentID) -> AgentLog:
        if agent_id in self.agent_ids:
            return self._logs[agent_id]
        raise UserError(
            f"agent {agent_id!r}",
            expected=f"one of {sorted(map(str, self.agent_ids))}",
            got="an agent without an observation",
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
        """Returns items of a column by agent, at positions of env steps."""
        size = len(self) + (1 if column == "obs" and self._begun else 0)
        positions = resolve(
            column, indices, size, self.len_lookback_buffer, neg_index_as_lookback, False
        )
        single = isinstance(positions, int)
        shift = self.t_started + (1 if column == "reward" else 0)
        times = [p + shift for p in ([positions] if isinstance(positions, int) else positions)]
        by_agent: dict[AgentID, Any] = {}
        for agent, log in self._logs.items():
            if agent_ids is not None and agent not in agent_ids:
                continue
            have = getattr(log, "action_t" if column == "extras" else f"{column}_t")
            at = {t: i for i, t in enumerate(have)}
            rows = [at[t] for t in times if t in at]
            late = column == "obs" and log.late_obs is not None and log.end_t in times
            if late:
                items = [log.obs.get(i) for i in rows] + [log.late_obs]
                by_agent[agent] = items[0] if single else lookback_buffer.stack(items)
                continue
            if not rows:
                continue
            if column == "reward":
                numbers = np.array([log.reward[i] for i in rows], np.float32)
                by_agent[agent] = numbers[0] if single else numbers
            else:
                by_agent[agent] = getattr(log, column).get(rows[0] if single else rows)
        return by_agent

    def _log(self, agent_id: AgentID) -> AgentLog:
        return self._logs.setdefault(agent_id, AgentLog())

    def _ends(
        self, obs: AgentDict, terminated: AgentDict, truncated: AgentDict
    ) -> dict[AgentID, tuple[bool, bool]]:
        """Returns `{agent_id: (terminated, truncated)}` of the agents that end with this step."""
        ends = {}
        known = self.agent_ids | set(obs)
        for agent in sorted(known, key=str):
            log = self._logs.get(agent)
            if log is not None and log.end_t is not None:
                continue
            own = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if not any(own):  # the end of the whole episode ends the remaining agents
                own = bool(terminated.get(ALL_AGENTS)), bool(truncated.get(ALL_AGENTS))
            if any(own):
                ends[agent] = own
        return ends

    def _set_done(self, terminated: AgentDict, truncated: AgentDict) -> None:
        self.is_terminated = bool(terminated.get(ALL_AGENTS, False))
        self.is_truncated = bool(truncated.get(ALL_AGENTS, False))
        left_open = ALL_AGENTS not in terminated and ALL_AGENTS not in truncated
        logs = [self._logs[agent] for agent in self.agent_ids]
        if left_open and logs and all(log.end_t is not None for log in logs):
            self.is_terminated = all(log.terminated for log in logs)
            self.is_truncated = not self.is_terminated

    def _chunk(self, start: int, stop: int, lookback: int) -> "MultiAgentEpisode":
        """Returns steps `start` to `stop` with a lookback, sharing memory."""
        start, stop = self.t_started + start, self.t_started + stop
        part = MultiAgentEpisode(
            self.id_,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
            t_started=start,
        )
        part.t, part.len_lookback_buffer, part._begun = stop, lookback, self._begun
        part._modules = dict(self._modules)
        for agent, log in self._logs.items():
            window = log.window(start, stop, lookback)
            if window is not None:
                part._logs[agent] = window
        oldest = min([t for log in part._logs.values() for t in log.obs_t[:1]], default=start)
        oldest = min(oldest, start - lookback)
        part._infos = {t: i for t, i in self._infos.items() if oldest <= t <= stop}
        if stop == self.t:
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part


def _flags(flags: AgentDict | bool) -> AgentDict:
    """Returns end flags by agent; a plain False sets no flag of the whole episode."""
    if isinstance(flags, Mapping):
        return flags
    return {ALL_AGENTS: True} if flags else {}


def _same_state(ours: AgentLog, theirs: AgentLog | None) -> bool:
    """Whether two logs without steps have equal observation, pending action and rewards."""
    if theirs is None or ours.obs_t != theirs.obs_t or ours.action_t != theirs.action_t:
        return False
    if not np.array_equal(ours.rewards(), theirs.rewards()):
        return False
    return all(
        lookback_buffer.equal(a.all(), b.all())
        for a, b in ((ours.obs, theirs.obs), (ours.action, theirs.action))
    )
