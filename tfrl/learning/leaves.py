"""State whose leaves are tensors or tf.Variables.

The same code is pure over tensors and in place over variables; only the functions
here differ.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

S = TypeVar("S")


def in_place(state: Any) -> bool:
    """Whether some leaf is a tf.Variable."""
    return any(isinstance(x, tf.Variable) for x in tf.nest.flatten(state))


def put(leaf: Any, value: Any) -> Any:
    """Returns the leaf with a new value: the updated variable itself, or the value."""
    if isinstance(leaf, tf.Variable):
        leaf.assign(value)
        return leaf
    return value


def add(leaf: Any, number: Any) -> Any:
    """Returns the leaf with a number added to it."""
    if isinstance(leaf, tf.Variable):
        leaf.assign_add(number)
        return leaf
    return leaf + number


def carried(state: Any) -> list[tf.Tensor]:
    """Returns the leaves that a loop must carry: all except variables."""
    return [x for x in tf.nest.flatten(state) if not isinstance(x, tf.Variable)]


def with_carried(state: S, tensors: Sequence[tf.Tensor]) -> S:
    """Returns the state with new values for the leaves of `carried`."""
    rest = iter(tensors)
    leaves = [x if isinstance(x, tf.Variable) else next(rest) for x in tf.nest.flatten(state)]
    return tf.nest.pack_sequence_as(state, leaves)


def cond(
    predicate: tf.Tensor,
    change: Callable[[S], S],
    state: S,
    otherwise: Callable[[S], S] = lambda state: state,
) -> S:
    """Returns `change(state)` if the predicate is True, else `otherwise(state)`.

    Args:
      predicate: bool scalar.
      change: Returns a state of equal structure; over variables the same one.
      state: The state before.
      otherwise: As `change`; by default the identity.
    """

    def changed(change: Callable[[S], S]) -> list[tf.Tensor]:
        return [tf.constant(0), *carried(change(state))]

    _, *values = tf.cond(predicate, lambda: changed(change), lambda: changed(otherwise))
    return with_carried(state, values)
