"""One step of an agent in its environments, as a record."""

from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from tfrl.envs.core import BatchedEnv
from tfrl.rollout.step import (
    StepFn,
    acting,
    check_fields,
    env_of,
    extra_fields,
    is_step,
    seen_by,
    successor,
    with_own_fields,
)
from tfrl.types import ActionFn, ComputesActions, EnvState, EvaluatesActions, Nest, Trajectory


class RolloutFn(Protocol):
    """The signature of `rollout`; a custom function with it can replace `rollout`."""

    def __call__(
        self,
        env: BatchedEnv | StepFn,
        agent: ComputesActions | ActionFn,
        env_state: EnvState,
        agent_state: Nest,
        key: tf.Tensor,
        length: int,
        env_extra_fields: Sequence[str] = (),
        action_fn: ActionFn | None = None,
        carry: Nest = None,
    ) -> tuple[Trajectory, EnvState, Nest]:
        """Returns experience [T, B, ...], the environments' state, and the carry."""


def env_step(
    env: BatchedEnv | StepFn,
    agent: ComputesActions | ActionFn,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    env_extra_fields: Sequence[str] = (),
) -> tuple[Trajectory, EnvState]:
    """Acts once and steps once, for agents without memory; recurrent agents use `rollout`.

    Args:
      env: See `rollout`, on the device.
      agent: Any object with `compute_actions`, or that function.
      env_state: The state to act on.
      agent_state: The agent's state.
      key: int32 [2], for the action.
      env_extra_fields: See `rollout`.

    Returns:
      The step, leaves [B, ...], and the environments' state after it.
    """
    fields, own = check_fields(env_extra_fields, env_state)
    env = env_of(env, env_state)
    actor, action_fn = acting(agent, None, "compute_actions")
    output = action_fn(agent_state, seen_by(actor, env_state), key, None)
    after = env.step(env_state, output.action)
    step = Trajectory(
        obs=env_state.obs,
        action=output.action,
        reward=after.reward,
        next_obs=successor(after),
        termination=after.termination,
        truncation=after.truncation,
        valid=is_step(after),
        policy_extras=output.extras,
        env_extras=extra_fields(fields, after) or None,
    )
    return with_own_fields(step, own), after


def eval_env_step(
    env: BatchedEnv | StepFn,
    agent: EvaluatesActions | ActionFn,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    env_extra_fields: Sequence[str] = (),
) -> tuple[Trajectory, EnvState]:
    """`env_step` with `evaluate_actions`; keeps only rewards, ends and extra fields."""
    _, action_fn = acting(agent, None, "evaluate_actions")
    step, after = env_step(env, action_fn, env_state, agent_state, key, env_extra_fields)
    return step.replace(obs=None, action=None, next_obs=None, policy_extras=None), after
