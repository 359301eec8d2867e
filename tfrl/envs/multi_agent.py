"""The protocol of environments with several agents, and the agents' active flags.

Observations, actions and rewards are dicts keyed by agent id. An environment's end flags mark the
end of the whole episode; an agent may end earlier. From then on it is *inactive*: it still gets
observations and acts, but both are ignored until the next reset.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.envs.core import Env
from tfrl.types import Nest

AGENT_FLAGS = ("active", "termination", "truncation")


class MultiAgentEnv(Env):
    """A batch of environments with several agents each.

    `obs_spec` and `action_spec` are dicts of specs, `reward` is a dict of float32 [B], all keyed by
    agent id. `termination` and `truncation` [B] mark the end of the environment, for all its
    agents.

    If agents may end at different steps, `info["agents"]` is `{agent_id: flags}` with three bool
    [B] each, for the last step:

    * `active`: it acted in the step. False after a reset, and after its own end.
    * `termination`, `truncation`: its own end at this step; False if inactive.

    The environment ends at the same step as its last agent. An inactive agent has reward 0, and its
    action is ignored. If agents always end together, `agents` may be omitted. `tfrl.make_env` adds
    time limits, which truncate the active agents; `agent_flags` combines both.
    """

    @property
    @abc.abstractmethod
    def agent_ids(self) -> tuple[str, ...]:
        """The names of the agents, in the order of their one-hot codes."""

    @property
    def state_spec(self) -> Nest:
        """The nest of specs of the global state `info["state"]`; None without one."""
        return None


@struct.dataclass
class AgentFlags(struct.Struct):
    """One agent's steps, bool `[...]` each, with the leading axes of the experience.

    Attributes:
      valid: It acted in the step; None if all rows are valid.
      termination: It ended in a terminal state at the step.
      truncation: It was truncated at the step, alone or with the environment.
    """

    valid: tf.Tensor | None
    termination: tf.Tensor
    truncation: tf.Tensor


def agent_ids(env: Env) -> tuple[str, ...] | None:
    """Returns the ids of an environment's agents, below all wrappers; None for a single agent."""
    task = env.unwrapped
    return task.agent_ids if isinstance(task, MultiAgentEnv) else None


def agents_info(
    ids: Sequence[str], active: tf.Tensor, termination: tf.Tensor, truncation: tf.Tensor
) -> dict[str, dict[str, tf.Tensor]]:
    """Makes `info["agents"]` from stacked flags.

    Args:
      ids: A agent ids.
      active: bool [B, A], the agents that acted in the step.
      termination: bool [B, A], the agents that terminated; used only if active.
      truncation: bool [B, A], the truncated agents; used only if active.
    """
    columns = [
        tf.unstack(flags, num=len(ids), axis=-1)
        for flags in (active, active & termination, active & truncation)
    ]
    return {
        name: dict(zip(AGENT_FLAGS, flags, strict=True))
        for name, *flags in zip(ids, *columns, strict=True)
    }


def no_step(ids: Sequence[str], num_envs: int) -> dict[str, dict[str, tf.Tensor]]:
    """Makes the `info["agents"]` of a reset: no agent acted."""
    no = tf.zeros([num_envs], tf.bool)
    return {name: dict.fromkeys(AGENT_FLAGS, no) for name in ids}


def agent_flags(
    ids: Sequence[str],
    *,
    termination: tf.Tensor,
    truncation: tf.Tensor,
    valid: tf.Tensor | None,
    agents: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, AgentFlags]:
    """Returns each agent's end flags and valid rows.

    An agent ends by its own flags or, if active, with the environment:

      valid_a = valid and active_a
      termination_a = valid_a and (own termination or (termination and not own truncation))
      truncation_a = valid_a and (own truncation or (truncation and not termination_a))

    Args:
      ids: The agents.
      termination: bool [...], the environment's.
      truncation: bool [...], the environment's, including the time limit.
      valid: bool [...], rows that are steps; None if all are.
      agents: `info["agents"]` of the same rows; None if all agents end together.
    """
    if agents is None:
        shared = AgentFlags(valid=valid, termination=termination, truncation=truncation)
        return dict.fromkeys(ids, shared)
    flags = {}
    for name in ids:
        own = agents[name]
        counts = own["active"] if valid is None else valid & own["active"]
        ended = counts & (own["termination"] | (termination & ~own["truncation"]))
        cut = counts & (own["truncation"] | (truncation & ~ended))
        flags[name] = AgentFlags(valid=counts, termination=ended, truncation=cut)
    return flags
