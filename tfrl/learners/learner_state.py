"""The state of a Learner: reading, comparing, loading and copying, by module or optimizer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError, did_you_mean
from tfrl.learners import registration
from tfrl.learners.minibatches import whole_number
from tfrl.learners.parameters import make_counter, make_variables
from tfrl.learning import leaves
from tfrl.metrics import MetricsLogger
from tfrl.storage.checkpoint_format import misfits
from tfrl.types import AgentState

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

# `key` is the key of the states of modules added later.
COUNTERS = ("learner_steps", "skipped_steps", "env_steps", "weights_seq_no", "key")
# The policies to train, by RLlib's name: a list of ids, or None for all.
TRAINED = "should_module_be_updated"
COMPONENTS = ("rl_module", "optimizer", "counters", "metrics", "weights_seq_no", TRAINED)


@struct.dataclass
class LearnerState(struct.Struct):
    """The state that training changes: tensors, or the learner's tf.Variables.

    Attributes:
      agent_state: `{module_id: AgentState}`.
      opt_state: `{module_id: {optimizer_name: {path: leaf}}}`: "iterations", "learning_rate" and
        the slots, "m/<parameter>". Optimizers that span modules are under "__all_modules__".
      counters: `{name: int64 scalar}`: "learner_steps", "skipped_steps", "env_steps",
        "weights_seq_no"; and "key", int32 [2].
    """

    agent_state: dict[str, AgentState]
    opt_state: dict[str, dict[str, dict[str, Any]]]
    counters: dict[str, Any]

    def count(self, name: str, number: Any) -> LearnerState:
        """Returns the state with a number added to one of the counters."""
        changed = {name: leaves.add(self.counters[name], number)}
        return self.replace(counters={**self.counters, **changed})

    def with_counter(self, name: str, value: Any) -> LearnerState:
        """Returns the state with a new value of a counter."""
        changed = {name: leaves.put(self.counters[name], value)}
        return self.replace(counters={**self.counters, **changed})

    def with_slots(self, module_id: str, optimizer_name: str, slots: dict[str, Any]) -> Any:
        """Returns the state with new leaves of one optimizer."""
        own = {**self.opt_state[module_id], optimizer_name: slots}
        return self.replace(opt_state={**self.opt_state, module_id: own})


def not_built(what: str) -> UserError:
    """Returns the error for access before `build`."""
    return UserError(
        f"Learner.{what}",
        expected="a built learner",
        got="a learner without variables",
        remedy="Call learner.build(key) first.",
    )


def get_state(
    learner: Learner,
    components: Collection[str] | str | None = None,
    not_components: Collection[str] | str | None = None,
) -> dict[str, Any]:
    """Returns a copy of a learner's state; see `Learner.get_state`."""
    wanted = _names(learner, "components", components)
    unwanted = _names(learner, "not_components", not_components) or []

    def takes(name: str) -> bool:
        inside = wanted is None or any(_within(name, w) for w in wanted)
        return inside and not any(_within(name, u) for u in unwanted)

    state: dict[str, Any] = {}
    for module_id in learner.modules:
        if takes(f"rl_module/{module_id}"):
            values = _read(struct.paths(learner.module_state(module_id)))
            state.setdefault("rl_module", {})[module_id] = values
    for module_id, name, entry in learner.optimizer_entries():
        if takes(f"optimizer/{module_id}/{name}"):
            own = state.setdefault("optimizer", {}).setdefault(module_id, {})
            own[name] = _read(entry.variables())
    if takes("counters"):
        names = [c for c in COUNTERS if c != "weights_seq_no"]
        state["counters"] = {name: getattr(learner, name).numpy().tolist() for name in names}
    if takes("metrics"):
        state["metrics"] = learner.metrics.get_state()
    if "weights_seq_no" not in unwanted:
        state["weights_seq_no"] = int(learner.weights_seq_no.numpy())
    chosen = learner.policies_to_train
    if takes(TRAINED) and not callable(chosen):
        state[TRAINED] = None if chosen is None else sorted(chosen)
    return state


def component_names(learner: Learner) -> list[str]:
    """Returns every valid name in `components`."""
    names = list(COMPONENTS)
    names += [f"rl_module/{m}" for m in learner.modules]
    for module_id, name, _ in learner.optimizer_entries():
        names += [f"optimizer/{module_id}", f"optimizer/{module_id}/{name}"]
    return list(dict.fromkeys(names))


def _names(learner: Learner, argument: str, names: Any) -> list[str] | None:
    if names is None:
        return None
    names = [names] if isinstance(names, str) else list(names)
    known = component_names(learner)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(
            argument,
            expected=f"names among {', '.join(known)}",
            got=", ".join(map(repr, unknown)),
            remedy=did_you_mean(unknown[0], known),
        )
    return names


def _within(name: str, component: str) -> bool:
    return name == component or name.startswith(f"{component}/")


def _read(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {path: v.numpy().copy() for path, v in variables.items()}


def set_state(
    learner: Learner, state: Mapping[str, Any], *, only_newer_weights: bool = False
) -> None:
    """Loads all given parts, after checking all of them; see `Learner.set_state`."""
    targets: dict[str, tf.Variable] = {}
    values: dict[str, Any] = {}
    problems: list[str] = []
    state = _dict("a state", state, problems)
    if only_newer_weights:
        state = _without_older_weights(learner, state)
    problems += [f"unknown component {name!r}" for name in state if name not in COMPONENTS]
    for module_id, module_state in _dict("rl_module", state.get("rl_module", {}), problems).items():
        if module_id not in learner.modules:
            problems.append(f"unknown module {module_id!r}")
            continue
        _collect(
            f"rl_module/{module_id}",
            struct.paths(learner.module_state(module_id)),
            _dict(f"rl_module/{module_id}", module_state, problems),
            targets,
            values,
        )
    entries = {(m, n): e for m, n, e in learner.optimizer_entries()}
    for module_id, by_name in _dict("optimizer", state.get("optimizer", {}), problems).items():
        for name, slots in _dict(f"optimizer/{module_id}", by_name, problems).items():
            if (module_id, name) not in entries:
                problems.append(f"unknown optimizer {name!r} of module {module_id!r}")
                continue
            own = entries[module_id, name].variables()
            part = f"optimizer/{module_id}/{name}"
            _collect(part, own, _dict(part, slots, problems), targets, values)
    for name, value in _dict("counters", state.get("counters", {}), problems).items():
        if name in COUNTERS:
            targets[f"counters/{name}"] = getattr(learner, name)
            values[f"counters/{name}"] = _plain(value)
        else:
            problems.append(f"unknown counter {name!r}")
    if "weights_seq_no" in state:
        targets["weights_seq_no"] = learner.weights_seq_no
        values["weights_seq_no"] = _plain(state["weights_seq_no"])
    if "metrics" in state:
        problems += _wrong_metrics(state["metrics"])
    chosen = learner.policies_to_train
    if TRAINED in state:
        try:
            chosen = registration.modules_to_train(learner, state[TRAINED])
        except UserError as error:
            problems.append(f"{TRAINED} of {error.got}")
    assign_all("Learner.set_state", targets, values, problems)
    learner.policies_to_train = chosen
    if "metrics" in state:
        learner.metrics.set_state(state["metrics"])


def _without_older_weights(learner: Learner, state: dict[str, Any]) -> dict[str, Any]:
    """The state without weights that are not newer; number 0 always counts as newer."""
    number = whole_number(state.get("weights_seq_no", 0))
    if number is None or number > int(learner.weights_seq_no.numpy()):
        return state  # Non-numbers are rejected together with other problems.
    gone = ("weights_seq_no",) if number == 0 else ("weights_seq_no", "rl_module")
    return {name: part for name, part in state.items() if name not in gone}


def _dict(name: str, value: Any, problems: list[str]) -> dict[str, Any]:
    """Adds a problem if the value is not a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    problems.append(f"{value!r} for {name}, which is a dict")
    return {}


def _plain(value: Any) -> Any:
    """Numbers without a dtype, so that any integer width is accepted."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _wrong_metrics(state: Any) -> list[str]:
    """The logger's problems with a state, before the learner changes."""
    try:
        MetricsLogger().set_state(state)
    except UserError as error:
        return [f"metrics of {error.got}"]
    except (AttributeError, TypeError, ValueError) as error:
        return [f"metrics with {error!r}"]
    return []


def _collect(
    prefix: str,
    variables: Mapping[str, tf.Variable],
    value: Mapping[str, Any],
    targets: dict[str, tf.Variable],
    values: dict[str, Any],
) -> None:
    targets.update({f"{prefix}/{path}": v for path, v in variables.items()})
    values.update({f"{prefix}/{path}": v for path, v in value.items()})


def assign_all(
    thing: str,
    variables: Mapping[str, tf.Variable],
    values: Mapping[str, Any],
    problems: Collection[str] = (),
) -> None:
    """Assigns values to variables by path, or changes nothing.

    Args:
      thing: The subject of the error.
      variables: `{path: variable}`.
      values: `{path: value}`.
      problems: Other problems with the values.

    Raises:
      UserError: Lists every missing, unknown, mis-shaped or mis-typed value.
    """
    wrong = list(problems)
    wrong += misfits(variables, values)
    if wrong:
        raise UserError(
            thing,
            expected="the variables of this learner",
            got="; ".join(wrong),
            remedy="Restore into a learner with the same modules and optimizers.",
        )
    for path, variable in variables.items():
        value = values[path]
        plain = not hasattr(value, "dtype")
        variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype) if plain else value)


def copy_values(learner: Learner, source: str, target: str) -> None:
    """Copies a module's values and optimizer slots to another module of the same kind.

    Slots are found by parameter, since the optimizer may belong to a lending module, or to all
    modules.

    Args:
      learner: The `Learner`.
      source: The module to copy.
      target: A module with the same variables.

    Raises:
      UserError: Lists mismatches; nothing is copied then.
    """
    entries = learner.optimizer_entries()
    states = [learner.module_state(m) for m in (target, source)]
    original = {t.ref(): s for t, s in zip(*map(tf.nest.flatten, states), strict=True)}
    kept = {(s.name, s.param.ref()): s.variable for *_, e in entries for s in e.slots().values()}
    values: dict[str, Any] = {"rl_module": {target: _read(struct.paths(states[1]))}}
    for module_id, name, entry in entries:
        if module_id != target:
            continue
        trains = original[entry.params[0].ref()].ref()
        namesakes = [e for m, n, e in entries if (m, n) == (source, name)]
        trainers = [e for *_, e in entries if any(p.ref() == trains for p in e.params)]
        variables = {
            p: v for e in [*namesakes, *trainers][:1] for p, v in e.own_variables().items()
        }
        for path, slot in entry.slots().items():
            variable = kept.get((slot.name, original[slot.param.ref()].ref()))
            if variable is not None:
                variables[path] = variable
        values.setdefault("optimizer", {}).setdefault(target, {})[name] = _read(variables)
    set_state(learner, values)


def clone_into(learner: Learner, other: Learner) -> None:
    """Gives `other`, a shallow copy of a learner, its own variables and optimizers."""
    with learner.replicas.scope():
        for name in COUNTERS:
            setattr(other, name, make_counter(name, getattr(learner, name).numpy()))
        mirror: dict[Any, tf.Variable] = {}
        other.module_states = {}
        for m, state in learner.module_states.items():
            paths = struct.paths(state)
            shared = {p: mirror[v.ref()] for p, v in paths.items() if v.ref() in mirror}
            other.module_states[m] = make_variables(struct.values(state), m, shared)
            copies = tf.nest.flatten(other.module_states[m])
            pairs = zip(tf.nest.flatten(state), copies, strict=True)
            mirror.update({old.ref(): new for old, new in pairs})
        other.optimizers = learner.optimizers.copy(mirror)
    other._compiled, other._traces = {}, learner._traces
    other._iterated = None
    other.modules, other.configs = dict(learner.modules), dict(learner.configs)
    other.metrics = type(learner.metrics)()
    other.metrics.set_state(learner.metrics.get_state())
    values = {k: v.numpy() for k, v in learner.variables().items()}
    other.assign_variables(values)
