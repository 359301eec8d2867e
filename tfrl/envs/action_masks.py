"""Action masks in observations: where they are, and how they come and go."""

from collections.abc import Mapping

from tfrl.types import Nest

MASK = "action_mask"
OBSERVATION = "observation"


def split_mask(obs: Nest) -> tuple[Nest, Nest]:
    """Parts an observation (or its spec) from its action mask.

    A mask is the item `action_mask` of a Dict observation, as the wrapper `ActionMask` puts it
    there. Where `observation` is the only other item, it is the observation.

    Args:
      obs: A nest of observations or of specs.

    Returns:
      The rest, and the mask, or None where there is none.
    """
    if not isinstance(obs, Mapping) or MASK not in obs:
        return obs, None
    rest = {name: x for name, x in obs.items() if name != MASK}
    return (rest[OBSERVATION] if set(rest) == {OBSERVATION} else rest), obs[MASK]


def join_mask(obs: Nest, mask: Nest) -> Nest:
    """Undoes `split_mask`: a Dict observation gets the item, another becomes the one of two."""
    if mask is None:
        return obs
    if isinstance(obs, Mapping):
        return {**obs, MASK: mask}
    return {OBSERVATION: obs, MASK: mask}
