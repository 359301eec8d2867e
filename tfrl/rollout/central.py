"""Collects experience with one policy that acts for the environments that have answered."""

from collections.abc import Sequence

import tensorflow as tf

from tfrl import seeding
from tfrl.envs.central_inference import CentralInference
from tfrl.envs.host_halves import join, split
from tfrl.rollout.acting import policy_for
from tfrl.rollout.host_player import HostStepper, StepRecord, beside, carries_of
from tfrl.types import ActionFn, EnvState, Nest, Trajectory


def central_rollout(
    env: CentralInference,
    agent: object,
    env_state: EnvState,
    agent_state: Nest,
    key: tf.Tensor,
    length: int,
    fields: Sequence[str],
    action_fn: ActionFn,
    carry: Nest,
) -> tuple[Trajectory, EnvState, Nest]:
    """Steps every environment `length` times; the policy acts for those that have answered.

    Each policy call has a row for every environment, but only some rows are used. So the rollout
    depends on timing and is not repeatable to the bit.
    """
    policy, size = policy_for(env, agent, action_fn), env.num_envs
    carries, fresh = (_rows(x, size) for x in carries_of(policy, carry))
    players = [
        HostStepper(part, agent, own, carries[i], fresh[i])
        for i, (part, own) in enumerate(zip(env.parts, env.rows_of(env_state), strict=True))
    ]
    records = [StepRecord(player, length, fields) for player in players]
    taken = [0] * size  # steps of each environment
    acting, calls = list(range(size)), 0
    pending: set[int] = set()
    while acting or pending:
        if acting:
            obs = beside([player.agent_obs for player in players], axis=0)
            before = _carry_of(players)
            if calls == 0:
                policy.begin(agent_state, key, length, obs, before)
            elif calls % length == 0:  # draws for `length` calls are used up
                policy.redraw(seeding.fold_in(key, calls), length)
            answer = policy.act(obs, calls % length, before)
            action, after, extras = (_rows(x, size) for x in answer)
            calls += 1
            for i in acting:
                players[i].dispatch(action[i], after[i])
                records[i].put(taken[i], action[i], extras[i])
            pending.update(acting)
        acting = []
        for i in env.ready(sorted(pending)):
            records[i].receive(taken[i])
            pending.remove(i)
            taken[i] += 1
            if taken[i] < length:
                acting.append(i)
    trajectory = beside([record.trajectory() for record in records], axis=1)
    return trajectory, join([player.state for player in players]), _carry_of(players)


def _carry_of(players: Sequence[HostStepper]) -> Nest:
    return None if players[0].carry is None else beside([p.carry for p in players], axis=0)


def _rows(nest: Nest, count: int) -> list[Nest]:
    return [None] * count if nest is None else split(nest, count)
