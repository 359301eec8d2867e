"""Checks of SAC's settings, and of those that would have no effect."""

import dataclasses
from typing import Any

from tfrl.agents.actor_critic.networks import check_hidden
from tfrl.agents.off_policy.checks import check_count, check_torsos, check_unused
from tfrl.types import Nest


def check_settings(agent: Any, seen: Nest) -> None:
    """Checks counts and torsos, and that every setting that was given has an effect.

    Args:
      agent: The agent, `SAC`.
      seen: The nest of specs of what the networks see.

    Raises:
      UserError: Naming the first setting that cannot stand.
    """
    owner = type(agent).__name__
    for name in ("num_critics", "target_every"):
        check_count(owner, name, getattr(agent, name))
    if agent.critic_subset is not None:
        check_count(owner, "critic_subset", agent.critic_subset, high=agent.num_critics)
    check_torsos(agent)
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
        check_hidden(owner, agent.hidden, None, seen, [agent.obs_key])
    else:
        unchanged("a Box is", "entropy_scale")
