"""One step of an agent in an environment, and the checks of what a rollout is given."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.core import Autoreset, Env, where_rows
from tfrl.errors import UserError, did_you_mean
from tfrl.types import ActionOutput, EnvState, Nest

# action_fn(agent_state, obs, key, carry) -> ActionOutput
ActionFn = Callable[..., ActionOutput]

SAME_STEP_MODES = (Autoreset.SAME_STEP, Autoreset.SAME_STEP_CACHED)


@struct.dataclass
class Loop(struct.Struct):
    """What a rollout carries from step to step.

    Attributes:
      env_state: State of the environments.
      carry: Recurrent state of the agent for the next step, or None.
    """

    env_state: EnvState
    carry: Nest = None


class Stepper:
    """Holds what stays the same over the steps of a rollout, all as values.

    `step(loop, t)` is a pure function; variables among the agent's leaves are read once, here.
    """

    def __init__(
        self,
        env: Env,
        agent: Any,
        env_state: EnvState,
        agent_state: Any,
        key: tf.Tensor,
        length: int,
        action_fn: ActionFn,
        carry: Nest,
    ):
        """Reads variables, derives the keys of all steps and fills in the first carry."""
        self.env = env
        self.mode = autoreset_mode(env, env_state)
        self.action_fn = action_fn
        self.agent_state = struct.values(agent_state)
        # One draw for all steps: inside the loop a key costs a single gather. Philox counts, so a
        # shorter rollout from the same key has a prefix of these keys.
        self.keys = seeding.split(key, length)  # [T, 2]
        self.fresh_carry = _fresh_carry(agent, env.num_envs, carry)
        start = self.fresh_carry if carry is None else struct.values(carry)
        self.start = Loop(env_state=struct.values(env_state), carry=start)

    def step(self, loop: Loop, t: tf.Tensor) -> tuple[Loop, ActionOutput]:
        """Acts and steps; returns the next loop state and what the agent answered."""
        state = loop.env_state
        output = self.action_fn(self.agent_state, state.obs, tf.gather(self.keys, t), loop.carry)
        new_state = self.env.step(state, output.action)
        return Loop(env_state=new_state, carry=self._next_carry(new_state, output.carry)), output

    def _next_carry(self, state: EnvState, carry: Nest) -> Nest:
        """The agent's carry, with the fresh one in rows whose observation starts an episode."""
        _check_carry(self.fresh_carry, carry)
        if carry is None:
            return None
        if self.mode is Autoreset.DISABLED:  # no further episode starts
            return carry
        if self.mode in SAME_STEP_MODES:
            starts = tf.logical_or(state.termination, state.truncation)
        else:
            starts = state.info["autoreset"]
        return where_rows(starts, self.fresh_carry, carry)


def _check_carry(fresh: Nest, carry: Nest) -> None:
    """Raises a UserError unless the agent's carry has the structure that the loop began with."""
    # To tf.nest None is a leaf like a tensor, so one-sided absence is told apart here.
    if (fresh is None) == (carry is None):
        try:
            tf.nest.assert_same_structure(fresh, carry)
            return
        except (TypeError, ValueError) as error:
            got = f"another one in ActionOutput.carry ({error})"
    else:
        got = "a carry although it began with None"
        if carry is None:
            got = "None in ActionOutput.carry"
    raise UserError(
        "carry",
        expected="the structure that the rollout started from",
        got=got,
        remedy="Give the agent a method initial_carry(batch_size) that returns the recurrent "
        "state of an episode's start, or pass carry=.",
    )


def _fresh_carry(agent: Any, batch_size: int, carry: Nest) -> Nest:
    """The recurrent state at an episode's start: the agent's own, else zeros like `carry`."""
    initial = getattr(agent, "initial_carry", None)
    if initial is not None:
        fresh = initial(batch_size)
        return None if fresh is None else struct.values(fresh)
    return None if carry is None else tf.nest.map_structure(tf.zeros_like, carry)


def autoreset_mode(env: Env, env_state: EnvState) -> Autoreset:
    """Returns the environment's autoreset mode; a bare environment is a UserError."""
    missing = [n for n in ("final_obs", "autoreset") if n not in env_state.info]
    if env.autoreset is None or missing:
        raise UserError(
            "env",
            expected="an environment with an autoreset mode",
            got=f"the bare {type(env.unwrapped).__name__}"
            + (f" (no {' and no '.join(missing)} in info)" if missing else ""),
            remedy="Make it with tfrl.make_env, which adds time limit, episode statistics and "
            "autoreset.",
        )
    return env.autoreset


def check_length(length: Any, name: str = "length") -> int:
    """Returns `length` as an int of at least 1; anything else is a UserError."""
    is_int = isinstance(length, int | np.integer) and not isinstance(length, bool)
    if not is_int or length < 1:
        raise UserError(
            name,
            expected="a Python int of at least 1 (the number of steps is static)",
            got=repr(length) if is_int or not tf.is_tensor(length) else "a tensor",
            remedy="Give the number of steps as a positive integer.",
        )
    return int(length)


def check_extra_fields(names: tuple[str, ...], env_state: EnvState) -> None:
    """Raises a UserError for fields that the environment's `info` does not have."""
    unknown = [n for n in names if n not in env_state.info]
    if unknown:
        available = sorted(env_state.info)
        raise UserError(
            "env_extra_fields",
            expected=f"names out of the environment's info ({', '.join(available)})",
            got=", ".join(unknown),
            remedy=did_you_mean(unknown[0], available),
        )
