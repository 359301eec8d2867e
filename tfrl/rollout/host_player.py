"""Steps an agent in host environments and records the experience."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs.host_env import HostEnv, where
from tfrl.nest_packing import leaves_of
from tfrl.rollout.acting import HostPolicy, policy_for
from tfrl.rollout.step import SAME_STEP_MODES, extra_fields, seen_by
from tfrl.types import ActionFn, EnvState, Nest, Trajectory

_SMALL_BYTES = 2**14


class HostStepper:
    """Steps host environments with given actions, and holds the newest state.

    Attributes:
      env: The environments.
      state: Their state.
      carry: The agent's recurrent state for the next step, or None.
    """

    def __init__(self, env: HostEnv, agent: object, env_state: EnvState, carry: Nest, fresh: Nest):
        """Begins at a state.

        Args:
          env: The environments.
          agent: The agent that observes them.
          env_state: Their newest state.
          carry: The recurrent state for the first step, arrays `[B, ...]`, or None.
          fresh: The recurrent state at an episode start, arrays `[B, ...]`, or None.
        """
        self.env, self.state, self.carry = env, env_state, carry
        self._agent, self._fresh = agent, fresh
        self._restarts = env.autoreset in SAME_STEP_MODES

    @property
    def agent_obs(self) -> Nest:
        """The agent's observation, `[B, ...]`."""
        return seen_by(self._agent, self.state)

    def dispatch(self, action: Nest, after: Nest) -> None:
        """Starts a step with an action; `after` is the next recurrent state."""
        self._after = after
        self.env.send(self.state, action)

    def receive(self) -> None:
        """Ends the step."""
        self.state = self.env.receive()
        if self._after is not None:
            self.carry = self._next_carry(self._after)

    def _next_carry(self, carry: Nest) -> Nest:
        """`carry`, reset in rows whose observation starts an episode."""
        state = self.state
        starts = state.termination | state.truncation if self._restarts else state.info["autoreset"]
        frozen = self.env.autoreset.name == "DISABLED"
        return carry if frozen or not starts.any() else where(starts, self._fresh, carry)


class HostPlayer(HostStepper):
    """Steps host environments with an agent's policy."""

    def __init__(
        self,
        env: HostEnv,
        agent: object,
        env_state: EnvState,
        agent_state: Nest,
        key: tf.Tensor,
        length: int,
        action_fn: ActionFn,
        carry: Nest,
    ):
        """Takes the agent's state for `length` steps."""
        self._policy: HostPolicy = policy_for(env, agent, action_fn)
        super().__init__(env, agent, env_state, *carries_of(self._policy, carry))
        self._policy.begin(agent_state, key, length, self.agent_obs, self.carry)

    def step(self, t: int) -> None:
        """Acts and steps."""
        self.send(t)
        self.receive()

    def send(self, t: int) -> tuple[Nest, Nest]:
        """Acts and starts step t; returns the action and the extras."""
        action, after, extras = self._policy.act(self.agent_obs, t, self.carry)
        self.dispatch(action, after)
        return action, extras


def carries_of(policy: HostPolicy, carry: Nest) -> tuple[Nest, Nest]:
    """Returns recurrent states in NumPy: for the first step, and at an episode start.

    Args:
      policy: The acting policy.
      carry: The first recurrent state, or None for an episode start.
    """
    fresh = policy.fresh_carry()
    if carry is None:
        return _arrays(fresh), fresh
    own = _arrays(carry)
    return own, tf.nest.map_structure(np.zeros_like, own) if fresh is None else fresh


class StepRows:
    """Arrays `[T, ...]` of the leaves of a nest, step by step.

    Small leaves are kept by reference and joined at the end, in a third of the time of copies into
    an array. So they must not change in between.
    """

    def __init__(self, length: int):
        """Makes them at the first step."""
        self._length = length
        self._form: Nest = None
        self._columns: list[Any] = []
        self._only: list[np.ndarray] | None = None  # the column of a single small array

    def put(self, t: int, nest: Nest) -> None:
        """Stores step t, which follows the last one."""
        if self._only is not None and type(nest) is np.ndarray:
            self._only.append(nest)
            return
        leaves = leaves_of(nest)
        if not self._columns:
            self._form = nest
            self._columns = [self._column(np.asarray(x)) for x in leaves]
            if type(nest) is np.ndarray and type(self._columns[0]) is list:
                self._only = self._columns[0]
        for column, leaf in zip(self._columns, leaves, strict=True):
            if type(column) is list:
                column.append(leaf)
            else:
                column[t] = leaf

    def _column(self, first: np.ndarray) -> Any:
        if first.ndim and first.nbytes <= _SMALL_BYTES:
            return []
        return np.zeros((self._length, *first.shape), first.dtype)

    def nest(self) -> Nest:
        """Returns the nest of arrays; zeros in the steps that were not taken."""
        arrays = [_joined(x, self._length) if type(x) is list else x for x in self._columns]
        return tf.nest.pack_sequence_as(self._form, arrays)


def _joined(rows: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Returns rows as one array `[T, ...]`; zeros in the steps that were not taken."""
    missing = [np.zeros_like(rows[0])] * (length - len(rows))
    return np.concatenate([*rows, *missing]).reshape(length, *rows[0].shape)


class StepRecord:
    """Records the experience of a player as a trajectory."""

    def __init__(self, player: HostStepper, length: int, fields: Sequence[str]):
        self.player = player
        self._same_step = player.env.autoreset in SAME_STEP_MODES
        self._obs, self._action = StepRows(length + 1), StepRows(length)
        self._extras: StepRows | None = None
        self._fields, self._length = fields, length
        # Per step: reward, termination, truncation, autoreset, and the fields.
        self._steps: list[tuple[Nest, ...]] = []
        self._ends: list[tuple[int, np.ndarray, Nest]] = []
        self.over = np.zeros(player.env.num_envs, bool)  # where an episode has ended
        self._obs.put(0, player.state.obs)

    def put(self, t: int, action: Nest, extras: Nest) -> None:
        """Stores action and extras of step t."""
        self._action.put(t, action)
        if extras is not None:
            if self._extras is None:
                self._extras = StepRows(self._length)
            self._extras.put(t, extras)

    def receive(self, t: int) -> None:
        """Ends step t."""
        self.player.receive()
        state = self.player.state
        info, termination, truncation = state.info, state.termination, state.truncation
        more = extra_fields(self._fields, state).values()
        self._steps.append((state.reward, termination, truncation, info["autoreset"], *more))
        self._obs.put(t + 1, state.obs)
        ended = termination | truncation
        if np.count_nonzero(ended):  # faster than `any`
            self.over |= ended
            if self._same_step:
                self._ends.append((t, ended, info["final_obs"]))

    def trajectory(self) -> Trajectory:
        """Returns all steps, in NumPy."""
        obs = self._obs.nest()
        next_obs = tf.nest.map_structure(lambda x: x[1:], obs)
        if self._ends:
            next_obs = _with_ends(next_obs, self._ends)
        columns = [self._column(rows) for rows in zip(*self._steps, strict=True)]
        reward, termination, truncation, autoreset, *more = columns
        valid = ~autoreset
        valid[len(self._steps) :] = False
        return Trajectory(
            obs=tf.nest.map_structure(lambda x: x[:-1], obs),
            action=self._action.nest(),
            reward=reward,
            next_obs=next_obs,
            termination=termination,
            truncation=truncation,
            valid=valid,
            policy_extras=None if self._extras is None else self._extras.nest(),
            env_extras=dict(zip(self._fields, more, strict=True)) or None,
        )

    def _column(self, rows: tuple[Nest, ...]) -> Nest:
        """One of the columns of `_steps`, `[T, ...]`."""
        if type(rows[0]) is np.ndarray:
            return _joined(rows, self._length)
        return tf.nest.map_structure(lambda *xs: _joined(xs, self._length), *rows)


def beside(nests: list[Nest], axis: int) -> Nest:
    """Concatenates nests along an axis."""
    return tf.nest.map_structure(lambda *xs: np.concatenate(xs, axis=axis), *nests)


def _with_ends(next_obs: Nest, ends: list[tuple[int, np.ndarray, Nest]]) -> Nest:
    """The successors, with the terminal observation where an episode ended."""
    leaves = [x.copy() for x in tf.nest.flatten(next_obs)]
    for t, ended, final in ends:
        for array, leaf in zip(leaves, tf.nest.flatten(final), strict=True):
            array[t][ended] = leaf[ended]
    return tf.nest.pack_sequence_as(next_obs, leaves)


def _arrays(nest: Nest) -> Nest:
    return None if nest is None else tf.nest.map_structure(np.asarray, nest)
