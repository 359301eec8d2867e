"""A `gymnasium.Env` whose spaces, signatures and answers are all checked; for `check_env`."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from tfrl.envs.action_masks import MASK
from tfrl.envs.adapters import host_spaces
from tfrl.envs.adapters.gymnasium_env import stacked_mask
from tfrl.envs.checker_actions import check_mask
from tfrl.envs.checker_values import (
    Answer,
    check_finite,
    check_values,
    copied,
    described,
    difference,
    note,
)
from tfrl.errors import UserError
from tfrl.types import Nest

_SIGNATURE = "reset(self, *, seed=None, options=None)"


def name_of(env: Any) -> str:
    """The id of an environment of Gymnasium, or its class."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def space_of(name: str, kind: str, env: Any, attribute: str) -> Nest:
    """Returns the nest of specs of a space that an environment has to declare.

    Args:
      name: The environment's, for messages.
      kind: `observation` or `action`.
      env: It.
      attribute: Of the environment.
    """
    space = getattr(env, attribute, None)
    if not isinstance(space, gymnasium.Space):
        cls = type(space)
        raise UserError(
            f"{attribute} of {name}",
            expected="a space of gymnasium.spaces",
            got="none" if space is None else f"a {cls.__module__}.{cls.__qualname__}",
            remedy=f"Set self.{attribute} in __init__, to a Box or Discrete for example.",
        )
    return host_spaces.space_spec(name, kind, space)


class Single:
    """Calls one environment, and checks whatever it answers.

    Attributes:
      env: The environment.
      name: Its id or class.
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
    """

    def __init__(self, env: gymnasium.Env):
        """Checks what can be known before a reset.

        Raises:
          UserError: For spaces, signatures or metadata that are wrong.
        """
        self.env, self.name = env, name_of(env)
        self.obs_spec = space_of(self.name, "observation", env, "observation_space")
        self.action_spec = space_of(self.name, "action", env, "action_space")
        check_metadata(env, self.name)
        for layer in _layers(env):
            _check_signature(layer)
        self._masked = False
        self._given: Nest = None  # the last observation itself
        self._copy: Nest = None  # what was in it
        self._from = ""

    def reset(self, **kwargs: Any) -> Answer:
        """Starts an episode; `kwargs` are those of the environment's reset."""
        seeded = kwargs.get("seed") is not None
        where = f"reset of {self.name}" + ("" if seeded else " without a seed")
        given = self._called(where, self.env.reset, **kwargs)
        pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
        if not pair:
            raise UserError(
                f"what {where} returns",
                expected="the pair (obs, info), info a dict",
                got=described(given),
                remedy="Return obs, {}; the old API of gym returned obs only.",
            )
        obs, info = given
        answer = Answer(self._seen(where, obs))
        self._masked = self._masked or MASK in info
        answer.mask = self._mask(where, info, ended=False)
        return answer

    def step(self, action: Nest, where: str) -> Answer:
        """Takes a step; `where` says which, for messages."""
        where = f"{where} of {self.name}"
        given = self._called(where, self.env.step, action)
        if not isinstance(given, tuple) or len(given) != 5:
            old = isinstance(given, tuple) and len(given) == 4
            raise UserError(
                f"what {where} returns",
                expected="(obs, reward, terminated, truncated, info)",
                got=described(given),
                remedy="The old API of gym had done: return terminated where the task itself has "
                "ended, and truncated where a time limit has."
                if old
                else "Return a tuple of these five.",
            )
        obs, reward, termination, truncation, info = given
        seen = self._seen(where, obs)
        self._check_rest(where, reward, termination, truncation, info)
        answer = Answer(seen, float(reward), bool(termination), bool(truncation))
        answer.mask = self._mask(where, info, answer.ended)
        return answer

    def _called(self, where: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            given = fn(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:  # whatever a user's code raises
            raise UserError(
                where,
                expected="no exception",
                got=f"{type(error).__name__}: {error}",
                remedy="The traceback of its cause is shown with this one.",
            ) from error
        self._check_kept(where)
        return given

    def _seen(self, where: str, obs: Any) -> Nest:
        """Checks an observation, and keeps it to see whether it changes."""
        check_values(f"{where}: obs", obs, self.obs_spec)
        self._given, self._copy, self._from = obs, copied(obs), where
        return self._copy

    def _check_kept(self, where: str) -> None:
        if self._copy is None:
            return
        found = difference(self._copy, self._given, exact=True)
        if found is not None:
            path, values = found
            raise UserError(
                f"{self._from}: obs" + ("" if path == "." else f"/{path}"),
                expected="an array that stays as it was returned",
                got=f"{values} after {where}",
                remedy="Return a copy, as self._obs.copy(): whoever stores observations would "
                "store the last one again and again.",
            )

    def _check_rest(self, where: str, reward: Any, end: Any, cut: Any, info: Any) -> None:
        if not isinstance(reward, int | float | np.integer | np.floating):
            raise UserError(
                f"{where}: reward",
                expected="a number",
                got=described(reward),
                remedy="Return float(reward).",
            )
        check_finite(f"{where}: reward", np.asarray(reward, np.float64))
        for name, flag in (("terminated", end), ("truncated", cut)):
            if not isinstance(flag, bool | np.bool_):
                raise UserError(
                    f"{where}: {name}",
                    expected="True or False",
                    got=described(flag),
                    remedy=f"Return bool({name}).",
                )
        if not isinstance(info, Mapping):
            raise UserError(
                f"{where}: info",
                expected="a dict",
                got=described(info),
                remedy="Return {} where there is nothing to tell.",
            )

    def _mask(self, where: str, info: Mapping[str, Any], ended: bool) -> Nest:
        """The mask of the next action in the library's form, without its batch axis."""
        if not self._masked or MASK not in info and ended:
            return None
        thing = f"{where}: info/{MASK}"
        if MASK not in info:
            raise UserError(
                thing,
                expected="a mask after every reset and step that goes on, as there was before",
                got=f"the items {sorted(info)}",
                remedy="Give the mask whenever the episode goes on.",
            )
        host_spaces.mask_spec(self.name, self.action_spec)
        try:
            mask = stacked_mask(self.name, self.env.action_space, info[MASK])
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(
                thing,
                expected=f"the form of {self.env.action_space}",
                got=described(info[MASK]),
                remedy="Give one mask for each item of the action space.",
            ) from error
        mask = host_spaces.positional(self.action_spec, mask)
        if not ended:
            check_mask(thing, self.action_spec, mask)
        return mask

    def check_picture(self) -> None:
        """Checks what `render` gives for videos, where the environment was made to be drawn."""
        if self.env.render_mode != "rgb_array":
            return
        where = f"render of {self.name}"
        picture = self._called(where, self.env.render)
        good = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
        if not good or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(
                where,
                expected="a picture uint8 [H, W, 3] for render_mode='rgb_array'",
                got=described(picture),
                remedy="Return colours from 0 to 255, red, green and blue.",
            )


def _layers(env: Any) -> Iterator[Any]:
    """An environment, and what is below its wrappers."""
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def _check_signature(env: Any) -> None:
    parameters = inspect.signature(env.reset).parameters
    kinds = {p.kind for p in parameters.values()}
    missing = [n for n in ("seed", "options") if n not in parameters]
    if missing and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise UserError(
            f"reset of {type(env).__name__}",
            expected="the keyword arguments seed and options",
            got=f"no {' and no '.join(missing)}",
            remedy=f"Define {_SIGNATURE}, and call super().reset(seed=seed) first.",
        )


def check_metadata(env: Any, name: str) -> None:
    """Checks `metadata`: how an environment can be drawn, and how many pictures a second has.

    Raises:
      UserError: If it is no dict, or says what cannot be.
    """
    metadata = env.metadata
    if not isinstance(metadata, Mapping):
        raise UserError(
            f"metadata of {name}",
            expected="a dict",
            got=described(metadata),
            remedy="Set metadata = {'render_modes': ['rgb_array'], 'render_fps': 30}.",
        )
    modes = metadata.get("render_modes", ())
    if env.render_mode is not None and env.render_mode not in modes:
        raise UserError(
            f"render_mode of {name}",
            expected=f"None or one of metadata['render_modes'], {list(modes)}",
            got=repr(env.render_mode),
            remedy="Add the mode to metadata['render_modes'], or make it without.",
        )
    fps = metadata.get("render_fps")
    number = isinstance(fps, int | float | np.number) and not isinstance(fps, bool)
    if fps is not None and not (number and 0 < fps < np.inf):
        raise UserError(
            f"metadata['render_fps'] of {name}",
            expected="a number of pictures a second above 0",
            got=repr(fps),
            remedy="Give that at which the task runs in real time.",
        )
    if modes and fps is None:
        note(
            f"metadata['render_fps'] of {name}",
            expected="pictures a second, since it can be drawn",
            got="none",
            remedy="Videos will have 30; give the number at which the task runs in real time.",
        )
