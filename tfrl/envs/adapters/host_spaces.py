"""Converts spaces of other libraries to specs, and their values to arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs
from tfrl.errors import UserError
from tfrl.types import Nest

# Wrappers that replace an unsupported space, by the class of the space.
_REMEDIES = {
    "Graph": "Represent its nodes and edges as Box items of a Dict, padded to fixed sizes",
    "OneOf": "Use a Dict of all of its spaces and a Discrete item that selects one",
    "Sequence": "Pad it to a Box of fixed length",
    "Text": "Encode it as a Box or MultiDiscrete of fixed length",
}
_WRAPPERS = {"observation": "TransformObservation", "action": "TransformAction"}


def space_spec(name: str, kind: str, space: Any) -> Nest:
    """Turns a gymnasium space into a nest of specs.

    Args:
      name: The environment's id, for messages.
      kind: `observation` or `action`, for messages.
      space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them.

    Raises:
      UserError: For any other space; the message names the leaf's path and a wrapper.
    """
    path, leaf = _unsupported(space, "") or (None, None)
    if path is None:
        return specs.to_spec(space)
    what = _REMEDIES.get(type(leaf).__name__, "Convert it to one of these")
    raise UserError(
        f"{kind} space {path or '.'} of {name}",
        expected="Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple",
        got=f"{type(leaf).__name__} ({leaf!r})",
        remedy=f"{what}, with a wrapper such as gymnasium.wrappers.{_WRAPPERS[kind]}: "
        "wrappers=(function,).",
    )


def _unsupported(space: Any, path: str) -> tuple[str, Any] | None:
    """The first leaf without a spec, with its path."""
    from gymnasium import spaces

    items: Any = ()
    if isinstance(space, spaces.Dict):
        items = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        items = enumerate(space.spaces)
    elif not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        return path, space
    for key, part in items:
        unsupported = _unsupported(part, f"{path}/{key}" if path else str(key))
        if unsupported is not None:
            return unsupported
    return None


def copier(spec: Nest, thing: str, num_envs: int) -> Callable[[Any], Nest]:
    """Returns a function that copies a batch of values into new arrays `[B, ...]`.

    Args:
      spec: The nest of specs of one value.
      thing: Name of the values in messages.
      num_envs: B.

    Returns:
      `copy(values)`; it casts to the spec's dtype, and raises a UserError for a shape other than
      the spec's.
    """
    if isinstance(spec, Mapping):
        parts = {k: copier(s, f"{thing}/{k}", num_envs) for k, s in spec.items()}
        return lambda values: {k: copy(values[k]) for k, copy in parts.items()}
    if isinstance(spec, tuple):
        each = [copier(s, f"{thing}/{i}", num_envs) for i, s in enumerate(spec)]
        return lambda values: tuple(copy(values[i]) for i, copy in enumerate(each))
    dtype, shape = spec.dtype.as_numpy_dtype, (num_envs, *spec.shape.as_list())

    def copy(values: Any) -> np.ndarray:
        array = np.array(values, dtype)
        if array.shape != shape:
            raise UserError(
                thing,
                expected=f"shape {list(shape)}, as in the space",
                got=f"{list(array.shape)}",
            )
        return array

    return copy


def numbers(thing: str, values: Any, num_envs: int) -> np.ndarray:
    """Returns a copy of one number per environment, float32 `[B]`.

    Raises:
      UserError: If they are not numbers, or not one per environment.
    """
    return _batch(thing, values, num_envs, "biuf", "numbers").astype(np.float32)


def flags(thing: str, values: Any, num_envs: int) -> np.ndarray:
    """Returns a copy of one flag per environment, bool `[B]`.

    Raises:
      UserError: If they are not bools, or not one per environment.
    """
    return _batch(thing, values, num_envs, "b", "bools").astype(bool)


def _batch(thing: str, values: Any, num_envs: int, kinds: str, what: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # rows of several lengths
        array = np.asarray(None, object)
    if array.shape == (num_envs,) and array.dtype.kind in kinds:
        return array
    strange = (
        [i for i, x in enumerate(array) if np.asarray(x).dtype.kind not in kinds]
        if (array.dtype == object and array.shape == (num_envs,))
        else []
    )
    example = f", {array[strange[0]]!r} of environment {strange[0]}" if strange else ""
    raise UserError(
        thing,
        expected=f"{what} [{num_envs}], one per environment",
        got=f"{array.dtype.name} {list(array.shape)}{example}",
    )


def set_row(batch: Nest, index: int, value: Any) -> None:
    """Writes one value into row `index` of a nest of arrays `[B, ...]`."""
    if isinstance(batch, Mapping):
        for key, part in batch.items():
            set_row(part, index, value[key])
    elif isinstance(batch, tuple):
        for i, part in enumerate(batch):
            set_row(part, index, value[i])
    else:
        batch[index] = value


def mask_spec(name: str, action_spec: Nest) -> Nest:
    """Returns the nest of specs of an action's mask: bool, True for valid choices.

    `[A]` of a Discrete action, `[K, max(nvec)]` of a MultiDiscrete, the shape of a MultiBinary;
    see `tfrl.distributions.ActionDistribution.build`.

    Args:
      name: The environment's id, for messages.
      action_spec: The nest of specs of one action.

    Raises:
      UserError: If an action is continuous.
    """

    def one(spec: tf.TensorSpec) -> tf.TensorSpec:
        if isinstance(spec, specs.DiscreteSpec):
            return tf.TensorSpec([spec.num_values], tf.bool)
        if isinstance(spec, specs.MultiDiscreteSpec):
            return tf.TensorSpec([spec.nvec.size, int(spec.nvec.max())], tf.bool)
        if isinstance(spec, specs.BinarySpec):
            return tf.TensorSpec([int(np.prod(spec.shape.as_list()))], tf.bool)
        raise UserError(
            f"info['action_mask'] of {name}",
            expected="a mask of Discrete, MultiDiscrete or MultiBinary actions",
            got=f"a mask of {spec!r}",
            remedy="Remove the mask from info, for example with a wrapper.",
        )

    return tf.nest.map_structure(one, action_spec)


def positional(spec: Nest, arguments: Any) -> Any:
    """Restores the tuples of Tuple spaces, whose items `info` holds by name."""
    if isinstance(spec, Mapping):
        return {k: positional(s, arguments[k]) for k, s in spec.items()}
    if isinstance(spec, tuple):
        by_name = isinstance(arguments, Mapping)
        return tuple(positional(s, arguments[str(i) if by_name else i]) for i, s in enumerate(spec))
    return arguments


def check_dtypes(thing: str, spec: Nest, batch: Any) -> None:
    """Raises a UserError if casting a batch to its spec would lose values.

    Args:
      thing: Name of the batch in messages.
      spec: The nest of specs of one value.
      batch: The nest of arrays `[B, ...]`.
    """
    if isinstance(spec, Mapping | tuple):
        for key, part in spec.items() if isinstance(spec, Mapping) else enumerate(spec):
            check_dtypes(f"{thing}/{key}", part, batch[key])
        return
    have, want = np.asarray(batch).dtype, spec.dtype.as_numpy_dtype
    if not np.can_cast(have, want, "same_kind"):
        raise UserError(thing, expected=f"{np.dtype(want).name}, as in the space", got=have.name)
