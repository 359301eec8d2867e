"""Experience from environments: rollouts and whole episodes on the device."""

from tfrl.rollout.device import rollout
from tfrl.rollout.episode import (
    EpisodeTotals,
    episode_totals,
    eval_rollout_episode,
    fast_eval_rollout_episode,
)
from tfrl.rollout.one_step import RolloutFn, env_step, eval_env_step

__all__ = [
    "EpisodeTotals",
    "RolloutFn",
    "env_step",
    "episode_totals",
    "eval_env_step",
    "eval_rollout_episode",
    "fast_eval_rollout_episode",
    "rollout",
]
