"""What TF-Agents' agents do otherwise than one may expect, said once when one is made."""

import functools
import inspect
import logging

from tf_agents.agents.ddpg.ddpg_agent import DdpgAgent
from tf_agents.agents.ppo.ppo_agent import PPOAgent
from tf_agents.agents.sac.sac_agent import SacAgent
from tf_agents.agents.td3.td3_agent import Td3Agent

from tfrl.compat.tf_agents.from_tf_agent_logic import Logic

_LOG = logging.getLogger(__name__)


def tell_limits(logic: Logic) -> None:
    """Warns of what is known of the agent's class."""
    if isinstance(logic.agent, PPOAgent):
        _tell_of_ppo()
    if logic.form == "sequence" and isinstance(logic.agent, SacAgent | Td3Agent | DdpgAgent):
        _tell_of_padding()


@functools.cache
def _tell_of_ppo() -> None:
    """Says once where TF-Agents' PPO differs from what its name promises."""
    lines, first = inspect.getsourcelines(PPOAgent.compute_advantages)
    at = next((i for i, line in enumerate(lines) if "final_value=value_preds" in line), 0)
    _LOG.warning(
        "TF-Agents' PPO with GAE bootstraps the last step of a rollout from V(s_{T-1}), the value "
        "before it, and not from V(s_T); nor does it bootstrap behind a truncation: %s:%d. "
        "tfrl.agents.PPO does both.",
        inspect.getsourcefile(PPOAgent),
        first + at,
    )


@functools.cache
def _tell_of_padding() -> None:
    """Says once that losses which are sums over time take no weights `[B, T]`."""
    _LOG.warning(
        "TF-Agents' SAC, TD3 and DDPG sum their losses over time before they weight them: with a "
        "network that has a memory they also train on what stands behind an episode's end in a "
        "sequence. DqnAgent does not."
    )
