"""Checks of the numbers among the arguments of an agent."""

import dataclasses
import math
import numbers
from typing import Any

from tfrl.errors import UserError

_TYPICAL = (
    "Typical: discount 0.99, gae_lambda 0.95, clip 0.2, value_coef 0.5, obs_clip 10, "
    "target_kl 0.02."
)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The values that a number may have.

    Attributes:
      low: The least.
      high: The greatest.
      closed: Whether it may be the least itself.
      optional: Whether it may be None.
    """

    low: float
    high: float = math.inf
    closed: bool = True
    optional: bool = False


_REMEDY = f"Give one finite number; only entropy_coef takes a schedule. {_TYPICAL}"


def check_number(owner: str, name: str, number: Any, bound: Bound, remedy: str = _REMEDY) -> None:
    """Raises a UserError for a field `owner.name` that is no finite number within its bounds."""
    if number is None and bound.optional:
        return
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if real and math.isfinite(number) and bound.low <= number <= bound.high:
        if bound.closed or number > bound.low:
            return
    above = "a number of at least" if bound.closed else "a number above"
    limits = [f"{above} {bound.low}"] if math.isfinite(bound.low) else ["a finite number"]
    limits += [f"at most {bound.high}"] if math.isfinite(bound.high) else []
    raise UserError(
        f"{owner}.{name}",
        expected=" and ".join(limits) + (" or None" if bound.optional else ""),
        got=repr(number),
        remedy=remedy,
    )


def check_count(owner: str, name: str, number: Any) -> None:
    """Raises a UserError for a field `owner.name` that is neither None nor a count of steps."""
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number > 0):
        return
    raise UserError(
        f"{owner}.{name}",
        expected="a whole number of steps, at least 1, or None",
        got=repr(number),
        remedy="None takes the whole rollout.",
    )
