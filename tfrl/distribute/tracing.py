"""Functions that are made again for every object, as TensorFlow counts their traces."""

import functools
from collections.abc import Callable
from typing import Any


def counted_apart(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose traces TensorFlow does not count together with those of its like.

    TensorFlow warns where most of the last calls of a function have traced it. It tells functions
    apart by their code, so that the methods of several objects, or one closure made for each of
    them, are the same to it, and five learners trained once each look like one that retraces all
    the time. What has no code it tells apart by object. A single function that does retrace all
    the time is still warned of.

    Args:
      fn: A method or a closure, to be given to `tf.function` once.
    """
    own = functools.partial(fn)
    own.__name__ = getattr(fn, "__name__", type(fn).__name__)  # type: ignore[attr-defined]  # graphs go on with its name
    return own
