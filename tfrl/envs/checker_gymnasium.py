"""`check_env` for one `gymnasium.Env`: episodes, seeds, and what is after an end."""

import itertools
import logging
import warnings
from typing import Any

import gymnasium
import numpy as np
import tensorflow as tf

from tfrl.envs.checker_actions import note_unbounded, sample_actions
from tfrl.envs.checker_gymnasium_api import Single
from tfrl.envs.checker_values import Answer, difference, note
from tfrl.errors import UserError
from tfrl.types import Nest

MAX_STARTS = 32  # among two starts alone, a correct task fails once in 2^32
OTHER_STEPS = 30  # that an episode of another seed may take to be another one

# Each step: the action, what came of it, and the start that follows where it has ended an episode.
Played = list[tuple[Nest, Answer, Answer | None]]


def check_gymnasium(env: gymnasium.Env, steps: int, seed: int, stochastic: bool) -> None:
    """Checks one environment of Gymnasium; arguments as of `check_env`.

    It is left after a reset, open.
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
    """Takes random steps; where an episode ends, the next one begins without a seed."""
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
    """The only row, in the type that Gymnasium's spaces sample: an array, or an integer."""
    row = batch[0]
    return np.asarray(row) if row.dtype.kind == "f" else row


def _check_again(single: Single, start: Answer, played: Played, seed: int) -> None:
    """Plays the same once more."""
    name = single.name
    _same(f"reset of {name}", start, single.reset(seed=seed))
    for t, (action, answer, new) in enumerate(played, start=1):
        _same(f"step {t} of {name}", answer, single.step(action, f"step {t}"))
        if new is not None:
            found = difference(new.parts(), single.reset().parts())
            if found is not None:
                raise UserError(
                    f"reset of {name} without a seed: {found[0]}",
                    expected="to go on with the random numbers of the last seed",
                    got=f"{found[1]} after the same episode",
                    remedy="Call super().reset(seed=seed) and draw from self.np_random, which a "
                    "reset without a seed leaves as it is.",
                )


def _same(where: str, a: Answer, b: Answer) -> None:
    found = difference(a.parts(), b.parts())
    if found is not None:
        raise UserError(
            f"{where}: {found[0]}",
            expected="the same from the same seed and actions",
            got=found[1],
            remedy="Call super().reset(seed=seed) and draw random numbers from self.np_random "
            "only, never from numpy.random or random; keep nothing of earlier episodes.",
        )


def _check_others(single: Single, start: Answer, played: Played, seed: int) -> None:
    """Checks that other seeds lead to other episodes, and resets without one to other starts."""
    starts_differ = False
    for i in range(1, MAX_STARTS + 1):
        other = single.reset(seed=seed + i)
        starts_differ = difference(start.parts(), other.parts(), exact=True) is not None
        if starts_differ or _differs(single, played):
            break
    else:
        raise UserError(
            f"reset of {single.name}",
            expected="another episode from another seed",
            got=f"the same from {MAX_STARTS + 1} seeds",
            remedy="Call super().reset(seed=seed) and draw from self.np_random; for a task "
            "without chance, call check_env(env, stochastic=False).",
        )
    if not starts_differ:
        return
    single.reset(seed=seed)
    for _ in range(MAX_STARTS):
        if difference(start.parts(), single.reset().parts(), exact=True) is not None:
            return
    raise UserError(
        f"reset of {single.name} without a seed",
        expected="other starts than that of the last seed",
        got=f"the same {MAX_STARTS} times",
        remedy="Seed anew only where seed is not None, as super().reset(seed=seed) does.",
    )


def _differs(single: Single, played: Played) -> bool:
    """Whether the first steps are others now. As long as they are not, neither are the masks."""
    for t, (action, answer, _) in enumerate(itertools.islice(played, OTHER_STEPS), start=1):
        now = single.step(action, f"step {t}")
        if difference(answer.parts(), now.parts(), exact=True) is not None:
            return True
        if answer.ended:
            return False
    return False


def _check_after_end(single: Single, played: Played, seed: int) -> None:
    """Takes one step too many.

    Gymnasium leaves open what it does, and several of its own tasks go on: no error.
    """
    name = single.name
    ends = [t for t, (_, answer, _) in enumerate(played) if answer.ended]
    if not ends:
        logging.getLogger(__name__).info(
            "%s: no episode has ended within %d steps, so that ends were not checked; give "
            "check_env more steps.",
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
    if not ended:  # an environment that says itself that it is not deterministic
        return
    given = _one_more(single.env, action)
    if given is not None and len(given) == 5 and not (given[2] or given[3]):
        note(
            f"a step of {name} after the end",
            expected="an exception, or terminated or truncated again",
            got="both False",
            remedy="Raise gymnasium.error.ResetNeeded there: an environment that resets itself "
            "hides ends from the library, and one that goes on hides mistakes of its users.",
        )


def _one_more(env: gymnasium.Env, action: Nest) -> Any:
    """The answer to a step after the end, or None where it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's own tasks warn
        try:
            return env.step(action)
        except Exception as error:  # any is right
            logging.getLogger(__name__).debug("A step after the end: %r", error)
            return None
