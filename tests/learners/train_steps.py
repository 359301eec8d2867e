"""What a train step computes at a given state: for tests of losses, gradients and metrics."""

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.learners import Learner, ModuleConfig, train_step
from tfrl.learning.optimizers import Optimizer


@struct.logic_dataclass
class Recorder(Optimizer):
    """Leaves parameters as they are; its slots are the gradients that it was given last."""

    @property
    def slot_names(self):
        return ("gradient",)

    def _step(self, gradient, param, slots, rate, count):
        return param, (gradient,)


@struct.dataclass
class Computed(struct.Struct):
    """What a train step computes for one update: its loss, metrics, and gradients by group."""

    loss: tf.Tensor
    metrics: dict
    gradients: dict


def recording(module):
    """A learner whose train step tells the gradients."""
    config = ModuleConfig(optimizer=Recorder(), grad_clip=None)
    learner = Learner(module, config=config, check_numerics="off")
    learner.build()
    return learner


def computed(learner, state, batch, key):
    """Takes one train step at a module's state, compiled or not: `{update name: Computed}`.

    Updates do not see each other's steps, since a `Recorder` takes none.
    """
    start = struct.values(learner.learner_state).replace(agent_state={DEFAULT_MODULE_ID: state})
    after, metrics = train_step(learner, start, {DEFAULT_MODULE_ID: batch}, key)
    (values,) = metrics.values.values()
    updates = learner.modules[DEFAULT_MODULE_ID].updates
    variables, found = learner.module_state().params, {}
    for update in updates:
        (entry,) = [e for _, n, e in learner.optimizer_entries() if n == update.name]
        slots = after.opt_state[DEFAULT_MODULE_ID][update.name]
        by_ref = {slot.param.ref(): slots[path] for path, slot in entry.slots().items()}
        gradients = tf.nest.map_structure(
            lambda v, by_ref=by_ref: by_ref.get(v.ref(), tf.zeros(v.shape)),
            {g: variables[g] for g in update.groups},
        )
        prefix = f"{update.name}/" if len(updates) > 1 else ""
        own = {n.removeprefix(prefix): x for n, x in values.items() if n.startswith(prefix)}
        found[update.name] = Computed(loss=own.pop("loss"), metrics=own, gradients=gradients)
    return found


def loss_key(module, name, key):
    """The key that the loss of an update gets of a train step's key."""
    names = [u.name for u in module.updates]
    return seeding.fold_in(key, names.index(name)) if len(names) > 1 else key
