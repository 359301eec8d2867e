"""The check of one step of a multi-agent episode."""

from collections.abc import Mapping
from typing import Any

from tfrl.episodes.agent_log import AgentLog
from tfrl.errors import UserError


def check_step(
    episode: Any,
    logs: Mapping[Any, AgentLog],
    obs: Mapping[Any, Any],
    action: Mapping[Any, Any],
    reward: Mapping[Any, Any],
    extras: Mapping[Any, Any],
    ends: Mapping[Any, Any],
) -> None:
    """Checks what is added to an episode.

    Args:
      episode: The `MultiAgentEpisode`.
      logs: What its agents did so far.
      obs: `{agent_id: observation}`, as all that follow by agent.
      action: Actions.
      reward: Rewards.
      extras: What policies gave beside actions.
      ends: The agents that end with this step.

    Raises:
      UserError: That names all that does not fit.
    """
    if not episode.has_begun or episode.is_done:
        raise UserError(
            f"episode {episode.id_}",
            expected="steps between the reset and the end",
            got=f"a step while the episode {'is done' if episode.is_done else 'has no reset'}",
            remedy="Call add_env_reset first, on a new MultiAgentEpisode for each episode.",
        )
    asked = {agent for agent, log in logs.items() if log.must_act}
    gone = {agent for agent, log in logs.items() if log.end_t is not None}
    waiting = {a for a in asked if a not in action and a not in ends}
    found = {
        "actions of agents that were not asked to act": set(action) - asked - gone,
        "data of agents that have ended": gone & {*obs, *action, *reward},
        "observations of agents that have not acted on their last": waiting & set(obs),
        "policy extras without an action, of agents": set(extras) - set(action),
    }
    wrong = [f"{what} {_names(agents)}" for what, agents in found.items() if agents]
    if wrong:
        raise UserError(
            f"step {episode.t} of episode {episode.id_}",
            expected=f"actions of agents out of {_names(asked)}, and observations of agents that "
            "act next",
            got="; ".join(wrong),
            remedy="An agent that is given an observation is asked to act, until it ends.",
        )


def _names(agents: set[Any]) -> str:
    return str(sorted(map(str, agents)))
