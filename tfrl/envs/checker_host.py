"""`check_env` for a `HostEnv`, and the short check before a training run."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.envs import host
from tfrl.envs.action_masks import MASK, split_mask
from tfrl.envs.backend import Backend, Step
from tfrl.envs.checker import check_env, check_fresh, check_specs
from tfrl.envs.checker_values import (
    LastObs,
    check_mask,
    check_same,
    check_starts,
    check_values,
    described,
    first_difference,
    note_unbounded,
    sample_actions,
)
from tfrl.envs.contract import Contract
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

INFO = {
    "autoreset": tf.TensorSpec([], tf.bool),
    "episode_return": tf.TensorSpec([], tf.float32),
    "episode_length": tf.TensorSpec([], tf.int32),
}
SEEN = ("obs", "reward", "termination", "truncation", "info")
BACKEND = "Fix the backend: see tfrl.envs.backend.Backend."

Played = list[tuple[Nest, EnvState]]


def check_before_training(env: Env, seed: int, steps: int = 50, seconds: float = 2.0) -> None:
    """Checks environments briefly before a training run.

    It checks up to two copies of host environments, and closes them; device environments are
    checked themselves. It accepts episodes that do not depend on the seed, which training allows.
    It skips PettingZoo's environments, which cannot be stepped twice from a state.

    Args:
      env: The environments of the training run.
      seed: See `check_env`.
      steps: Maximum number of steps; a tenth of them on a device.
      seconds: Time limit of the first of two plays on the host, of at least one step.

    Raises:
      UserError: For the first thing that is wrong.
    """
    if isinstance(env, HostEnv):
        with env.halves[0].copy(min(2, env.num_envs)) as copy:
            check_host(copy, steps, seed, stochastic=False, seconds=seconds)
    elif not host.on_host(env):
        check_env(env, max(1, steps // 10), seed, stochastic=False)


def check_host(
    env: HostEnv, steps: int, seed: int, stochastic: bool, seconds: float = np.inf
) -> None:
    """Checks environments on the host; it leaves them open, in the middle of episodes.

    Args:
      env: The environments.
      steps: See `check_env`.
      seed: See `check_env`.
      stochastic: See `check_env`.
      seconds: Time limit of the first of two plays.

    Raises:
      UserError: For the first thing that is wrong.
    """
    if len(env.halves) > 1:
        for half in env.halves:
            check_host(half, steps, seed, stochastic, seconds)
        return
    check_specs(env)
    if not env.backend.clips_actions:
        note_unbounded(f"action_spec of {env.backend.name}", env.action_spec)
    with _watched(env) as backend:
        player = _EpisodeChecker(env, backend)
        start = player.reset(seed)
        played = player.play(start, steps, np.random.default_rng(seed), seconds)
    check_same("reset", _state_fields(start), _state_fields(env.reset(seed)))
    state = env.reset(seed)
    for t, (action, wanted) in enumerate(played, start=1):
        state = env.step(state, action)
        check_same(f"step {t}", _state_fields(wanted), _state_fields(state))
    if stochastic:
        check_starts(
            "reset",
            env.num_envs,
            start.obs,
            lambda i: env.reset(seed + i).obs,
            "Use the seeds passed to reset",
        )


def _state_fields(state: EnvState) -> dict[str, Any]:
    """All fields but the token, which counts the process's steps."""
    return {name: getattr(state, name) for name in SEEN}


class _Watched:
    """Forwards all calls to a backend, and keeps its last result."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self.last: Step | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def receive(self) -> Step:
        self.last = self._backend.receive()
        return self.last


@contextlib.contextmanager
def _watched(env: HostEnv) -> Iterator[_Watched]:
    """Records the backend's results, as a HostEnv corrects rewards of rows that reset."""
    backend = env.backend
    watched: Any = _Watched(backend)
    env.backend = watched
    try:
        yield watched
    finally:
        env.backend = backend


class _EpisodeChecker:
    """Plays episodes, and checks every result."""

    def __init__(self, env: HostEnv, backend: _Watched):
        self.env, self.backend = env, backend
        self.ended = np.zeros(env.num_envs, bool)  # in the last step
        self._below = self.ended  # the same in the backend, where frozen rows continue
        self._last_fields: Any = None  # the last state's arrays, not copied
        self._copy: Any = None  # a copy of their values
        self._from = ""

    def reset(self, seed: int) -> EnvState:
        """Starts episodes, and checks their first states."""
        state = self.env.reset(seed)
        self._check(state, "reset")
        check_fresh(state)
        return state

    def play(self, state: EnvState, steps: int, rng: np.random.Generator, seconds: float) -> Played:
        """Takes random steps within the time limit, at least one."""
        env, played = self.env, []
        contract = Contract(env, _tensors(state), tf.zeros([2], tf.int32), stochastic=False)
        # Reward wrappers lie outside the statistics, which have the task's rewards.
        contract.counts_reward = not env.rewards
        until = time.monotonic() + seconds
        last_obs = LastObs()
        for t in range(1, steps + 1):
            mask = self._mask(state, "reset" if t == 1 else f"step {t - 1}")
            action = sample_actions(env.action_spec, rng, env.num_envs, mask)
            state = env.step(state, action)
            self._check_backend(f"step {t}")
            self._check(state, f"step {t}")
            contract.check(_tensors(state), t)
            self.ended = state.termination | state.truncation
            played.append((action, state))
            if env.autoreset is Autoreset.SAME_STEP:
                for i in np.flatnonzero(self.ended):
                    last_obs.add(_row(state.info["final_obs"], i), _row(state.obs, i))
            if time.monotonic() > until:
                break
        last_obs.check("info/final_obs")
        return played

    def _mask(self, state: EnvState, where: str) -> Nest:
        """The masks of the next actions; full in rows without a next action."""
        mask = split_mask(state.obs)[1]
        if mask is None:
            return None
        ended = self.ended & (self.env.autoreset is not Autoreset.SAME_STEP)
        check_mask(f"{where}: obs/{MASK}", self.env.action_spec, mask, ~ended)
        return tf.nest.map_structure(
            lambda m: m | ended.reshape(ended.shape + (1,) * (m.ndim - 1)), mask
        )

    def _check(self, state: EnvState, where: str) -> None:
        """Checks structure, shapes, dtypes and values of a state."""
        batch = (self.env.num_envs,)
        check_values(f"{where}: obs", state.obs, self.env.obs_spec, batch, exact=True)
        reward = tf.TensorSpec([], tf.float32)
        check_values(f"{where}: reward", state.reward, reward, batch, exact=True)
        for name in ("termination", "truncation"):
            flag = getattr(state, name)
            check_values(f"{where}: {name}", flag, INFO["autoreset"], batch, exact=True)
        info = {**INFO, "final_obs": self.env.obs_spec, **self.env.backend.info_spec}
        for name, spec in info.items():
            if name not in state.info:
                raise UserError(
                    f"{where}: info",
                    expected=f"the items {', '.join(sorted(info))}",
                    got=f"no {name}",
                )
            check_values(f"{where}: info/{name}", state.info[name], spec, batch, exact=True)
        self._check_kept(state, where)

    def _check_kept(self, state: EnvState, where: str) -> None:
        """Checks that the arrays of the last state have not changed."""
        differs = (
            None
            if self._copy is None
            else first_difference(self._copy, self._last_fields, exact=True)
        )
        if differs is not None:
            raise UserError(
                f"{self._from}: {differs[0]}",
                expected="arrays that no later call changes",
                got=f"{differs[1]} after {where}",
            )
        self._last_fields = _state_fields(state)
        self._copy = tf.nest.map_structure(np.array, self._last_fields)
        self._from = where

    def _check_backend(self, where: str) -> None:
        """Checks the backend's result against its autoreset mode."""
        last, backend = self.backend.last, self.env.backend
        if last is None:
            return
        where = f"{where} of {backend.name} under {backend.autoreset.name}"
        size = self.env.num_envs
        for name in ("reward", "termination", "truncation"):
            if np.shape(getattr(last, name)) != (size,):
                raise UserError(
                    f"{where}: {name}",
                    expected=f"an array [{size}]",
                    got=described(getattr(last, name)),
                )
        ended = np.asarray(last.termination, bool) | np.asarray(last.truncation, bool)
        if backend.autoreset is Autoreset.SAME_STEP:
            if ended.any() and last.final_obs is None:
                raise UserError(
                    f"{where}: final_obs",
                    expected="the last observations in the step that ends an episode",
                    got=f"None, with rows {np.flatnonzero(ended).tolist()} ended",
                )
            return
        bad = self._below & ((np.asarray(last.reward) != 0) | ended)
        self._below = ended
        if bad.any():
            raise UserError(
                where,
                expected="reward 0 and both flags False in rows that ended in the previous step",
                got=f"reward {np.asarray(last.reward)[bad].tolist()} and ends "
                f"{ended[bad].tolist()} in rows {np.flatnonzero(bad).tolist()}",
            )


def _row(nest: Nest, i: int) -> Nest:
    return tf.nest.map_structure(lambda x: x[i], nest)


def _tensors(state: EnvState) -> EnvState:
    return tf.nest.map_structure(tf.convert_to_tensor, state)
