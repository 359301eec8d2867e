"""What an evaluation found, on the host."""

import dataclasses

import numpy as np

from tfrl.evaluation.statistics import bootstrap_interval


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths of the evaluated episodes, in the order of their slots.

    Attributes:
      episode_returns: float32 [N].
      episode_lengths: int32 [N], in agent steps.
      mean: Mean of the returns.
      std: Standard deviation of the returns (of the N episodes, not of a population estimate).
      interval: 95% bootstrap interval of the mean.
    """

    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    mean: float
    std: float
    interval: tuple[float, float]

    @classmethod
    def of(cls, episode_returns: np.ndarray, episode_lengths: np.ndarray) -> "EvaluationResult":
        """Computes the statistics of returns [N] and lengths [N]."""
        returns = np.asarray(episode_returns, np.float64)
        return cls(
            episode_returns=np.asarray(episode_returns, np.float32),
            episode_lengths=np.asarray(episode_lengths, np.int32),
            mean=float(returns.mean()),
            std=float(returns.std()),
            interval=bootstrap_interval(returns),
        )

    def metrics(self) -> dict[str, float]:
        """Returns the scalars by the names that recorders and summaries use."""
        low, high = self.interval
        return {
            "eval_return_mean": self.mean,
            "eval_return_std": self.std,
            "eval_return_low": low,
            "eval_return_high": high,
            "eval_length_mean": float(self.episode_lengths.mean()),
            "eval_episodes": len(self.episode_returns),
        }
