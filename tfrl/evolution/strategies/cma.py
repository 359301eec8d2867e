"""Constants and evolution paths of CMA-ES and its separable variant."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfrl.evolution.strategies.recombination import log_weights
from tfrl.evolution.strategies.spread import bounded_std

# C would shrink forever when candidates are equal in float32: the search has converged.
LEAST_VARIANCE = 1e-20


class Constants(NamedTuple):
    """Weights and rates of a population of P candidates of D parameters.

    Attributes:
      weights: The weights of the candidates, best first; the positive ones sum to 1.
      mu: The number of candidates in the recombination.
      mu_eff: Variance-effective selection mass.
      c_sigma: Rate of the path of the step size.
      d_sigma: Damping of the step size.
      c_c: Rate of the path of the covariance.
      c_1: Rate of the rank-one update.
      c_mu: Rate of the rank-mu update.
      chi: E|N(0, I)|.
    """

    weights: np.ndarray
    mu: int
    mu_eff: float
    c_sigma: float
    d_sigma: float
    c_c: float
    c_1: float
    c_mu: float
    chi: float


@functools.lru_cache(maxsize=64)
def full_constants(p: int, d: int, active: bool) -> Constants:
    """Constants of CMA-ES, table 1 of Hansen 2016, https://arxiv.org/abs/1604.00772v1.

    Args:
      p: Candidates of a generation, P.
      d: Parameters of a candidate, D.
      active: Whether the worse half has negative weights.
    """
    mu = p // 2
    positive = log_weights(mu, (p + 1) / 2)
    mu_eff = 1 / float(np.sum(positive**2))
    c_1 = 2 / ((d + 1.3) ** 2 + mu_eff)
    c_mu = 2 * (mu_eff - 2 + 1 / mu_eff) / ((d + 2) ** 2 + mu_eff)
    c_mu = max(min(c_mu, 1 - c_1 - 1e-8), 1e-12)  # 1e-12: mu_eff is 1 if one candidate counts

    # Equations 49 to 53.
    negative = math.log((p + 1) / 2) - np.log(np.arange(mu + 1, p + 1))
    mu_eff_minus = float(np.sum(negative) ** 2 / np.sum(negative**2))
    scale = min(
        1 + c_1 / c_mu,
        1 + 2 * mu_eff_minus / (mu_eff + 2),
        (1 - c_1 - c_mu) / (d * c_mu),
    )
    negative *= scale / np.sum(np.abs(negative)) if active else 0.0

    c_sigma = (mu_eff + 2) / (d + mu_eff + 5)
    return Constants(
        weights=np.concatenate([positive, negative]),
        mu=mu,
        mu_eff=mu_eff,
        c_sigma=c_sigma,
        d_sigma=_damping(mu_eff, c_sigma, d),
        c_c=(4 + mu_eff / d) / (d + 4 + 2 * mu_eff / d),
        c_1=c_1,
        c_mu=c_mu,
        chi=_chi(d),
    )


@functools.lru_cache(maxsize=64)
def separable_constants(p: int, d: int) -> Constants:
    """Constants of Sep-CMA-ES as in the package `cmaes`, https://github.com/CyberAgentAILab/cmaes.

    The rank-mu rate is (D + 2) / 3 times the rate of the full covariance, as in Ros and Hansen
    2008, https://hal.inria.fr/inria-00287367; it leaves room for the rank-one rate also for a large
    population. The rank-one rate is that of the full covariance, where the paper has the share
    1 / mu_eff of the rank-mu rate.
    """
    mu = p // 2
    weights = log_weights(mu, mu + 1)
    mu_eff = 1 / float(np.sum(weights**2))
    c_1 = 2 / ((d + 1.3) ** 2 + mu_eff)
    c_mu = 2 / (mu_eff * (d + math.sqrt(2)) ** 2)
    c_mu += (1 - 1 / mu_eff) * min(1, (2 * mu_eff - 1) / ((d + 2) ** 2 + mu_eff))
    c_sigma = (mu_eff + 2) / (d + mu_eff + 3)
    return Constants(
        weights=weights,
        mu=mu,
        mu_eff=mu_eff,
        c_sigma=c_sigma,
        d_sigma=_damping(mu_eff, c_sigma, d),
        c_c=4 / (d + 4),
        c_1=c_1,
        c_mu=min((d + 2) / 3 * c_mu, 1 - c_1),
        chi=_chi(d),
    )


def _damping(mu_eff: float, c_sigma: float, d: int) -> float:
    return 1 + 2 * max(0, math.sqrt((mu_eff - 1) / (d + 1)) - 1) + c_sigma


def _chi(d: int) -> float:
    return math.sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d**2))


class Paths(NamedTuple):
    """Step size and paths after a generation.

    Attributes:
      sigma: float32 scalar.
      p_sigma: float32 [D].
      p_c: float32 [D].
      keep: float32 scalar, the share of C that stays.
    """

    sigma: tf.Tensor
    p_sigma: tf.Tensor
    p_c: tf.Tensor
    keep: tf.Tensor


def advance(
    search: Any, y_w: tf.Tensor, white: tf.Tensor, generation: tf.Tensor, k: Constants
) -> Paths:
    """Advances step size and evolution paths.

      p_sigma = (1 - c_sigma) p_sigma + sqrt(c_sigma (2 - c_sigma) mu_eff) C^-1/2 y_w
      sigma *= exp(min(1, c_sigma / d_sigma (|p_sigma| / chi - 1)))
      p_c = (1 - c_c) p_c + h sqrt(c_c (2 - c_c) mu_eff) y_w
      keep = 1 - c_1 - c_mu sum(w) + (1 - h) c_1 c_c (2 - c_c)

    h is 0 for a large |p_sigma|, so that C does not grow while the step size is too small.

    Source: Hansen 2016, equations 43 to 45; the bound of 1 is from Hansen 2011, table 1,
    https://arxiv.org/abs/1110.4181, for injected candidates.

    Args:
      search: State with sigma, p_sigma and p_c.
      y_w: float32 [D], the step of the mean over sigma.
      white: float32 [D], C^-1/2 y_w.
      generation: int64 scalar, from 0.
      k: The constants.
    """
    d = y_w.shape[0]
    p_sigma = (1 - k.c_sigma) * search.p_sigma
    p_sigma += math.sqrt(k.c_sigma * (2 - k.c_sigma) * k.mu_eff) * white
    length = tf.norm(p_sigma)
    sigma = search.sigma * tf.exp(tf.minimum(1.0, k.c_sigma / k.d_sigma * (length / k.chi - 1)))

    grown = 1.0 - tf.pow(1 - k.c_sigma, 2.0 * (tf.cast(generation, tf.float32) + 1.0))
    h = tf.cast(length / tf.sqrt(grown) < (1.4 + 2 / (d + 1)) * k.chi, tf.float32)
    p_c = (1 - k.c_c) * search.p_c + h * math.sqrt(k.c_c * (2 - k.c_c) * k.mu_eff) * y_w
    keep = 1 - k.c_1 - k.c_mu * float(np.sum(k.weights)) + (1 - h) * k.c_1 * k.c_c * (2 - k.c_c)
    return Paths(bounded_std(sigma), p_sigma, p_c, keep)
