"""The algorithms that the library registers, and the arguments with which tests make each."""

import dataclasses

import tensorflow as tf

from tfrl import specs
from tfrl.agents import ALGORITHMS
from tfrl.errors import UserError

# Tests register algorithms of their own, which stay out.
OWN = tuple(cls for cls in ALGORITHMS.values() if cls.__module__.startswith("tfrl."))
ON_POLICY = tuple(cls for cls in OWN if not cls.learns_from_replay)
OFF_POLICY = tuple(cls for cls in OWN if cls.learns_from_replay)

OBS = tf.TensorSpec([3])
ACTIONS = {
    "discrete": specs.DiscreteSpec(3),
    "box": specs.BoundedTensorSpec([2], tf.float32, [-2, 0], [2, 10]),
}


def accepts(cls, action_spec):
    """Whether an algorithm takes these actions."""
    try:
        cls(obs_spec=OBS, action_spec=action_spec, hidden=(8,))
    except UserError:
        return False
    return True


def cases(algorithms):
    """`{"SAC_box": (SAC, spec of its actions)}`: every algorithm with all actions that it takes."""
    return {
        f"{cls.__name__}_{kind}": (cls, spec)
        for cls in algorithms
        for kind, spec in ACTIONS.items()
        if accepts(cls, spec)
    }


def flags(cls):
    """The names of an algorithm's arguments that are True or False."""
    return [f.name for f in dataclasses.fields(cls) if f.init and f.type in (bool, "bool")]


def folder(cls):
    """The name of an algorithm's folder, which its page in the documentation has too."""
    return cls.__module__.split(".")[2]
