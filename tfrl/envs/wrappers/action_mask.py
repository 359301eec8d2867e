"""Puts the action mask of `info` into the observation, for policies."""

from collections.abc import Hashable, Mapping
from typing import Any

import tensorflow as tf

from tfrl import specs, struct
from tfrl.distributions.factory import make_distribution, masks_by_path
from tfrl.envs.core import Env, Wrapper
from tfrl.envs.host import on_host
from tfrl.envs.multi_agent import agent_ids
from tfrl.envs.wrappers.base import require_bare
from tfrl.errors import UserError
from tfrl.traces import logic_key
from tfrl.types import EnvState, Nest

MASK = "action_mask"


@struct.logic_dataclass
class ActionMask(Wrapper):
    """Makes `info["action_mask"]` an item of the observation; below the autoreset.

    A Dict observation gets the item `action_mask`; any other becomes
    `{"observation": obs, "action_mask": mask}`, as in PettingZoo. So the mask accompanies the
    observation everywhere: in the successor of every step, in stored experience, in an exported
    policy. `tfrl.make_env` adds this wrapper to every environment with a mask.

    Attributes:
      env: A bare environment with `info["action_mask"]` in every state, also after `reset`: bool
        (or integers, 0 for invalid) `[B, A]` for a Discrete action, for others see
        `tfrl.distributions.ActionDistribution.build`.
      mask_spec: The nest of specs of one mask.
    """

    mask_spec: Nest = struct.derived()

    def __post_init__(self) -> None:
        """Finds the mask, and checks that its name is free."""
        require_bare(self, "Above the autoreset the last observation of an episode has no mask.")
        masks = _masks(info_spec(self.env).get(MASK))
        if masks is None:
            raise UserError(
                "ActionMask",
                expected=f"an environment that returns info[{MASK!r}]",
                got=f"{type(self.env.unwrapped).__name__}, whose info has no mask",
                remedy="Return the valid actions at the observation from reset and step.",
            )
        if agent_ids(self.env) is not None:
            raise UserError(
                "ActionMask",
                expected="a single-agent environment",
                got=f"{type(self.env.unwrapped).__name__}, whose info has masks of several agents",
                remedy="Add the item 'action_mask' to each agent's observation, a Dict, and "
                "remove it from info.",
            )
        if self.env.action_repeat > 1:
            raise UserError(
                "ActionRepeat",
                expected="an environment without an action mask",
                got=f"{type(self.env.unwrapped).__name__}, which returns info[{MASK!r}]",
                remedy="Remove ActionRepeat or the mask: a repeated action may be invalid at the "
                "next frame.",
            )
        if isinstance(self.env.obs_spec, Mapping) and MASK in self.env.obs_spec:
            raise UserError(
                f"the observation of {type(self.env.unwrapped).__name__}",
                expected=f"no item {MASK!r} in addition to the one in info",
                got=f"items {sorted(self.env.obs_spec)}",
            )
        self.mask_spec = tf.nest.map_structure(
            lambda s: (
                specs.BoundedTensorSpec(s.shape[1:], s.dtype, 0, 1)
                if s.dtype != tf.bool
                else tf.TensorSpec(s.shape[1:], s.dtype)
            ),
            masks,
        )

        make_distribution(self.env.action_spec).check_mask(self.mask_spec)

    @property
    def obs_spec(self) -> Nest:
        """The wrapped environment's, with the mask."""
        return self._with(self.env.obs_spec, self.mask_spec)

    def _with(self, obs: Nest, mask: Nest) -> dict[str, Any]:
        if isinstance(self.env.obs_spec, Mapping):
            return {**obs, MASK: mask}
        return {"observation": obs, MASK: mask}

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        return self._shown(self.env.reset(key))

    def step(self, state: EnvState, action: Nest) -> EnvState:
        """Takes one step in every environment."""
        return self._shown(self.env.step(state, action))

    def _shown(self, state: EnvState) -> EnvState:
        mask = _masks(state.info[MASK])
        return state.replace(obs=self._with(state.obs, mask), info={**state.info, MASK: mask})


def _masks(mask: Nest) -> Nest:
    """A nest of masks; a dict by path if some leaves of the action have no mask."""
    if mask is None or all(x is not None for x in tf.nest.flatten(mask)):
        return mask
    return masks_by_path(mask)


# Cached results of `info_spec` by logic; the oldest is evicted first.
_info_specs: dict[Hashable, dict[str, Any]] = {}
_KEPT = 128


def info_spec(env: Env) -> dict[str, Any]:
    """Returns the specs `[B, ...]` of `info` after `reset`, by tracing it.

    Cached for environments of equal logic.
    """
    key = logic_key(env)
    if key not in _info_specs:
        traced = tf.function(env.reset, autograph=False).get_concrete_function(
            tf.TensorSpec([2], tf.int32)
        )
        if len(_info_specs) >= _KEPT:
            _info_specs.pop(next(iter(_info_specs)))
        _info_specs[key] = dict(traced.structured_outputs.info or {})
    return dict(_info_specs[key])


def gives_mask(env: Env) -> bool:
    """Whether the `info` of a device environment has an action mask."""
    if on_host(env):
        return False
    try:
        return MASK in info_spec(env)
    except Exception:  # noqa: BLE001
        # The call of `reset` and `check_env` will report the error.
        return False
