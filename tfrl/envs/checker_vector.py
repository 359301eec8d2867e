"""`check_env` for a `gymnasium.vector.VectorEnv`: batches, seeds, and its autoreset mode."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from gymnasium.vector import AutoresetMode, VectorEnv

from tfrl import specs, struct
from tfrl.envs.action_masks import MASK
from tfrl.envs.adapters.gymnasium_vector import declared_mode
from tfrl.envs.checker_actions import check_mask, note_unbounded, sample_actions
from tfrl.envs.checker_gymnasium_api import check_metadata, name_of, space_of
from tfrl.envs.checker_values import (
    Answer,
    LastObs,
    check_finite,
    check_values,
    copied,
    described,
    difference,
)
from tfrl.envs.registry import check_num_envs
from tfrl.errors import UserError
from tfrl.types import Nest

MAX_STARTS = 32

Played = list[tuple[Nest, Answer]]


def check_vector(env: VectorEnv, steps: int, seed: int, stochastic: bool) -> None:
    """Checks a vector environment; arguments as of `check_env`. It is left open."""
    batch = Batch(env)
    note_unbounded(f"single_action_space of {batch.name}", batch.action_spec)
    start = batch.reset(seed)
    played = _play(batch, start, steps, np.random.default_rng(seed))
    batch.last_obs.check(f"infos['final_obs'] of {batch.name}")
    again = batch.reset(seed)
    _same(f"reset of {batch.name}", start, again)
    for t, (action, answer) in enumerate(played, start=1):
        _same(f"step {t} of {batch.name}", answer, batch.step(action, t))
    if stochastic:
        _check_starts(batch, start, seed)


def _play(batch: "Batch", start: Answer, steps: int, rng: np.random.Generator) -> Played:
    played: Played = []
    now = start
    for t in range(1, steps + 1):
        action = sample_actions(batch.action_spec, rng, batch.num_envs, now.mask)
        now = batch.step(action, t)
        played.append((action, now))
    return played


def _same(where: str, a: Answer, b: Answer) -> None:
    found = difference(a.parts(), b.parts())
    if found is not None:
        raise UserError(
            f"{where}: {found[0]}",
            expected="the same from the same seed and actions",
            got=found[1],
            remedy="Draw random numbers from generators that reset(seed=seed) seeds, and from no "
            "others; keep nothing of earlier episodes.",
        )


def _check_starts(batch: "Batch", start: Answer, seed: int) -> None:
    """Checks that starts differ between seeds and between environments."""
    size = batch.num_envs
    seeds_differ, rows_differ = False, size == 1 or _rows_differ(start.obs)
    for i in range(1, MAX_STARTS + 1):
        if seeds_differ and rows_differ:
            return
        other = batch.reset(seed + size * i)
        seeds_differ = seeds_differ or difference(start.obs, other.obs, exact=True) is not None
        rows_differ = rows_differ or _rows_differ(other.obs)
    if not seeds_differ:
        raise UserError(
            f"reset of {batch.name}",
            expected="other starts from another seed",
            got=f"the same from {MAX_STARTS + 1} seeds",
            remedy="Use the seed; for a task with one start only, call check_env(env, "
            "stochastic=False).",
        )
    if not rows_differ:
        raise UserError(
            f"reset of {batch.name}",
            expected="different starts in its environments",
            got=f"the same row {size} times, from {MAX_STARTS + 1} seeds",
            remedy="Seed environment i with seed + i, or draw rows from one generator.",
        )


def _rows_differ(obs: Nest) -> bool:
    return any(np.any(x != x[:1]) for x in tf.nest.flatten(obs))


class Batch:
    """Calls a vector environment, and checks whatever it answers.

    Attributes:
      env: The vector environment.
      name: Its id or class.
      num_envs: How many (B).
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      mode: Its autoreset mode, as it says itself.
    """

    def __init__(self, env: VectorEnv):
        """Checks what can be known before a reset."""
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
                remedy="Say what happens at an end: self.metadata = {'autoreset_mode': "
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
        found = {p: (s.dtype.name, list(s.shape)) for p, s in _leaves(every)}
        wrong = [p for p in {**wanted, **found} if wanted.get(p) != found.get(p)]
        if wrong:
            leaf = "" if wrong[0] == "." else f" {wrong[0]}"
            raise UserError(
                f"{kind}_space{leaf} of {self.name}",
                expected=_form(wanted.get(wrong[0])),
                got=_form(found.get(wrong[0])),
                remedy="Make it by gymnasium.vector.utils.batch_space(single space, num_envs).",
            )
        return one

    def reset(self, seed: int) -> Answer:
        """Starts an episode in every environment."""
        where = f"reset of {self.name}"
        obs, infos = self._pair(where, self.env.reset(seed=seed))
        self._ended = np.zeros(self.num_envs, bool)
        check_values(f"{where}: obs", obs, self.obs_spec, (self.num_envs,))
        return Answer(copied(obs), mask=self._mask(where, infos, self._ended))

    def _pair(self, where: str, given: Any) -> tuple[Any, Mapping[str, Any]]:
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping):
            return given
        raise UserError(
            f"what {where} returns",
            expected="the pair (obs, infos), infos a dict",
            got=described(given),
            remedy="Return obs, {}.",
        )

    def step(self, action: Nest, t: int) -> Answer:
        """Takes step `t`, and resets the rows that it ends where nobody else does."""
        where = f"step {t} of {self.name}"
        given = self.env.step(action)
        if not isinstance(given, tuple) or len(given) != 5 or not isinstance(given[4], Mapping):
            raise UserError(
                f"what {where} returns",
                expected="(obs, rewards, terminations, truncations, infos), infos a dict",
                got=described(given),
                remedy="Return all five, as Gymnasium does since 0.26.",
            )
        obs, reward, termination, truncation, infos = given
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
                thing,
                expected=f"a NumPy array of {what} [{self.num_envs}]",
                got=described(value),
                remedy="Give one for every environment.",
            )

    def _next_step(self, where: str, answer: Answer, infos: Any, before: np.ndarray) -> None:
        """The row after an end is a reset."""
        bad = before & ((answer.reward != 0) | answer.ended)
        if bad.any():
            raise UserError(
                f"{where} under NEXT_STEP",
                expected="reward 0 and both flags False in the rows that the step before has ended",
                got=f"reward {answer.reward[bad].tolist()}, termination "
                f"{answer.termination[bad].tolist()}, truncation "
                f"{answer.truncation[bad].tolist()} in rows {np.flatnonzero(bad).tolist()}",
                remedy="Ignore their action and reset them in this step, or declare the mode that "
                "it has in metadata['autoreset_mode'].",
            )

    def _same_step(self, where: str, answer: Answer, infos: Any, before: np.ndarray) -> None:
        """The last observations are in `infos`."""
        rows = np.flatnonzero(answer.ended)
        if not rows.size:
            return
        found = infos.get("final_obs")
        there = np.asarray(infos.get("_final_obs", np.full(self.num_envs, found is not None)))
        missing = rows if found is None else rows[~there[rows]]
        if missing.size:
            raise UserError(
                f"{where} under SAME_STEP: infos['final_obs']",
                expected="the last observation of every row that has ended",
                got=f"none in rows {missing.tolist()}",
                remedy="Put it there before the row is reset, or declare the mode that it has in "
                "metadata['autoreset_mode'].",
            )
        objects = isinstance(found, np.ndarray) and found.dtype == object
        for i in rows:
            last = found[i] if objects else tf.nest.map_structure(lambda x, i=i: x[i], found)
            check_values(f"{where}: infos['final_obs'] of row {i}", last, self.obs_spec)
            first = tf.nest.map_structure(lambda x, i=i: x[i], answer.obs)
            self.last_obs.add(tf.nest.map_structure(_like, last, first), first)

    def _disabled(self, where: str, answer: Answer, infos: Any, before: np.ndarray) -> None:
        """Rows that have ended wait for their reset."""
        if answer.ended.any() and "final_obs" in infos:
            raise UserError(
                f"{where} under DISABLED: infos",
                expected="no 'final_obs', since obs is the last observation",
                got=f"one, with rows {np.flatnonzero(answer.ended).tolist()} ended",
                remedy="If it resets rows in the step that ends them, declare SAME_STEP in "
                "metadata['autoreset_mode'].",
            )

    def _reset_rows(self, where: str, answer: Answer) -> None:
        """Resets the rows that have ended; the others must stay as they are."""
        where = f"reset of {self.name} by reset_mask after {where}"
        options = {"reset_mask": answer.ended.copy()}
        obs, infos = self._pair(where, self.env.reset(options=options))
        check_values(f"{where}: obs", obs, self.obs_spec, (self.num_envs,))
        others = ~answer.ended
        kept, now = (tf.nest.map_structure(lambda x: x[others], o) for o in (answer.obs, obs))
        found = difference(kept, now, exact=True)
        if found is not None:
            raise UserError(
                f"{where}: obs" + ("" if found[0] == "." else f"/{found[0]}"),
                expected=f"as it was in the other rows, {np.flatnonzero(others).tolist()}",
                got=found[1],
                remedy="Reset only the rows in which options['reset_mask'] is True.",
            )
        answer.obs = copied(obs)
        mask = self._mask(where, infos, others)
        if mask is not None:
            kept = mask if answer.mask is None else answer.mask
            answer.mask = np.where(answer.ended[:, None], mask, kept)

    def _mask(self, where: str, infos: Mapping[str, Any], idle: np.ndarray) -> Nest:
        """The masks of Discrete actions, full in rows `idle`.

        Those of other actions have no form that batches share.
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
                remedy="Give 1 for every valid value of the action, and 0 for the others.",
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
    return "no such space" if leaf is None else f"{leaf[0]} {leaf[1]}"


_MODES: dict[AutoresetMode, Callable[[Batch, str, Answer, Any, np.ndarray], None]] = {
    AutoresetMode.NEXT_STEP: Batch._next_step,
    AutoresetMode.SAME_STEP: Batch._same_step,
    AutoresetMode.DISABLED: Batch._disabled,
}
