"""Target networks: parameters that follow others, in small steps or now and then."""

import tensorflow as tf

from tfrl.types import Nest


def follow(target: Nest, params: Nest, tau: float) -> Nest:
    """Moves target parameters towards others.

      target + tau (params - target)

    Source: Lillicrap et al. 2016, algorithm 1, https://arxiv.org/abs/1509.02971; with tau = 1 the
    copy of Mnih et al. 2015, https://doi.org/10.1038/nature14236.

    Args:
      target: A nest of tensors.
      params: A nest like it.
      tau: The share of the way, above 0 and at most 1.

    Returns:
      A nest like `target`; what is not of floats, such as counts, is copied.
    """
    if tau == 1:
        return params
    return tf.nest.map_structure(
        lambda t, p: t + tau * (p - t) if p.dtype.is_floating else p, target, params
    )


def copied(params: Nest) -> Nest:
    """Returns the parameters as tensors of their own, for the start."""
    return tf.nest.map_structure(tf.identity, params)
