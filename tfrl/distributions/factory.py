"""From an action spec to the distribution over its actions."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrl import specs, struct
from tfrl.distributions.core import Distribution
from tfrl.distributions.heads import Head, make_head
from tfrl.distributions.joint import Joint
from tfrl.errors import UserError

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
      num_outputs: How many outputs the network must have.
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
            raise UserError(
                "action spec",
                expected="at least one leaf",
                got=repr(self.action_spec),
                remedy="Give the environment an action.",
            )
        if not self.min_log_std <= self.init_log_std <= self.max_log_std:
            raise UserError(
                "init_log_std",
                expected=f"a number in [{self.min_log_std}, {self.max_log_std}]",
                got=self.init_log_std,
                remedy="Change it, or min_log_std and max_log_std.",
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
          `{"log_std": [A]}` for a Gaussian with a state-independent scale, `{}` where there are
          none, and for a nest of actions `{path: such a dict}` of the leaves that have any.
        """
        del key
        each = {h.path: h.init_params() for h in self.heads}
        if self._single:
            return each[self.heads[0].path]
        return {path: params for path, params in each.items() if params}

    def check_mask(self, mask: Nest) -> list[Any]:
        """Returns the masks of the leaves, None where there is none, after a check of all shapes.

        Args:
          mask: As of `build`; or specs of one action's masks.

        Raises:
          UserError: For a mask that fits no leaf, or does not fit its own.
        """
        own = {h.path: h for h in self.heads}
        found = {} if mask is None else masks_by_path(mask)
        if self._single and found:
            found = {self.heads[0].path: found["."]} if set(found) == {"."} else found
        unknown = sorted(set(found) - set(own))
        if unknown:
            raise UserError(
                f"action mask {unknown[0]}",
                expected=f"a mask of an action, of {', '.join(own)}",
                got=f"a mask for {unknown[0]}",
                remedy="Give a nest like the action's, without the leaves that have no mask.",
            )
        for path, leaf in found.items():
            own[path].check_mask(leaf)
        return [found.get(path) for path in own]

    def build(
        self, outputs: tf.Tensor, params: dict[str, Any] | None = None, mask: Nest = None
    ) -> Distribution:
        """Makes the distribution.

        Args:
          outputs: float32 `[..., num_outputs]`.
          params: As from `init_params`; each may have a leading population axis, which `outputs`
            then have too. None where there are none.
          mask: Which actions are valid: bool `[..., A]` for a discrete leaf, `[..., K, max(nvec)]`
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
                remedy="Make the last layer of the size ActionDistribution.num_outputs.",
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

    A scalar of finitely many values becomes a categorical, an array of them independent
    categoricals, bits Bernoullis, floats a diagonal Gaussian (squashed into their bounds or not),
    a Dict or Tuple the joint distribution of its leaves.

    Args:
      action_spec: A spec or a nest of specs, see `tfrl.specs`.
      squash: Squash floats with tanh into their bounds, which must be finite.
      state_dependent_std: The network gives log_std too; else it is a parameter.
      init_log_std: Start of that parameter, or offset of the network's log_std.
      min_log_std: log_std is clipped from below.
      max_log_std: And from above.

    Raises:
      UserError: For a leaf that has no distribution; the message has its path.
    """
    return ActionDistribution(
        action_spec=action_spec,
        squash=squash,
        state_dependent_std=state_dependent_std,
        init_log_std=init_log_std,
        min_log_std=min_log_std,
        max_log_std=max_log_std,
    )
