"""The variables of a Keras optimizer, under names that do not depend on their order.

A checkpoint of an optimizer then survives another order of registration and the removal of a
module, and an error can say which slot of which parameter does not fit.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

LEGACY_OPTIMIZER = tf.keras.optimizers.legacy.Optimizer


@dataclasses.dataclass(frozen=True)
class Slot:
    """One variable that an optimizer keeps for one parameter.

    Attributes:
      name: Such as "m" and "v" of Adam.
      param: The parameter.
      variable: The optimizer's variable.
    """

    name: str
    param: tf.Variable
    variable: tf.Variable


def build(optimizer: Any, params: Sequence[tf.Variable]) -> list[Slot]:
    """Creates the slots of a fresh Keras optimizer, new or legacy, before anything is traced."""
    if isinstance(optimizer, LEGACY_OPTIMIZER):
        optimizer._create_all_weights(params)  # the legacy class's own name for build
        names = optimizer.get_slot_names()
        return [Slot(n, p, optimizer.get_slot(p, n)) for p in params for n in names]
    with _recorded(optimizer) as slots:
        optimizer.build(list(params))
    return slots


@contextlib.contextmanager
def _recorded(optimizer: Any) -> Iterator[list[Slot]]:
    """Takes notes of `add_variable_from_reference`, by which every new optimizer adds slots."""
    add = optimizer.add_variable_from_reference
    slots: list[Slot] = []

    def add_and_note(model_variable: Any, variable_name: str, *args: Any, **kwargs: Any) -> Any:
        variable = add(model_variable, variable_name, *args, **kwargs)
        slots.append(Slot(variable_name, model_variable, variable))
        return variable

    optimizer.__dict__["add_variable_from_reference"] = add_and_note
    try:
        yield slots
    finally:
        del optimizer.__dict__["add_variable_from_reference"]


def slot_paths(
    slots: Sequence[Slot], params: Sequence[tf.Variable], prefix: str
) -> dict[str, Slot]:
    """Names slots "<slot>/<parameter>".

    Args:
      slots: All slots of an optimizer.
      params: All parameters that it was built for; those of the same name are told apart by "#1",
        "#2", ... in this order.
      prefix: What is left out at the start of the parameters' names.
    """
    names = [p.name.rsplit(":", 1)[0].removeprefix(prefix) for p in params]
    counted = [f"{n}#{names[:i].count(n)}" if n in names[:i] else n for i, n in enumerate(names)]
    by_param = {p.ref(): name for p, name in zip(params, counted, strict=True)}
    return {f"{s.name}/{by_param[s.param.ref()]}": s for s in slots}


def own_variables(optimizer: Any, slots: Sequence[Slot]) -> dict[str, tf.Variable]:
    """Returns an optimizer's variables that are no slots: counts, caches, the learning rate."""
    listed = optimizer.variables
    listed = listed() if callable(listed) else listed
    taken = {s.variable.ref() for s in slots}
    found = {"iterations": optimizer.iterations, "learning_rate": optimizer.learning_rate}
    taken |= {v.ref() for v in found.values()}
    # Some keep variables as attributes only, which `variables` does not list.
    attributes = {k.lstrip("_"): v for k, v in vars(optimizer).items() if _is_variable(v)}
    for name, variable in [*attributes.items(), *((_plain(v), v) for v in listed)]:
        if variable.ref() not in taken:
            taken.add(variable.ref())
            found[name] = variable
    return found


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable)


def _plain(variable: tf.Variable) -> str:
    return variable.name.rsplit(":", 1)[0]
