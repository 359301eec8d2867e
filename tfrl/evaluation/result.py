"""The result of an evaluation, on the host."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tfrl.evaluation.statistics import bootstrap_interval


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths of the evaluated episodes, in the order of their slots.

    Attributes:
      episode_returns: float32 [N]; of several agents, the sums over them.
      episode_lengths: int32 [N], in agent steps.
      mean: Mean of the returns.
      std: Standard deviation of the returns (of the N episodes, not of a population estimate).
      interval: 95% bootstrap interval of the mean.
      agent_returns: `{agent_id: float32 [N]}`; empty for a single agent.
    """

    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    mean: float
    std: float
    interval: tuple[float, float]
    agent_returns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, episode_returns: np.ndarray | Mapping[str, np.ndarray], episode_lengths: np.ndarray
    ) -> "EvaluationResult":
        """Computes the statistics of returns [N] (or a dict of them by agent) and lengths [N]."""
        agents: dict[str, np.ndarray] = {}
        if isinstance(episode_returns, Mapping):
            agents = {a: np.asarray(r, np.float32) for a, r in episode_returns.items()}
            episode_returns = np.sum(list(agents.values()), axis=0, dtype=np.float64)
        returns = np.asarray(episode_returns, np.float64)
        return cls(
            episode_returns=np.asarray(episode_returns, np.float32),
            episode_lengths=np.asarray(episode_lengths, np.int32),
            mean=float(returns.mean()),
            std=float(returns.std()),
            interval=bootstrap_interval(returns),
            agent_returns=agents,
        )

    def metrics(self) -> dict[str, float]:
        """Returns the scalars by the names that recorders and summaries use.

        Of several agents also `eval_return_mean/<agent_id>`.
        """
        low, high = self.interval
        return {
            "eval_return_mean": self.mean,
            "eval_return_std": self.std,
            "eval_return_low": low,
            "eval_return_high": high,
            "eval_length_mean": float(self.episode_lengths.mean()),
            "eval_episodes": len(self.episode_returns),
            **{
                f"eval_return_mean/{a}": float(np.mean(r, dtype=np.float64))
                for a, r in self.agent_returns.items()
            },
        }
