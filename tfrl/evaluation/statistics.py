"""How sure one may be of a mean return."""

import numpy as np

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
      resamples: How many samples are drawn.
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
