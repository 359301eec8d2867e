"""Whether what is traced is, or may become, XLA's.

A function that was traced outside of XLA is not traced anew where one that XLA compiles calls it.
So a graph cannot be known to stay out of it, unless whoever makes it says so.
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import tf_private

_NEVER = "_tfrl_never_in_xla"


def in_xla() -> bool:
    """Whether this is called while a function is traced that XLA compiles."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and tf_private.in_xla(graph)


def never_in_xla(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that says of the graph that it is traced into that XLA will not get it.

    Args:
      fn: To be given to a `tf.function` that is called from Python only. Functions that it calls
        and that are traced by themselves are not meant.
    """

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            setattr(tf.compat.v1.get_default_graph(), _NEVER, True)
        return fn(*args, **kwargs)

    return traced


def may_be_xla() -> bool:
    """Whether what is called here may be compiled by XLA, now or later.

    With an accelerator, or where TensorFlow was asked to find clusters for XLA by itself, all may.
    """
    if _is_accelerated() or tf.config.optimizer.get_jit():
        return True
    if "tf_xla_auto_jit" in os.environ.get("TF_XLA_FLAGS", ""):
        return True
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while tf_private.is_control_flow(graph):  # a branch, a body
        graph = graph.outer_graph
    return in_xla() or not getattr(graph, _NEVER, False)


@functools.cache
def _is_accelerated() -> bool:
    return any(device.device_type != "CPU" for device in tf.config.list_physical_devices())
