"""Checks of what an environment returns, against its own spaces, at every step."""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from tfrl.errors import UserError

ObservationCheck = Callable[[Any, str], Any]

_SHOWN_INDICES = 5
_BOOLS = (bool, np.bool_)
_ARRAYS = (np.ndarray, np.generic)
# The common ones first: a look at an abstract class takes a microsecond.
_NUMBERS = (float, int, np.floating, np.bool_, numbers.Real)


def observation_check(space: gymnasium.Space, path: str = "obs") -> ObservationCheck:
    """Makes the check of observations against a space.

    Bounds are not checked: environments leave them by rounding, and a step must stay cheap;
    `tfrl.envs.check_env` checks them. Whatever spaces exist beyond the common ones are asked
    whether they contain the observation.

    Args:
      space: The observation space.
      path: What errors call the observation, with the path of the leaf.

    Returns:
      A function `(obs, where) -> obs` that raises a UserError for another structure, shape or
      dtype, and for NaN and infinity. Integers of Discrete spaces become arrays [] of the space's
      dtype; everything else is returned as it is.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        checks = {k: observation_check(s, f"{path}/{k}") for k, s in space.spaces.items()}
        return lambda obs, where: _check_dict(obs, where, path, checks)
    if isinstance(space, gymnasium.spaces.Tuple):
        items = [observation_check(s, f"{path}/{i}") for i, s in enumerate(space.spaces)]
        return lambda obs, where: _check_tuple(obs, where, path, items)
    if isinstance(space, gymnasium.spaces.Discrete):
        dtype = np.dtype(space.dtype)
        return lambda obs, where: _check_integer(obs, where, path, dtype)
    arrays = (gymnasium.spaces.Box, gymnasium.spaces.MultiDiscrete, gymnasium.spaces.MultiBinary)
    if isinstance(space, arrays) and space.dtype is not None and space.shape is not None:
        return _array_check(np.dtype(space.dtype), tuple(space.shape), path)
    return lambda obs, where: _check_contained(obs, where, path, space)


def _array_check(dtype: np.dtype, shape: tuple[int, ...], path: str) -> ObservationCheck:
    floating = np.issubdtype(dtype, np.floating)

    def check(obs: Any, where: str) -> Any:
        if not isinstance(obs, _ARRAYS):
            raise _wrong(
                f"{where}: {path}",
                f"a NumPy array {dtype.name} {list(shape)}, as the observation space says",
                f"{_shown(obs)} of type {type(obs).__name__}",
                f"Return np.asarray(..., np.{dtype.name}).",
            )
        if obs.dtype != dtype or obs.shape != shape:
            raise _wrong(
                f"{where}: {path}",
                f"{dtype.name} {list(shape)}, as the observation space says",
                f"{obs.dtype.name} {list(obs.shape)}",
                "Cast or reshape it in the environment or a gymnasium.ObservationWrapper, or "
                "correct observation_space.",
            )
        if floating and not np.isfinite(obs).all():
            raise _not_finite(np.asarray(obs), where, path)
        return obs

    return check


def _not_finite(obs: np.ndarray, where: str, path: str) -> UserError:
    bad = np.argwhere(~np.isfinite(obs))
    shown = [f"{obs[tuple(i)]} at {i.tolist()}" for i in bad[:_SHOWN_INDICES]]
    more = f" and {len(bad) - len(shown)} more" if len(bad) > len(shown) else ""
    return _wrong(
        f"{where}: {path}",
        "finite numbers",
        ", ".join(shown) + more,
        "Find the division or the diverging simulation; np.nan_to_num or a clip in a "
        "gymnasium.ObservationWrapper if it is meant.",
    )


def _check_integer(obs: Any, where: str, path: str, dtype: np.dtype) -> np.ndarray:
    whole = isinstance(obs, numbers.Integral) and not isinstance(obs, bool)
    if not whole and isinstance(obs, np.ndarray):
        whole = obs.shape == () and np.issubdtype(obs.dtype, np.integer)
    if not whole:
        raise _wrong(
            f"{where}: {path}",
            "an integer, as the observation space is Discrete",
            f"{_shown(obs)} of type {type(obs).__name__}",
            "Return int(...) or correct observation_space.",
        )
    return np.asarray(obs, dtype)


def _check_dict(obs: Any, where: str, path: str, checks: dict[str, ObservationCheck]) -> Any:
    if not isinstance(obs, dict) or obs.keys() != checks.keys():
        got = sorted(map(str, obs)) if isinstance(obs, dict) else type(obs).__name__
        raise _wrong(
            f"{where}: {path}",
            f"a dict with the keys {sorted(map(str, checks))}, as the observation space says",
            str(got),
            "Make the observation and observation_space the same nest.",
        )
    return {key: check(obs[key], where) for key, check in checks.items()}


def _check_tuple(obs: Any, where: str, path: str, checks: Sequence[ObservationCheck]) -> Any:
    if not isinstance(obs, tuple) or len(obs) != len(checks):
        got = f"{len(obs)} items" if isinstance(obs, tuple) else type(obs).__name__
        raise _wrong(
            f"{where}: {path}",
            f"a tuple of {len(checks)}, as the observation space says",
            got,
            "Make the observation and observation_space the same nest.",
        )
    return tuple(check(item, where) for check, item in zip(checks, obs, strict=True))


def _check_contained(obs: Any, where: str, path: str, space: gymnasium.Space) -> Any:
    if not space.contains(obs):
        raise _wrong(
            f"{where}: {path}",
            f"an element of {space}",
            f"{_shown(obs)} of type {type(obs).__name__}",
            "Correct the observation or observation_space.",
        )
    return obs


def check_reset(returned: Any) -> tuple[Any, dict[str, Any]]:
    """Returns (obs, info) of a reset, or raises a UserError where it is not such a pair."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], dict):
        raise _wrong(
            "reset()",
            "a tuple (observation, info dict)",
            _layout(returned),
            "Return (obs, {}) as gymnasium's API since 0.26 says.",
        )
    return returned


def check_step(returned: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Returns what a step returned with plain reward and flags, or raises a UserError."""
    if not isinstance(returned, tuple) or len(returned) != 5:
        raise _wrong(
            "step()",
            "a tuple (obs, reward, terminated, truncated, info)",
            _layout(returned),
            "Return both end flags; an environment of the old gym API with one `done` needs a "
            "gymnasium.Wrapper that tells termination from truncation.",
        )
    obs, reward, terminated, truncated, info = returned
    if not isinstance(info, dict):
        raise _wrong("step(): info", "a dict", type(info).__name__, "Return {} if there is none.")
    flags = _flag("terminated", terminated), _flag("truncated", truncated)
    return obs, _reward(reward), *flags, info


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, _BOOLS):
        return bool(value)
    if isinstance(value, np.ndarray) and value.shape == () and value.dtype == np.bool_:
        return bool(value)
    raise _wrong(
        f"step(): {name}",
        "True or False",
        f"{_shown(value)} of type {type(value).__name__}",
        f"Return bool({name}); step returns obs, reward, terminated, truncated, info.",
    )


def _reward(value: Any) -> float:
    if isinstance(value, np.ndarray):
        number = value.shape == () and value.dtype.kind in "buif"
    else:
        number = isinstance(value, _NUMBERS)
    if not number:
        shape = f" and shape {list(value.shape)}" if isinstance(value, np.ndarray) else ""
        raise _wrong(
            "step(): reward",
            "one number",
            f"{_shown(value)} of type {type(value).__name__}{shape}",
            "Return float(reward).",
        )
    if not math.isfinite(value):
        raise _wrong(
            "step(): reward",
            "a finite number",
            str(float(value)),
            "Find the division or the diverging simulation that it comes from.",
        )
    return float(value)


def _layout(returned: Any) -> str:
    if not isinstance(returned, tuple):
        return type(returned).__name__
    return f"a tuple of {len(returned)}: {', '.join(type(x).__name__ for x in returned)}"


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _wrong(thing: str, expected: str, got: str, remedy: str) -> UserError:
    return UserError(thing, expected=expected, got=got, remedy=remedy)
