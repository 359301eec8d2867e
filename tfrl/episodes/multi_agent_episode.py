"""An episode, or a chunk of one, of several agents."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfrl.episodes import nests
from tfrl.episodes.agent_log import AgentLog
from tfrl.episodes.multi_agent_checks import check_step
from tfrl.episodes.multi_agent_reader import AgentID, MultiAgentReader
from tfrl.episodes.single_agent_episode import SingleAgentEpisode
from tfrl.errors import UserError

Nest = Any
AgentDict = Mapping[AgentID, Any]

ALL_AGENTS = "__all__"
DEFAULT_MODULE_ID = "default_policy"


def default_mapping(agent_id: AgentID, episode: Any) -> str:
    """Maps every agent to the module `default_policy`."""
    return DEFAULT_MODULE_ID


class MultiAgentEpisode(MultiAgentReader):
    """Steps of an environment in which agents act at different times and end at different times.

    An agent that is given an observation is asked to act on it, at the next step or later. A step
    of an agent goes from an observation to the agent's next one, and its reward is the sum of all
    that the agent received in between. `agent_episodes` has every agent's own steps, made of what
    is stored here.

    A step of an agent belongs to the chunk or slice in which it is completed. So chunks and slices
    share out the agents' steps exactly; what is incomplete at the end of one (an action without
    its successor, rewards since: they hang) goes on in the next.
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
          id_: Names the episode, its chunks too; a random one if None.
          agent_to_module_mapping_fn: `fn(agent_id, episode) -> module_id`, called once for each
            agent of an episode; every agent is of the module `default_policy` if None.
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

    # Adding data.

    def add_env_reset(self, obs: AgentDict, infos: AgentDict | None = None) -> None:
        """Adds the observations that the episode starts with.

        Args:
          obs: `{agent_id: o_0}` of the agents that act first.
          infos: `{agent_id: dict}`; further keys are kept.

        Raises:
          UserError: When the episode has begun.
        """
        if self._begun:
            raise UserError(
                f"episode {self.id_}",
                expected="one reset, before the first step",
                got=f"another after {len(self)} steps",
                remedy="Make a new MultiAgentEpisode for the next episode.",
            )
        for agent, o in obs.items():
            self._log(agent).observe(self.t, nests.as_arrays(o, f"obs of agent {agent}"))
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
          obs: `{agent_id: observation}` of the agents that act next, and the last observations of
            agents that end. An agent that is truncated without one keeps its last complete step.
          action: `{agent_id: action}` of the agents that acted.
          reward: `{agent_id: number}` of any agents.
          infos: `{agent_id: dict}`; further keys are kept.
          terminated: `{agent_id: bool}`, with `"__all__"` for the whole episode; a bool means all.
            Without `"__all__"` the episode is done when all its agents are.
          truncated: In the same way.
          extra_model_outputs: `{agent_id: {name: value}}` of the agents that acted.

        Raises:
          UserError: With all that does not fit: an action of an agent that was not asked, data of
            an agent that ended, another observation for one that has not acted on its last.
        """
        terminated, truncated = _flags(terminated), _flags(truncated)
        extras = extra_model_outputs or {}
        ends = self._ends(obs, terminated, truncated)
        check_step(self, self._logs, obs, action, reward, extras, ends)
        seen = {a: nests.as_arrays(o, f"obs of agent {a}") for a, o in obs.items()}
        acts = {
            a: (
                nests.as_arrays(x, f"action of agent {a}"),
                nests.as_arrays(dict(extras.get(a, {})), f"policy_extras of agent {a}"),
            )
            for a, x in action.items()
        }
        for a, o in seen.items():  # all before any, so that an error leaves no half step
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
        for a, o in seen.items():
            if a not in ends or not self._log(a).obs_t:
                self._log(a).observe(self.t, o)
        for a, (term, trunc) in ends.items():
            last = seen.get(a) if self._log(a).obs_t[-1] < self.t else None
            self._log(a).end(self.t, last, terminated=term, truncated=trunc)
        self._infos[self.t] = dict(infos or {})
        self._set_done(terminated, truncated)
        self._agent_episodes = None

    def to_numpy(self) -> "MultiAgentEpisode":
        """Stacks everything; steps may still be added afterwards. Returns the episode."""
        for log in self._logs.values():
            for buffer in (log.obs, log.action, log.extras):
                buffer.to_numpy()
        self._agent_episodes = None
        return self

    # Chunks.

    def __getitem__(self, item: slice) -> "MultiAgentEpisode":
        """Returns the steps of a slice as a chunk; see `slice`."""
        return self.slice(item)

    def slice(
        self, slice_: slice, *, len_lookback_buffer: int | None = None
    ) -> "MultiAgentEpisode":
        """Returns some consecutive steps of the environment as a chunk of its own.

        Args:
          slice_: Which steps; negative numbers count from the end, as for a list.
          len_lookback_buffer: How many steps before the slice it carries as lookback, if there are
            as many; by default as many as this episode has.

        Raises:
          UserError: For something else than a slice of step 1.
        """
        if not isinstance(slice_, slice) or slice_.step not in (None, 1):
            raise UserError(
                f"episode {self.id_}",
                expected="a slice of consecutive steps, such as episode[2:5]",
                got=str(slice_),
                remedy="Read single items with get_observations(i), get_actions(i), ...",
            )
        start, stop, _ = slice_.indices(len(self))
        own = self.len_lookback_buffer
        lookback = min(own if len_lookback_buffer is None else len_lookback_buffer, own + start)
        return self._chunk(self.t_started + start, self.t_started + max(start, stop), lookback)

    def cut(self, len_lookback_buffer: int = 0) -> "MultiAgentEpisode":
        """Returns the chunk, of no steps yet, in which the episode goes on.

        Args:
          len_lookback_buffer: How many of the steps so far it carries as lookback.

        Raises:
          UserError: When the episode is done or has not begun.
        """
        if self.is_done or not self._begun:
            raise UserError(
                f"episode {self.id_}",
                expected="an episode that goes on",
                got="one that is done" if self.is_done else "one without a reset",
                remedy="Cut only while `not episode.is_done`, after add_env_reset.",
            )
        return self._chunk(
            self.t, self.t, min(len_lookback_buffer, len(self) + self.len_lookback_buffer)
        )

    def concat_episode(self, other: "MultiAgentEpisode") -> None:
        """Appends the chunk in which this one goes on; its lookback is left out.

        Raises:
          UserError: Unless it is of the same episode and starts where this one stops.
        """
        wrong = []
        if other.id_ != self.id_:
            wrong.append(f"id {other.id_} after {self.id_}")
        if self.is_done:
            wrong.append("an episode that is done already")
        if other.t_started != self.t:
            wrong.append(f"a chunk that starts at step {other.t_started} after step {self.t}")
        if not wrong:
            ours = self._chunk(self.t, self.t, 0)
            theirs = other._chunk(other.t_started, other.t_started, 0)
            differ = [
                a for a, log in ours._logs.items() if not _same_state(log, theirs._logs.get(a))
            ]
            if differ:
                wrong.append(f"another state of agents {differ} where the chunks meet")
        if wrong:
            raise UserError(
                "concat_episode",
                expected="the chunk in which this one goes on",
                got="; ".join(wrong),
                remedy="Concatenate chunks in order, as `cut` made them.",
            )
        for agent, log in other._logs.items():
            self._log(agent).extend(log, self.t)
        self._infos |= {t: i for t, i in other._infos.items() if t > self.t}
        self._modules = {**other._modules, **self._modules}
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._agent_episodes = None

    def validate(self) -> None:
        """Checks every agent's columns.

        Raises:
          UserError: When some do not fit together.
        """
        for episode in self.agent_episodes.values():
            episode.validate()

    def get_state(self) -> dict[str, Any]:
        """Returns all but the mapping function as a dict of arrays, numbers, strings and lists."""
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
                {"t": t, "infos": nests.as_arrays(infos, "infos")}
                for t, infos in self._infos.items()
            ],
        }

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        agent_to_module_mapping_fn: Callable[[AgentID, "MultiAgentEpisode"], str] | None = None,
    ) -> "MultiAgentEpisode":
        """Makes an episode of what `get_state` returned.

        Args:
          state: The state.
          agent_to_module_mapping_fn: For agents that come later; those in the state keep theirs.
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

    # Within.

    def _log(self, agent_id: AgentID) -> AgentLog:
        return self._logs.setdefault(agent_id, AgentLog())

    def _ends(
        self, obs: AgentDict, terminated: AgentDict, truncated: AgentDict
    ) -> dict[AgentID, tuple[bool, bool]]:
        """`{agent_id: (terminated, truncated)}` of the agents that end with this step."""
        ends = {}
        known = self.agent_ids | set(obs)
        for agent in sorted(known, key=str):
            log = self._logs.get(agent)
            if log is not None and log.end_t is not None:
                continue
            own = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if not any(own):  # an end of the whole episode ends the agents that are left
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
        """The steps between two times, sharing memory."""
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
    """End flags by agent; False alone says nothing of the whole episode."""
    if isinstance(flags, Mapping):
        return flags
    return {ALL_AGENTS: True} if flags else {}


def _same_state(ours: AgentLog, theirs: AgentLog | None) -> bool:
    """Whether two logs of no steps hold the same observation, waiting action and rewards."""
    if theirs is None or ours.obs_t != theirs.obs_t or ours.action_t != theirs.action_t:
        return False
    if not np.array_equal(ours.rewards(), theirs.rewards()):
        return False
    return all(
        nests.equal(a.all(), b.all())
        for a, b in ((ours.obs, theirs.obs), (ours.action, theirs.action))
    )
