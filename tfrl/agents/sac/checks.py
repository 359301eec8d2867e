"""Checks of SAC's settings, and of those that would have no effect."""

import dataclasses
import math
from typing import Any

from tfrl import specs
from tfrl.agents.actor_critic.networks import check_hidden
from tfrl.agents.off_policy.checks import check_count, check_unused
from tfrl.errors import UserError
from tfrl.types import Nest

# By how much a target computed in float32 may exceed the logarithm.
_ROUNDING = 1e-6


def check_settings(agent: Any, seen: Nest) -> None:
    """Checks counts, and that every argument has an effect.

    Args:
      agent: The agent, `SAC`.
      seen: The nest of specs of the networks' input.

    Raises:
      UserError: Naming the first setting that cannot stand.
    """
    owner = type(agent).__name__
    check_count(owner, "target_every", agent.target_every)
    if agent.critic_subset is not None:
        check_count(owner, "critic_subset", agent.critic_subset, high=agent.num_critics)
    defaults = {f.name: f.default for f in dataclasses.fields(agent)}

    def unchanged(given: str, *names: str) -> None:
        values = {n: getattr(agent, n) for n in names}
        check_unused(owner, given, {n: v for n, v in values.items() if v != defaults[n]})

    if not agent.learn_temperature:
        unchanged("a fixed temperature is", "target_entropy", "entropy_scale")
    if agent.target_entropy is not None:
        unchanged("target_entropy is", "entropy_scale")
    if agent.actor_network is not None:
        unchanged("actor_network is", "min_log_std", "max_log_std")
    if agent.discrete:
        unchanged("a Discrete action is", "min_log_std", "max_log_std")
        _check_target_entropy(owner, agent)
        check_hidden(owner, agent.hidden, None, seen, [agent.obs_key])
    else:
        unchanged("a Box is", "entropy_scale")


def _check_target_entropy(owner: str, agent: Any) -> None:
    """Raises a UserError for a target that the entropy of discrete play cannot reach.

    The temperature would move away from it without end.
    """
    number = specs.num_actions(agent.action_spec)
    high = math.log(number)
    if agent.target_entropy is None or 0.0 <= agent.target_entropy <= high + _ROUNDING:
        return
    raise UserError(
        f"{owner}.target_entropy",
        expected=f"an entropy of {number} discrete actions, from 0 to log {number} = {high:.4f}",
        got=repr(agent.target_entropy),
        remedy="Leave it out and give entropy_scale, the share of the entropy of uniform play, "
        "from 0 to 1.",
    )
