"""Keras optimizers as the Learner holds them: built at once, with a scheduled learning rate."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.ops import schedules

CLIP_KINDS = ("global_norm", "norm", "value")


def adam(learning_rate: float = 3e-4, epsilon: float = 1e-5) -> Any:
    """The default optimizer: Adam through TensorFlow's fused kernel, one op a variable.

    It is Keras' `legacy.Adam`; on a CPU the newer class takes a dozen ops a variable for the same
    numbers. Kingma and Ba 2015, https://arxiv.org/abs/1412.6980; epsilon as in the PPO baselines.
    """
    return tf.keras.optimizers.legacy.Adam(learning_rate, epsilon=epsilon)


class OptimizerEntry:
    """An optimizer, the variables that it trains, and the schedule of its learning rate."""

    def __init__(
        self,
        optimizer: Any,
        params: Sequence[tf.Variable],
        learning_rate: Any = None,
    ):
        """Builds the optimizer's slots for `params`.

        Args:
          optimizer: A Keras optimizer, new or legacy.
          params: The variables, which no other optimizer may have.
          learning_rate: A number, a schedule over env steps, or None to leave the optimizer's own.
        """
        self.optimizer = optimizer
        self.params = list(params)
        build(optimizer, self.params)
        self.schedule: Callable[[tf.Tensor], tf.Tensor] | None = None
        if learning_rate is not None:
            schedule = schedules.make_schedule(learning_rate)
            optimizer.learning_rate.assign(schedule(tf.constant(0, tf.int64)))
            # A fixed rate is set once, so that one changed by hand stays changed.
            if not isinstance(schedule, schedules.ConstantSchedule):
                self.schedule = schedule

    def set_learning_rate(self, timesteps: tf.Tensor) -> None:
        """Assigns the schedule's value at `timesteps` (env steps, int64 scalar), if it has one."""
        if self.schedule is not None:
            self.optimizer.learning_rate.assign(self.schedule(timesteps))

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the optimizer's own variables by position: step count, slots, learning rate."""
        found = {str(i): v for i, v in enumerate(_variables(self.optimizer))}
        rate = self.optimizer.learning_rate
        if isinstance(rate, tf.Variable) and not any(v is rate for v in found.values()):
            found["learning_rate"] = rate
        return found


def _variables(optimizer: Any) -> list[tf.Variable]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def build(optimizer: Any, params: Sequence[tf.Variable]) -> None:
    """Creates the slots of a Keras optimizer for `params`, before anything is traced."""
    for p in params:
        if not isinstance(p, tf.Variable):
            raise UserError(
                "register_optimizer",
                expected="parameters that are tf.Variables",
                got=type(p).__name__,
                remedy="Register what get_parameters returns.",
            )
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        optimizer._create_all_weights(params)  # the legacy class's own name for build
    else:
        optimizer.build(params)


def copy_of(optimizer: Any) -> Any:
    """Returns a fresh optimizer of the same class and settings, without slots."""
    return type(optimizer).from_config(optimizer.get_config())


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
    ) -> None:
        """Adds an optimizer, see `Learner.register_optimizer`."""
        name = (module_id, optimizer_name)
        if name in self._entries:
            raise UserError(
                f"register_optimizer({module_id!r}, {optimizer_name!r})",
                expected="a name that this module does not have",
                got=f"one of {[n for n, _ in self.of_module(module_id)]}",
                remedy="Choose another name.",
            )
        taken = {v.ref(): owner for owner, entry in self._entries.items() for v in entry.params}
        # Others than variables have no ref; the entry refuses them.
        variables = [p for p in params if isinstance(p, tf.Variable)]
        twice = [f"{p.name} (in {taken[p.ref()]})" for p in variables if p.ref() in taken]
        if twice:
            raise UserError(
                f"register_optimizer({module_id!r}, {optimizer_name!r})",
                expected="parameters that no other optimizer trains",
                got=", ".join(twice),
                remedy="Give each parameter to one optimizer.",
            )
        self._entries[name] = OptimizerEntry(optimizer, params, learning_rate)

    def of_module(self, module_id: str) -> list[tuple[str, OptimizerEntry]]:
        """Returns `[(optimizer_name, entry), ...]` of a module, in the order of registration."""
        return [(name, e) for (owner, name), e in self._entries.items() if owner == module_id]

    def get(self, module_id: str, optimizer_name: str | None = None) -> Any:
        """Returns an optimizer; the name may be left out when the module has one."""
        found = dict(self.of_module(module_id))
        if optimizer_name is None and len(found) == 1:
            return next(iter(found.values())).optimizer
        if optimizer_name not in found:
            raise UserError(
                f"get_optimizer({module_id!r}, {optimizer_name!r})",
                expected=f"one of {sorted(found)}",
                got=repr(optimizer_name),
                remedy="Name a registered optimizer.",
            )
        return found[optimizer_name].optimizer

    def check_coverage(self, module_id: str, trained: dict[str, tf.Variable]) -> None:
        """Checks that every parameter that a module trains, by path, is in an optimizer."""
        covered = {p.ref() for _, entry in self.of_module(module_id) for p in entry.params}
        missing = [path for path, v in trained.items() if v.ref() not in covered]
        if missing:
            raise UserError(
                f"module {module_id!r}",
                expected="every parameter that it trains in an optimizer",
                got=f"none for {missing}",
                remedy="Register them in configure_optimizers_for_module.",
            )

    def variables(self) -> dict[str, tf.Variable]:
        """Returns the optimizers' own variables by path."""
        return {
            f"{module_id}/{name}/{path}": v
            for (module_id, name), entry in self._entries.items()
            for path, v in entry.variables().items()
        }

    def copy(self, mirror: dict[Any, tf.Variable]) -> "OptimizerRegistry":
        """Returns fresh optimizers of the same settings over other variables.

        Args:
          mirror: The new variable for each old one's `ref()`.
        """
        other = OptimizerRegistry()
        for name, entry in self._entries.items():
            params = [mirror[p.ref()] for p in entry.params]
            copy = OptimizerEntry(copy_of(entry.optimizer), params)
            copy.schedule = entry.schedule
            other._entries[name] = copy
        return other


@struct.logic_dataclass
class ModuleConfig(struct.Struct):
    """How the Learner trains one module.

    Attributes:
      lr: A number, or a schedule over env steps (see `tfrl.ops.schedules`).
      grad_clip: The largest gradient left, or None; applied after the sum over replicas.
      grad_clip_by: "global_norm" (of an optimizer's parameters together), "norm" (each), "value".
      adam_epsilon: Epsilon of the default optimizer.
    """

    lr: Any = 3e-4
    grad_clip: float | None = 0.5
    grad_clip_by: str = "global_norm"
    adam_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Checks the numbers."""
        schedule = schedules.make_schedule(self.lr)
        if isinstance(schedule, schedules.ConstantSchedule):
            self._check("lr", self.lr, above_zero=False)
        if self.grad_clip is not None:
            self._check("grad_clip", self.grad_clip, above_zero=True)
        self._check("adam_epsilon", self.adam_epsilon, above_zero=True)
        if self.grad_clip_by not in CLIP_KINDS:
            raise UserError(
                "ModuleConfig.grad_clip_by",
                expected=f"one of {', '.join(CLIP_KINDS)}",
                got=repr(self.grad_clip_by),
                remedy="global_norm is usual.",
            )

    def _check(self, name: str, value: Any, *, above_zero: bool) -> None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, schedules.Schedule) and not (
            number and (value > 0 if above_zero else value >= 0)
        ):
            raise UserError(
                f"ModuleConfig.{name}",
                expected=f"a number {'above' if above_zero else 'of at least'} 0"
                + (", or None" if name == "grad_clip" else ""),
                got=repr(value),
                remedy="A negative one would turn the steps around.",
            )
