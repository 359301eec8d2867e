"""The result of an evaluation, on the host."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from tfrl.envs.env_calls import LOST

_CHUNK = 4_000_000  # drawn indices held at a time


def bootstrap_interval(
    values: np.ndarray, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean.

    Draws `resamples` samples of the same size with replacement; the interval holds the middle
    `confidence` share of their means. Source: Efron, "Bootstrap methods: another look at the
    jackknife" (1979), https://doi.org/10.1214/aos/1176344552; for returns, Agarwal et al. (2021),
    https://arxiv.org/abs/2108.13264.

    Args:
      values: [N], one value per episode, at least one.
      confidence: Between 0 and 1.
      resamples: Number of resamples.
      seed: The same seed and values give the same interval.

    Returns:
      The lower and the upper bound; both the value itself when N is 1.
    """
    values = np.asarray(values, np.float64)
    if values.size == 0:
        raise ValueError("bootstrap_interval: expected at least one value, got none")
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK // values.size)
    means = [
        values[generator.integers(values.size, size=(min(rows, resamples - i), values.size))].mean(
            axis=1
        )
        for i in range(0, resamples, rows)
    ]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths of the evaluated episodes, in the order of their slots.

    Attributes:
      episode_returns: float32 [N]; with several agents, their sums.
      episode_lengths: int32 [N], in agent steps.
      mean: Mean of the returns.
      std: Standard deviation of the returns (of the N episodes, not of a population estimate).
      interval: 95% bootstrap interval of the mean.
      agent_returns: `{agent_id: float32 [N]}`; empty for a single agent.
      infos: `{name: float32 [N]}`, the environments' `info_fields` at the last step.
      lost_episodes: The number of episodes that an environment's failure has ended; they are not
        among the N. None where a failure is an error.
    """

    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    mean: float
    std: float
    interval: tuple[float, float]
    agent_returns: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    infos: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    lost_episodes: int | None = None

    @classmethod
    def of(
        cls,
        episode_returns: np.ndarray | Mapping[str, np.ndarray],
        episode_lengths: np.ndarray,
        infos: Mapping[str, np.ndarray] | None = None,
    ) -> "EvaluationResult":
        """Computes the statistics of returns [N] (or a dict of them by agent) and lengths [N].

        Args:
          episode_returns: float32 [N], or a dict of them by agent.
          episode_lengths: int32 [N].
          infos: `{name: [N]}`; episodes with a number above 0 as `LOST` are left out.
        """
        infos, lost_episodes = dict(infos or {}), None
        if LOST in infos:
            kept = infos.pop(LOST) == 0.0
            lost_episodes = int(np.count_nonzero(~kept))
            episode_returns, episode_lengths = episode_returns[kept], episode_lengths[kept]
            infos = {name: x[kept] for name, x in infos.items()}
        agents: dict[str, np.ndarray] = {}
        if isinstance(episode_returns, Mapping):
            agents = {a: np.asarray(r, np.float32) for a, r in episode_returns.items()}
            episode_returns = np.sum(list(agents.values()), axis=0, dtype=np.float64)
        returns = np.asarray(episode_returns, np.float64)
        return cls(
            episode_returns=np.asarray(episode_returns, np.float32),
            episode_lengths=np.asarray(episode_lengths, np.int32),
            mean=_mean(returns),
            std=float(returns.std()) if returns.size else math.nan,
            interval=bootstrap_interval(returns) if returns.size else (math.nan, math.nan),
            agent_returns=agents,
            infos=infos,
            lost_episodes=lost_episodes,
        )

    def metrics(self) -> dict[str, float]:
        """Returns the scalars with the names used in recorders and summaries.

        With several agents also `eval_return_mean/<agent_id>`; for `info_fields`,
        `eval_<name>_mean`.
        """
        low, high = self.interval
        return {
            "eval_return_mean": self.mean,
            "eval_return_std": self.std,
            "eval_return_low": low,
            "eval_return_high": high,
            "eval_length_mean": _mean(self.episode_lengths),
            "eval_episodes": len(self.episode_returns),
            **({} if self.lost_episodes is None else {"eval_lost_episodes": self.lost_episodes}),
            **{
                f"eval_return_mean/{a}": float(np.mean(r, dtype=np.float64))
                for a, r in self.agent_returns.items()
            },
            **{f"eval_{n}_mean": _mean(x) for n, x in self.infos.items()},
        }


def _mean(values: np.ndarray) -> float:
    """Returns the mean; NaN without values."""
    return float(values.mean()) if values.size else math.nan
