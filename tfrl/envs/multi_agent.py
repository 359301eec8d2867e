"""The protocol of environments with several agents, and who of them takes part in a step.

Observations, actions and rewards are dicts keyed by agent id. An environment's own end flags say
that the episode of the whole is over; an agent may end before the others. From then on it is
*inactive*: it is shown something and gives an action, but neither counts, until the next reset.
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
    agent id. `termination` and `truncation` [B] are the end of the environment: of all its agents.

    Where agents may end apart, `info["agents"]` is `{agent_id: flags}` with three bool [B] each, of
    the step that led here:

    * `active`: it took part in the step. False after a reset, and after its own end.
    * `termination`, `truncation`: its own end, at this step; False where it is inactive.

    The environment ends at the step at which its last agent does. An inactive agent is paid 0, and
    its action is ignored. An environment whose agents always end together may leave `agents` out.
    Time limits are not the environment's: `tfrl.make_env` adds them, and they truncate the agents
    that are active; `agent_flags` puts both together.
    """

    @property
    @abc.abstractmethod
    def agent_ids(self) -> tuple[str, ...]:
        """The names of the agents, in the order of their one-hot codes."""

    @property
    def state_spec(self) -> Nest:
        """The nest of specs of the global state in `info["state"]`; None where there is none."""
        return None


@struct.dataclass
class AgentFlags(struct.Struct):
    """One agent's steps, bool `[...]` each, with the leading axes of the experience.

    Attributes:
      valid: It took part in the step; None where all rows count.
      termination: It ended in a terminal state at the step.
      truncation: It was cut at the step, by itself or with the environment.
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
    """Makes `info["agents"]` out of flags side by side.

    Args:
      ids: A agent ids.
      active: bool [B, A], who took part in the step.
      termination: bool [B, A], who ended in a terminal state; counts where active.
      truncation: bool [B, A], who was cut; counts where active.
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
    """Makes the `info["agents"]` of a reset: nobody took part in a step."""
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
    """Returns each agent's own end flags and which of its rows count.

    An agent ends by its own flags or, where it is active, with the environment:

      valid_a = valid and active_a
      termination_a = valid_a and (own termination or (termination and not own truncation))
      truncation_a = valid_a and (own truncation or (truncation and not termination_a))

    Args:
      ids: The agents.
      termination: bool [...], the environment's.
      truncation: bool [...], the environment's, the time limit's included.
      valid: bool [...], rows that are steps; None where all are.
      agents: `info["agents"]` of the same rows; None where all agents end together.
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
