"""One agent's observations, actions and rewards in a multi-agent episode, with their times."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfrl.episodes import lookback_buffer
from tfrl.episodes.lookback_buffer import LookbackBuffer
from tfrl.episodes.single_agent_episode import SingleAgentEpisode

Nest = Any


@dataclasses.dataclass
class AgentLog:
    """Columns of one agent and their times.

    The env step k leads from time k to time k + 1: its actions have time k, its observations and
    rewards time k + 1. Action i answers observation i, so there are as many actions as
    observations, or one less while the last observation has no action. The agent's step i goes from
    observation i to observation i + 1 and has all rewards in between.

    Attributes:
      obs: Observations, with the times `obs_t`.
      action: Actions, with the times `action_t`.
      extras: The policy extras of each action, a dict.
      reward: Rewards, with the times `reward_t`.
      end_t: The time at which the agent ended, or None.
      terminated: Whether it ended in a terminal state.
      truncated: Whether it was truncated.
      late_obs: The last observation of an agent that ended without acting on the one before.
      steps_before: The number of the agent's steps before observation 0.
    """

    obs: LookbackBuffer = dataclasses.field(default_factory=lambda: LookbackBuffer("obs"))
    obs_t: list[int] = dataclasses.field(default_factory=list)
    action: LookbackBuffer = dataclasses.field(default_factory=lambda: LookbackBuffer("action"))
    extras: LookbackBuffer = dataclasses.field(
        default_factory=lambda: LookbackBuffer("policy_extras")
    )
    action_t: list[int] = dataclasses.field(default_factory=list)
    reward: list[float] = dataclasses.field(default_factory=list)
    reward_t: list[int] = dataclasses.field(default_factory=list)
    end_t: int | None = None
    terminated: bool = False
    truncated: bool = False
    late_obs: Nest = None
    steps_before: int = 0

    @property
    def must_act(self) -> bool:
        """Whether the last observation has no action yet."""
        return self.end_t is None and len(self.action_t) < len(self.obs_t)

    @property
    def acting(self) -> bool:
        """Whether the last action has no next observation yet."""
        return bool(self.obs_t) and len(self.action_t) == len(self.obs_t)

    def act(self, t: int, action: Nest, extras: Nest) -> None:
        """Adds an action at time t."""
        self.action.append(action)
        self.extras.append(extras)
        self.action_t.append(t)

    def observe(self, t: int, obs: Nest) -> None:
        """Adds an observation at time t."""
        self.obs.append(obs)
        self.obs_t.append(t)

    def end(self, t: int, obs: Nest, *, terminated: bool, truncated: bool) -> None:
        """Ends the agent at time t, with its last observation or None.

        A terminal step without an observation repeats the one before, since its value is never
        used. A truncated step without an observation stays incomplete: it needs its true successor.
        """
        if self.acting and (obs is not None or terminated):
            self.observe(t, self.obs.get(-1) if obs is None else obs)
        elif not self.acting:
            self.late_obs = obs
        self.end_t, self.terminated, self.truncated = t, terminated, truncated

    def window(self, start: int, stop: int, lookback: int) -> "AgentLog | None":
        """Returns the log of the times after `start` up to `stop`, sharing memory.

        It has the agent's steps completed in these times, with the data that they need from before.
        At `stop` an action may be pending, with its rewards so far.

        Args:
          start: A time.
          stop: A time.
          lookback: The env steps to keep before `start`.

        Returns:
          A log, or None if the agent is absent in these times.
        """
        if self.end_t is not None and self.end_t <= start:
            return None
        upto = _count(self.obs_t, stop)
        current = max(_count(self.obs_t, start) - 1, 0)
        first = min(_count(self.obs_t, start - lookback - 1), current)
        carried = bool(self.obs_t) and self.obs_t[first] <= start
        after = self.obs_t[first] if carried else start
        rewards = slice(_count(self.reward_t, after), _count(self.reward_t, stop))
        if not upto and not self.reward_t[rewards]:
            return None
        acted = max(_count(self.action_t, stop - 1), first)
        part = AgentLog(
            obs=self.obs.cut(first, upto, 0) if upto else LookbackBuffer("obs"),
            obs_t=self.obs_t[first:upto],
            action=self.action.cut(first, acted, 0),
            extras=self.extras.cut(first, acted, 0),
            action_t=self.action_t[first:acted],
            reward=self.reward[rewards],
            reward_t=self.reward_t[rewards],
            steps_before=self.steps_before + first,
        )
        if self.end_t is not None and self.end_t <= stop:
            part.end_t, part.terminated, part.truncated = (
                self.end_t,
                self.terminated,
                self.truncated,
            )
            part.late_obs = self.late_obs
        return part

    def extend(self, other: "AgentLog", start: int) -> None:
        """Appends the data of another log after time `start`."""
        observed, acted = _count(other.obs_t, start), _count(other.action_t, start - 1)
        self.obs.extend(other.obs, observed)
        self.obs_t += other.obs_t[observed:]
        self.action.extend(other.action, acted)
        self.extras.extend(other.extras, acted)
        self.action_t += other.action_t[acted:]
        paid = _count(other.reward_t, start)
        self.reward += other.reward[paid:]
        self.reward_t += other.reward_t[paid:]
        self.end_t, self.late_obs = other.end_t, other.late_obs
        self.terminated, self.truncated = other.terminated, other.truncated

    def rewards(self) -> np.ndarray:
        """Returns sums of rewards, float64 `[n + 1]` for n observations.

        Item 0 sums the rewards before the first observation, item i + 1 those after observation i.
        The last item belongs to no complete step yet.
        """
        bins = np.searchsorted(self.obs_t, self.reward_t, side="left")
        return np.bincount(bins, weights=self.reward, minlength=len(self.obs_t) + 1)

    def episode(
        self, start: int, infos: Callable[[int], Mapping[str, Any]], **identity: Any
    ) -> SingleAgentEpisode:
        """Returns the agent's steps completed after `start`, with earlier steps as lookback.

        If an agent ended without acting on its last observation, its last step is the one before.
        That step has all later rewards, and its successor is the agent's last observation.

        Args:
          start: The start time of the chunk.
          infos: Returns the agent's infos at a time.
          **identity: Ids of the episode.
        """
        steps = len(self.obs_t) - 1
        own = max(_count(self.obs_t, start) - 1, 0)  # index of the first step after the lookback
        sums = self.rewards()
        obs = self.obs.cut(own, steps + 1, own)
        if self.end_t is not None and not self.acting and steps > own:
            sums[steps] += sums[steps + 1]
            if self.late_obs is not None:
                obs.replace_last(self.late_obs)
        reward = sums[1 : steps + 1].astype(np.float32)
        return SingleAgentEpisode.of_buffers(
            obs=obs,
            action=self.action.cut(own, steps, own),
            reward=LookbackBuffer("reward", stacked=reward, size=steps, lookback=own),
            policy_extras=self.extras.cut(own, steps, own),
            infos=[dict(infos(t)) for t in self.obs_t],
            termination=self.terminated,
            truncation=self.truncated,
            t_started=self.steps_before + own,
            **identity,
        )

    def hanging_reward(self, start: int) -> float:
        """Returns the sum of rewards after `start` that belong to no step of `episode`."""
        sums = self.rewards()
        # Before the first observation; 0 in a chunk that continues an agent's episode.
        hanging = sums[0]
        if self.obs_t:
            own_steps = len(self.obs_t) - 1 - max(_count(self.obs_t, start) - 1, 0)
            merged = self.end_t is not None and not self.acting and own_steps > 0
            hanging += 0.0 if merged else sums[-1]
        return float(hanging)

    def get_state(self) -> dict[str, Any]:
        """Returns everything as a dict of arrays and numbers."""
        state = {
            "obs": self.obs.all(),
            "obs_t": np.array(self.obs_t, np.int64),
            "action": self.action.all(),
            "policy_extras": self.extras.all(),
            "action_t": np.array(self.action_t, np.int64),
            "reward": np.array(self.reward, np.float64),
            "reward_t": np.array(self.reward_t, np.int64),
            "steps_before": self.steps_before,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "end_t": self.end_t,
            "late_obs": self.late_obs,
        }
        return {name: value for name, value in state.items() if value is not None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "AgentLog":
        """Makes a log from the result of `get_state`."""
        times = {n: [int(t) for t in state[n]] for n in ("obs_t", "action_t", "reward_t")}
        acted = len(times["action_t"])
        extras = (
            lookback_buffer.as_arrays(state["policy_extras"], "policy_extras") if acted else None
        )
        return cls(
            obs=LookbackBuffer.of("obs", state.get("obs")),
            action=LookbackBuffer.of("action", state.get("action")),
            extras=LookbackBuffer("policy_extras", stacked=extras, size=acted),
            reward=[float(r) for r in state["reward"]],
            end_t=state.get("end_t"),
            late_obs=state.get("late_obs"),
            steps_before=state["steps_before"],
            terminated=state["terminated"],
            truncated=state["truncated"],
            obs_t=times["obs_t"],
            action_t=times["action_t"],
            reward_t=times["reward_t"],
        )


def _count(times: list[int], t: int) -> int:
    """Returns the number of ascending times <= t."""
    return int(np.searchsorted(times, t, side="right"))
