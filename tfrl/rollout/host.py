"""Collects experience from host environments, step by step in Python."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.envs.host_env import HostEnv, where
from tfrl.envs.host_halves import join, split
from tfrl.nest_packing import leaves_of
from tfrl.rollout.acting import HostPolicy, policy_for
from tfrl.rollout.step import (
    SAME_STEP_MODES,
    check_fields,
    extra_fields,
    seen_by,
    with_own_fields,
)
from tfrl.types import EnvState, Nest, Trajectory

_SMALL_BYTES = 2**14


class HostPlayer:
    """Steps an agent in a host environment; it begins at a state and keeps the newest.

    Attributes:
      state: The environments.
      carry: The agent's recurrent state for the next step, or None.
    """

    def __init__(
        self,
        env: HostEnv,
        agent: Any,
        env_state: EnvState,
        agent_state: Any,
        key: tf.Tensor,
        length: int,
        action_fn: Callable[..., Any],
        carry: Nest,
    ):
        """Takes the agent's state for `length` steps."""
        self.env = env
        self.state = env_state
        self._policy: HostPolicy = policy_for(env, agent, action_fn)
        self._fresh = self._policy.fresh_carry()
        if carry is None:
            carry = self._fresh
        elif self._fresh is None:
            self._fresh = tf.nest.map_structure(np.zeros_like, _arrays(carry))
        self.carry = _arrays(carry)
        self._restarts = env.autoreset in SAME_STEP_MODES
        self._agent = agent
        seen = seen_by(agent, env_state)
        self._policy.begin(agent_state, key, length, seen, self.carry)

    def step(self, t: int) -> None:
        """Acts and steps."""
        self.send(t)
        self.receive()

    def send(self, t: int) -> tuple[Nest, Nest]:
        """Acts and starts step t; returns the action and the extras."""
        action, self._after, extras = self._policy.act(
            seen_by(self._agent, self.state), t, self.carry
        )
        self.env.send(self.state, action)
        return action, extras

    def receive(self) -> None:
        """Ends the step."""
        self.state = self.env.receive()
        if self._after is not None:
            self.carry = self._next_carry(self._after)

    def _next_carry(self, carry: Nest) -> Nest:
        """The fresh one in rows whose observation starts an episode."""
        state = self.state
        starts = state.termination | state.truncation if self._restarts else state.info["autoreset"]
        frozen = self.env.autoreset.name == "DISABLED"
        return carry if frozen or not starts.any() else where(starts, self._fresh, carry)


class StepRows:
    """Arrays `[T, ...]` of the leaves of a nest, step by step.

    Small leaves are kept as they are and joined at the end, in a third of the time that copies into
    an array take. So nothing may change them meanwhile.
    """

    def __init__(self, length: int):
        """Makes them at the first step."""
        self._length = length
        self._form: Nest = None
        self._columns: list[Any] = []

    def put(self, t: int, nest: Nest) -> None:
        """Stores step t, which follows the last one."""
        leaves = [nest] if type(nest) is np.ndarray else leaves_of(nest)
        if not self._columns:
            self._form = nest
            self._columns = [self._column(np.asarray(x)) for x in leaves]
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


class _Record:
    """The experience of a player, and what a rollout makes of it."""

    def __init__(self, player: HostPlayer, length: int, fields: Sequence[str]):
        self.player = player
        self._same_step = player.env.autoreset in SAME_STEP_MODES
        self._obs, self._action = StepRows(length + 1), StepRows(length)
        self._extras: StepRows | None = None
        self._fields, self._length = fields, length
        # Of each step: reward, termination, truncation, autoreset, and the fields.
        self._steps: list[tuple[Nest, ...]] = []
        self._ends: list[tuple[int, np.ndarray, Nest]] = []
        self.over = np.zeros(player.env.num_envs, bool)  # where an episode has ended
        self._obs.put(0, player.state.obs)

    def send(self, t: int) -> None:
        """Starts step t."""
        action, extras = self.player.send(t)
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


def _one_step(player: HostPlayer, fields: Sequence[str]) -> Trajectory:
    """Returns one step, as `_Record` would, without arrays to be filled."""
    obs = player.state.obs
    action, extras = player.send(0)
    player.receive()
    state = player.state
    next_obs, info = state.obs, state.info
    if player.env.autoreset in SAME_STEP_MODES:
        ended = state.termination | state.truncation
        if ended.any():
            next_obs = where(ended, info["final_obs"], next_obs)
    return Trajectory(
        obs=_as_row(obs),
        action=_as_row(action),
        reward=_as_row(state.reward),
        next_obs=_as_row(next_obs),
        termination=_as_row(state.termination),
        truncation=_as_row(state.truncation),
        valid=~_as_row(info["autoreset"]),
        policy_extras=None if extras is None else _as_row(extras),
        # `tf.nest` takes its time for an empty dict too.
        env_extras=_as_row(extra_fields(fields, state)) if fields else None,
    )


def _as_row(nest: Nest) -> Nest:
    """Adds the axis of time."""
    if type(nest) is np.ndarray:
        return nest[np.newaxis]
    return tf.nest.map_structure(lambda x: np.asarray(x)[np.newaxis], nest)


def host_rollout(
    env: HostEnv,
    agent: Any,
    env_state: EnvState,
    agent_state: Any,
    key: tf.Tensor,
    length: int,
    fields: Sequence[str],
    action_fn: Callable[..., Any],
    carry: Nest,
    one_episode: bool = False,
    in_numpy: bool = False,
) -> tuple[Trajectory, EnvState, Nest]:
    """Is `rollout` on a host environment; see there.

    Halves (`tfrl.envs.host_halves`) are stepped in turn: while one steps, the agent acts for the
    other.

    Args:
      env: The environments.
      agent: The agent.
      env_state: The state to go on from.
      agent_state: The agent's state.
      key: int32 [2].
      length: T.
      fields: Names of `info` fields to be stored.
      action_fn: How the agent acts.
      carry: Recurrent state for the first step, or None.
      one_episode: Whether it may stop as soon as every environment has ended an episode; the rows
        after that are invalid zeros.
      in_numpy: Whether the trajectory stays in NumPy; small tensors take longer than their steps.
    """
    halves, states = env.halves, env.states_of(env_state)
    several = len(halves) > 1
    carries = [carry] if not several or carry is None else split(carry)
    players = [
        HostPlayer(
            half,
            agent,
            states[i],
            agent_state,
            seeding.fold_in(key, i) if several else key,
            length,
            action_fn,
            carries[i] if carry is not None else None,
        )
        for i, half in enumerate(halves)
    ]
    if length == 1 and not several:
        found = [_one_step(players[0], fields)]
    else:
        records = [_Record(player, length, fields) for player in players]
        _play(records, length, one_episode)
        found = [record.trajectory() for record in records]
    if not several:
        trajectory, state, after = found[0], players[0].state, players[0].carry
    else:
        state = join([player.state for player in players])
        trajectory = _beside(found, axis=1)
        after = None if players[0].carry is None else _beside([p.carry for p in players], axis=0)
    if not in_numpy:
        trajectory = tf.nest.map_structure(tf.convert_to_tensor, trajectory)
    return trajectory, state, after


def _play(records: list[_Record], length: int, one_episode: bool) -> None:
    """Steps all records in turn; a step is received just before the next one is sent."""
    for record in records:
        record.send(0)
    for t in range(1, length + 1):
        going = []
        for record in records:
            record.receive(t - 1)
            if t < length and not (one_episode and record.over.all()):
                record.send(t)
                going.append(record)
        if not going:
            return
        records = going


def _beside(nests: list[Nest], axis: int) -> Nest:
    """Puts the rows of nests beside each other."""
    return tf.nest.map_structure(lambda *xs: np.concatenate(xs, axis=axis), *nests)


def blank_trajectory(
    env: HostEnv,
    agent: Any,
    env_state: EnvState,
    agent_state: Any,
    length: int,
    env_extra_fields: Sequence[str],
) -> Trajectory:
    """Returns a trajectory like one of `rollout`, of one step repeated that was never taken."""
    fields, own = check_fields(env_extra_fields, env_state)
    policy = policy_for(env, agent, agent.compute_actions)
    key = tf.zeros([2], tf.int32)
    carry = policy.fresh_carry()
    policy.begin(agent_state, key, length, env_state.obs, carry)
    action, _, extras = policy.act(env_state.obs, 0, carry)
    row = Trajectory(
        obs=env_state.obs,
        action=action,
        reward=env_state.reward,
        next_obs=env_state.obs,
        termination=env_state.termination,
        truncation=env_state.truncation,
        valid=np.ones(env.num_envs, bool),
        policy_extras=extras,
        env_extras=extra_fields(fields, env_state) or None,
    )
    row = with_own_fields(row, own)
    # Of arrays tf.stack would make int32 of int64.
    return tf.nest.map_structure(lambda x: tf.stack([tf.convert_to_tensor(x)] * length), row)


def host_episode_totals(
    env: HostEnv,
    agent: Any,
    env_state: EnvState,
    agent_state: Any,
    key: tf.Tensor,
    length: int,
    action_fn: Callable[..., Any],
    carry: Nest,
    discount: float | None,
    info_fields: Sequence[str] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, np.ndarray], EnvState]:
    """Sums up one episode of every environment; see `fast_eval_rollout_episode`.

    Returns:
      Returns float32 [B], lengths int32 [B], discounted returns float32 [B] or None, the fields of
      `info` at the last steps, float32 [B], and the state.
    """
    player = HostPlayer(env, agent, env_state, agent_state, key, length, action_fn, carry)
    returns, discounted = np.zeros((2, env.num_envs), np.float32)
    lengths = np.zeros(env.num_envs, np.int32)
    running = np.ones(env.num_envs, bool)
    infos = {name: np.zeros(env.num_envs, np.float32) for name in info_fields}
    for t in range(length):
        player.step(t)
        state = player.state
        counts = running & ~state.info["autoreset"]
        returns += np.where(counts, state.reward, 0)
        if discount is not None:
            weight = np.float32(discount) ** lengths.astype(np.float32)
            discounted += np.where(counts, state.reward * weight, 0)
        lengths += counts
        for name, values in infos.items():
            values[counts] = state.info[name][counts]
        running &= ~(state.termination | state.truncation)
        if not running.any():
            break
    return returns, lengths, None if discount is None else discounted, infos, player.state


def _with_ends(next_obs: Nest, ends: list[tuple[int, np.ndarray, Nest]]) -> Nest:
    """The successors, with the terminal observation where an episode ended."""
    leaves = [x.copy() for x in tf.nest.flatten(next_obs)]
    for t, ended, final in ends:
        for array, leaf in zip(leaves, tf.nest.flatten(final), strict=True):
            array[t][ended] = leaf[ended]
    return tf.nest.pack_sequence_as(next_obs, leaves)


def _arrays(nest: Nest) -> Nest:
    return None if nest is None else tf.nest.map_structure(np.asarray, nest)
