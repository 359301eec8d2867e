"""Checks the results of a `gymnasium.Env` against its spaces at every step.

No TensorFlow here: processes of environments import this module.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from tfrl.errors import UserError

_CAST: set[str] = set()  # observations with a logged cast in this process

Check = Callable[[Any], Any]

_SHOWN_INDICES = 5
RESET = ("observation", "info dict")
STEP = ("observation", "reward", "terminated", "truncated", "info dict")


def observation_fits(space: gymnasium.Space, thing: str, exact: bool = False) -> Check:
    """Returns a check of observations that is fast enough for every step.

    It ignores bounds, which rounding may exceed; `tfrl.envs.check_env` checks them. Unless exact,
    it accepts dtypes that can be cast within their kind, e.g. float64 to float32, as many
    environments return them. A process warns once about a cast. Integers that would wrap are an
    error; floats that become inf are detected in the batch.

    Args:
      space: The observation space.
      thing: Name of an observation in messages.
      exact: Whether to require the space's dtypes, finite numbers, and containment for uncommon
        spaces.

    Returns:
      A function that returns an observation as arrays, integers of Discrete spaces in the space's
      dtype, or raises a UserError that names the leaf by its path.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        parts = {k: observation_fits(s, f"{thing}/{k}", exact) for k, s in space.spaces.items()}
        return lambda obs: _check_dict(obs, thing, parts)
    if isinstance(space, gymnasium.spaces.Tuple):
        items = [observation_fits(s, f"{thing}/{i}", exact) for i, s in enumerate(space.spaces)]
        return lambda obs: _check_tuple(obs, thing, items)
    kinds = (
        gymnasium.spaces.Box,
        gymnasium.spaces.Discrete,
        gymnasium.spaces.MultiDiscrete,
        gymnasium.spaces.MultiBinary,
    )
    if not isinstance(space, kinds) or space.dtype is None or space.shape is None:
        return (lambda obs: _check_contained(obs, thing, space)) if exact else (lambda obs: obs)
    dtype, shape = np.dtype(space.dtype), tuple(space.shape)
    discrete = isinstance(space, gymnasium.spaces.Discrete)

    def check(obs: Any) -> Any:
        array = obs if isinstance(obs, np.ndarray | np.generic) else _array(obs)
        castable = not exact or discrete
        same = array.dtype == dtype or castable and np.can_cast(array.dtype, dtype, "same_kind")
        if array.shape != shape or not same:
            raise UserError(
                thing,
                expected=f"{dtype.name} {list(shape)}, as in the observation space",
                got=f"{array.dtype.name} {list(array.shape)}",
                remedy="Cast or reshape it in the environment or a gymnasium.ObservationWrapper, "
                "or correct observation_space.",
            )
        if array.dtype != dtype and not exact and isinstance(obs, np.ndarray):
            _check_cast(thing, array, dtype)
        if exact and dtype.kind == "f" and not np.isfinite(array).all():
            raise _not_finite(thing, np.asarray(array))
        return np.asarray(array, dtype) if discrete else array

    return check


def _not_finite(thing: str, array: np.ndarray) -> UserError:
    bad = np.argwhere(~np.isfinite(array))
    shown = [f"{array[tuple(i)]} at {i.tolist()}" for i in bad[:_SHOWN_INDICES]]
    more = f" and {len(bad) - len(shown)} more" if len(bad) > len(shown) else ""
    return UserError(
        thing,
        expected="finite numbers",
        got=", ".join(shown) + more,
        remedy="Look for a division by zero or a diverging simulation; if intended, use "
        "np.nan_to_num or np.clip in a gymnasium.ObservationWrapper.",
    )


def _check_contained(obs: Any, thing: str, space: gymnasium.Space) -> Any:
    if not space.contains(obs):
        raise UserError(thing, expected=f"an element of {space}", got=_shown(obs))
    return obs


def _check_cast(thing: str, array: Any, dtype: np.dtype) -> None:
    """Logs the cast of a wider dtype once; integers that would wrap are an error."""
    if dtype.kind in "iu" and array.size:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if array.min() < low or array.max() > high:
            raise UserError(
                thing,
                expected=f"{dtype.name}, as in the observation space",
                got=f"{array.dtype.name} from {array.min()} to {array.max()}",
            )
    if thing not in _CAST and array.dtype.itemsize > dtype.itemsize:
        _CAST.add(thing)
        warnings.warn(
            f"{thing}: casting {array.dtype.name} to {dtype.name}, as in the observation space; "
            f"return {dtype.name}, or correct observation_space.",
            stacklevel=2,
        )


def _array(obs: Any) -> np.ndarray:
    try:
        return np.asarray(obs)
    except ValueError:  # rows of several lengths
        return np.asarray(None, object)


def _check_dict(obs: Any, thing: str, parts: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(obs, Mapping) or not parts.keys() <= obs.keys():
        raise UserError(
            thing,
            expected=f"a dict with the keys {sorted(map(str, parts))}, as in the observation space",
            got=str(sorted(map(str, obs))) if isinstance(obs, Mapping) else type(obs).__name__,
        )
    return {key: check(obs[key]) for key, check in parts.items()}


def _check_tuple(obs: Any, thing: str, items: list[Check]) -> tuple[Any, ...]:
    if not isinstance(obs, tuple | list) or len(obs) != len(items):
        raise UserError(
            thing,
            expected=f"a tuple of {len(items)}, as in the observation space",
            got=f"{len(obs)} items" if isinstance(obs, tuple | list) else type(obs).__name__,
        )
    return tuple(check(item) for check, item in zip(items, obs, strict=True))


_BOOLS = (bool, np.bool_)


def number(thing: str, value: Any) -> float:
    """Returns a reward as a float.

    Args:
      thing: Its name in messages.
      value: The environment's reward: a number, or an array of one.

    Raises:
      UserError: If it is neither.
    """
    if isinstance(value, int | float | np.number | np.ndarray | np.bool_):
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(()))
    raise UserError(thing, expected="a number", got=_shown(value))


def check_end(name: str, termination: Any, truncation: Any) -> None:
    """Raises a UserError unless both end flags of a step are bools."""
    if isinstance(termination, _BOOLS) and isinstance(truncation, _BOOLS):
        return
    for flag, value in (("terminated", termination), ("truncated", truncation)):
        if isinstance(value, np.ndarray) and value.shape == () and value.dtype == bool:
            continue
        if not isinstance(value, _BOOLS):
            raise UserError(
                f"{flag} of {name}",
                expected="True or False",
                got=_shown(value),
                remedy=f"Return bool({flag}): step returns {', '.join(STEP)}.",
            )


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def check_layout(thing: str, answer: Any, parts: tuple[str, ...]) -> None:
    """Raises a UserError unless an answer is a tuple of the right length that ends in a dict.

    Args:
      thing: Its name in messages, e.g. "reset() of CartPole-v1".
      answer: The environment's result.
      parts: The expected parts of the tuple, `RESET` or `STEP`.
    """
    if isinstance(answer, tuple) and len(answer) == len(parts) and isinstance(answer[-1], Mapping):
        return
    got = type(answer).__name__
    if isinstance(answer, tuple):
        got = f"a tuple of {len(answer)}: {', '.join(type(x).__name__ for x in answer)}"
    raise _bad(thing, parts, got)


def bad_step(name: str, got: str) -> UserError:
    """Returns the error for a step result that a wrapper could not unpack."""
    return _bad(f"step() of {name}", STEP, got)


def _bad(thing: str, parts: tuple[str, ...], got: str) -> UserError:
    return UserError(
        thing,
        expected=f"a tuple ({', '.join(parts)})",
        got=got,
        remedy="Follow Gymnasium's API since 0.26: reset returns obs and info, and step returns "
        "obs, reward, terminated, truncated and info.",
    )
