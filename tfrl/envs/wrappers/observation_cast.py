"""Casts observations to another dtype."""

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.envs.wrappers.base import ObservationWrapper
from tfrl.errors import UserError
from tfrl.types import Nest


@struct.logic_dataclass
class ObservationCast(ObservationWrapper):
    """Casts every leaf of the observation; on either side of the autoreset.

    Attributes:
      env: An environment.
      dtype: The numeric dtype of every leaf; bounds are cast with it.
    """

    dtype: tf.DType = tf.float32

    def __post_init__(self) -> None:
        """Checks the dtype."""
        if not isinstance(self.dtype, tf.DType) or not (
            self.dtype.is_floating or self.dtype.is_integer
        ):
            raise UserError(
                "ObservationCast.dtype",
                expected="a numeric tf.DType",
                got=repr(self.dtype),
                remedy="Give for example tf.float32.",
            )

    @property
    def obs_spec(self) -> Nest:
        """The wrapped environment's, of the other dtype."""
        return tf.nest.map_structure(self._cast_spec, self.env.obs_spec)

    def _cast_spec(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        if spec.dtype == self.dtype:
            return spec
        low, high = (np.asarray(b, np.float64) for b in specs.bounds(spec))
        if spec.dtype.is_floating and not (np.isfinite(low).any() or np.isfinite(high).any()):
            return tf.TensorSpec(spec.shape, self.dtype, spec.name)
        if self.dtype.is_integer:
            low, high = np.maximum(low, self.dtype.min), np.minimum(high, self.dtype.max)
        kind = self.dtype.as_numpy_dtype
        low, high = low.astype(kind), high.astype(kind)
        return specs.BoundedTensorSpec(spec.shape, self.dtype, low, high, spec.name)

    def observe(self, obs: Nest) -> Nest:
        """Casts a batch of observations."""
        return tf.nest.map_structure(lambda x: tf.cast(x, self.dtype), obs)
