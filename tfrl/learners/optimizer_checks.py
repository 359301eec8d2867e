"""What may be registered as an optimizer, under which name, for which parameters."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learners import keras_optimizer
from tfrl.learning.optimizers import Optimizer


def check_name(thing: str, name: Any) -> None:
    """Checks a name that becomes the name of a folder.

    Args:
      thing: What is named, for the message.
      name: Not empty, without path characters, a trailing dot or space.

    Raises:
      UserError: Saying which rule is broken.
    """
    if not isinstance(name, str):
        got = f"{name!r} ({type(name).__name__})"
    elif not name:
        got = "an empty one"
    elif found := [c for c in ("/", "\\", "..", "\0") if c in name]:
        got = f"{name!r} with {', '.join(map(repr, found))}"
    elif name[-1] in ". ":
        got = f"{name!r}, which ends in a {'dot' if name[-1] == '.' else 'space'}"
    else:
        return
    raise UserError(
        thing,
        expected="a string that can name a folder: not empty, without /, \\, .. or NUL, and not "
        "ending in a dot or space",
        got=got,
        remedy="Choose a name such as 'policy_1'.",
    )


def check_optimizer(thing: str, optimizer: Any) -> None:
    """Refuses what is no optimizer, and a Keras one that was used or holds a schedule."""
    if isinstance(optimizer, Optimizer):
        return
    if not keras_optimizer.is_keras(optimizer):
        raise UserError(
            thing,
            expected="an optimizer of tfrl.learning.optimizers or of Keras",
            got=repr(optimizer),
            remedy="Make one, such as tfrl.learning.optimizers.Adam().",
        )
    _check_not_nadam(thing, optimizer)
    if keras_optimizer.is_used(optimizer):
        raise UserError(
            thing,
            expected="an optimizer that has not been used",
            got=f"a {type(optimizer).__name__} built for other variables before",
            remedy="Make another one: optimizers cannot take more parameters later.",
        )
    rate = keras_optimizer.own_rate(optimizer)
    if callable(rate) and not isinstance(rate, tf.Variable):
        raise UserError(
            thing,
            expected="an optimizer with a number as its learning rate",
            got=f"a {type(rate).__name__} inside it, which counts gradient steps",
            remedy="Give the optimizer a number, and the schedule over env steps as "
            "lr_or_lr_schedule, such as [[0, 3e-4], [1000000, 0.0]] or one of tfrl.ops.schedules.",
        )


def _check_not_nadam(thing: str, optimizer: Any) -> None:
    """Refuses an optimizer of Keras that counts its steps in Python, so that a trace freezes it."""
    if isinstance(optimizer, tf.keras.optimizers.Nadam):
        raise UserError(
            thing,
            expected="an optimizer that takes the same steps compiled and not",
            got="tf.keras.optimizers.Nadam, which counts in Python",
            remedy="Use tf.keras.optimizers.legacy.Nadam.",
        )


def check_params(thing: str, params: Sequence[Any]) -> None:
    """Refuses what is no variable or not trainable, the same one twice, and none at all."""
    wrong = [
        f"{type(p).__name__} (number {i})" for i, p in enumerate(params) if not _is_variable(p)
    ]
    variables = [p for p in params if _is_variable(p)]
    names = [p.name for p in variables]
    refs = [p.ref() for p in variables]
    double = [n for i, n in enumerate(names) if refs[i] in refs[:i]]
    integers = [p.name for p in variables if not p.dtype.is_floating]
    if wrong:
        expected, got = "parameters that are tf.Variables", ", ".join(wrong)
    elif double:
        expected, got = "each parameter once", ", ".join(double)
    elif integers:
        expected, got = "parameters of floating point", ", ".join(integers)
    elif not variables:
        expected, got = "at least one parameter", "none"
    else:
        return
    raise UserError(
        thing, expected=expected, got=got, remedy="Register what get_parameters returns."
    )


def _is_variable(param: Any) -> bool:
    return isinstance(param, tf.Variable)
