"""Nests of one form taken apart and built quickly: `tf.nest` takes 10 to 20 microseconds."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.types import Nest, Trajectory

Packer = Callable[[Sequence[Any]], Nest]
_FIELDS = [field.name for field in dataclasses.fields(Trajectory)]


def packer(form: Nest) -> Packer:
    """Returns a function from leaves, in the order of `tf.nest.flatten`, to a nest like `form`."""
    if not _plain(form):
        return lambda leaves: tf.nest.pack_sequence_as(form, leaves)
    build = _builder(form)
    return lambda leaves: build(iter(leaves))


def leaves_of(nest: Nest) -> list[Any]:
    """Returns the leaves of a nest as `tf.nest.flatten` does, in a tenth of the time."""
    found: list[Any] = []
    _collect(nest, found)
    return found


def _collect(nest: Nest, found: list[Any]) -> None:
    kind = type(nest)
    if kind is np.ndarray:
        found.append(nest)
    elif kind is dict:
        for name in sorted(nest):
            _collect(nest[name], found)
    elif kind is tuple or kind is list:
        for part in nest:
            _collect(part, found)
    elif isinstance(nest, Trajectory):
        for name in _FIELDS:
            part = getattr(nest, name)
            if part is not None:
                _collect(part, found)
    else:
        found.extend(tf.nest.flatten(nest))


def _plain(form: Nest) -> bool:
    """Whether a nest is made of dicts, tuples and lists only."""
    if type(form) is dict:
        return all(_plain(x) for x in form.values())
    if type(form) in (tuple, list):
        return all(_plain(x) for x in form)
    return not tf.nest.is_nested(form)


def _builder(form: Nest) -> Callable[[Iterator[Any]], Nest]:
    if type(form) is dict:
        parts = [(name, _builder(form[name])) for name in sorted(form)]
        return lambda leaves: {name: build(leaves) for name, build in parts}
    if type(form) in (tuple, list):
        kind, builders = type(form), [_builder(x) for x in form]
        return lambda leaves: kind([build(leaves) for build in builders])
    return next
