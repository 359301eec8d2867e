"""The contract of the autoreset modes, checked step by step against what an environment returns."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.envs.core import Autoreset, Env, Wrapper
from tfrl.envs.multi_agent import AGENT_FLAGS, MultiAgentEnv, agent_ids
from tfrl.envs.wrappers.base import RewardWrapper
from tfrl.envs.wrappers.rewards import RewardNormalize, RewardSparse
from tfrl.errors import UserError
from tfrl.traces import counted_separately
from tfrl.types import EnvState

REMEDY = (
    "Use tfrl.make_env for time limit, statistics and autoreset, or follow the mode's contract; "
    "for ends of agents see tfrl.envs.MultiAgentEnv."
)
NUM_STARTS = 64  # number of resets to estimate a start's probability
CHANCE = 1e-6  # maximum probability of suspicious repetitions


class Contract:
    """Tracks the episodes of an environment and raises a UserError for wrong rows.

    Call `check(state, t)` with the states in order; its own state is on the host.
    """

    def __init__(self, env: Env, state: EnvState, key: tf.Tensor, stochastic: bool):
        """Begins with the state after a reset.

        Args:
          env: An environment with an autoreset mode.
          state: The result of `env.reset`.
          key: int32 [2], for other starts to compare with.
          stochastic: Whether successive episodes must start differently.
        """
        self.env, self.mode, self.stochastic = env, env.autoreset, stochastic
        self.key = key
        self.first = _flat(state.obs)  # [B, D]
        self.repeats = np.zeros(env.num_envs, np.int64)  # of the first start
        self.renewed = np.zeros(env.num_envs, bool)  # whether another start was seen
        self.odds: np.ndarray | None = None  # [B], of the first start
        self.last = state
        self.length = np.zeros(env.num_envs, np.int64)
        self.total = {p: np.zeros(env.num_envs) for p in _rewards(state)}
        self.ended = np.zeros(env.num_envs, bool)
        self.counts_reward = not _changes_reward(env)
        _expect("reset: info/autoreset", ~state.info["autoreset"].numpy(), "False")
        _expect("reset: info/episode_length", state.info["episode_length"] == 0, "0")
        self._equal("reset: info/final_obs", state.info["final_obs"], state.obs, "obs")

    def check(self, state: EnvState, t: int) -> None:
        """Checks the state after step `t`."""
        where = f"step {t} under {self.mode.name if self.mode else None}"
        termination, truncation = state.termination.numpy(), state.truncation.numpy()
        idle = self._idle()
        autoreset = state.info["autoreset"].numpy()
        expected = "True only in rows that are not steps"
        _expect(f"{where}: info/autoreset", autoreset == idle, expected)
        for path, reward in struct.paths({"reward": state.reward}).items():
            ok = ~idle | (reward.numpy() == 0)
            _expect(f"{where}: {path}", ok, "0 in rows that are not steps")
        self._count(state, idle, where)
        self._check_limit(state, idle, where)
        _MODES[self.mode](self, state, where)
        self.ended = termination | truncation
        self.last = state

    def _idle(self) -> np.ndarray:
        """Rows that are not steps of the task."""
        if self.mode in (Autoreset.NEXT_STEP, Autoreset.DISABLED):
            return self.ended
        return np.zeros_like(self.ended)

    def _count(self, state: EnvState, idle: np.ndarray, where: str) -> None:
        """Tracks length and return, and compares them."""
        if self.mode is not Autoreset.DISABLED:
            self.length[self.ended] = 0
            for total in self.total.values():
                total[self.ended] = 0.0
        self.length[~idle] += 1
        length = state.info["episode_length"].numpy()
        text = f"the number of steps in the episode so far, {self.length.tolist()}"
        _expect(f"{where}: info/episode_length", length == self.length, text, length)
        if self.counts_reward:
            returns = struct.paths({"episode_return": state.info["episode_return"]})
            rewards = _rewards(state)
            for path, (agent, total) in zip(returns, self.total.items(), strict=True):
                total[~idle] += rewards[agent].numpy()[~idle]
                ok = np.isclose(returns[path].numpy(), total, rtol=1e-4, atol=1e-4)
                text = f"the sum of the episode's rewards, {total.tolist()}"
                _expect(f"{where}: info/{path}", ok, text, returns[path].numpy())

    def _check_limit(self, state: EnvState, idle: np.ndarray, where: str) -> None:
        limit = self.env.max_episode_steps
        if limit is not None:
            ok = idle | (self.length < limit) | state.truncation.numpy()
            text = f"True at max_episode_steps = {limit}"
            _expect(f"{where}: truncation", ok, text)

    def _same_step(self, state: EnvState, where: str) -> None:
        ended = state.termination.numpy() | state.truncation.numpy()
        self._equal(f"{where}: info/final_obs", state.info["final_obs"], state.obs, "obs", ~ended)
        if self.mode is Autoreset.SAME_STEP:
            self._check_starts(state, ended, where)
        if self.mode is Autoreset.SAME_STEP_CACHED:
            again = (_flat(state.obs) == self.first).all(axis=1)
            _expect(f"{where}: obs", again | ~ended, "the first start after an end")

    def _next_step(self, state: EnvState, where: str) -> None:
        self._equal(f"{where}: info/final_obs", state.info["final_obs"], state.obs, "obs")
        flags = state.termination.numpy() | state.truncation.numpy()
        _expect(f"{where}: end flags", ~(self.ended & flags), "False in a reset row")
        self._check_starts(state, self.ended, where)

    def _check_starts(self, state: EnvState, rows: np.ndarray, where: str) -> None:
        """Tracks how often restarted rows repeat their first start.

        A task with few starts repeats them by chance. A row without another start fails if its
        repetitions are too unlikely; all rows fail if this holds jointly.
        """
        if not self.stochastic or not rows.any():
            return
        again = (_flat(state.obs) == self.first).all(axis=1)
        self.repeats += rows & again
        self.renewed |= rows & ~again
        suspect = ~self.renewed & (self.repeats > 0)
        if not suspect.any():
            return
        if self.odds is None:
            self.odds = self._odds_of_first()
        # Log-probabilities of every row's repetitions.
        likely = np.where(suspect, self.repeats * np.log(self.odds), 0.0)
        fault = suspect & (likely < np.log(CHANCE))
        if not self.renewed.any() and likely.sum() < np.log(CHANCE):
            fault = suspect
        _expect(f"{where}: obs", ~fault, "a new start after an end, not the first start")

    def _odds_of_first(self) -> np.ndarray:
        """An upper bound of the probability [B] of each row's first start, from more resets."""
        reset = tf.function(counted_separately(self.env.reset), autograph=False)
        stream = seeding.stream(self.key, "starts")
        same = np.zeros(len(self.first))
        for i in range(NUM_STARTS):
            obs = _flat(reset(seeding.fold_in(stream, i)).obs)
            same += (obs == self.first).all(axis=1)
        p = (same + 1) / (NUM_STARTS + 2)
        return np.minimum(p + 3 * np.sqrt(p * (1 - p) / NUM_STARTS), 1.0)

    def _disabled(self, state: EnvState, where: str) -> None:
        self._equal(f"{where}: obs", state.obs, self.last.obs, "the last obs", self.ended)
        for name in ("termination", "truncation"):
            same = getattr(state, name).numpy() == getattr(self.last, name).numpy()
            _expect(f"{where}: {name}", same | ~self.ended, "the unchanged flag of the last step")

    def _equal(self, thing: str, a: Any, b: Any, what: str, rows: Any = None) -> None:
        same = (_flat(a) == _flat(b)).all(axis=1)
        _expect(thing, same if rows is None else same | ~rows, f"the value of {what}")


_MODES: dict[Any, Callable[[Contract, EnvState, str], None]] = {
    Autoreset.SAME_STEP: Contract._same_step,
    Autoreset.SAME_STEP_CACHED: Contract._same_step,
    Autoreset.NEXT_STEP: Contract._next_step,
    Autoreset.DISABLED: Contract._disabled,
}


def _rewards(state: EnvState) -> dict[str, tf.Tensor]:
    """The rewards by path: one, or one per agent."""
    return struct.paths(state.reward)


def _flat(obs: Any) -> np.ndarray:
    """All leaves concatenated, [B, D]."""
    leaves = [np.asarray(x) for x in tf.nest.flatten(obs)]
    return np.concatenate([x.reshape(len(x), -1).astype(np.float64) for x in leaves], axis=1)


def _changes_reward(env: Env) -> bool:
    """Whether a wrapper above the episode layer changes the reward."""
    while isinstance(env, Wrapper) and env.env.autoreset is not None:
        if isinstance(env, RewardWrapper | RewardSparse | RewardNormalize):
            return True
        env = env.env
    return False


def check_agent_specs(env: Env) -> None:
    """Raises a UserError unless the specs of several agents are dicts keyed by their ids."""
    ids = agent_ids(env)
    if ids is None:
        return
    if not ids or len(set(ids)) != len(ids) or not all(isinstance(i, str) and i for i in ids):
        raise UserError(
            "agent_ids", expected="at least one name, without duplicates", got=repr(ids)
        )
    for name in ("obs_spec", "action_spec"):
        checks.same_keys(name, getattr(env, name), ids)


def check_agents(env: Env, state: EnvState, where: str) -> Iterator[tuple[str, Any, tf.TensorSpec]]:
    """Checks the dicts of several agents in a state; yields the leaves to check, with their specs.

    Args:
      env: Any environment; a no-op for a single agent.
      state: The result of `where`.
      where: "reset" or "step".
    """
    ids = agent_ids(env)
    if ids is None:
        return
    checks.same_keys(f"{where}: reward", state.reward, ids)
    batch = [env.num_envs]
    if "agents" in state.info:
        checks.same_keys(f"{where}: info/agents", state.info["agents"], ids)
        for name in ids:
            flags = state.info["agents"][name]
            checks.same_keys(f"{where}: info/agents/{name}", flags, AGENT_FLAGS)
            for flag in AGENT_FLAGS:
                yield f"info/agents/{name}/{flag}", flags[flag], tf.TensorSpec(batch, tf.bool)
    task = env.unwrapped
    if isinstance(task, MultiAgentEnv) and task.state_spec is not None:
        expected = struct.paths({"state": task.state_spec})
        checks.same_keys(f"{where}: info", struct.paths({**state.info}), expected, more=True)
        leaves = struct.paths({"state": state.info["state"]})
        for path, spec in expected.items():
            yield (
                f"info/{path}",
                leaves[path],
                tf.TensorSpec(batch + spec.shape.as_list(), spec.dtype),
            )


class MultiAgentContract:
    """Tracks which agents have ended, and raises a UserError for wrong rows.

    Call `check(state, where)` with the states in order; it assumes that a bare environment is reset
    after an end. Without `info["agents"]` it does nothing.
    """

    def __init__(self, env: Env, state: EnvState):
        """Begins with the state after a reset."""
        self.env = env
        self.ids = agent_ids(env) or ()
        if "agents" not in state.info:
            self.ids = ()
        self.over = np.zeros(env.num_envs, bool)  # [B], whether the last row ended an environment
        self.done = {name: np.zeros(env.num_envs, bool) for name in self.ids}
        for name in self.ids:
            for flag, values in state.info["agents"][name].items():
                expected = "False before the first step"
                _expect(f"reset: info/agents/{name}/{flag}", ~values.numpy(), expected)

    def check(self, state: EnvState, where: str) -> None:
        """Checks the state after a step."""
        if not self.ids:
            return
        steps = self._begin()
        for name in self.ids:
            self._check_agent(name, state, steps, where)
        all_done = np.all(list(self.done.values()), axis=0)
        termination, truncation = state.termination.numpy(), state.truncation.numpy()
        self.over = termination | truncation
        where = f"{where}: "
        _expect(
            f"{where}termination or truncation",
            ~steps | ~all_done | self.over,
            "True if all agents have ended",
        )
        _expect(
            f"{where}termination",
            ~steps | ~termination | all_done,
            "False while an agent is active",
        )
        if self.env.autoreset is None:
            _expect(
                f"{where}truncation",
                ~truncation | all_done,
                "False while an agent is active (make_env sets the time limit)",
            )

    def _begin(self) -> np.ndarray:
        """Clears the ends of finished episodes; returns which rows are steps."""
        mode = self.env.autoreset
        again = np.full_like(self.over, self.over.any()) if mode is None else self.over
        if mode is not Autoreset.DISABLED:
            for done in self.done.values():
                done[again] = False
        frozen = mode in (Autoreset.NEXT_STEP, Autoreset.DISABLED)
        return ~self.over if frozen else np.ones_like(self.over)

    def _check_agent(self, name: str, state: EnvState, steps: np.ndarray, where: str) -> None:
        flags = {n: x.numpy() for n, x in state.info["agents"][name].items()}
        done = self.done[name]
        thing = f"{where}: info/agents/{name}"
        _expect(
            f"{thing}/active",
            ~steps | (flags["active"] == ~done),
            "True until the agent ends, then False",
        )
        for flag in ("termination", "truncation"):
            _expect(f"{thing}/{flag}", ~(steps & done & flags[flag]), "False after its end")
        paid = state.reward[name].numpy()
        _expect(f"{where}: reward/{name}", ~(steps & done) | (paid == 0), "0 after its end", paid)
        done |= steps & (flags["termination"] | flags["truncation"])


def _expect(thing: str, ok: Any, expected: str, got: Any = None) -> None:
    """Raises a UserError that lists the rows with unexpected values."""
    rows = np.flatnonzero(~np.asarray(ok)).tolist()
    if rows:
        shown = "" if got is None else f" ({got.tolist()})"
        got = f"a mismatch in rows {rows}{shown}"
        raise UserError(thing, expected=expected, got=got, remedy=REMEDY)
