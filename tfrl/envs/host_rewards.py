"""The reward wrappers of device environments in NumPy, for `HostEnv`."""

import abc
from typing import Any

import numpy as np

from tfrl.envs.wrappers.rewards import (
    OUTLIER,
    USUAL_RETURN,
    RewardClip,
    RewardNormalize,
    RewardScale,
)
from tfrl.errors import UserError
from tfrl.ops.statistics import COUNTED_SCALES, OUTLIER_SCALES


class HostReward(abc.ABC):
    """Maps the rewards of every step; episode statistics use the original rewards."""

    @abc.abstractmethod
    def pay(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Returns the mapped rewards of a step.

        Args:
          reward: float32 `[B]`; 0 in rows that are not steps.
          valid: bool `[B]`, rows that are steps.
          ended: bool `[B]`, rows in which an episode ended.
        """

    def reset(self, num_envs: int) -> None:
        """Resets all state."""
        return

    def info(self) -> dict[str, np.ndarray]:
        """Returns the `info` of the last step."""
        return {}

    def state(self) -> dict[str, np.ndarray]:
        """Returns the state for a checkpoint."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the result of `state`."""
        return


class Scaled(HostReward):
    """`RewardScale` in NumPy."""

    def __init__(self, scale: float):
        """Takes the factor."""
        self._scale = np.float32(scale)

    def pay(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Scales."""
        return reward * self._scale


class Clipped(HostReward):
    """`RewardClip` in NumPy."""

    def __init__(self, low: float, high: float):
        """Takes the range."""
        self._low, self._high = np.float32(low), np.float32(high)

    def pay(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Clips; rows that are not steps stay 0."""
        return np.where(valid, np.clip(reward, self._low, self._high), reward)


class Normalized(HostReward):
    """`RewardNormalize` in NumPy; see there for the equation."""

    def __init__(self, discount: float, epsilon: float):
        """Takes the discount of the sum, and the epsilon of the variance."""
        self._discount, self._epsilon = np.float32(discount), np.float32(epsilon)

    def reset(self, num_envs: int) -> None:
        """Begins with 1e-4 rows of mean 0 and variance 1."""
        self._returns = np.zeros(num_envs, np.float32)
        self._count, self._mean, self._m2 = 1e-4, 0.0, 1e-4
        self._outlier = np.zeros(num_envs, bool)

    def info(self) -> dict[str, np.ndarray]:
        """Where the return was an outlier."""
        return {OUTLIER: self._outlier}

    def pay(self, reward: np.ndarray, valid: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Divides by the running standard deviation, this step included."""
        self._returns = self._returns * self._discount + reward
        counted, outlier = self._limited(valid)
        self._outlier = outlier
        counted_rewards = counted[valid].astype(np.float64)
        if counted_rewards.size:  # Chan et al. 1979, as in tfrl.ops.statistics
            mean, total = counted_rewards.mean(), self._count + counted_rewards.size
            delta = mean - self._mean
            self._m2 += ((counted_rewards - mean) ** 2).sum()
            self._m2 += delta**2 * self._count * counted_rewards.size / total
            self._mean += delta * counted_rewards.size / total
            self._count = total
        variance = np.float32(self._m2 / self._count)
        paid = reward / np.sqrt(variance + self._epsilon)
        if outlier.any():
            distance = self._returns[outlier].astype(np.float64) - self._mean
            alone = (self._m2 + distance**2) / self._count
            paid[outlier] = reward[outlier] / np.sqrt(alone + self._epsilon)
        self._returns = np.where(ended, np.float32(0), counted)
        return paid

    def _limited(self, valid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The returns clipped as in `tfrl.ops.statistics.update`, and where they changed."""
        offset = self._returns.astype(np.float64) - self._mean
        size = np.where(valid, np.log(np.maximum(np.abs(offset), 1.0)), 0.0)
        others = (size.sum() - size) / max(valid.sum() - 1, 1)
        own = 0.5 * np.log(max(self._m2 / self._count, 1.0))
        scale = np.exp(np.maximum(own, others))
        beyond = OUTLIER_SCALES * np.maximum(scale, USUAL_RETURN)
        outlier = valid & (size > np.log(beyond))
        counted = self._mean + np.sign(offset) * COUNTED_SCALES * scale
        return np.where(outlier, counted.astype(np.float32), self._returns), outlier

    def state(self) -> dict[str, np.ndarray]:
        """The moments; the sums belong to the running episodes."""
        return {"moments": np.array([self._count, self._mean, self._m2], np.float64)}

    def load(self, state: dict[str, Any]) -> None:
        """Takes the moments."""
        self._count, self._mean, self._m2 = (float(x) for x in np.asarray(state["moments"]))


def host_reward(wrapper: Any) -> HostReward:
    """Returns the NumPy version of a device environment's reward wrapper.

    Raises:
      UserError: For a wrapper without a NumPy version.
    """
    if isinstance(wrapper, RewardScale):
        return Scaled(wrapper.scale)
    if isinstance(wrapper, RewardClip):
        return Clipped(wrapper.low, wrapper.high)
    if isinstance(wrapper, RewardNormalize):
        return Normalized(wrapper.discount, wrapper.epsilon)
    raise UserError(
        f"outer_wrappers: {type(wrapper).__name__}",
        expected="RewardScale, RewardClip or RewardNormalize for environments on the host",
        got="a wrapper of device environments",
        remedy="Use a wrapper from the environments' library, such as gymnasium.wrappers.",
    )
