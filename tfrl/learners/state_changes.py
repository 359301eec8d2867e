"""Changes of a Learner's state in an update, other than gradient steps.

The functions are traced. They take a state and return one: a new state for tensors, the same state,
changed in place, for the learner's variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import networks, struct, tf_private
from tfrl.learners.learner_state import LearnerState
from tfrl.learners.parameters import ParamDict
from tfrl.learning import leaves
from tfrl.types import AgentState
from tfrl.xla import may_be_xla

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner


def with_rates(
    learner: Learner, state: LearnerState, owner: str, timesteps: tf.Tensor
) -> LearnerState:
    """Returns the state with the learning rates of an owner's optimizers at `timesteps`."""
    for name, entry in learner.optimizers.of_module(owner):
        if entry.schedule is not None:
            slots = state.opt_state[owner][name]
            rate = leaves.put(slots["learning_rate"], entry.schedule(timesteps))
            state = state.with_slots(owner, name, {**slots, "learning_rate": rate})
    return state


def before_update(
    learner: Learner, state: LearnerState, module_id: str, timesteps: tf.Tensor
) -> LearnerState:
    """Returns the state before the gradient steps of a module."""
    state = with_rates(learner, state, module_id, timesteps)
    return changed(learner, state, module_id, learner.modules[module_id].before_update, timesteps)


def after_update(
    learner: Learner, state: LearnerState, module_id: str, timesteps: tf.Tensor
) -> LearnerState:
    """Returns the state after the gradient steps of a module."""
    module = learner.modules[module_id]
    due = module.after_update_due(struct.values(state.agent_state[module_id]), timesteps)

    def change(state: LearnerState) -> LearnerState:
        # Reads and writes are in the branch: values through a `tf.cond` cost several graph
        # operations each, taken or not.
        return changed(learner, state, module_id, module.after_update, timesteps)

    return change(state) if due is None else leaves.cond(due, change, state)


def changed(
    learner: Learner,
    state: LearnerState,
    module_id: str,
    hook: Callable[..., AgentState],
    arguments: Any,
) -> LearnerState:
    """Returns the state with a module's state replaced by `hook(state, arguments)`."""
    before = struct.values(state.agent_state[module_id])
    after = hook(before, arguments)
    if after is before:
        return state
    changes = differences(learner, module_id, before, after)
    if not leaves.in_place(state):
        return replaced(learner, state, {v.ref(): new for v, _, new in changes})
    # A variable borrowed by two groups changes once.
    own = Counter(id(variable) for variable, _, _ in changes)
    for variable, old, new in changes:
        if own[id(variable)] == 1:
            assign(variable, old, new)
        else:
            variable.assign(new)
    return state


def differences(
    learner: Learner, module_id: str, before: AgentState, after: AgentState
) -> list[tuple[Any, Any, Any]]:
    """Returns (variable, old, new) for each changed leaf of a module."""
    triples = zip(
        tf.nest.flatten(learner.module_states[module_id]),
        tf.nest.flatten(before),
        tf.nest.flatten(after),
        strict=True,
    )
    return [(variable, old, new) for variable, old, new in triples if new is not old]


def stepped(learner: Learner, state: LearnerState, gradients_dict: ParamDict) -> LearnerState:
    """Returns a state of tensors after applying the gradients."""
    values = {
        variable.ref(): x
        for m, own in learner.module_states.items()
        for variable, x in zip(
            tf.nest.flatten(own), tf.nest.flatten(state.agent_state[m]), strict=True
        )
    }
    after: ParamDict = {}
    for module_id, name, entry in learner.optimizer_entries():
        own = entry.own(gradients_dict)
        if not own:
            continue
        params = [p for p in entry.params if p.ref() in own]
        values_after, slots = entry.stepped(
            list(own.values()),
            params,
            [values[ref] for ref in own],
            state.opt_state[module_id][name],
        )
        after.update({p.ref(): x for p, x in zip(params, values_after, strict=True)})
        state = state.with_slots(module_id, name, slots)
    return replaced(learner, state, after)


def with_param_updates(
    learner: Learner, state: LearnerState, module_id: str, param_updates: dict[str, Any]
) -> LearnerState:
    """Returns the state with `{group: nest}` in the module's untrained leaves."""
    changes = {}
    for group, nest in param_updates.items():
        _, variables = networks.split_leaves(learner.module_states[module_id].params[group])
        _, values = networks.split_leaves(nest)
        changes.update({v.ref(): (v, x) for v, x in zip(variables, values, strict=True)})
    if not leaves.in_place(state):
        return replaced(learner, state, {ref: x for ref, (_, x) in changes.items()})
    for variable, value in changes.values():
        variable.assign(value)
    return state


def replaced(
    learner: Learner, state: LearnerState, values: Mapping[Any, tf.Tensor]
) -> LearnerState:
    """Returns a state of tensors with new values of variables, in every module with them."""

    def of_module(variables: AgentState, own: AgentState) -> AgentState:
        return tf.nest.map_structure(lambda v, x: values.get(v.ref(), x), variables, own)

    agent_state = {
        m: of_module(variables, state.agent_state[m])
        for m, variables in learner.module_states.items()
    }
    return state.replace(agent_state=agent_state)


def assign(variable: Any, old: tf.Tensor, new: tf.Tensor) -> None:
    """Assigns `new` to a variable; with one in-place operation if it is `old` plus a term.

    In a graph without XLA, `old + share * change`, e.g. a target network update, becomes one
    operation on the variable. It reads and writes once, while an assignment needs a product, a sum
    and a copy. The bits are equal.

    Args:
      variable: A variable, possibly of a strategy.
      old: Its value, unchanged since it was read.
      new: The new value, of equal shape and dtype.
    """
    known = tf_private.is_resource_variable(variable) and not may_be_xla()
    parts = _share_and_change(old, new) if known else None
    if parts is None:
        variable.assign(new)
        return
    share, change = parts
    number = tf.get_static_value(share)
    back = -share if number is None else tf.constant(-number, share.dtype)
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=back, delta=change)


def _share_and_change(old: tf.Tensor, new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
    """The scalar and the factor if `new` is `old + scalar * factor`."""
    if not tf.is_symbolic_tensor(new) or not new.dtype.is_floating:
        return None
    if not old.shape.is_fully_defined():
        return None
    if new.op.type != "AddV2" or new.op.inputs[0] is not old:
        return None
    product = new.op.inputs[1]
    if product.op.type != "Mul" or product.shape != old.shape:
        return None
    share, change = product.op.inputs
    return (share, change) if share.shape.rank == 0 and change.shape == old.shape else None
