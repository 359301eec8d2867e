"""Collects experience; with device environments in one compiled loop."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks
from tfrl.envs.core import BatchedEnv
from tfrl.envs.host_env import HostEnv
from tfrl.rollout.host import host_rollout
from tfrl.rollout.scan import scan
from tfrl.rollout.step import (
    SAME_STEP_MODES,
    Loop,
    StepFn,
    Stepper,
    acting,
    check_autoreset,
    check_fields,
    env_of,
    extra_fields,
    is_step,
    successor,
    with_own_fields,
)
from tfrl.types import ActionFn, ComputesActions, EnvState, Nest, Trajectory


def rollout(
    env: BatchedEnv | StepFn,
    agent: ComputesActions | ActionFn,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    length: int,
    env_extra_fields: Sequence[str] = (),
    action_fn: ActionFn | None = None,
    carry: Nest = None,
    in_numpy: bool = False,
) -> tuple[Trajectory, EnvState, Nest]:
    """Lets an agent act for `length` steps and records them.

    Row t holds o_t, a_t, r_t, the true successor o_{t+1} and the end flags of the step. Autoreset
    rows and rows frozen after an end are invalid. The function is pure: call it eagerly, or inside
    a `tf.function` with or without `jit_compile`; with a `HostEnv`, which Python steps, call it
    outside.

    Args:
      env: An environment from `tfrl.make_env`; or only its `step(env_state, action)`. Without an
        autoreset layer, the environment's own behaviour after an end applies, and all rows are
        valid.
      agent: Any object with `compute_actions`, or that function; a recurrent agent also has
        `initial_carry(batch_size)`.
      env_state: The state to start from.
      agent_state: The agent's state; leaves may be tensors or tf.Variables.
      key: int32 [2].
      length: T, the number of steps; static.
      env_extra_fields: Names of `info` fields after each step, or of the trajectory's own fields
        ("termination"), to store in `Trajectory.env_extras`.
      action_fn: `action_fn(agent_state, obs, key, carry) -> ActionOutput`; the agent's
        `compute_actions` if None.
      carry: Recurrent state for the first step; the agent's `initial_carry` if None. In rows where
        an episode starts, `initial_carry` replaces it, or zeros for an agent without one.
      in_numpy: With a `HostEnv`: whether to return NumPy arrays.

    Returns:
      The trajectory, every leaf [T, B, ...]; the environments' state and the carry after the last
      step.

    Raises:
      UserError: For a length that is not a positive int, an unknown extra field, or an agent whose
        carry changes its structure.
    """
    length = checks.at_least("length", length, 1)
    fields, own = check_fields(env_extra_fields, env_state)
    env = env_of(env, env_state)
    actor, action_fn = acting(agent, action_fn, "compute_actions")
    if isinstance(env, HostEnv):
        check_autoreset(env, env_state)
        trajectory, state, carry = host_rollout(
            env,
            actor,
            env_state,
            agent_state,
            key,
            length,
            fields,
            action_fn,
            carry,
            in_numpy=in_numpy,
        )
        return with_own_fields(trajectory, own), state, carry
    stepper = Stepper(env, actor, env_state, agent_state, key, length, action_fn, carry)
    # If every row is a valid step, `valid` need not be stored.
    all_valid = env.autoreset in SAME_STEP_MODES or "autoreset" not in env_state.info
    # If the successor is the next row's observation, it need not be stored.
    stores_next_obs = env.autoreset in SAME_STEP_MODES or env.autoreset is None

    def step(loop: Loop, t: tf.Tensor) -> tuple[Loop, dict[str, Any]]:
        new_loop, output = stepper.step(loop, t)
        state = new_loop.env_state
        row = {
            "obs": loop.env_state.obs,
            "action": output.action,
            "reward": state.reward,
            "termination": state.termination,
            "truncation": state.truncation,
        }
        if output.extras is not None:  # to tf.nest a None inside a dict is a leaf
            row["policy_extras"] = output.extras
        if fields:
            row["env_extras"] = extra_fields(fields, state)
        if stores_next_obs:
            row["next_obs"] = successor(state)
        if not all_valid:
            row["valid"] = is_step(state)
        return new_loop, row

    loop, rows = scan(step, stepper.start, length)
    if all_valid:
        rows["valid"] = tf.ones(rows["termination"].shape, tf.bool)
    if not stores_next_obs:
        rows["next_obs"] = tf.nest.map_structure(_shifted, rows["obs"], loop.env_state.obs)
    return with_own_fields(Trajectory(**rows), own), loop.env_state, loop.carry


def _shifted(obs: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Rows 1 .. T of o_0 .. o_T, given o_0 .. o_{T-1} [T, B, ...] and o_T [B, ...]."""
    return tf.concat([obs[1:], last[tf.newaxis]], axis=0)
