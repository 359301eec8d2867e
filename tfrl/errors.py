"""The one exception for what a user got wrong, and nearest-name suggestions."""

import difflib
from collections.abc import Iterable
from typing import Any


class UserError(ValueError):
    """A mistake of the user's, told as one paragraph: the thing, expected, got, remedy.

    Binaries print the paragraph on standard error and exit with `exit_code`; any other exception is
    a bug and keeps its traceback.
    """

    exit_code = 2
    # Autograph would otherwise replace an exception whose constructor it does not know.
    ag_pass_through = True

    def __init__(self, thing: str, *, expected: str, got: Any, remedy: str = ""):
        """Builds the paragraph.

        Args:
          thing: What the error is about, by the name that the user wrote.
          expected: What would have been right.
          got: What was found instead; strings are shown as they are.
          remedy: What to do now, as a sentence, where that is not obvious.
        """
        self.thing = thing
        self.expected = expected
        self.got = got
        self.remedy = remedy
        text = f"{thing}: expected {expected}, got {got}. {remedy}"
        super().__init__(" ".join(text.split()))

    def __reduce__(self) -> Any:
        """How it goes from one process to another."""
        return _rebuilt, (type(self), self.thing, self.expected, self.got, self.remedy)


class UnavailableError(UserError):
    """Another process of the run, or its storage, is lost, is late, or cannot be reached.

    The exit code is 75 (`EX_TEMPFAIL` of sysexits.h): the same command may succeed later, so
    engines start it again. A process cannot distinguish a wrong address from one that restarts.
    """

    exit_code = 75


class UnknownKeyError(UserError, KeyError):
    """A name under which nothing is held: a UserError, and a KeyError as of a dict."""

    __str__ = UserError.__str__


def _rebuilt(kind: Any, thing: str, expected: str, got: Any, remedy: str) -> UserError:
    return kind(thing, expected=expected, got=got, remedy=remedy)


# How much less alike than the best a suggested name may be.
_WORSE = 0.3


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Returns the `count` names of `known` that look most like `name`, best first."""
    names = sorted(set(known))
    folded = {n.lower(): n for n in names}
    close = difflib.get_close_matches(name.lower(), list(folded), n=count, cutoff=0.5)
    # Beside a name that is all but the same, one that merely looks alike is no suggestion.
    best = [c for c in close if _alike(name, c) >= _alike(name, close[0]) - _WORSE]
    return [folded[c] for c in best]


def _alike(name: str, folded: str) -> float:
    return difflib.SequenceMatcher(None, folded, name.lower()).ratio()


# What other libraries call them, where the letters alone would suggest something else.
SYNONYMS = {
    "batch_size": "minibatch_size",
    "buffer_size": "capacity",
    "clip_norm": "grad_clip",
    "clip_range": "clip",
    "clip_range_vf": "value_clip",
    "ent_coef": "entropy_coef",
    "epsilon": "adam_epsilon",
    "gamma": "discount",
    "learning_rate": "lr",
    "max_grad_norm": "grad_clip",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "n_steps": "rollout_length",
    "target_update_interval": "target_every",
    "total_timesteps": "total_env_steps",
    "vf_coef": "value_coef",
}
_MOST_NAMES = 16


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns "Did you mean A or B?" for the names nearest to `name`, or the known names."""
    known = sorted(set(known))
    meant = SYNONYMS.get(name)
    close = [meant] if meant in known else nearest(name, known)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    more = f" and {len(known) - _MOST_NAMES} more" if len(known) > _MOST_NAMES else ""
    return f"Known: {', '.join(known[:_MOST_NAMES])}{more}."
