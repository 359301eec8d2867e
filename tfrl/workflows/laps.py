"""When the parts of an iteration end, told by clocks in the graph."""

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

from tfrl.types import Nest

_times: contextvars.ContextVar[list[tf.Tensor] | None] = contextvars.ContextVar(
    "tfrl_laps", default=None
)


@contextlib.contextmanager
def timed(on: bool) -> Iterator[list[tf.Tensor]]:
    """Collects the times of `after` in what is traced within; none where it is not on."""
    found: list[tf.Tensor] = []
    token = _times.set(found if on else None)
    try:
        yield found
    finally:
        _times.reset(token)


@contextlib.contextmanager
def after(part: Nest) -> Iterator[None]:
    """Looks at the clock when a part is computed; what is traced within waits for it."""
    times = _times.get()
    if times is None:
        yield
        return
    with tf.control_dependencies(data(part)):
        times.append(tf.timestamp())
    with tf.control_dependencies(times[-1:]):
        yield


def data(nest: Nest) -> list[tf.Tensor]:
    """Ops to wait for that are behind the values of a nest.

    A control edge from the call of a stateless function is dropped when the function is inlined;
    one from the identity of its result is not.
    """
    return [] if tf.executing_eagerly() else [tf.identity(x) for x in tf.nest.flatten(nest)]
