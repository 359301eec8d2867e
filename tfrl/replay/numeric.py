"""Which numbers arguments may be."""

import math
import numbers
from typing import Any

# Reverb takes milliseconds and whole seconds as C's integers, which longer times do not fit in.
MOST_SECONDS = 1e6
SECONDS = f"a number of seconds above 0 and at most {MOST_SECONDS:,.0f}"


def is_count(value: Any) -> bool:
    """Returns whether a value is an int of at least 1 (no bool, no NumPy integer)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_size(value: Any) -> bool:
    """Returns whether a value is a whole number of at least 1, NumPy's too (no bool)."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 1


def is_number(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Returns whether a value is a finite number (no bool) within bounds.

    Args:
      value: Anything.
      least: The lowest number that is one.
      most: The highest.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # An int is finite, and may be too large for a float.
    return (isinstance(value, int) or math.isfinite(value)) and least <= value <= most


def is_seconds(value: Any) -> bool:
    """Returns whether a value is a time to wait, in seconds: above 0, at most `MOST_SECONDS`."""
    return is_number(value, 0.0, MOST_SECONDS) and value > 0
