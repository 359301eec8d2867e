"""What is checked of the numbers of a clip."""

import numbers
from typing import Any

import numpy as np

from tfrl.errors import UserError


def clip_span(clip_size: int, stride: int = 1) -> int:
    """Returns how many steps of an episode a clip spans: `(clip_size - 1) * stride + 1`.

    Args:
      clip_size: Samples of a clip.
      stride: Steps from one sample of a clip to the next.

    Raises:
      UserError: For one that is no positive integer.
    """
    for name, value in (("clip_size", clip_size), ("stride", stride)):
        check_positive(
            name, value, "It counts samples." if name == "clip_size" else "It counts steps."
        )
    return (clip_size - 1) * stride + 1


def check_positive(name: str, value: Any, remedy: str) -> None:
    """Raises a UserError for what is no integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise UserError(name, expected="an integer of at least 1", got=repr(value), remedy=remedy)


def check_clip_fits(clip_size: int, stride: int, lengths: np.ndarray) -> None:
    """Raises a UserError where no trajectory is long enough for a clip."""
    span = clip_span(clip_size, stride)
    if not len(lengths) or lengths.max() < span:
        longest = f"the longest has {lengths.max()}" if len(lengths) else "none is stored"
        raise UserError(
            f"clip of {clip_size} samples with stride {stride}",
            expected=f"a trajectory of at least {span} samples",
            got=longest,
            remedy=f"Sample with clip_length={span}, or take shorter clips.",
        )


def check_generator(rng: Any) -> np.random.Generator:
    """Returns the generator, a fresh one for None; a UserError for anything else, as a seed."""
    if rng is None:
        return np.random.default_rng()
    if isinstance(rng, np.random.Generator):
        return rng
    raise UserError(
        "rng of the clips",
        expected="a numpy.random.Generator",
        got=repr(rng),
        remedy="Give numpy.random.default_rng(seed).",
    )
