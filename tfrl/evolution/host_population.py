"""Plays a population's episodes in any number of environments on the host."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.envs.env_calls import LOST
from tfrl.envs.host_env import HostEnv
from tfrl.evolution.population import Played, PopulationActing
from tfrl.rollout.episode import EpisodeTotals, episode_limit
from tfrl.rollout.host_player import HostPlayer
from tfrl.types import Nest


def play_on_host(
    env: HostEnv,
    acting: PopulationActing,
    with_params: Callable[[Nest], Any],
    population: Nest,
    seeds: np.ndarray,
    key: tf.Tensor,
    *,
    discount: float | None = None,
    length: int | None = None,
    records: bool = False,
    objectives: Sequence[str] = (),
) -> Played:
    """Plays E episodes of each of P members in W environments, W at a time.

    If an environment fails and reports it (`HostEnv.tolerant`), its member's episode has the return
    NaN.

    Args:
      env: The W environments.
      acting: Acts for W members.
      with_params: Returns the agent's state with parameters `[W, ...]`.
      population: The parameters of the members, leaves `[P, ...]`.
      seeds: int64 [P, E], the episodes' seeds.
      key: int32 [2], for the actions.
      discount: The discount of `discounted_returns`; None for no discounted returns.
      length: The most steps of an episode; `env.max_episode_steps` if None.
      records: Whether to record the observations.
      objectives: "reward" and fields of `info`, whose sums over an episode are returns by name; one
        return without a name if empty.
    """
    length = episode_limit(env, length, name="length")
    members, episodes = seeds.shape
    rounds = []
    for i in range(-(-seeds.size // env.num_envs)):
        # The last round is padded with the last episode.
        job = np.minimum(i * env.num_envs + np.arange(env.num_envs), seeds.size - 1)
        params = tf.nest.map_structure(lambda x, job=job: tf.gather(x, job // episodes), population)
        state = env.begin(seeds.reshape(-1)[job])
        player = HostPlayer(
            env,
            acting,
            state,
            with_params(params),
            seeding.fold_in(key, i),
            length,
            acting.evaluate_actions,
            None,
        )
        rounds.append(_play_round(player, length, discount, records, objectives))

    def joined(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts)[: seeds.size]

    totals, obs, valid = tf.nest.map_structure(joined, *rounds)
    by_episode = tf.nest.map_structure(lambda x: tf.constant(x.reshape(members, episodes)), totals)
    if not records:
        return Played(totals=by_episode)
    return Played(
        totals=by_episode,
        obs=tf.nest.map_structure(tf.convert_to_tensor, obs),
        valid=tf.convert_to_tensor(valid),
    )


def _play_round(
    player: HostPlayer,
    length: int,
    discount: float | None,
    records: bool,
    objectives: Sequence[str],
) -> tuple[EpisodeTotals, Nest, Nest]:
    """Plays an episode per environment: totals [W], observations [W, length, ...], validity."""
    size, names = player.env.num_envs, objectives or ("reward",)
    returns, discounted = np.zeros((2, len(names), size), np.float32)
    lengths = np.zeros(size, np.int32)
    running = np.ones(size, bool)
    observed, valid = [], np.zeros((size, length), bool)
    for t in range(length):
        if records:
            observed.append(player.state.obs)
            valid[:, t] = running
        player.step(t)
        state = player.state
        named = [state.reward if name == "reward" else state.info[name] for name in names]
        rewards = np.where(state.info.get(LOST, 0.0), np.nan, named)  # [M, W]
        returns[:, running] += rewards[:, running]
        weight = np.float32(1.0 if discount is None else discount) ** lengths
        discounted[:, running] += (weight * rewards)[:, running]
        lengths += running
        running &= ~(state.termination | state.truncation)
        if not running.any():
            break

    def by_name(rows: np.ndarray) -> Nest:
        return dict(zip(names, rows, strict=True)) if objectives else rows[0]

    totals = EpisodeTotals(
        episode_returns=by_name(returns),
        episode_lengths=lengths,
        discounted_returns=None if discount is None else by_name(discounted),
    )
    if not records:
        return totals, (), ()

    def column(*rows: np.ndarray) -> np.ndarray:
        missing = [np.zeros_like(rows[0])] * (length - len(rows))
        return np.stack([*rows, *missing], axis=1)

    return totals, tf.nest.map_structure(column, *observed), valid
