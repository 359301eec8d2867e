"""What `check_env` asks of several agents: dicts keyed by their ids, and ends that fit together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.multi_agent import AGENT_FLAGS, MultiAgentEnv, agent_ids
from tfrl.errors import UserError
from tfrl.types import EnvState


def check_agent_specs(env: Env) -> None:
    """Raises a UserError unless the specs of several agents are dicts keyed by their ids."""
    ids = agent_ids(env)
    if ids is None:
        return
    if not ids or len(set(ids)) != len(ids) or not all(isinstance(i, str) and i for i in ids):
        raise UserError(
            "agent_ids",
            expected="at least one name, all different",
            got=repr(ids),
            remedy="Name every agent once.",
        )
    for name in ("obs_spec", "action_spec"):
        _check_keys(name, getattr(env, name), ids)


def check_agents(env: Env, state: EnvState, where: str) -> Iterator[tuple[str, Any, tf.TensorSpec]]:
    """Checks the dicts of several agents in a state; yields the leaves to check, with their specs.

    Args:
      env: Any environment; nothing is asked of one with a single agent.
      state: What `where` returned.
      where: "reset" or "step".
    """
    ids = agent_ids(env)
    if ids is None:
        return
    _check_keys(f"{where}: reward", state.reward, ids)
    batch = [env.num_envs]
    if "agents" in state.info:
        _check_keys(f"{where}: info/agents", state.info["agents"], ids)
        for name in ids:
            flags = state.info["agents"][name]
            _check_keys(f"{where}: info/agents/{name}", flags, AGENT_FLAGS)
            for flag in AGENT_FLAGS:
                yield f"info/agents/{name}/{flag}", flags[flag], tf.TensorSpec(batch, tf.bool)
    task = env.unwrapped
    if isinstance(task, MultiAgentEnv) and task.state_spec is not None:
        expected = struct.paths({"state": task.state_spec})
        _check_keys(f"{where}: info", struct.paths({**state.info}), expected, exactly=False)
        found = struct.paths({"state": state.info["state"]})
        for path, spec in expected.items():
            yield (
                f"info/{path}",
                found[path],
                tf.TensorSpec(batch + spec.shape.as_list(), spec.dtype),
            )


def _check_keys(thing: str, found: Any, ids: Any, *, exactly: bool = True) -> None:
    keys = set(found) if isinstance(found, dict) else set()
    missing, extra = sorted(set(ids) - keys), sorted(map(str, keys - set(ids)))
    if isinstance(found, dict) and not missing and not (exactly and extra):
        return
    got = [f"no {', '.join(missing)}"] if missing else []
    got += [f"{', '.join(extra)} besides"] if extra and exactly else []
    raise UserError(
        thing,
        expected=f"a dict with the items {', '.join(sorted(ids))}",
        got=" and ".join(got) if isinstance(found, dict) else type(found).__name__,
        remedy="Key it by the ids of the agents, as tfrl.envs.MultiAgentEnv says.",
    )


class MultiAgentContract:
    """Follows who of the agents has ended, and raises a UserError where a row is not as promised.

    `check(state, where)` takes the states in order; a bare environment is taken to be reset after a
    state in which an environment ended. Without `info["agents"]` there is nothing to follow.
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
                expected = "False, since no step was taken"
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
            "True where the last agent has ended",
        )
        _expect(
            f"{where}termination",
            ~steps | ~termination | all_done,
            "False while an agent has not ended",
        )
        if self.env.autoreset is None:
            _expect(
                f"{where}truncation",
                ~truncation | all_done,
                "False while an agent has not ended (the time limit is make_env's)",
            )

    def _begin(self) -> np.ndarray:
        """Forgets the ends of episodes that are over; returns which rows are steps."""
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
            "True until the agent has ended, then False",
        )
        for flag in ("termination", "truncation"):
            _expect(f"{thing}/{flag}", ~(steps & done & flags[flag]), "False after its end")
        paid = state.reward[name].numpy()
        _expect(f"{where}: reward/{name}", ~(steps & done) | (paid == 0), "0 after its end", paid)
        done |= steps & (flags["termination"] | flags["truncation"])


def _expect(thing: str, ok: np.ndarray, expected: str, got: np.ndarray | None = None) -> None:
    if ok.all():
        return
    shown = "" if got is None else f" ({got.tolist()})"
    raise UserError(
        thing,
        expected=expected,
        got=f"otherwise in rows {np.flatnonzero(~ok).tolist()}{shown}",
        remedy="Follow the ends of agents as tfrl.envs.MultiAgentEnv says.",
    )
