"""Converts specs of this library to TF-Agents' array and tensor specs, and back."""

import re
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.specs import array_spec as array_spec_lib
from tf_agents.specs import tensor_spec as tensor_spec_lib

from tfrl import specs, struct
from tfrl.envs.adapters import tf_agents_specs
from tfrl.types import Nest

plain = tf_agents_specs.plain


def array_spec(spec: Nest, name: str | None = None) -> Nest:
    """Converts a nest of specs to TF-Agents' array specs.

    TF-Agents has no infinite bounds: they become the limits of the dtype, as in TF-Agents.

    Args:
      spec: A nest of specs.
      name: The name of a single leaf; other leaves are `name/path`. None for no name, and `path`.

    Returns:
      Dicts and tuples of ArraySpec and BoundedArraySpec.
    """
    leaves = [_leaf(_name(name, path), leaf) for path, leaf in struct.paths(spec).items()]
    return tf.nest.pack_sequence_as(plain(spec), leaves)


def tensor_spec(spec: Nest, name: str | None = None) -> Nest:
    """Converts a nest of specs to TF-Agents' tensor specs; see `array_spec`."""
    return tensor_spec_lib.from_spec(array_spec(spec, name))


def from_tf_agents_spec(spec: Nest, kind: str = "observation") -> Nest:
    """Converts TF-Agents' specs to specs of this library.

    Args:
      spec: A nest of array or tensor specs.
      kind: `observation` or `action`: a bounded array of integers is a MultiDiscreteSpec as an
        action.

    Raises:
      UserError: For a leaf other than a spec of numbers with a static shape.
    """
    return tf_agents_specs.from_tf_agents_spec("TF-Agents", kind, spec)


def _name(name: str | None, path: str) -> str | None:
    if path == ".":
        return name
    # The name becomes part of operations' names.
    return re.sub(r"[^A-Za-z0-9_./-]", "_", path if name is None else f"{name}/{path}")


def _leaf(name: str | None, spec: Any) -> array_spec_lib.ArraySpec:
    shape, dtype = spec.shape.as_list(), spec.dtype.as_numpy_dtype
    if spec.dtype.is_bool or 0 in shape or not hasattr(spec, "minimum"):
        return array_spec_lib.ArraySpec(shape, dtype, name)
    low, high = specs.bounds(spec)
    if np.all(low == low.flat[0]) and np.all(high == high.flat[0]):
        low, high = low.flat[0], high.flat[0]  # shorter to print, and as in TF-Agents' specs
    return array_spec_lib.BoundedArraySpec(shape, dtype, low, high, name)
