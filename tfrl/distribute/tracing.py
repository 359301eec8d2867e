"""Prevents false retracing warnings for functions that are created for every object."""

import functools
from collections.abc import Callable
from typing import Any


def counted_separately(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a copy of a function whose traces TensorFlow counts separately.

    TensorFlow warns if most of the last calls of a function were traces. It identifies functions by
    their code. So it counts the methods of several objects, or the closures created for them, as
    one function, and five learners trained once each look like one that always retraces. Callables
    without code are identified by object. TensorFlow still warns of a single function that always
    retraces.

    Args:
      fn: A method or a closure, for one `tf.function`.
    """
    own = functools.partial(fn)
    own.__name__ = getattr(fn, "__name__", type(fn).__name__)  # type: ignore[attr-defined]  # graphs keep its name
    return own
