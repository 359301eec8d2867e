"""Experience from environments: rollouts and whole episodes on the device."""

from tfrl.rollout.device import rollout
from tfrl.rollout.episode import (
    EpisodeTotals,
    episode_totals,
    eval_rollout_episode,
    fast_eval_rollout_episode,
)

__all__ = [
    "EpisodeTotals",
    "episode_totals",
    "eval_rollout_episode",
    "fast_eval_rollout_episode",
    "rollout",
]
