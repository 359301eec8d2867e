"""Action masks of device environments, for `check_env`."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import specs, struct
from tfrl.distributions.factory import make_distribution, masks_by_path
from tfrl.envs.action_masks import MASK, split_mask
from tfrl.envs.checker_actions import check_mask, sample_actions
from tfrl.envs.core import Autoreset, Env
from tfrl.envs.multi_agent import agent_ids
from tfrl.errors import UserError
from tfrl.types import EnvState, Nest

# Rows whose action is ignored need no valid one.
_IGNORES = (Autoreset.NEXT_STEP, Autoreset.DISABLED, None)


@dataclasses.dataclass
class _Mask:
    """A mask in a state.

    Attributes:
      name: Where it stands, for messages.
      agent: Whose it is; None where there is one.
      spec: The nest of specs of one action.
      leaves: `{path in the action: mask [B, ...]}`.
    """

    name: str
    agent: str | None
    spec: Nest
    leaves: dict[str, Any]

    def named(self) -> dict[str, str]:
        """`{path in the action: name}`."""
        return {p: self.name if p == "." else f"{self.name}/{p}" for p in self.leaves}


def _masks(env: Env, state: EnvState) -> list[_Mask]:
    """All masks of a state: of the observation (of each agent's), and of info."""
    if agent_ids(env) is not None:
        return [
            _Mask(f"obs/{a}/{MASK}", a, env.action_spec[a], masks_by_path(mask))
            for a, mask in ((a, split_mask(state.obs[a])[1]) for a in env.action_spec)
            if mask is not None
        ]
    given = {"obs": split_mask(state.obs)[1], "info": (state.info or {}).get(MASK)}
    return [
        _Mask(f"{where}/{MASK}", None, env.action_spec, masks_by_path(mask))
        for where, mask in given.items()
        if mask is not None
    ]


class MaskContract:
    """Follows the masks of an environment and raises a UserError where one is not as it must be.

    `check` takes the states in order. `sample` draws actions that the masks allow: what another
    action does is the environment's own affair.
    """

    def __init__(self, env: Env):
        """Takes the environment."""
        self._env = env
        self._last: dict[str, np.ndarray] = {}
        self._ended = np.zeros(env.num_envs, bool)

    def check(self, state: EnvState, where: str) -> None:
        """Checks shapes, dtypes and values; `where` is for messages."""
        masks = _masks(self._env, state)
        if not masks:
            return
        now: dict[str, np.ndarray] = {}
        for mask in masks:
            _check_form(self._env, mask, where, static=False)
            rows = self._acting(state, mask)
            for path, name in mask.named().items():
                value = mask.leaves[path].numpy()
                check_mask(f"{where}: {name}", _spec_of(mask, path), value.astype(bool), rows)
                now[name] = value
        self._check_agree(now, where)
        self._check_frozen(now, where)
        self._last, self._ended = now, _ended(state)

    def _acting(self, state: EnvState, mask: _Mask) -> np.ndarray:
        """Rows bool [B] whose next action counts, as far as the state tells."""
        acting = np.ones(self._env.num_envs, bool)
        if self._env.autoreset in _IGNORES:
            acting = ~_ended(state)
        flags = (state.info or {}).get("agents")
        if mask.agent is None or flags is None or not self._last:
            return acting
        own = {name: flag.numpy() for name, flag in flags[mask.agent].items()}
        return acting & own["active"] & ~own["termination"] & ~own["truncation"]

    def _check_agree(self, now: dict[str, np.ndarray], where: str) -> None:
        """Checks that info tells the same as the observation, where both have the mask."""
        for name, value in now.items():
            other = now.get(name.replace(f"info/{MASK}", f"obs/{MASK}", 1), value)
            if not np.array_equal(value, other):
                raise UserError(
                    f"{where}: {name}",
                    expected=f"the mask of the observation, obs/{MASK}",
                    got=f"another one in rows {_rows(value != other)}",
                    remedy="Both say what may be done at obs; leave one of them out.",
                )

    def _check_frozen(self, now: dict[str, np.ndarray], where: str) -> None:
        """Checks that rows which are over keep the mask of their end, under DISABLED."""
        if self._env.autoreset is not Autoreset.DISABLED:
            return
        for name, value in now.items():
            before = self._last.get(name, value)
            over = self._ended.reshape(-1, *[1] * (value.ndim - 1))
            if np.any(over & (value != before)):
                raise UserError(
                    f"{where} under DISABLED: {name}",
                    expected="the mask of the end in rows that are over",
                    got=f"another one in rows {_rows(over & (value != before))}",
                    remedy="Freeze the mask with the observation; tfrl.make_env does.",
                )

    def sample(self, state: EnvState, key: tf.Tensor) -> Nest:
        """Draws actions that the masks of a state allow.

        Args:
          state: A state that was checked.
          key: int32 [2].

        Returns:
          The nest of a batch of actions, tensors.
        """
        env = self._env
        masks = {mask.agent: mask for mask in _masks(env, state)}
        drawn = specs.sample(env.action_spec, key, [env.num_envs])
        rng = np.random.default_rng(np.asarray(key).view(np.uint32))
        for agent, mask in masks.items():
            acting = self._acting(state, mask)
            leaves = struct.paths(drawn if agent is None else drawn[agent])
            for path, value in mask.leaves.items():
                spec = _spec_of(mask, path)
                free = ~acting.reshape(-1, *[1] * (value.shape.rank - 1))
                given = sample_actions(spec, rng, env.num_envs, value.numpy().astype(bool) | free)
                leaves[path] = tf.constant(given, spec.dtype)
            packed = tf.nest.pack_sequence_as(mask.spec, list(leaves.values()))
            drawn = packed if agent is None else {**drawn, agent: packed}
        return drawn


def check_static(env: Env, first: EnvState, step: Any, action: Nest) -> None:
    """Checks that the shapes of masks are known when reset and step are traced.

    Args:
      env: The environment.
      first: The state of a reset.
      step: `env.step` as a tf.function.
      action: A batch of actions.
    """
    if not _masks(env, first):
        return
    reset = tf.function(env.reset, autograph=False)
    traced = {
        "reset": reset.get_concrete_function(tf.TensorSpec([2], tf.int32)),
        "step": step.get_concrete_function(first, action),
    }
    for name, graph in traced.items():
        for mask in _masks(env, graph.structured_outputs):
            _check_form(env, mask, f"{name} in tf.function", static=True)


def _check_form(env: Env, mask: _Mask, where: str, static: bool) -> None:
    """Checks that each mask fits a part of the action, its shape and dtype."""
    heads = {h.path: h for h in make_distribution(mask.spec).heads}
    unknown = sorted(set(mask.leaves) - {p for p, h in heads.items() if h.mask_shape is not None})
    for path in unknown:
        raise UserError(
            f"{where}: {mask.named()[path]}",
            expected="masks of discrete actions only",
            got=f"one for {heads[path].spec!r}" if path in heads else f"one for no action {path}",
            remedy="Give a nest like the action's, with None for what cannot be masked.",
        )
    for path, name in mask.named().items():
        value, shape = mask.leaves[path], [env.num_envs, *(heads[path].mask_shape or ())]
        fits = value.shape.as_list() == shape and (value.dtype.is_bool or value.dtype.is_integer)
        if not fits:
            remedy = "Give True for every valid value of the action, and False for the others."
            if static:
                remedy = "Tell the shape by tf.ensure_shape, so that steps can be looped over."
            raise UserError(
                f"{where}: {name}",
                expected=f"a tensor bool {shape}",
                got=f"{value.dtype.name} {value.shape.as_list()}",
                remedy=remedy,
            )
        if value.dtype.is_integer and not static and not np.isin(value.numpy(), (0, 1)).all():
            raise UserError(
                f"{where}: {name}",
                expected="0 or 1 where the mask is of integers",
                got=", ".join(map(str, np.setdiff1d(value.numpy(), (0, 1)).tolist())),
                remedy="Give 1 for every valid value of the action, and 0 for the others.",
            )


def _spec_of(mask: _Mask, path: str) -> Any:
    return struct.paths(mask.spec)[path]


def _ended(state: EnvState) -> np.ndarray:
    return state.termination.numpy() | state.truncation.numpy()


def _rows(different: np.ndarray) -> list[int]:
    return np.flatnonzero(different.reshape(len(different), -1).any(axis=1)).tolist()
