"""One episode per environment, as a trajectory or only as return and length."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks, struct
from tfrl.envs.core import BatchedEnv
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.rollout.host import host_episode_totals, host_rollout
from tfrl.rollout.scan import scan
from tfrl.rollout.step import (
    StepFn,
    Stepper,
    acting,
    check_fields,
    env_of,
    extra_fields,
    is_step,
    successor,
    with_own_fields,
)
from tfrl.types import ActionFn, EnvState, EvaluatesActions, Nest, Trajectory
from tfrl.xla import in_xla

# Fields that a light trajectory omits.
_LARGE = ("obs", "action", "next_obs", "policy_extras")
# Maximum columns of a leaf that a loop within XLA carries separately.
_NARROW = 8


@struct.dataclass
class EpisodeTotals(struct.Struct):
    """Return and length of the first episode of each environment.

    Attributes:
      episode_returns: float32 [B], the sum of the rewards (a dict of them for a dict of rewards).
      episode_lengths: int32 [B], the number of steps.
      discounted_returns: float32 [B], the sum of discount^k r_k; None without a discount.
      infos: `{name: float32 [B]}`, fields of `info` at the last step.
    """

    episode_returns: Nest
    episode_lengths: tf.Tensor
    discounted_returns: Nest = None
    infos: dict[str, tf.Tensor] = struct.field(default_factory=dict)


def eval_rollout_episode(
    env: BatchedEnv | StepFn,
    agent: EvaluatesActions | ActionFn,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    length: int | None = None,
    env_extra_fields: Sequence[str] = (),
    action_fn: ActionFn | None = None,
    carry: Nest = None,
    light: bool = False,
) -> tuple[Trajectory, EnvState]:
    """Records one episode of every environment, from `env_state` to its first end.

    It stops when all episodes have ended. Rows after the end of an episode are invalid in every
    autoreset mode.

    Args:
      env: See `rollout`.
      agent: Any object with `evaluate_actions`, or only such a function.
      env_state: The state to start from, usually of a fresh `env.reset`.
      agent_state: The agent's state; leaves may be tensors or tf.Variables.
      key: int32 [2].
      length: The most steps that an episode may take, static; `env.max_episode_steps` if None.
      env_extra_fields: See `rollout`.
      action_fn: See `rollout`; the agent's `evaluate_actions` if None.
      carry: Recurrent state for the first step.
      light: Whether to keep only rewards, ends and extra fields, to save memory.

    Returns:
      The trajectory, every leaf [length, B, ...], and the environments' last state.

    Raises:
      UserError: As `rollout`, and if neither `length` nor the environment has a limit.
    """
    fields, own = check_fields(env_extra_fields, env_state)
    env = env_of(env, env_state)
    length = episode_limit(env, length, name="length")
    actor, action_fn = acting(agent, action_fn, "evaluate_actions")
    if isinstance(env, HostEnv):
        trajectory, state, _ = host_rollout(
            *(env, actor, env_state, agent_state, key, length, fields, action_fn, carry),
            one_episode=True,
        )
        ends = tf.logical_or(trajectory.termination, trajectory.truncation)
        ends = tf.cast(tf.logical_and(ends, trajectory.valid), tf.int32)
        before_end = tf.equal(tf.cumsum(ends, axis=0, exclusive=True), 0)  # [T, B]
        trajectory = trajectory.replace(valid=tf.logical_and(trajectory.valid, before_end))
        return _as_asked(trajectory, own, light), state
    stepper = Stepper(env, actor, env_state, agent_state, key, length, action_fn, carry)

    def step(carried: Nest, t: tf.Tensor) -> tuple[Nest, dict[str, Any]]:
        loop, running = carried
        after, output = stepper.step(loop, t)
        state = after.env_state
        row = {
            "reward": state.reward,
            "termination": state.termination,
            "truncation": state.truncation,
            "valid": running & is_step(state),
        }
        if fields:
            row["env_extras"] = extra_fields(fields, state)
        large = {"obs": loop.env_state.obs, "action": output.action, "next_obs": successor(state)}
        row.update({n: x for n, x in large.items() if not light or {n, f"{n}s"} & {*own}})
        if not light and output.extras is not None:
            row["policy_extras"] = output.extras
        return (after, running & ~(state.termination | state.truncation)), row

    running = tf.ones([env.num_envs], tf.bool)
    (loop, _), rows = scan(
        step, (stepper.start, running), length, going=lambda carried: tf.reduce_any(carried[1])
    )
    return _as_asked(Trajectory(**rows), own, light), loop.env_state


def _as_asked(trajectory: Trajectory, own: Sequence[str], light: bool) -> Trajectory:
    """The trajectory with its own fields as extras, without the omitted fields if light."""
    trajectory = with_own_fields(trajectory, own)
    return trajectory.replace(**dict.fromkeys(_LARGE)) if light else trajectory


def fast_eval_rollout_episode(
    env: BatchedEnv | StepFn,
    agent: EvaluatesActions | ActionFn,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    length: int | None = None,
    env_extra_fields: Sequence[str] = (),
    action_fn: ActionFn | None = None,
    carry: Nest = None,
    discount: float | None = None,
    info_fields: Sequence[str] = (),
) -> tuple[EpisodeTotals, EnvState]:
    """Computes returns and lengths of one episode of every environment; stops when all ended.

    The episodes equal those of `eval_rollout_episode`, but are not stored. An episode that has not
    ended after `length` steps counts up to there.

    Args:
      env: See `rollout`.
      agent: Any object with `evaluate_actions`, or only such a function.
      env_state: The state to start from, usually of a fresh `env.reset`.
      agent_state: The agent's state; leaves may be tensors or tf.Variables.
      key: int32 [2].
      length: The most steps that an episode may take, static; `env.max_episode_steps` if None.
      env_extra_fields: Checked as in `rollout`; nothing is stored.
      action_fn: See `rollout`; the agent's `evaluate_actions` if None.
      carry: Recurrent state for the first step.
      discount: Asks for `discounted_returns` too, if not None.
      info_fields: Scalars of `info` to return from the last steps.

    Returns:
      Returns and lengths of the episodes, each [B], and the environments' last state.

    Raises:
      UserError: As `eval_rollout_episode`.
    """
    check_fields([*env_extra_fields, *info_fields], env_state)
    env = env_of(env, env_state)
    length = episode_limit(env, length, name="length")
    actor, action_fn = acting(agent, action_fn, "evaluate_actions")
    if isinstance(env, HostEnv):
        *result, infos, last = host_episode_totals(
            *(env, actor, env_state, agent_state, key, length, action_fn, carry, discount),
            info_fields=info_fields,
        )
        returns, lengths, discounted = (
            None if x is None else tf.convert_to_tensor(x) for x in result
        )
        totals = EpisodeTotals(
            episode_returns=returns, episode_lengths=lengths, discounted_returns=discounted
        )
        infos = {name: tf.convert_to_tensor(x) for name, x in infos.items()}
        return totals.replace(infos=infos), last
    stepper = Stepper(env, actor, env_state, agent_state, key, length, action_fn, carry)
    zeros = tf.nest.map_structure(tf.zeros_like, stepper.start.env_state.reward)
    totals = EpisodeTotals(
        episode_returns=zeros,
        episode_lengths=tf.zeros([env.num_envs], tf.int32),
        discounted_returns=None if discount is None else zeros,
        infos={name: tf.zeros([env.num_envs]) for name in info_fields},
    )

    def body(
        t: tf.Tensor, columns: Nest, running: tf.Tensor, totals: EpisodeTotals
    ) -> tuple[tf.Tensor, Nest, tf.Tensor, EpisodeTotals]:
        loop, _ = stepper.step(_joined(columns, stepper.start), t)
        state = loop.env_state
        counts = running & is_step(state)
        totals = _add_step(totals, state.reward, counts, discount).replace(
            infos={
                name: tf.where(counts, tf.cast(state.info[name], tf.float32), before)
                for name, before in totals.infos.items()
            }
        )
        ends = tf.logical_or(state.termination, state.truncation)
        running = tf.logical_and(running, tf.logical_not(ends))
        return t + 1, _columns(loop), running, totals

    _, columns, _, totals = tf.while_loop(
        lambda t, columns, running, totals: tf.logical_and(t < length, tf.reduce_any(running)),
        body,
        (tf.constant(0), _columns(stepper.start), tf.ones([env.num_envs], tf.bool), totals),
    )
    return totals, _joined(columns, stepper.start).env_state


def _columns(nest: Nest) -> list[Any]:
    """The leaves of a nest; within XLA narrow ones `[B, K]` as lists of K columns `[B]`.

    XLA computes each element of a matrix stacked from columns separately, with all inputs of its
    column; separate columns it computes as vectors, and reuses them.
    """
    return [tf.unstack(x, axis=1) if _is_narrow(x) else x for x in tf.nest.flatten(nest)]


def _joined(columns: list[Any], like: Nest) -> Nest:
    """Undoes `_columns`."""
    leaves = [tf.stack(x, axis=1) if isinstance(x, list) else x for x in columns]
    return tf.nest.pack_sequence_as(like, leaves)


def _is_narrow(x: Any) -> bool:
    if x is None or x.shape.rank != 2 or not in_xla():
        return False
    return 0 < (x.shape[1] or 0) <= _NARROW


def episode_totals(trajectory: Trajectory, discount: float | None = None) -> EpisodeTotals:
    """Computes returns and lengths of a trajectory of `eval_rollout_episode` over valid rows.

    Args:
      trajectory: One episode per column, leaves [T, B, ...].
      discount: Asks for `discounted_returns` too, if not None.

    Returns:
      Returns and lengths of the episodes, each [B].
    """
    valid = trajectory.valid
    steps = tf.cast(valid, tf.int32)

    def total(reward: tf.Tensor, weight: Any) -> tf.Tensor:
        # A select, not a product: invalid rows may contain NaN.
        return tf.reduce_sum(tf.where(valid, reward * weight, 0.0), axis=0)

    discounted = None
    if discount is not None:
        age = tf.cast(tf.cumsum(steps, axis=0, exclusive=True), tf.float32)
        weight = tf.pow(tf.constant(discount, tf.float32), age)  # [T, B]
        discounted = tf.nest.map_structure(lambda r: total(r, weight), trajectory.reward)
    return EpisodeTotals(
        episode_returns=tf.nest.map_structure(lambda r: total(r, 1.0), trajectory.reward),
        episode_lengths=tf.reduce_sum(steps, axis=0),
        discounted_returns=discounted,
    )


def episode_limit(env: BatchedEnv, length: int | None, name: str) -> int:
    """Returns the maximum steps of an episode: `length`, else the environment's limit."""
    if length is not None:
        return checks.at_least(name, length, 1)
    limit = getattr(env, "max_episode_steps", None)
    if limit is None:
        raise UserError(
            name,
            expected="a limit on the steps of an episode",
            got="None, and the environment has no max_episode_steps",
            remedy=f"Pass {name}, or create the environment with max_episode_steps.",
        )
    return checks.at_least("env.max_episode_steps", limit, 1)


def _add_step(
    totals: EpisodeTotals, reward: Nest, counts: tf.Tensor, discount: float | None
) -> EpisodeTotals:
    """Adds one step's reward where `counts` [B] is True, discounted by the length so far."""
    lengths = totals.episode_lengths
    discounted = totals.discounted_returns
    if discount is not None:
        weight = tf.pow(tf.constant(discount, tf.float32), tf.cast(lengths, tf.float32))
        discounted = tf.nest.map_structure(
            lambda total, r: total + tf.where(counts, r * weight, 0.0), discounted, reward
        )
    return EpisodeTotals(
        episode_returns=tf.nest.map_structure(
            lambda total, r: total + tf.where(counts, r, 0.0), totals.episode_returns, reward
        ),
        episode_lengths=lengths + tf.cast(counts, tf.int32),
        discounted_returns=discounted,
    )
