"""Common parts of on-policy agents."""

from tfrl.agents.actor_critic.agent import ActorCritic
from tfrl.agents.actor_critic.batch import PolicyBatch

__all__ = ["ActorCritic", "PolicyBatch"]
