"""The base classes of agents that learn from replayed transitions."""

from tfrl.agents.off_policy.actor_critic import OffPolicyActorCritic
from tfrl.agents.off_policy.agent import OffPolicy
from tfrl.agents.off_policy.unit_actions import UnitActions

__all__ = ["OffPolicy", "OffPolicyActorCritic", "UnitActions"]
