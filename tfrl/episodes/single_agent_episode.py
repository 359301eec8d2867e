"""An episode, or a chunk of one, of a single agent."""

import uuid
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from tfrl.episodes import lookback_buffer
from tfrl.episodes.episode import BaseEpisode
from tfrl.episodes.lookback_buffer import Indices, LookbackBuffer, resolve
from tfrl.episodes.trajectories import episodes_of, trajectory_of
from tfrl.errors import UserError
from tfrl.types import Trajectory

Nest = Any


def extras_buffer(columns: Mapping[str, Nest] | None, steps: int, lookback: int) -> LookbackBuffer:
    """Returns a buffer of dicts from columns, each a list of items or stacked."""
    stacked, sizes = {}, {}
    for name, column in (columns or {}).items():
        buffer = LookbackBuffer.of(f"policy_extras/{name}", column)
        sizes[name] = buffer.size
        if buffer.size:
            stacked[name] = buffer.all()
    if any(size != steps for size in sizes.values()):
        raise UserError(
            "policy_extras", expected=f"{steps} items per key, one per action", got=str(sizes)
        )
    rows = stacked if steps else None
    return LookbackBuffer("policy_extras", stacked=rows, size=steps, lookback=lookback)


def _last(steps: int, flag: bool) -> np.ndarray:
    column = np.zeros([steps], bool)
    if steps:
        column[-1] = flag
    return column


class SingleAgentEpisode(BaseEpisode):
    """Observations o_0 .. o_T and, between them, T actions, rewards and policy extras, in NumPy.

    Step t is (o_t, a_t, r_t, o_{t+1}). The last observation is the true successor of the last step,
    never the observation of a reset. A chunk that continues an episode (`cut`) starts with the last
    observation of the chunk before. It may include earlier steps as lookback, which negative
    indices read, and which count for no length, return or batch.

    Ranges are returned stacked along time. After `to_numpy` ranges and slices are read-only views.
    """

    def __init__(
        self,
        id_: str | None = None,
        *,
        obs: Nest = None,
        action: Nest = None,
        reward: Nest = None,
        infos: Sequence[dict[str, Any]] | None = None,
        policy_extras: Mapping[str, Nest] | None = None,
        termination: bool = False,
        truncation: bool = False,
        t_started: int | None = None,
        len_lookback_buffer: int = 0,
        agent_id: Hashable | None = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ):
        """Makes an episode, empty or from data.

        Args:
          id_: The id of the episode and of its chunks; a random one if None.
          obs: o_0 .. o_T: a list of T + 1 items, or a nest of arrays `[T + 1, ...]`.
          action: T actions, a list or a nest of arrays.
          reward: T rewards, a list or a nest of arrays.
          infos: T + 1 dicts, or None for empty ones.
          policy_extras: T items for each name (`log_prob`, `state_out`, ...), lists or nests of
            arrays.
          termination: Whether the last step ended in a terminal state.
          truncation: Whether the episode was truncated after the last step.
          t_started: The number of the first step within the whole episode; by default the length
            of the lookback.
          len_lookback_buffer: The number of lookback steps among the data.
          agent_id: The agent in a multi-agent episode.
          module_id: The module that acted.
          multi_agent_episode_id: The id of the multi-agent episode that contains this one.

        Raises:
          UserError: For columns of inconsistent lengths.
        """
        lookback = len_lookback_buffer
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.t_started = lookback if t_started is None else t_started
        self.is_terminated = bool(termination)
        self.is_truncated = bool(truncation)
        self._obs = LookbackBuffer.of("obs", obs, lookback)
        self._action = LookbackBuffer.of("action", action, lookback)
        reward = (
            [lookback_buffer.as_reward(r) for r in reward] if isinstance(reward, list) else reward
        )
        stacked = reward is not None and not isinstance(reward, list)
        self._reward = LookbackBuffer.of(
            "reward", lookback_buffer.as_reward(reward) if stacked else reward, lookback
        )
        self._extras = extras_buffer(policy_extras, self._action.size, lookback)
        self._infos = [{} for _ in range(self._obs.size)] if infos is None else list(infos)
        self.validate()

    # Basic facts.

    def __len__(self) -> int:
        """The number of steps, without the lookback."""
        return max(len(self._obs) - 1, 0)

    @property
    def has_begun(self) -> bool:
        """Whether the episode has a reset."""
        return bool(self._obs.size)

    @property
    def t(self) -> int:  # type: ignore[override]
        """The number of the next step within the whole episode."""
        return self.t_started + len(self)

    @property
    def is_numpy(self) -> bool:
        """Whether everything is stacked."""
        return all(buffer.is_numpy for buffer in self._buffers)

    @property
    def len_lookback_buffer(self) -> int:  # type: ignore[override]
        """The number of steps of lookback."""
        return self._obs.lookback

    def get_return(self) -> Any:
        """Returns the sum of the rewards, a float (or a dict of floats for a dict of rewards)."""
        if not len(self):
            return 0.0
        return lookback_buffer.map_leaves(
            lambda r: float(r.sum(dtype=np.float64)) if r.ndim == 1 else r.sum(axis=0),
            self.get_rewards(),
        )

    # Reading data.

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns one observation, or several stacked along a leading axis.

        There is one more observation than steps.

        Args:
          indices: A position, a slice, a list of positions, or None for all without the lookback.
          neg_index_as_lookback: Whether -1 is the item just before o_0 of this chunk, the last of
            the lookback. Otherwise -1 is the last item, and positions before the chunk reach into
            the lookback.
          fill: The value of every leaf at missing positions. If None, a missing position is an
            error, and a slice is shortened.

        Raises:
          UserError: For missing positions.
        """
        return self._obs.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns actions; see `get_observations`."""
        return self._action.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_rewards(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns float32 rewards; see `get_observations`."""
        return self._reward.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Nest:
        """Returns the policy extra `key`, or the dict of all extras; see `get_observations`.

        Raises:
          UserError: For an unknown key; see also `get_observations`.
        """
        rows = self._extras.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)
        if key is None:
            return rows
        if key not in rows:
            raise UserError(
                f"policy_extras[{key!r}]",
                expected=f"one of {sorted(rows)}",
                got="an unknown key",
            )
        return rows[key]

    def get_infos(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
    ) -> Any:
        """Returns the info dict of one observation, or a list of them; see `get_observations`."""
        size, lookback = len(self._obs), self._obs.lookback
        positions = resolve(
            "infos", indices, size, lookback, neg_index_as_lookback, fill is not None
        )
        single = isinstance(positions, int)
        infos = [
            self._infos[lookback + p] if -lookback <= p < size else fill
            for p in ([positions] if isinstance(positions, int) else positions)
        ]
        return infos[0] if single else infos

    @property
    def obs(self) -> Nest:
        """All observations, leaves `[T + 1, ...]`."""
        return self.get_observations()

    @property
    def action(self) -> Nest:
        """All actions, leaves `[T, ...]`."""
        return self.get_actions()

    @property
    def reward(self) -> Nest:
        """All rewards, float32 `[T]` (or a dict of them)."""
        return self.get_rewards()

    @property
    def policy_extras(self) -> dict[str, Nest]:
        """All policy extras, leaves `[T, ...]`."""
        return self.get_extra_model_outputs() if len(self) else {}

    @property
    def infos(self) -> list[dict[str, Any]]:
        """All info dicts, one for each observation."""
        return self.get_infos()

    @property
    def termination(self) -> np.ndarray:
        """Bool `[T]`; only the last step may be True."""
        return _last(len(self), self.is_terminated)

    @property
    def truncation(self) -> np.ndarray:
        """Bool `[T]`; only the last step may be True."""
        return _last(len(self), self.is_truncated)

    @property
    def _buffers(self) -> tuple[LookbackBuffer, ...]:
        return self._obs, self._action, self._reward, self._extras

    # Adding data.

    def add_env_reset(self, obs: Nest, infos: Mapping[str, Any] | None = None) -> None:
        """Adds the first observation of the episode.

        Raises:
          UserError: If the episode has begun.
        """
        self._check_reset()
        self._obs.append(lookback_buffer.as_arrays(obs, "obs"))
        self._infos.append(dict(infos or {}))

    def add_env_step(
        self,
        obs: Nest,
        action: Nest,
        reward: Nest,
        infos: Mapping[str, Any] | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        extra_model_outputs: Mapping[str, Nest] | None = None,
    ) -> None:
        """Adds a step.

        Args:
          obs: o_{t+1}, the true successor: at an end the last observation of this episode.
          action: a_t.
          reward: r_t, float32, or a dict of rewards.
          infos: The environment's infos of the step.
          terminated: Whether o_{t+1} is a terminal state.
          truncated: Whether the episode is truncated here.
          extra_model_outputs: The policy extras, for example `log_prob` of the action, `value` of
            o_t, or the recurrent `state_out` after the step.

        Raises:
          UserError: Before the reset, after the end, or for items whose structure, shapes or dtypes
            differ from earlier steps.
        """
        self._check_goes_on()
        row = {
            self._obs: lookback_buffer.as_arrays(obs, "obs"),
            self._action: lookback_buffer.as_arrays(action, "action"),
            self._reward: lookback_buffer.as_reward(reward),
            self._extras: lookback_buffer.as_arrays(
                dict(extra_model_outputs or {}), "policy_extras"
            ),
        }
        for buffer, item in row.items():  # checks all first, so that an error adds no partial step
            buffer.check(item)
        for buffer, item in row.items():
            buffer.append(item)
        self._infos.append(dict(infos or {}))
        self.is_terminated, self.is_truncated = bool(terminated), bool(truncated)

    def to_numpy(self) -> "SingleAgentEpisode":
        """Stacks all columns and returns the episode; steps may still be added afterwards."""
        for buffer in self._buffers:
            buffer.to_numpy()
        return self

    # Chunks.

    def concat_episode(self, other: "SingleAgentEpisode") -> None:
        """Appends the chunk that continues this one, without its lookback.

        Raises:
          UserError: Unless it belongs to the same episode and starts where this one stops.
        """
        self._check_meets(other)
        self._obs.extend(other._obs, start=1)
        for ours, others in zip(self._buffers[1:], other._buffers[1:], strict=True):
            ours.extend(others)
        self._infos += other.get_infos(slice(1, None))
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated

    def _differences(self, other: Any) -> list[str]:
        if not self.has_begun or not other.has_begun:
            return ["a chunk without a reset"]
        if not lookback_buffer.equal(self.get_observations(-1), other.get_observations(0)):
            return ["a different observation at the boundary"]
        return []

    def validate(self) -> None:
        """Checks that the lengths of all columns are consistent.

        Raises:
          UserError: If not; it names the lengths of all columns.
        """
        steps = max(self._obs.size - 1, 0)
        sizes = {
            "obs": (self._obs.size, steps + 1 if self._obs.size else 0),
            "action": (self._action.size, steps),
            "reward": (self._reward.size, steps),
            "policy_extras": (self._extras.size, steps),
            "infos": (len(self._infos), self._obs.size),
        }
        fits = all(got == wanted for got, wanted in sizes.values())
        if not fits or not 0 <= self._obs.lookback <= steps:
            got = ", ".join(f"{n} {size}" for n, (size, _) in sizes.items())
            raise UserError(
                f"episode {self.id_}",
                expected="one more obs and info than actions, rewards and policy_extras, and a "
                "lookback of at most the number of steps",
                got=f"{got}, lookback {self._obs.lookback}",
            )

    # Other forms.

    def to_trajectory(self, env_extra_fields: Sequence[str] = ()) -> Trajectory:
        """Returns the steps as a time-major trajectory of one column, leaves `[T, 1, ...]`.

        Args:
          env_extra_fields: Names of infos after each step, to store in `env_extras`.

        Raises:
          UserError: For an episode without steps, or an info that a step does not have.
        """
        return trajectory_of(self, env_extra_fields)

    @classmethod
    def from_trajectory(
        cls, trajectory: Trajectory, *, t_started: Sequence[int] | None = None
    ) -> list["SingleAgentEpisode"]:
        """Returns the episodes of a trajectory, column by column, each in order of time.

        Invalid rows are dropped. Rows without an end, before a dropped row or at the last row, form
        an unfinished chunk.

        Args:
          trajectory: Leaves `[T, B, ...]`; `valid` may be None if all rows are valid.
          t_started: The number of each column's first step within its episode, for episodes that
            began earlier; None for 0.
        """
        return episodes_of(cls, trajectory, t_started)

    def get_state(self) -> dict[str, Any]:
        """Returns the episode as a dict of arrays, numbers and strings, without None."""
        state = {
            "id_": self.id_,
            "agent_id": self.agent_id,
            "module_id": self.module_id,
            "multi_agent_episode_id": self.multi_agent_episode_id,
            "t_started": self.t_started,
            "len_lookback_buffer": self.len_lookback_buffer,
            "termination": self.is_terminated,
            "truncation": self.is_truncated,
            "obs": self._obs.all(),
            "action": self._action.all(),
            "reward": self._reward.all(),
            "policy_extras": self._extras.all(),
            "infos": [lookback_buffer.as_arrays(info, "infos") for info in self._infos],
        }
        return {name: value for name, value in state.items() if value is not None}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "SingleAgentEpisode":
        """Makes an episode from the result of `get_state`."""
        return cls(**state)

    def __repr__(self) -> str:
        agent = "" if self.agent_id is None else f", agent {self.agent_id}"
        end = "terminated" if self.is_terminated else "truncated" if self.is_truncated else "open"
        return f"SingleAgentEpisode({self.id_}, steps {self.t_started} to {self.t}, {end}{agent})"

    @classmethod
    def of_buffers(
        cls,
        *,
        obs: LookbackBuffer,
        action: LookbackBuffer,
        reward: LookbackBuffer,
        policy_extras: LookbackBuffer,
        infos: list[dict[str, Any]],
        **facts: Any,
    ) -> "SingleAgentEpisode":
        """Makes an episode from buffers with equal lookback, sharing their memory.

        Args:
          obs: T + 1 observations, including the lookback, like the other columns.
          action: T actions.
          reward: T rewards.
          policy_extras: T dicts.
          infos: T + 1 dicts.
          **facts: Further arguments of the constructor.
        """
        episode = cls(**facts)
        episode._obs, episode._action, episode._reward = obs, action, reward
        episode._extras, episode._infos = policy_extras, infos
        return episode

    def _chunk(self, start: int, stop: int, lookback: int) -> "SingleAgentEpisode":
        """Returns steps `start` to `stop` with a lookback, sharing memory."""
        flags = stop == len(self)
        end = stop + 1 if self._obs.size else 0
        first = self.len_lookback_buffer + start - lookback
        return self.of_buffers(
            obs=self._obs.cut(start, end, lookback),
            action=self._action.cut(start, stop, lookback),
            reward=self._reward.cut(start, stop, lookback),
            policy_extras=self._extras.cut(start, stop, lookback),
            infos=self._infos[first : first + lookback + end - start],
            id_=self.id_,
            t_started=self.t_started + start,
            agent_id=self.agent_id,
            module_id=self.module_id,
            multi_agent_episode_id=self.multi_agent_episode_id,
            termination=flags and self.is_terminated,
            truncation=flags and self.is_truncated,
        )
