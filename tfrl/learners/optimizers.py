"""The Learner's optimizers: over variables, with a scheduled learning rate."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import checks, keras
from tfrl.errors import UnknownKeyError, UserError, did_you_mean
from tfrl.learners.keras_optimizer import KerasOptimizer
from tfrl.learning.optimizers import BoundOptimizer, Optimizer, Slot
from tfrl.ops import schedules

# The owner id of optimizers that span modules.
ALL_MODULES = "__all_modules__"
# The optimizer name of a module with a single unnamed update.
DEFAULT_OPTIMIZER = "default_optimizer"


def check_name(thing: str, name: Any) -> None:
    """Checks a name that is also a folder name.

    Args:
      thing: The named object, for the message.
      name: Not empty, without path characters, a trailing dot or space.

    Raises:
      UserError: Saying which rule is broken.
    """
    if not isinstance(name, str):
        got = f"{name!r} ({type(name).__name__})"
    elif not name:
        got = "an empty string"
    elif wrong := [c for c in ("/", "\\", "..", "\0") if c in name]:
        got = f"{name!r} with {', '.join(map(repr, wrong))}"
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
    """Rejects non-optimizers, and Keras optimizers that were used or have a schedule."""
    if isinstance(optimizer, Optimizer):
        return
    if not keras.is_optimizer(optimizer):
        raise UserError(
            thing,
            expected="an optimizer from tfrl.learning.optimizers or Keras",
            got=repr(optimizer),
            remedy="Create one, such as tfrl.learning.optimizers.Adam().",
        )
    _check_not_nadam(thing, optimizer)
    if keras.is_used(optimizer):
        raise UserError(
            thing,
            expected="an unused optimizer",
            got=f"a {type(optimizer).__name__} already built for other variables",
            remedy="Create a new optimizer; a built one takes no more parameters.",
        )
    rate = keras.initial_rate(optimizer)
    if callable(rate) and not isinstance(rate, tf.Variable):
        raise UserError(
            thing,
            expected="an optimizer with a constant learning rate",
            got=f"a {type(rate).__name__}, which counts gradient steps",
            remedy="Set a number in the optimizer, and pass a schedule over env steps as "
            "lr_or_lr_schedule, such as [[0, 3e-4], [1000000, 0.0]] or one of tfrl.ops.schedules.",
        )


def _check_not_nadam(thing: str, optimizer: Any) -> None:
    """Rejects a Keras optimizer that counts steps in Python, which a trace would freeze."""
    if keras.counts_in_python(optimizer):
        raise UserError(
            thing,
            expected="an optimizer with the same steps in compiled and eager mode",
            got="tf.keras.optimizers.Nadam, which counts in Python",
            remedy="Use tf.keras.optimizers.legacy.Nadam.",
        )


def check_params(thing: str, params: Sequence[Any]) -> None:
    """Rejects non-variables, variables that are not floats, duplicates, and an empty list."""
    wrong = [
        f"{type(p).__name__} (number {i})"
        for i, p in enumerate(params)
        if not isinstance(p, tf.Variable)
    ]
    variables = [p for p in params if isinstance(p, tf.Variable)]
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
        thing,
        expected=expected,
        got=got,
        remedy="Register the variables that get_parameters returns.",
    )


def adam(learning_rate: float = 3e-4, epsilon: float = 1e-5) -> Any:
    """Keras' `legacy.Adam` with the epsilon of the PPO baselines, for code that needs Keras.

    The library's default is `tfrl.learning.optimizers.Adam`, whose steps are bitwise equal.
    """
    return keras.legacy_adam(learning_rate, epsilon)


class OptimizerEntry:
    """An optimizer, its variables, and its learning rate schedule.

    Variables are fixed at construction and can only be removed, see `drop`.
    """

    def __init__(
        self,
        optimizer: Any,
        params: Sequence[tf.Variable],
        learning_rate: Any = None,
        *,
        prefix: str = "",
        thing: str = "OptimizerEntry",
    ):
        """Builds the optimizer's slots for `params`; under a strategy, in its scope.

        Args:
          optimizer: One of `tfrl.learning.optimizers`, or a Keras optimizer, new or legacy, not
            used before.
          params: At least one variable; without another optimizer.
          learning_rate: A number, a schedule over env steps, or None for a Keras optimizer's own
            rate, else 3e-4.
          prefix: Prefix removed from parameter names in `variables`, such as "policy_1/", so that
            the optimizer states of equal modules have equal paths.
          thing: Its name in error messages.

        Raises:
          UserError: For a non-optimizer, one built before or with a Keras schedule, and for
            parameters that are not variables of floats, or duplicates.
        """
        check_optimizer(thing, optimizer)
        check_params(thing, params)
        schedule = None if learning_rate is None else schedules.make_schedule(learning_rate)
        self._built_for = self._params = tuple(params)
        self._prefix = prefix
        bind = BoundOptimizer if isinstance(optimizer, Optimizer) else KerasOptimizer
        self._bound: BoundOptimizer | KerasOptimizer = bind(optimizer, self._params)
        self.schedule: Callable[[tf.Tensor], tf.Tensor] | None = None
        if schedule is not None:
            self.learning_rate.assign(schedule(tf.constant(0, tf.int64)))
            # A fixed rate is set once, so that manual changes persist.
            if not isinstance(schedule, schedules.ConstantSchedule):
                self.schedule = schedule

    @property
    def optimizer(self) -> Any:
        """The `BoundOptimizer` or Keras optimizer, with `learning_rate` and `iterations`."""
        bound = self._bound
        return bound.optimizer if isinstance(bound, KerasOptimizer) else bound

    def logic(self) -> Any:
        """Returns everything except variables that its steps depend on."""
        return self._bound, self.schedule

    @property
    def params(self) -> tuple[tf.Variable, ...]:
        """The variables that it trains."""
        return self._params

    @property
    def learning_rate(self) -> tf.Variable:
        """The variable that holds the rate of the next step."""
        return self._bound.learning_rate

    def apply(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> None:
        """Takes one step with unmodified gradients, without a sum over replicas.

        Pass all variables of a step in one call, since every call counts as a step. Under a
        strategy, call it in replica context with the same gradients on every replica.

        Args:
          gradients: Tensors of the shapes of `variables`.
          variables: Some or all of `params`.

        Raises:
          UserError: For variables that the optimizer does not train.
        """
        known = {p.ref() for p in self._params}
        foreign = [v.name for v in variables if v.ref() not in known]
        if foreign:
            raise UserError(
                "OptimizerEntry.apply",
                expected="variables that the optimizer was built for",
                got=", ".join(foreign),
                remedy="Register an optimizer for them; a built one takes no more variables.",
            )
        if variables:
            self._bound.apply(gradients, variables)

    def stepped(
        self,
        gradients: Sequence[tf.Tensor],
        variables: Sequence[tf.Variable],
        values: Sequence[tf.Tensor],
        slots: Mapping[str, tf.Tensor],
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the result of `apply` without changing variables.

        Args:
          gradients: Tensors of the shapes of `variables`.
          variables: Some or all of `params`, to identify the parameters.
          values: Their values.
          slots: Values of `variables()`, tensors.

        Returns:
          The values and slots after the step.

        Raises:
          UserError: For a Keras optimizer, which changes its own variables.
        """
        if isinstance(self._bound, KerasOptimizer):
            raise UserError(
                "the optimizer of a state of tensors",
                expected="an optimizer from tfrl.learning.optimizers",
                got=type(self._bound.optimizer).__name__,
                remedy="Use ModuleConfig(optimizer='adam'); Keras optimizers only update "
                "variables.",
            )
        places = {(s.name, s.param.ref()): path for path, s in self.slots().items()}
        optimizer = self._bound.optimizer
        paths = {n: [places[n, v.ref()] for v in variables] for n in optimizer.slot_names}
        own = {name: [slots[path] for path in of] for name, of in paths.items()}
        stepped, after = optimizer.update(
            list(gradients),
            {"iterations": slots["iterations"], **own},
            list(values),
            slots["learning_rate"],
        )
        changed = {path: x for n, of in paths.items() for path, x in zip(of, after[n], strict=True)}
        return stepped, {**slots, **changed, "iterations": after["iterations"]}

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the optimizer's own variables: "iterations", "learning_rate", "m/<parameter>"."""
        return {**self.own_variables(), **{path: s.variable for path, s in self.slots().items()}}

    def own(self, gradients: Mapping[Any, tf.Tensor]) -> dict[Any, tf.Tensor]:
        """Returns the gradients of `params`, of a dict `{param ref: gradient}`."""
        refs = (p.ref() for p in self._params)
        return {ref: gradients[ref] for ref in refs if ref in gradients}

    def own_variables(self) -> dict[str, tf.Variable]:
        """Returns the `variables` that are not slots."""
        return self._bound.own_variables()

    def slots(self) -> dict[str, Slot]:
        """Returns the slots of `params`, such as "m/<parameter>".

        Equal parameter names get suffixes "#1", "#2", .... So an optimizer's state survives another
        order of registration and the removal of a module, and errors can name slot and parameter.
        """
        kept = {p.ref() for p in self._params}
        names = [p.name.rsplit(":", 1)[0].removeprefix(self._prefix) for p in self._built_for]
        earlier = [names[:i].count(n) for i, n in enumerate(names)]
        counted = [f"{n}#{k}" if k else n for n, k in zip(names, earlier, strict=True)]
        by_param = {p.ref(): n for p, n in zip(self._built_for, counted, strict=True)}
        by_name = {f"{s.name}/{by_param[s.param.ref()]}": s for s in self._bound.slots}
        return {path: s for path, s in sorted(by_name.items()) if s.param.ref() in kept}

    def drop(self, variables: Collection[tf.Variable]) -> None:
        """Stops training some variables; the slots of the others do not change."""
        gone = {v.ref() for v in variables}
        self._params = tuple(p for p in self._params if p.ref() not in gone)

    def over(
        self, mirror: Mapping[Any, tf.Variable], own: Mapping[str, tf.Variable]
    ) -> "OptimizerEntry":
        """Returns the same optimizer over other existing variables.

        Args:
          mirror: The other variable for each parameter's `ref()`.
          own: Its variables, as from `variables`.
        """
        other = object.__new__(OptimizerEntry)
        other.__dict__.update(self.__dict__)
        other._built_for = other._params = tuple(mirror[p.ref()] for p in self._params)
        if isinstance(self._bound, KerasOptimizer):
            other._bound = self._bound.over(own)
        else:
            slots = [
                Slot(s.name, mirror[s.param.ref()], own[path]) for path, s in self.slots().items()
            ]
            other._bound = BoundOptimizer.over(self._bound.optimizer, other._params, slots, own)
        return other

    def copy(self, params: Sequence[tf.Variable]) -> "OptimizerEntry":
        """Returns a fresh optimizer of the same settings and schedule over other variables.

        Slots and rate are initial: assign the values of `variables()` to continue from the same
        point.
        """
        other = OptimizerEntry(self._bound.unbound(), params, prefix=self._prefix)
        other.schedule = self.schedule
        return other


class OptimizerRegistry:
    """The optimizers of a learner, keyed by the pair (module id, optimizer name)."""

    def __init__(self) -> None:
        """Starts empty."""
        self._entries: dict[tuple[str, str], OptimizerEntry] = {}

    def add(
        self,
        module_id: str,
        optimizer_name: str,
        optimizer: Any,
        params: Sequence[tf.Variable],
        learning_rate: Any = None,
    ) -> OptimizerEntry:
        """Adds an optimizer, see `Learner.register_optimizer`.

        Args:
          module_id: The module that it belongs to, or ALL_MODULES for parameters of any modules.
          optimizer_name: Unique within the module.
          optimizer: As for `OptimizerEntry`.
          params: Variables that no other optimizer trains.
          learning_rate: A number, a schedule over env steps, or None for the optimizer's own.

        Raises:
          UserError: As `OptimizerEntry`; and for a name that exists or is no file name, and
            parameters that have an optimizer already.
        """
        thing = f"register_optimizer({module_id!r}, {optimizer_name!r})"
        check_name(f"{thing}: the optimizer's name", optimizer_name)
        name = (module_id, optimizer_name)
        if name in self._entries:
            raise UserError(
                thing,
                expected="an optimizer name that this module does not use",
                got=f"one of {[n for n, _ in self.of_module(module_id)]}",
                remedy="Choose a different name.",
            )
        owners = {v.ref(): owner for owner, entry in self._entries.items() for v in entry.params}
        # Non-variables have no ref; the entry rejects them.
        variables = [p for p in params if isinstance(p, tf.Variable)]
        twice = [f"{p.name} (in {owners[p.ref()]})" for p in variables if p.ref() in owners]
        if twice:
            raise UserError(
                thing,
                expected="parameters that no other optimizer trains",
                got=", ".join(twice),
                remedy="Give each parameter to one optimizer.",
            )
        for owner, entry in self._entries.items():
            if entry.optimizer is optimizer:
                raise UserError(
                    thing,
                    expected="an optimizer of its own",
                    got=f"the optimizer of {owner}",
                    remedy="Create a new optimizer; a built one takes no more parameters.",
                )
        prefix = "" if module_id == ALL_MODULES else f"{module_id}/"
        entry = OptimizerEntry(optimizer, params, learning_rate, prefix=prefix, thing=thing)
        self._entries[name] = entry
        return entry

    def entries(self) -> list[tuple[str, str, OptimizerEntry]]:
        """Returns `[(module_id, optimizer_name, entry), ...]` in the order of registration."""
        return [(module_id, name, entry) for (module_id, name), entry in self._entries.items()]

    @property
    def full_names(self) -> dict[Any, OptimizerEntry]:
        """The entries by "<module_id>_<name>"."""
        return {f"{owner}_{name}": e for (owner, name), e in self._entries.items()}

    def has(self, param: tf.Variable) -> bool:
        """Whether some optimizer trains a variable."""
        return any(p.ref() == param.ref() for entry in self._entries.values() for p in entry.params)

    def view(self) -> "OptimizerRegistry":
        """Returns a registry with the same entries, to which others can be added separately."""
        other = OptimizerRegistry()
        other._entries = dict(self._entries)
        return other

    def of_module(self, module_id: str) -> list[tuple[str, OptimizerEntry]]:
        """Returns `[(optimizer_name, entry), ...]` of a module (or ALL_MODULES), in order."""
        return [(name, e) for (owner, name), e in self._entries.items() if owner == module_id]

    def entry(self, module_id: str, optimizer_name: str | None = None) -> OptimizerEntry:
        """Returns one entry.

        Args:
          module_id: The module, or ALL_MODULES.
          optimizer_name: Its name within the module, or "<module_id>_<name>". DEFAULT_OPTIMIZER is
            also a module's first. None if the module has only one.

        Raises:
          UserError: If there is none of that name, or several without a name; also a KeyError.
        """
        entries = dict(self.of_module(module_id))
        if optimizer_name is None and len(entries) == 1:
            return next(iter(entries.values()))
        if optimizer_name not in entries and optimizer_name in self.full_names:
            return self.full_names[optimizer_name]
        if optimizer_name == DEFAULT_OPTIMIZER and entries:
            return entries.get(DEFAULT_OPTIMIZER, next(iter(entries.values())))
        if optimizer_name not in entries:
            raise UnknownKeyError(
                f"get_optimizer({module_id!r}, {optimizer_name!r})",
                expected=f"one of {sorted(entries)}",
                got=repr(optimizer_name),
                remedy="Name a registered optimizer."
                if optimizer_name is None or not entries
                else did_you_mean(optimizer_name, entries),
            )
        return entries[optimizer_name]

    def get(self, module_id: str, optimizer_name: str | None = None) -> Any:
        """Returns an optimizer, see `entry` and `OptimizerEntry.optimizer`."""
        return self.entry(module_id, optimizer_name).optimizer

    def remove_module(self, module_id: str, params: Collection[tf.Variable] = ()) -> None:
        """Removes the optimizers of a module; the others do not change.

        Args:
          module_id: The removed module.
          params: Its variables that no other module shares; also removed from the optimizers of
            ALL_MODULES, as are optimizers without any left.
        """
        for name in [n for n in self._entries if n[0] == module_id]:
            del self._entries[name]
        for optimizer_name, entry in self.of_module(ALL_MODULES):
            entry.drop(params)
            if not entry.params:
                del self._entries[(ALL_MODULES, optimizer_name)]

    def check_coverage(self, trained: Mapping[str, tf.Variable]) -> None:
        """Checks that every trained parameter has an optimizer.

        Args:
          trained: `{path: variable}`.

        Raises:
          UserError: Lists every path without an optimizer.
        """
        covered = {p.ref() for entry in self._entries.values() for p in entry.params}
        missing = [path for path, v in trained.items() if v.ref() not in covered]
        if missing:
            raise UserError(
                "the optimizers",
                expected="an optimizer for every trained parameter",
                got=f"none for {missing}",
                remedy="Register them in configure_optimizers_for_module, or in "
                "configure_optimizers under __all_modules__.",
            )

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the optimizers' own variables, `{"<module_id>/<optimizer_name>/<path>": v}`."""
        return {
            f"{module_id}/{name}/{path}": v
            for (module_id, name), entry in self._entries.items()
            for path, v in entry.variables().items()
        }

    def over(
        self, mirror: Mapping[Any, tf.Variable], opt_state: Mapping[str, Any]
    ) -> "OptimizerRegistry":
        """Returns the same optimizers over other existing variables.

        Args:
          mirror: The other variable for each parameter's `ref()`.
          opt_state: `{module_id: {optimizer_name: {path: variable}}}`.

        Raises:
          UserError: For a state of other optimizers.
        """
        for module_id in dict.fromkeys(owner for owner, _ in self._entries):
            names = [name for owner, name in self._entries if owner == module_id]
            thing = f"opt_state of the state, module {module_id!r}"
            checks.same_keys(thing, opt_state.get(module_id), names)
        other = OptimizerRegistry()
        for (owner, name), entry in self._entries.items():
            other._entries[owner, name] = entry.over(mirror, opt_state[owner][name])
        return other

    def copy(self, mirror: Mapping[Any, tf.Variable]) -> "OptimizerRegistry":
        """Returns fresh optimizers of the same settings over other variables.

        Args:
          mirror: The new variable for each old one's `ref()`.
        """
        other = OptimizerRegistry()
        for name, entry in self._entries.items():
            other._entries[name] = entry.copy([mirror[p.ref()] for p in entry.params])
        return other
