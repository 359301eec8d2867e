"""How a network's outputs become the distribution of one leaf of an action spec."""

import abc
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.distributions.bernoulli import Bernoulli
from tfrl.distributions.categorical import Categorical
from tfrl.distributions.core import Distribution
from tfrl.distributions.gaussian import DiagonalGaussian
from tfrl.distributions.multi_categorical import MultiCategorical
from tfrl.distributions.squashed_gaussian import SquashedGaussian
from tfrl.errors import UserError

# An integer Box with more values than this is no set of actions to choose from.
_MAX_VALUES = 1 << 16


@struct.logic_dataclass
class Head(abc.ABC):
    """Makes the distribution of one leaf; subclasses say which leaves are theirs.

    Attributes:
      spec: The leaf.
      path: Its path in the action spec, for messages.
    """

    spec: Any
    path: str = "."

    @property
    @abc.abstractmethod
    def num_outputs(self) -> int:
        """How many numbers of the network it takes."""

    def init_params(self) -> dict[str, tf.Tensor]:
        """Returns trainable parameters beyond the network's."""
        return {}

    @abc.abstractmethod
    def build(
        self, outputs: tf.Tensor, params: dict[str, Any], mask: tf.Tensor | None
    ) -> Distribution:
        """Makes the distribution of outputs `[..., num_outputs]`."""

    @property
    def mask_shape(self) -> tuple[int, ...] | None:
        """The shape of one action's mask; None for an action that cannot be masked."""
        return None

    def check_mask(self, mask: Any) -> None:
        """Raises a UserError unless a mask, or the spec of one action's mask, fits this leaf."""
        own = self.mask_shape
        if own is None:
            self._no_mask(mask)
        elif tuple(mask.shape)[-len(own) :] != own:
            raise UserError(
                f"action mask {self.path}",
                expected=f"shape {list(own)} for {self.spec!r}",
                got=f"shape {list(mask.shape)}",
                remedy="Give one truth value for each choice: [A] of a Discrete action, "
                "[K, max(nvec)] of K MultiDiscrete ones, [K] of K bits.",
            )

    def _no_mask(self, mask: Any) -> None:
        if mask is not None:
            raise UserError(
                f"action mask {self.path}",
                expected="None for a continuous action",
                got="a mask",
                remedy="Masks are for discrete actions; leave it out.",
            )


@struct.logic_dataclass
class CategoricalHead(Head):
    """One of finitely many values."""

    @property
    def num_outputs(self) -> int:
        """One logit per value."""
        return specs.num_actions(self.spec)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """One truth value per value."""
        return (self.num_outputs,)

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any], mask: tf.Tensor | None
    ) -> Categorical:
        """Makes the distribution; `mask` is bool `[..., num_outputs]`."""
        start = int(self.spec.minimum)
        return Categorical.from_logits(outputs, mask, start=start, dtype=self.spec.dtype)


@struct.logic_dataclass
class MultiCategoricalHead(Head):
    """An array of such values."""

    def _nvec(self) -> tuple[np.ndarray, np.ndarray]:
        low, high = (b.astype(np.int64) for b in specs.bounds(self.spec))
        return high - low + 1, low

    @property
    def num_outputs(self) -> int:
        """One row of max(nvec) logits per element."""
        return math.prod(self.mask_shape)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """A row of max(nvec) truth values per element."""
        nvec, _ = self._nvec()
        return (int(nvec.size), int(nvec.max()))

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any], mask: tf.Tensor | None
    ) -> MultiCategorical:
        """Makes the distribution; `mask` is bool `[..., K, max(nvec)]`."""
        nvec, low = self._nvec()
        rows = [nvec.size, nvec.max()]
        logits = tf.reshape(outputs, tf.concat([tf.shape(outputs)[:-1], rows], 0))
        logits = tf.ensure_shape(logits, outputs.shape[:-1] + rows)
        return MultiCategorical.from_logits(logits, nvec, mask, low, self.spec.dtype)


@struct.logic_dataclass
class BernoulliHead(Head):
    """An array of bits."""

    @property
    def num_outputs(self) -> int:
        """One logit per bit."""
        return specs.flat_dim(self.spec)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """One truth value per bit."""
        return (self.num_outputs,)

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any], mask: tf.Tensor | None
    ) -> Bernoulli:
        """Makes the distribution; `mask` is bool `[..., num_outputs]`."""
        shape = tuple(self.spec.shape.as_list())
        return Bernoulli.from_logits(outputs, shape, mask, self.spec.dtype)


@struct.logic_dataclass
class GaussianHead(Head):
    """An array of floats, without bounds or with bounds that others enforce.

    Attributes:
      state_dependent_std: Whether the network gives log_std (the second half of its outputs).
      init_log_std: Start of the log_std parameter, or offset of the network's.
      min_log_std: log_std is clipped from below.
      max_log_std: And from above.
    """

    state_dependent_std: bool = False
    init_log_std: float = 0.0
    min_log_std: float = -20.0
    max_log_std: float = 2.0

    @property
    def num_outputs(self) -> int:
        """One mean per element, and one log_std if they are state-dependent."""
        return specs.flat_dim(self.spec) * (2 if self.state_dependent_std else 1)

    def init_params(self) -> dict[str, tf.Tensor]:
        """Returns `{"log_std": [A]}` unless it is the network's."""
        if self.state_dependent_std:
            return {}
        return {"log_std": tf.fill([specs.flat_dim(self.spec)], float(self.init_log_std))}

    def _loc_and_log_std(
        self, outputs: tf.Tensor, params: dict[str, Any]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if self.state_dependent_std:
            loc, log_std = tf.split(outputs, 2, axis=-1)
            log_std += self.init_log_std
        else:
            loc, log_std = outputs, tf.convert_to_tensor(params["log_std"])
            if log_std.shape.rank == 2:  # a population: [P, A] beside loc [P, ..., A]
                size, width = log_std.shape
                log_std = tf.reshape(log_std, [size, *[1] * (loc.shape.rank - 2), width])
        return loc, tf.clip_by_value(log_std, self.min_log_std, self.max_log_std)

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any], mask: tf.Tensor | None
    ) -> Distribution:
        """Makes the distribution; there is no mask."""
        self._no_mask(mask)
        loc, log_std = self._loc_and_log_std(outputs, params)
        shape = tuple(self.spec.shape.as_list())
        return DiagonalGaussian(loc=loc, log_std=log_std, event_shape=shape, dtype=self.spec.dtype)


@struct.logic_dataclass
class SquashedGaussianHead(GaussianHead):
    """An array of floats within finite bounds."""

    def __post_init__(self) -> None:
        """Checks that the bounds are finite and apart."""
        low, high = (b.astype(np.float64) for b in specs.bounds(self.spec))
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high)) and np.all(low < high)):
            raise UserError(
                f"action spec {self.path}",
                expected="finite bounds with low < high, since squash=True",
                got=repr(self.spec),
                remedy="Use squash=False, or rescale the action with a wrapper.",
            )

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any], mask: tf.Tensor | None
    ) -> Distribution:
        """Makes the distribution; there is no mask."""
        self._no_mask(mask)
        loc, log_std = self._loc_and_log_std(outputs, params)
        low, high = specs.bounds(self.spec)
        return SquashedGaussian(
            loc=loc,
            log_std=log_std,
            low=tuple(low.reshape(-1).tolist()),
            high=tuple(high.reshape(-1).tolist()),
            event_shape=tuple(self.spec.shape.as_list()),
            dtype=self.spec.dtype,
        )


def make_head(spec: Any, path: str, squash: bool, **gaussian: Any) -> Head:
    """Chooses the head of one leaf.

    Args:
      spec: The leaf.
      path: Its path, for messages.
      squash: Whether floats are squashed into their bounds.
      **gaussian: The fields of GaussianHead.

    Raises:
      UserError: For a leaf that is neither float nor of finitely many values.
    """
    if isinstance(spec, specs.BinarySpec) or (specs.is_spec(spec) and spec.dtype.is_bool):
        return BernoulliHead(spec=spec, path=path)
    if specs.is_spec(spec) and spec.dtype.is_floating:
        kind = SquashedGaussianHead if squash else GaussianHead
        return kind(spec=spec, path=path, **gaussian)
    if specs.is_spec(spec) and specs.is_discrete(spec):
        low, high = (b.astype(object) for b in specs.bounds(spec))
        if np.max(high - low) < _MAX_VALUES:
            return (MultiCategoricalHead if spec.shape.rank else CategoricalHead)(
                spec=spec, path=path
            )
    raise UserError(
        f"action spec {path}",
        expected=f"a float spec, or a discrete one with at most {_MAX_VALUES} values",
        got=repr(spec),
        remedy="Change the action with a wrapper.",
    )
