"""Flattens observations to one vector."""

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.action_masks import join_mask, split_mask
from tfrl.envs.wrappers.base import ObservationWrapper
from tfrl.types import Nest


@struct.logic_dataclass
class ObservationFlatten(ObservationWrapper):
    """Makes one vector [B, D] of an observation; on either side of the autoreset.

    Leaves follow each other in the order of `tf.nest` (dict keys sorted). Discrete and
    multi-discrete leaves become one-hot, as in Gymnasium's FlattenObservation. The dtype is that of
    the leaves if they have one and none is discrete, else float32. An action mask stays beside the
    vector.
    """

    @property
    def obs_spec(self) -> Nest:
        """The spec of the vector."""
        seen, mask = split_mask(self.env.obs_spec)
        return join_mask(flat_spec(seen), mask)

    def observe(self, obs: Nest) -> Nest:
        """Flattens a batch of observations."""
        seen, mask = split_mask(obs)
        return join_mask(flat(split_mask(self.env.obs_spec)[0], seen), mask)


def flat_spec(spec: Nest) -> specs.BoundedTensorSpec:
    """Returns the spec of the vector that `flat` makes."""
    bounds = [_flat_bounds(s) for s in tf.nest.flatten(spec)]
    low, high = (np.concatenate([b[i] for b in bounds]) for i in (0, 1))
    dtype = _dtype(spec)
    kind = dtype.as_numpy_dtype
    return specs.BoundedTensorSpec([low.size], dtype, low.astype(kind), high.astype(kind))


def flat(spec: Nest, values: Nest) -> tf.Tensor:
    """Makes one vector [B, D] of a nest of values [B, ...]; see `ObservationFlatten`."""
    dtype = _dtype(spec)
    leaves = zip(tf.nest.flatten(spec), tf.nest.flatten(values), strict=True)
    parts = [_flat(s, x, dtype) for s, x in leaves]
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)


def _dtype(spec: Nest) -> tf.DType:
    leaves = tf.nest.flatten(spec)
    dtypes = {s.dtype for s in leaves}
    if len(dtypes) > 1 or any(_counts(s) is not None for s in leaves):
        return tf.float32
    return dtypes.pop()


def _counts(spec: tf.TensorSpec) -> tuple[np.ndarray, np.ndarray] | None:
    """Smallest values and numbers of values of a (multi-)discrete leaf, each flat; else None."""
    if not isinstance(spec, specs.DiscreteSpec | specs.MultiDiscreteSpec):
        return None
    low, high = (b.astype(np.int64).ravel() for b in specs.bounds(spec))
    return low, high - low + 1


def _flat_bounds(spec: tf.TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    counts = _counts(spec)
    if counts is not None:
        size = int(counts[1].sum())
        return np.zeros(size), np.ones(size)
    low, high = specs.bounds(spec)
    return low.ravel(), high.ravel()


def _flat(spec: tf.TensorSpec, x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    counts = _counts(spec)
    flat = tf.reshape(x, [x.shape[0], -1])  # [B, d]
    if counts is None:
        return tf.cast(flat, dtype)
    low, numbers = counts
    index = tf.cast(flat, tf.int64) - low
    hot = [tf.one_hot(index[:, i], int(n), dtype=dtype) for i, n in enumerate(numbers)]
    return hot[0] if len(hot) == 1 else tf.concat(hot, axis=-1)
