"""`check_env` for one `gymnasium.Env`: episodes, seeds, and steps after an end."""

import inspect
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode, VectorEnv

from tfrl import specs, struct
from tfrl.envs.action_masks import MASK
from tfrl.envs.adapters import host_spaces
from tfrl.envs.adapters.gymnasium_env import stacked_mask
from tfrl.envs.adapters.gymnasium_vector import declared_mode
from tfrl.envs.checker_values import (
    MAX_STARTS,
    Answer,
    LastObs,
    check_finite,
    check_mask,
    check_same,
    check_starts,
    check_values,
    copied,
    described,
    difference,
    note,
    note_unbounded,
    sample_actions,
)
from tfrl.envs.gymnasium_values import RESET, STEP, check_end, check_layout, number
from tfrl.envs.registry import check_num_envs
from tfrl.errors import UserError
from tfrl.types import Nest

_SIGNATURE = "reset(self, *, seed=None, options=None)"


def name_of(env: Any) -> str:
    """The id of a Gymnasium environment, or its class."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def space_of(name: str, kind: str, env: Any, attribute: str) -> Nest:
    """Returns the nest of specs of a declared space.

    Args:
      name: The environment's name, for messages.
      kind: `observation` or `action`.
      env: The environment.
      attribute: The environment's attribute with the space.
    """
    space = getattr(env, attribute, None)
    if not isinstance(space, gymnasium.Space):
        cls = type(space)
        raise UserError(
            f"{attribute} of {name}",
            expected="a space of gymnasium.spaces",
            got="None" if space is None else f"a {cls.__module__}.{cls.__qualname__}",
            remedy=f"Set self.{attribute} in __init__, for example to a Box or Discrete.",
        )
    return host_spaces.space_spec(name, kind, space)


class Single:
    """Calls one environment, and checks its results.

    Attributes:
      env: The environment.
      name: Its id or class.
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
    """

    def __init__(self, env: gymnasium.Env):
        """Checks everything known before a reset.

        Raises:
          UserError: For invalid spaces, signatures or metadata.
        """
        self.env, self.name = env, name_of(env)
        self.obs_spec = space_of(self.name, "observation", env, "observation_space")
        self.action_spec = space_of(self.name, "action", env, "action_space")
        check_metadata(env, self.name)
        for layer in _layers(env):
            _check_signature(layer)
        self._masked = False
        self._last_obs: Nest = None  # the last observation, not copied
        self._copy: Nest = None  # a copy of its values
        self._from = ""

    def reset(self, **kwargs: Any) -> Answer:
        """Starts an episode with the `kwargs` of the environment's reset."""
        seeded = kwargs.get("seed") is not None
        where = f"reset of {self.name}" + ("" if seeded else " without a seed")
        returned = self._called(where, self.env.reset, **kwargs)
        check_layout(where, returned, RESET)
        obs, info = returned
        answer = Answer(self._check_obs(where, obs))
        self._masked = self._masked or MASK in info
        answer.mask = self._mask(where, info, ended=False)
        return answer

    def step(self, action: Nest, where: str) -> Answer:
        """Takes a step, which messages call `where`."""
        where = f"{where} of {self.name}"
        returned = self._called(where, self.env.step, action)
        check_layout(where, returned, STEP)
        obs, reward, termination, truncation, info = returned
        observed = self._check_obs(where, obs)
        paid = number(f"{where}: reward", reward)
        check_finite(f"{where}: reward", np.asarray(paid))
        check_end(where, termination, truncation)
        answer = Answer(observed, paid, bool(termination), bool(truncation))
        answer.mask = self._mask(where, info, answer.ended)
        return answer

    def _called(self, where: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            returned = fn(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:  # user code may raise anything
            raise UserError(
                where, expected="no exception", got=f"{type(error).__name__}: {error}"
            ) from error
        self._check_kept(where)
        return returned

    def _check_obs(self, where: str, obs: Any) -> Nest:
        """Checks an observation, and keeps it to detect later changes."""
        check_values(f"{where}: obs", obs, self.obs_spec)
        self._last_obs, self._copy, self._from = obs, copied(obs), where
        return self._copy

    def _check_kept(self, where: str) -> None:
        if self._copy is None:
            return
        differs = difference(self._copy, self._last_obs, exact=True)
        if differs is not None:
            path, values = differs
            raise UserError(
                f"{self._from}: obs" + ("" if path == "." else f"/{path}"),
                expected="an array that later calls do not change",
                got=f"{values} after {where}",
                remedy="Return a copy such as self._obs.copy(): otherwise a replay buffer stores "
                "the last observation repeatedly.",
            )

    def _mask(self, where: str, info: Mapping[str, Any], ended: bool) -> Nest:
        """The mask of the next action in tfrl's form, without a batch axis."""
        if not self._masked or MASK not in info and ended:
            return None
        thing = f"{where}: info/{MASK}"
        if MASK not in info:
            raise UserError(
                thing,
                expected="a mask after every reset and non-final step, as before",
                got=f"the items {sorted(info)}",
            )
        host_spaces.mask_spec(self.name, self.action_spec)
        try:
            mask = stacked_mask(self.name, self.env.action_space, info[MASK])
        except (KeyError, IndexError, TypeError) as error:
            raise UserError(
                thing, expected=f"a mask for {self.env.action_space}", got=described(info[MASK])
            ) from error
        mask = host_spaces.positional(self.action_spec, mask)
        if not ended:
            check_mask(thing, self.action_spec, mask)
        return mask

    def check_picture(self) -> None:
        """Checks the frames of `render` for videos, if the environment can be rendered."""
        if self.env.render_mode != "rgb_array":
            return
        where = f"render of {self.name}"
        picture = self._called(where, self.env.render)
        good = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
        if not good or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(
                where,
                expected="a uint8 frame [H, W, 3] for render_mode='rgb_array'",
                got=described(picture),
            )


def _layers(env: Any) -> Iterator[Any]:
    """An environment and all environments inside its wrappers."""
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
    """Checks `metadata`: render modes and frame rate.

    Raises:
      UserError: If it is no dict or has invalid values.
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
            remedy="Add the mode to metadata['render_modes'], or leave out render_mode.",
        )
    fps = metadata.get("render_fps")
    number = isinstance(fps, int | float | np.number) and not isinstance(fps, bool)
    if fps is not None and not (number and 0 < fps < np.inf):
        raise UserError(
            f"metadata['render_fps'] of {name}",
            expected="a positive number of frames per second",
            got=repr(fps),
            remedy="Set the frame rate of real time.",
        )
    if modes and fps is None:
        note(
            f"metadata['render_fps'] of {name}",
            expected="frames per second, since the environment renders",
            got="no value",
            remedy="Set the frame rate of real time; videos use 30 by default.",
        )


OTHER_STEPS = 30  # within which an episode of another seed has to differ

# Each step: the action, its result, and the next start if it has ended an episode.
Played = list[tuple[Nest, Answer, Answer | None]]


def check_gymnasium(env: gymnasium.Env, steps: int, seed: int, stochastic: bool) -> None:
    """Checks one Gymnasium environment; takes the arguments of `check_env`.

    It leaves the environment open, after a reset.
    """
    single = Single(env)
    note_unbounded(f"action_space of {single.name}", single.action_spec)
    start = single.reset(seed=seed)
    single.check_picture()
    played = _play(single, start, steps, np.random.default_rng(seed))
    nondeterministic = env.spec is not None and env.spec.nondeterministic
    if not nondeterministic:
        _check_again(single, start, played, seed)
    if stochastic:
        _check_others(single, start, played, seed)
    _check_after_end(single, played, seed)
    single.reset()


def _play(single: Single, start: Answer, steps: int, rng: np.random.Generator) -> Played:
    """Takes random steps; after an episode's end the next one starts without a seed."""
    played: Played = []
    now = start
    for t in range(1, steps + 1):
        mask = now.mask
        if mask is not None:
            mask = tf.nest.map_structure(lambda m: m[None], mask)
        actions = sample_actions(single.action_spec, rng, 1, mask)
        action = tf.nest.map_structure(_first, actions)
        answer = single.step(action, f"step {t}")
        new = single.reset() if answer.ended else None
        played.append((action, answer, new))
        now = new or answer
    return played


def _first(batch: np.ndarray) -> Any:
    """The only row, as an array or integer like a sample of Gymnasium's spaces."""
    row = batch[0]
    return np.asarray(row) if row.dtype.kind == "f" else row


def _check_again(single: Single, start: Answer, played: Played, seed: int) -> None:
    """Repeats the play, and compares."""
    name = single.name
    check_same(f"reset of {name}", start.parts(), single.reset(seed=seed).parts())
    for t, (action, answer, new) in enumerate(played, start=1):
        check_same(f"step {t} of {name}", answer.parts(), single.step(action, f"step {t}").parts())
        if new is not None:
            differs = difference(new.parts(), single.reset().parts())
            if differs is not None:
                raise UserError(
                    f"reset of {name} without a seed: {differs[0]}",
                    expected="a continuation of the last seed's random numbers",
                    got=f"{differs[1]} after the same episode",
                    remedy="Call super().reset(seed=seed) and draw from self.np_random, which a "
                    "reset without a seed leaves unchanged.",
                )


def _check_others(single: Single, start: Answer, played: Played, seed: int) -> None:
    """Checks that other seeds give other episodes, and resets without a seed other starts."""
    starts_differ = False
    for i in range(1, MAX_STARTS + 1):
        other = single.reset(seed=seed + i)
        starts_differ = difference(start.parts(), other.parts(), exact=True) is not None
        if starts_differ or _differs(single, played):
            break
    else:
        raise UserError(
            f"reset of {single.name}",
            expected="different episodes from different seeds",
            got=f"the same episode from {MAX_STARTS + 1} seeds",
            remedy="Call super().reset(seed=seed) and draw from self.np_random; for a task "
            "without randomness, call check_env(env, stochastic=False).",
        )
    if not starts_differ:
        return
    single.reset(seed=seed)
    for _ in range(MAX_STARTS):
        if difference(start.parts(), single.reset().parts(), exact=True) is not None:
            return
    raise UserError(
        f"reset of {single.name} without a seed",
        expected="starts that differ from the last seed's",
        got=f"the same start {MAX_STARTS} times",
        remedy="Reseed only if seed is not None, as super().reset(seed=seed) does.",
    )


def _differs(single: Single, played: Played) -> bool:
    """Whether the first steps differ now. Until they differ, the masks are equal."""
    for t, (action, answer, _) in enumerate(itertools.islice(played, OTHER_STEPS), start=1):
        now = single.step(action, f"step {t}")
        if difference(answer.parts(), now.parts(), exact=True) is not None:
            return True
        if answer.ended:
            return False
    return False


def _check_after_end(single: Single, played: Played, seed: int) -> None:
    """Takes one step after the end.

    Gymnasium does not define it, and several of its tasks continue, so it is no error.
    """
    name = single.name
    ends = [t for t, (_, answer, _) in enumerate(played) if answer.ended]
    if not ends:
        logging.getLogger(__name__).info(
            "%s: no episode ended within %d steps, so ends were not checked; pass more steps to "
            "check_env.",
            name,
            len(played),
        )
        return
    single.reset(seed=seed)
    ended = False
    for t, (action, _, _) in enumerate(played[: ends[0] + 1], start=1):
        ended = single.step(action, f"step {t}").ended
        if ended:
            break
    if not ended:  # declared non-deterministic
        return
    returned = _one_more(single.env, action)
    if returned is not None and len(returned) == 5 and not (returned[2] or returned[3]):
        note(
            f"a step of {name} after the end",
            expected="an exception, or terminated or truncated again",
            got="both False",
            remedy="Raise gymnasium.error.ResetNeeded there: an environment that resets itself "
            "hides ends from the library, and one that continues hides errors of its caller.",
        )


def _one_more(env: gymnasium.Env, action: Nest) -> Any:
    """The result of a step after the end, or None if the environment refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own tasks warn
        try:
            return env.step(action)
        except Exception as error:  # any exception is fine
            logging.getLogger(__name__).debug("A step after the end: %r", error)
            return None


def check_vector(env: VectorEnv, steps: int, seed: int, stochastic: bool) -> None:
    """Checks a vector environment with the arguments of `check_env`; leaves it open."""
    batch = CheckedBatch(env)
    note_unbounded(f"single_action_space of {batch.name}", batch.action_spec)
    start = batch.reset(seed)
    played = _play_batch(batch, start, steps, np.random.default_rng(seed))
    batch.last_obs.check(f"infos['final_obs'] of {batch.name}")
    again = batch.reset(seed)
    check_same(f"reset of {batch.name}", start.parts(), again.parts())
    for t, (action, answer) in enumerate(played, start=1):
        check_same(f"step {t} of {batch.name}", answer.parts(), batch.step(action, t).parts())
    if stochastic:
        size = batch.num_envs
        check_starts(
            f"reset of {batch.name}",
            size,
            start.obs,
            lambda i: batch.reset(seed + size * i).obs,
            "Use the seed",
        )


def _play_batch(
    batch: "CheckedBatch", start: Answer, steps: int, rng: np.random.Generator
) -> list[tuple[Nest, Answer]]:
    played = []
    now = start
    for t in range(1, steps + 1):
        action = sample_actions(batch.action_spec, rng, batch.num_envs, now.mask)
        now = batch.step(action, t)
        played.append((action, now))
    return played


class CheckedBatch:
    """Calls a vector environment, and checks its results.

    Attributes:
      env: The vector environment.
      name: Its id or class.
      num_envs: Number of environments (B).
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      mode: Its declared autoreset mode.
    """

    def __init__(self, env: VectorEnv):
        """Checks everything known before a reset."""
        self.env, self.name = env, name_of(env)
        self.num_envs = check_num_envs(getattr(env, "num_envs", None))
        self.obs_spec = self._spaces("observation")
        self.action_spec = self._spaces("action")
        check_metadata(env, self.name)
        mode = declared_mode(env)
        if mode is None:
            raise UserError(
                f"metadata['autoreset_mode'] of {self.name}",
                expected=", ".join(f"AutoresetMode.{m.name}" for m in AutoresetMode),
                got=repr(env.metadata.get("autoreset_mode")),
                remedy="Declare the mode: self.metadata = {'autoreset_mode': "
                "gymnasium.vector.AutoresetMode.NEXT_STEP}.",
            )
        self.mode = mode
        self._ended = np.zeros(self.num_envs, bool)
        self.last_obs = LastObs()

    def _spaces(self, kind: str) -> Nest:
        """Compares the spaces of one and of all environments."""
        one = space_of(self.name, kind, self.env, f"single_{kind}_space")
        every = space_of(self.name, kind, self.env, f"{kind}_space")
        wanted = {p: (s.dtype.name, [self.num_envs, *s.shape]) for p, s in _leaves(one)}
        leaves = {p: (s.dtype.name, list(s.shape)) for p, s in _leaves(every)}
        wrong = [p for p in {**wanted, **leaves} if wanted.get(p) != leaves.get(p)]
        if wrong:
            leaf = "" if wrong[0] == "." else f" {wrong[0]}"
            raise UserError(
                f"{kind}_space{leaf} of {self.name}",
                expected=_form(wanted.get(wrong[0])),
                got=_form(leaves.get(wrong[0])),
                remedy="Create it with gymnasium.vector.utils.batch_space(single space, num_envs).",
            )
        return one

    def reset(self, seed: int) -> Answer:
        """Starts an episode in every environment."""
        where = f"reset of {self.name}"
        obs, infos = self._pair(where, self.env.reset(seed=seed))
        self._ended = np.zeros(self.num_envs, bool)
        check_values(f"{where}: obs", obs, self.obs_spec, (self.num_envs,))
        return Answer(copied(obs), mask=self._mask(where, infos, self._ended))

    def _pair(self, where: str, returned: Any) -> tuple[Any, Mapping[str, Any]]:
        check_layout(where, returned, RESET)
        return returned

    def step(self, action: Nest, t: int) -> Answer:
        """Takes step `t`, and resets the ended rows if there is no autoreset."""
        where = f"step {t} of {self.name}"
        returned = self.env.step(action)
        check_layout(where, returned, STEP)
        obs, reward, termination, truncation, infos = returned
        check_values(f"{where}: obs", obs, self.obs_spec, (self.num_envs,))
        self._check_rows(f"{where}: rewards", reward, "biuf", "numbers")
        check_finite(f"{where}: rewards", reward)
        self._check_rows(f"{where}: terminations", termination, "b", "bools")
        self._check_rows(f"{where}: truncations", truncation, "b", "bools")
        answer = Answer(copied(obs), reward.copy(), termination.copy(), truncation.copy())
        before, self._ended = self._ended, answer.ended
        _MODES[self.mode](self, where, answer, infos, before)
        idle = answer.ended & (self.mode is not AutoresetMode.SAME_STEP)
        answer.mask = self._mask(where, infos, idle)
        if self.mode is AutoresetMode.DISABLED and answer.ended.any():
            self._reset_rows(where, answer)
        return answer

    def _check_rows(self, thing: str, value: Any, kinds: str, what: str) -> None:
        array = isinstance(value, np.ndarray)
        if not array or value.shape != (self.num_envs,) or value.dtype.kind not in kinds:
            raise UserError(
                thing, expected=f"a NumPy array of {what} [{self.num_envs}]", got=described(value)
            )

    def _next_step(self, where: str, answer: Answer, infos: Any, before: np.ndarray) -> None:
        """Checks NEXT_STEP: the row after an end is a reset."""
        bad = before & ((answer.reward != 0) | answer.ended)
        if bad.any():
            raise UserError(
                f"{where} under NEXT_STEP",
                expected="reward 0 and both flags False in rows that ended in the previous step",
                got=f"reward {answer.reward[bad].tolist()}, termination "
                f"{answer.termination[bad].tolist()}, truncation "
                f"{answer.truncation[bad].tolist()} in rows {np.flatnonzero(bad).tolist()}",
                remedy="Ignore their action and reset them in this step, or declare the actual "
                "mode in metadata['autoreset_mode'].",
            )

    def _same_step(self, where: str, answer: Answer, infos: Any, before: np.ndarray) -> None:
        """Checks SAME_STEP: the last observations are in `infos`."""
        rows = np.flatnonzero(answer.ended)
        if not rows.size:
            return
        final_obs = infos.get("final_obs")
        there = np.asarray(infos.get("_final_obs", np.full(self.num_envs, final_obs is not None)))
        missing = rows if final_obs is None else rows[~there[rows]]
        if missing.size:
            raise UserError(
                f"{where} under SAME_STEP: infos['final_obs']",
                expected="the last observation of every ended row",
                got=f"no observation in rows {missing.tolist()}",
                remedy="Store it before the row is reset, or declare the actual mode in "
                "metadata['autoreset_mode'].",
            )
        objects = isinstance(final_obs, np.ndarray) and final_obs.dtype == object
        for i in rows:
            last = (
                final_obs[i] if objects else tf.nest.map_structure(lambda x, i=i: x[i], final_obs)
            )
            check_values(f"{where}: infos['final_obs'] of row {i}", last, self.obs_spec)
            first = tf.nest.map_structure(lambda x, i=i: x[i], answer.obs)
            self.last_obs.add(tf.nest.map_structure(_like, last, first), first)

    def _disabled(self, where: str, answer: Answer, infos: Any, before: np.ndarray) -> None:
        """Checks DISABLED: ended rows wait for their reset."""
        if answer.ended.any() and "final_obs" in infos:
            raise UserError(
                f"{where} under DISABLED: infos",
                expected="no 'final_obs', since obs is the last observation",
                got=f"'final_obs', with rows {np.flatnonzero(answer.ended).tolist()} ended",
                remedy="Declare SAME_STEP in metadata['autoreset_mode'] if rows reset in the step "
                "that ends them.",
            )

    def _reset_rows(self, where: str, answer: Answer) -> None:
        """Resets the ended rows; the others must not change."""
        where = f"reset of {self.name} by reset_mask after {where}"
        options = {"reset_mask": answer.ended.copy()}
        obs, infos = self._pair(where, self.env.reset(options=options))
        check_values(f"{where}: obs", obs, self.obs_spec, (self.num_envs,))
        others = ~answer.ended
        kept, now = (tf.nest.map_structure(lambda x: x[others], o) for o in (answer.obs, obs))
        differs = difference(kept, now, exact=True)
        if differs is not None:
            raise UserError(
                f"{where}: obs" + ("" if differs[0] == "." else f"/{differs[0]}"),
                expected=f"unchanged values in the other rows, {np.flatnonzero(others).tolist()}",
                got=differs[1],
                remedy="Reset only the rows where options['reset_mask'] is True.",
            )
        answer.obs = copied(obs)
        mask = self._mask(where, infos, others)
        if mask is not None:
            kept = mask if answer.mask is None else answer.mask
            answer.mask = np.where(answer.ended[:, None], mask, kept)

    def _mask(self, where: str, infos: Mapping[str, Any], idle: np.ndarray) -> Nest:
        """The masks of Discrete actions, full in rows `idle`.

        Masks of other actions have no common batched form.
        """
        spec = self.action_spec
        if MASK not in infos or not isinstance(spec, specs.DiscreteSpec):
            return None
        mask, shape = infos[MASK], (self.num_envs, spec.num_values)
        array = isinstance(mask, np.ndarray) and mask.dtype.kind in "biu"
        if not array or mask.shape != shape:
            raise UserError(
                f"{where}: infos['{MASK}']",
                expected=f"a NumPy array of bools or integers {list(shape)}",
                got=described(mask),
            )
        there = np.asarray(infos.get(f"_{MASK}", np.ones(self.num_envs, bool)))
        goes_on = there & ~idle
        check_mask(f"{where}: infos['{MASK}']", self.action_spec, mask != 0, goes_on)
        return (mask != 0) | ~goes_on[:, None]


def _like(value: Any, other: np.ndarray) -> np.ndarray:
    """A value in the dtype of another."""
    return np.asarray(value, other.dtype)


def _leaves(spec: Nest) -> Any:
    return struct.paths(spec).items()


def _form(leaf: tuple[str, list[int]] | None) -> str:
    return "no space" if leaf is None else f"{leaf[0]} {leaf[1]}"


_MODES: dict[AutoresetMode, Callable[[CheckedBatch, str, Answer, Any, np.ndarray], None]] = {
    AutoresetMode.NEXT_STEP: CheckedBatch._next_step,
    AutoresetMode.SAME_STEP: CheckedBatch._same_step,
    AutoresetMode.DISABLED: CheckedBatch._disabled,
}
