"""What an update changes in the state of a Learner, beside the gradient steps themselves.

The functions are traced. They take a state and return one: a new one where its leaves are tensors,
the same one, changed in place, where they are the learner's variables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import networks, struct
from tfrl.learners import in_place
from tfrl.learners.learner_state import LearnerState
from tfrl.learners.parameters import ParamDict
from tfrl.learning import leaves
from tfrl.types import AgentState

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner


def with_rates(
    learner: Learner, state: LearnerState, owner: str, timesteps: tf.Tensor
) -> LearnerState:
    """Returns the state with the learning rates of an owner's optimizers at `timesteps`."""
    for _, name, entry in learner.optimizer_entries_of(owner):
        if entry.schedule is not None:
            slots = state.opt_state[owner][name]
            rate = leaves.put(slots["learning_rate"], entry.schedule(timesteps))
            state = state.with_slots(owner, name, {**slots, "learning_rate": rate})
    return state


def prepared(
    learner: Learner, state: LearnerState, module_id: str, timesteps: tf.Tensor
) -> LearnerState:
    """Returns the state before the gradient steps of a module."""
    state = with_rates(learner, state, module_id, timesteps)
    return changed(learner, state, module_id, learner.modules[module_id].before_update, timesteps)


def finished(
    learner: Learner, state: LearnerState, module_id: str, timesteps: tf.Tensor
) -> LearnerState:
    """Returns the state after the gradient steps of a module."""
    module = learner.modules[module_id]
    due = module.after_update_due(struct.values(state.agent_state[module_id]), timesteps)

    def change(state: LearnerState) -> LearnerState:
        # Read and written in the branch: values that pass through a `tf.cond` cost a graph
        # several operations each, whether it is taken or not.
        return changed(learner, state, module_id, module.after_update, timesteps)

    return change(state) if due is None else leaves.cond(due, change, state)


def changed(
    learner: Learner,
    state: LearnerState,
    module_id: str,
    hook: Callable[..., AgentState],
    given: Any,
) -> LearnerState:
    """Returns the state with a module's in it as `hook(state, given)` makes it."""
    before = struct.values(state.agent_state[module_id])
    after = hook(before, given)
    if after is before:
        return state
    changes = differences(learner, module_id, before, after)
    if not leaves.in_place(state):
        return replaced(learner, state, {v.ref(): new for v, _, new in changes})
    # One that two groups borrow changes once.
    own = Counter(id(variable) for variable, _, _ in changes)
    for variable, old, new in changes:
        if own[id(variable)] == 1:
            in_place.assign(variable, old, new)
        else:
            variable.assign(new)
    return state


def differences(
    learner: Learner, module_id: str, before: AgentState, after: AgentState
) -> list[tuple[Any, Any, Any]]:
    """Returns (variable, old, new) for each leaf of a module that changed."""
    triples = zip(
        tf.nest.flatten(learner.module_states[module_id]),
        tf.nest.flatten(before),
        tf.nest.flatten(after),
        strict=True,
    )
    return [(variable, old, new) for variable, old, new in triples if new is not old]


def stepped(learner: Learner, state: LearnerState, gradients_dict: ParamDict) -> LearnerState:
    """Returns a state of tensors after `apply_gradients` of the gradients."""
    values = {
        variable.ref(): x
        for m, own in learner.module_states.items()
        for variable, x in zip(
            tf.nest.flatten(own), tf.nest.flatten(state.agent_state[m]), strict=True
        )
    }
    after: ParamDict = {}
    for module_id, name, entry in learner.optimizer_entries():
        params = [p for p in entry.params if p.ref() in gradients_dict]
        if not params:
            continue
        values_after, slots = entry.stepped(
            [gradients_dict[p.ref()] for p in params],
            params,
            [values[p.ref()] for p in params],
            state.opt_state[module_id][name],
        )
        after.update({p.ref(): x for p, x in zip(params, values_after, strict=True)})
        state = state.with_slots(module_id, name, slots)
    return replaced(learner, state, after)


def with_param_updates(
    learner: Learner, state: LearnerState, module_id: str, param_updates: dict[str, Any]
) -> LearnerState:
    """Returns the state with `{group: nest}` where no gradient trains the module."""
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
    """Returns a state of tensors with new values of variables, in every module that has them."""

    def of_module(own: AgentState, given: AgentState) -> AgentState:
        return tf.nest.map_structure(lambda v, x: values.get(v.ref(), x), own, given)

    found = {m: of_module(own, state.agent_state[m]) for m, own in learner.module_states.items()}
    return state.replace(agent_state=found)  # type: ignore[no-any-return]
