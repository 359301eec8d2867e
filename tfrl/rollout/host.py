"""Collects experience from host environments, step by step in Python."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.envs.central_inference import CentralInference
from tfrl.envs.host_env import HostEnv, where
from tfrl.envs.host_halves import join, split
from tfrl.rollout.acting import policy_for
from tfrl.rollout.central import central_rollout
from tfrl.rollout.host_player import HostPlayer, StepRecord, beside
from tfrl.rollout.step import SAME_STEP_MODES, check_fields, extra_fields, with_own_fields
from tfrl.types import ActionFn, ComputesActions, EnvState, Nest, Trajectory


def _one_step(player: HostPlayer, fields: Sequence[str]) -> Trajectory:
    """Returns one step like `StepRecord`, without allocating arrays."""
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
        # `tf.nest` is slow even for an empty dict.
        env_extras=_as_row(extra_fields(fields, state)) if fields else None,
    )


def _as_row(nest: Nest) -> Nest:
    """Adds the axis of time."""
    if type(nest) is np.ndarray:
        return nest[np.newaxis]
    return tf.nest.map_structure(lambda x: np.asarray(x)[np.newaxis], nest)


def host_rollout(
    env: HostEnv,
    agent: object,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    length: int,
    fields: Sequence[str],
    action_fn: ActionFn,
    carry: Nest,
    one_episode: bool = False,
    in_numpy: bool = False,
) -> tuple[Trajectory, EnvState, Nest]:
    """`rollout` for host environments; see there.

    Halves (`tfrl.envs.host_halves`) step in turn: while one steps, the agent acts for the other.

    Args:
      env: The environments.
      agent: The agent.
      env_state: The state to go on from.
      agent_state: The agent's state.
      key: int32 [2].
      length: T.
      fields: Names of `info` fields to store.
      action_fn: The agent's acting function.
      carry: Recurrent state for the first step, or None.
      one_episode: Whether to stop once every environment has ended an episode; later rows are
        invalid zeros.
      in_numpy: Whether to return NumPy arrays, since converting small arrays takes longer than
        their steps.
    """
    if isinstance(env, CentralInference) and not one_episode:
        trajectory, state, after = central_rollout(
            env, agent, env_state, agent_state, key, length, fields, action_fn, carry
        )
        return trajectory if in_numpy else _as_tensors(trajectory), state, after
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
        trajectories = [_one_step(players[0], fields)]
    else:
        records = [StepRecord(player, length, fields) for player in players]
        _play(records, players, length, one_episode)
        trajectories = [record.trajectory() for record in records]
    if not several:
        trajectory, state, after = trajectories[0], players[0].state, players[0].carry
    else:
        state = join([player.state for player in players])
        trajectory = beside(trajectories, axis=1)
        after = None if players[0].carry is None else beside([p.carry for p in players], axis=0)
    return trajectory if in_numpy else _as_tensors(trajectory), state, after


def _as_tensors(nest: Nest) -> Nest:
    return tf.nest.map_structure(tf.convert_to_tensor, nest)


def _play(
    records: list[StepRecord], players: list[HostPlayer], length: int, one_episode: bool
) -> None:
    """Steps all players in turn; receives a step just before sending the next one."""
    going = list(zip(records, players, strict=True))
    for record, player in going:
        record.put(0, *player.send(0))
    for t in range(1, length + 1):
        now, going = going, []
        for record, player in now:
            record.receive(t - 1)
            if t < length and not (one_episode and record.over.all()):
                record.put(t, *player.send(t))
                going.append((record, player))


def blank_trajectory(
    env: HostEnv,
    agent: ComputesActions,
    env_state: EnvState,
    agent_state: Nest,
    length: int,
    env_extra_fields: Sequence[str],
) -> Trajectory:
    """Returns a dummy trajectory with the structure of `rollout`'s, one step repeated."""
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
    # tf.stack would convert int64 arrays to int32.
    return tf.nest.map_structure(lambda x: tf.stack([tf.convert_to_tensor(x)] * length), row)


def host_episode_totals(
    env: HostEnv,
    agent: object,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    length: int,
    action_fn: ActionFn,
    carry: Nest,
    discount: float | None,
    info_fields: Sequence[str] = (),
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, np.ndarray], EnvState]:
    """Returns and lengths of one episode per environment; see `fast_eval_rollout_episode`.

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
