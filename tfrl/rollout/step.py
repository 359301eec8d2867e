"""One step of an agent in an environment, and the arguments of rollouts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import cast

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.envs.core import Autoreset, BatchedEnv, Env, where_rows
from tfrl.errors import UserError
from tfrl.types import ActionFn, ActionOutput, EnvState, Nest, Trajectory

StepFn = Callable[[EnvState, Nest], EnvState]

SAME_STEP_MODES = (Autoreset.SAME_STEP, Autoreset.SAME_STEP_CACHED)
# The record's own fields that can be requested, under both names.
_OWN_FIELDS = (
    *("obs", "action", "actions", "reward", "rewards", "next_obs"),
    *("termination", "truncation", "dones", "valid"),
)


@dataclasses.dataclass(frozen=True)
class SteppedEnv:
    """Environments given only by their function `step`."""

    step: StepFn
    num_envs: int
    autoreset: Autoreset | None = None


def env_of(env: BatchedEnv | StepFn, env_state: EnvState) -> BatchedEnv:
    """Returns the environments: `env` itself, or the object whose `step` it is."""
    if hasattr(env, "step"):
        return cast(BatchedEnv, env)
    owner = getattr(env, "__self__", None)
    if owner is not None and getattr(owner, "step", None) == env:
        return owner
    if not callable(env):
        raise UserError(
            "env",
            expected="an environment, or a function step(env_state, action) -> EnvState",
            got=repr(env),
        )
    return SteppedEnv(step=env, num_envs=int(env_state.termination.shape[0]))


def acting(agent: object, action_fn: ActionFn | None, method: str) -> tuple[object, ActionFn]:
    """Returns the agent and its acting function.

    Args:
      agent: An agent, or an acting function; a bound method gives its agent.
      action_fn: Replaces the agent's method.
      method: "compute_actions" or "evaluate_actions".
    """
    if not hasattr(agent, method) and callable(agent):
        agent, action_fn = getattr(agent, "__self__", None), action_fn or agent
    return agent, action_fn or getattr(agent, method)


def check_fields(
    fields: Sequence[str], env_state: EnvState
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the extra fields of a rollout: from `info`, and the record's own.

    Raises:
      UserError: For unknown ones.
    """
    checks.known("env_extra_fields", fields, {*env_state.info, *_OWN_FIELDS})
    of_info = tuple(name for name in fields if name in env_state.info)
    return of_info, tuple(name for name in fields if name not in env_state.info)


def extra_fields(fields: Sequence[str], state: EnvState) -> dict[str, Nest]:
    """Returns fields of a state's `info`."""
    return {name: state.info[name] for name in fields}


def with_own_fields(record: Trajectory, fields: Sequence[str]) -> Trajectory:
    """Returns a record with its own fields added to its `env_extras`."""
    if not fields:
        return record
    own = {name: getattr(record, name) for name in fields}
    return record.replace(env_extras={**(record.env_extras or {}), **own})


def successor(state: EnvState) -> Nest:
    """Returns the true successor at a step; for a bare environment the next observation."""
    return state.info.get("final_obs", state.obs)


def seen_by(agent: object, state: EnvState) -> Nest:
    """Returns an agent's input: the observation, or a record if it needs one."""
    if not getattr(agent, "takes_records", False):
        return state.obs
    return Trajectory(
        obs=state.obs,
        reward=state.reward,
        termination=state.termination,
        truncation=state.truncation,
        env_extras=state.info,
    )


def is_step(state: EnvState) -> tf.Tensor:
    """Returns bool [B]: which rows are steps, not autoreset rows."""
    if "autoreset" in state.info:
        return tf.logical_not(state.info["autoreset"])
    return tf.ones(state.termination.shape, tf.bool)


@struct.dataclass
class Loop(struct.Struct):
    """The loop state of a rollout.

    Attributes:
      env_state: State of the environments.
      carry: Recurrent state of the agent for the next step, or None.
    """

    env_state: EnvState
    carry: Nest = None


class Stepper:
    """Holds the constants of a rollout's steps, as values.

    `step(loop, t)` is a pure function; variables among the agent's leaves are read once, here.
    """

    def __init__(
        self,
        env: BatchedEnv,
        agent: object,
        env_state: EnvState,
        agent_state: Nest,
        key: tf.Tensor,
        length: int,
        action_fn: ActionFn,
        carry: Nest,
    ):
        """Reads variables, derives the keys of all steps and sets the first carry."""
        self.env, self.agent = env, agent
        self.action_fn = action_fn
        self.agent_state = struct.values(agent_state)
        # One draw for all steps: inside the loop a key costs a single gather. Philox counts, so a
        # shorter rollout from the same key has a prefix of these keys.
        self.keys = seeding.split(key, length)  # [T, 2]
        self.fresh_carry = _fresh_carry(agent, env.num_envs, carry)
        start = self.fresh_carry if carry is None else struct.values(carry)
        self.start = Loop(env_state=struct.values(env_state), carry=start)

    def step(self, loop: Loop, t: tf.Tensor) -> tuple[Loop, ActionOutput]:
        """Acts and steps; returns the next loop state and the agent's output."""
        state = loop.env_state
        obs = seen_by(self.agent, state)
        output = self.action_fn(self.agent_state, obs, tf.gather(self.keys, t), loop.carry)
        new_state = self.env.step(state, output.action)
        return Loop(env_state=new_state, carry=self._next_carry(new_state, output.carry)), output

    def _next_carry(self, state: EnvState, carry: Nest) -> Nest:
        """The agent's carry, with the fresh one in rows whose observation starts an episode."""
        _check_carry(self.fresh_carry, carry)
        if carry is None:
            return None
        if self.env.autoreset is Autoreset.DISABLED:  # no further episode starts
            return carry
        if self.env.autoreset is Autoreset.NEXT_STEP:
            starts = state.info["autoreset"]
        else:
            starts = tf.logical_or(state.termination, state.truncation)
        return where_rows(starts, self.fresh_carry, carry)


def _check_carry(fresh: Nest, carry: Nest) -> None:
    """Raises a UserError unless the carry has the structure of the initial carry."""
    # tf.nest treats None like a tensor leaf, so check for one-sided None here.
    if (fresh is None) == (carry is None):
        try:
            tf.nest.assert_same_structure(fresh, carry)
            return
        except (TypeError, ValueError) as error:
            got = f"a different structure in ActionOutput.carry ({error})"
    else:
        got = "a carry after an initial carry of None"
        if carry is None:
            got = "None in ActionOutput.carry"
    raise UserError(
        "carry",
        expected="the structure of the initial carry",
        got=got,
        remedy="Define initial_carry(batch_size) on the agent to return the initial recurrent "
        "state, or pass carry=.",
    )


def _fresh_carry(agent: object, batch_size: int, carry: Nest) -> Nest:
    """The recurrent state at an episode's start: the agent's own, else zeros like `carry`."""
    initial = getattr(agent, "initial_carry", None)
    if initial is not None:
        fresh = initial(batch_size)
        return None if fresh is None else struct.values(fresh)
    return None if carry is None else tf.nest.map_structure(tf.zeros_like, carry)


def check_autoreset(env: Env, env_state: EnvState) -> None:
    """Raises a UserError for a bare environment, which has no autoreset mode."""
    missing = [n for n in ("final_obs", "autoreset") if n not in env_state.info]
    if env.autoreset is None or missing:
        raise UserError(
            "env",
            expected="an environment with an autoreset mode",
            got=f"the bare {type(env.unwrapped).__name__}"
            + (f" (no {' and no '.join(missing)} in info)" if missing else ""),
            remedy="Create it with tfrl.make_env, which adds a time limit, episode statistics and "
            "autoreset.",
        )
