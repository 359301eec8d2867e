"""From an action spec to the distribution over its actions."""

import abc
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.distributions.continuous import DiagonalGaussian, SquashedGaussian
from tfrl.distributions.core import Distribution, Joint
from tfrl.distributions.discrete import Bernoulli, Categorical, MultiCategorical
from tfrl.errors import UserError

# Maximum number of values of an integer Box as discrete actions.
_MAX_VALUES = 1 << 16


@struct.logic_dataclass
class Head(abc.ABC):
    """Makes the distribution of one leaf; one subclass per kind of leaf.

    Attributes:
      spec: The leaf.
      path: Its path in the action spec, for messages.
    """

    spec: Any
    path: str = "."

    @property
    @abc.abstractmethod
    def num_outputs(self) -> int:
        """The number of network outputs that it needs."""

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
                remedy="Pass one boolean per choice: [A] for a Discrete action, "
                "[K, max(nvec)] for K MultiDiscrete actions, [K] for K bits.",
            )

    def _no_mask(self, mask: Any) -> None:
        if mask is not None:
            raise UserError(
                f"action mask {self.path}", expected="None for a continuous action", got="a mask"
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
    """An array of values, each from a finite set."""

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
    """An array of floats; it does not enforce bounds.

    Attributes:
      state_dependent_std: Whether the network outputs log_std (the second half of its outputs).
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
        """One mean per element, plus one log_std if it is state-dependent."""
        return specs.flat_dim(self.spec) * (2 if self.state_dependent_std else 1)

    def init_params(self) -> dict[str, tf.Tensor]:
        """Returns `{"log_std": [A]}` unless the network outputs log_std."""
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
        """Checks that the bounds are finite and different."""
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
      UserError: For a leaf that is neither float nor discrete.
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
    )


Nest = Any


@struct.logic_dataclass
class ActionDistribution(struct.Struct):
    """Turns the outputs of a network into a distribution over the actions of a spec.

    Attributes:
      action_spec: A spec or a nest of specs.
      squash: Squash floats with tanh into their bounds.
      state_dependent_std: The network gives log_std too; else it is a parameter.
      init_log_std: Start of that parameter, or offset of the network's log_std.
      min_log_std: log_std is clipped from below.
      max_log_std: And from above.
      heads: One per leaf, in `tf.nest` order.
      num_outputs: The required number of network outputs.
    """

    action_spec: Nest
    squash: bool = False
    state_dependent_std: bool = False
    init_log_std: float = 0.0
    min_log_std: float = -20.0
    max_log_std: float = 2.0
    heads: tuple[Head, ...] = struct.derived()
    num_outputs: int = struct.derived()

    def __post_init__(self) -> None:
        """Chooses a head for every leaf."""
        leaves = struct.paths(self.action_spec)
        if not leaves:
            raise UserError("action spec", expected="at least one leaf", got=repr(self.action_spec))
        if not self.min_log_std <= self.init_log_std <= self.max_log_std:
            raise UserError(
                "init_log_std",
                expected=f"a number in [{self.min_log_std}, {self.max_log_std}]",
                got=self.init_log_std,
            )
        gaussian = {
            "state_dependent_std": self.state_dependent_std,
            "init_log_std": self.init_log_std,
            "min_log_std": self.min_log_std,
            "max_log_std": self.max_log_std,
        }
        self.heads = tuple(make_head(s, p, self.squash, **gaussian) for p, s in leaves.items())
        self.num_outputs = sum(h.num_outputs for h in self.heads)

    @property
    def _single(self) -> bool:
        return specs.is_spec(self.action_spec)

    def init_params(self, key: tf.Tensor) -> dict[str, Any]:
        """Makes the trainable parameters beyond the network's.

        Args:
          key: int32 [2]; no parameter of the present heads is random.

        Returns:
          `{"log_std": [A]}` for a Gaussian with a state-independent scale, else `{}`; for a nest of
          actions `{path: dict}` of the leaves with parameters.
        """
        del key
        each = {h.path: h.init_params() for h in self.heads}
        if self._single:
            return each[self.heads[0].path]
        return {path: params for path, params in each.items() if params}

    def check_mask(self, mask: Nest) -> list[Any]:
        """Returns the masks of the leaves (or None), after a check of all shapes.

        Args:
          mask: See `build`; or specs of one action's masks.

        Raises:
          UserError: For a mask without a leaf, or with a wrong shape.
        """
        own = {h.path: h for h in self.heads}
        masks = {} if mask is None else masks_by_path(mask)
        if self._single and masks:
            masks = {self.heads[0].path: masks["."]} if set(masks) == {"."} else masks
        unknown = sorted(set(masks) - set(own))
        if unknown:
            raise UserError(
                f"action mask {unknown[0]}",
                expected=f"a mask for an action among {', '.join(own)}",
                got=f"a mask for {unknown[0]}",
                remedy="Pass a nest like the action's, without the leaves that have no mask.",
            )
        for path, leaf in masks.items():
            own[path].check_mask(leaf)
        return [masks.get(path) for path in own]

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any] | None = None, mask: Nest = None
    ) -> Distribution:
        """Makes the distribution.

        Args:
          outputs: float32 `[..., num_outputs]`.
          params: As from `init_params`; with a leading population axis if `outputs` has one. None
            if there are none.
          mask: Mask of valid actions: bool `[..., A]` for a discrete leaf, `[..., K, max(nvec)]`
            for MultiDiscrete, `[..., K]` for bits; for a nest of actions a nest like it, in which
            a leaf may be None or missing, or a dict of them by path. None for all valid.

        Returns:
          The distribution of the leaf, or a `Joint` for a nest.

        Raises:
          UserError: If `outputs` has the wrong size, a mask has another shape, or a continuous
            action is masked.
        """
        params = params or {}
        if outputs.shape[-1] != self.num_outputs:
            raise UserError(
                "network outputs",
                expected=f"{self.num_outputs} for this action spec",
                got=outputs.shape[-1],
                remedy="Set the size of the last layer to ActionDistribution.num_outputs.",
            )
        masks = self.check_mask(mask)
        if self._single:
            return self.heads[0].build(outputs, params, masks[0])
        sizes = [h.num_outputs for h in self.heads]
        pieces = tf.split(outputs, sizes, axis=-1)
        parts = [
            h.build(o, params.get(h.path, {}), m)
            for h, o, m in zip(self.heads, pieces, masks, strict=True)
        ]
        return Joint(parts=tuple(parts), spec=self.action_spec)


def masks_by_path(mask: Nest) -> dict[str, Any]:
    """Returns `{path: mask}` of a nest of masks, without the leaves that are None."""
    if isinstance(mask, Mapping):
        parts = [(str(name), part) for name, part in mask.items()]
    elif isinstance(mask, tuple | list):
        parts = [(str(i), part) for i, part in enumerate(mask)]
    else:
        return {} if mask is None else {".": mask}
    return {
        name if path == "." else f"{name}/{path}": leaf
        for name, part in parts
        for path, leaf in masks_by_path(part).items()
    }


def make_distribution(
    action_spec: Nest,
    squash: bool = False,
    state_dependent_std: bool = False,
    init_log_std: float = 0.0,
    min_log_std: float = -20.0,
    max_log_std: float = 2.0,
) -> ActionDistribution:
    """Makes the `ActionDistribution` of an action spec.

    A discrete scalar becomes a categorical, a discrete array independent categoricals, bits
    Bernoullis, floats a diagonal Gaussian (optionally squashed into their bounds), a Dict or Tuple
    the joint distribution of its leaves.

    Args:
      action_spec: A spec or a nest of specs, see `tfrl.specs`.
      squash: Squash floats with tanh into their bounds, which must be finite.
      state_dependent_std: The network gives log_std too; else it is a parameter.
      init_log_std: Start of that parameter, or offset of the network's log_std.
      min_log_std: log_std is clipped from below.
      max_log_std: And from above.

    Raises:
      UserError: For a leaf without a distribution; the message has its path.
    """
    return ActionDistribution(
        action_spec=action_spec,
        squash=squash,
        state_dependent_std=state_dependent_std,
        init_log_std=init_log_std,
        min_log_std=min_log_std,
        max_log_std=max_log_std,
    )
