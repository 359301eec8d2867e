"""Evaluation of agents: exact numbers of episodes, trajectories, statistics and videos."""

from tfrl.evaluation.evaluator import CollectedEpisodes, EpisodeCollector, Evaluator
from tfrl.evaluation.result import EvaluationResult, bootstrap_interval
from tfrl.evaluation.video import Video, record_video

__all__ = [
    "CollectedEpisodes",
    "EpisodeCollector",
    "EvaluationResult",
    "Evaluator",
    "Video",
    "bootstrap_interval",
    "record_video",
]
