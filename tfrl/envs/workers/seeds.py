"""The seed of every episode: a function of the pool's seed, the worker and the episode's number."""

import numbers
from typing import Any

import numpy as np

from tfrl.errors import UserError


def episode_seed(seed: int, worker_id: int, episode: int) -> int:
    """Returns the seed with which a worker resets its environment for an episode.

    The first 31 bits of `numpy.random.SeedSequence(seed, spawn_key=(worker_id, episode))`: 31,
    since simulators written in C and C++ commonly take an int.

    Args:
      seed: The pool's seed, not negative.
      worker_id: The worker, from 0.
      episode: The number of the episode among the worker's, from 0.

    Returns:
      An int in [0, 2**31).
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(worker_id, episode))
    return int(sequence.generate_state(1)[0]) >> 1


def check_seed(seed: Any) -> int:
    """Returns a pool's seed as an int, or raises a UserError."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise UserError(
            "seed of the environment workers",
            expected="an integer of at least 0",
            got=repr(seed),
            remedy="The seed of every episode follows from it, its worker and its number.",
        )
    return int(seed)
