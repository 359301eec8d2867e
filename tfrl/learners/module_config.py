"""Settings of a module's training: rates, clipping, sizes."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from tfrl import keras, struct
from tfrl.errors import UserError, did_you_mean
from tfrl.learning import optimizers
from tfrl.learning.optimizers import Adam, Optimizer
from tfrl.ops import schedules

CLIP_KINDS = ("global_norm", "norm", "value")

T = TypeVar("T")


def _refusing_other_arguments(cls: type[T]) -> type[T]:
    """Makes a settings dataclass suggest the nearest field for an unknown one."""
    namespace: Any = cls
    init = namespace.__init__

    @functools.wraps(init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            raise UserError(
                cls.__name__,
                expected="keyword arguments",
                got=", ".join(map(repr, args)),
                remedy=f"Write {cls.__name__}(lr={args[0]!r}) for a learning rate.",
            )
        _check_names(cls.__name__, cls, kwargs)
        init(self, **kwargs)

    checked_init.__signature__ = inspect.signature(init)  # type: ignore[attr-defined]
    namespace.__init__ = checked_init
    return cls


def _check_names(thing: str, cls: type, names: Iterable[Any]) -> None:
    """Raises a UserError that lists all unknown fields."""
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = [name for name in names if name not in known]
    if unknown:
        near = (did_you_mean(str(name), known) for name in unknown)
        raise UserError(
            thing,
            expected=f"fields of {cls.__name__}, {', '.join(known)}",
            got=", ".join(map(repr, unknown)),
            remedy=" ".join(dict.fromkeys(near)),
        )


@_refusing_other_arguments
@struct.logic_dataclass
class ModuleConfig(struct.Struct):
    """Settings of one module's training.

    Attributes:
      lr: A number, points `[[0, v0], [t1, v1], ...]`, or a schedule of `tfrl.ops.schedules`; the
        steps are env steps. None for a Keras optimizer's own rate, else 3e-4. Or `{update name: one
        of these}`, with None for missing updates.
      grad_clip: The maximum gradient, or None; applied after the sum over replicas.
      grad_clip_by: "global_norm" (of an optimizer's parameters together), "norm" (each), "value".
      log_gradients: Whether to report the global norm of each optimizer's gradients before
        clipping; it does not affect training.
      minibatch_size: Rows of a gradient step of this module, or None for the call's argument.
      optimizer: "adam", "adamw", "rmsprop", "sgd" or "lion"; or one of
        `tfrl.learning.optimizers`, or a Keras optimizer, copied for each update (in gin
        `@optimizers.Adam()`, `@keras.optimizers.Adagrad()`); or
        `{update name: one of these}`, with Adam for missing updates.
      adam_epsilon: Epsilon of "adam" and "adamw".
    """

    lr: Any = None
    grad_clip: float | None = None
    grad_clip_by: str = "global_norm"
    log_gradients: bool = True
    minibatch_size: int | None = None
    optimizer: Any = "adam"
    adam_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
          UserError: For an invalid value, with the field's name.
        """
        for name in ("lr", "grad_clip", "minibatch_size", "adam_epsilon"):
            object.__setattr__(self, name, _in_json(getattr(self, name)))
        for rate in self.lr.values() if isinstance(self.lr, Mapping) else (self.lr,):
            if rate is not None:
                _check_rate(rate)
        if self.grad_clip is not None and not _positive(self.grad_clip):
            raise _refuse("grad_clip", "a number above 0, or None", self.grad_clip, _TURNED)
        if not _positive(self.adam_epsilon):
            raise _refuse("adam_epsilon", "a number above 0", self.adam_epsilon, _TURNED)
        if self.grad_clip_by not in CLIP_KINDS:
            expected = f"one of {', '.join(CLIP_KINDS)}"
            raise _refuse(
                "grad_clip_by", expected, self.grad_clip_by, "The usual choice is 'global_norm'."
            )
        if not isinstance(self.log_gradients, bool):
            raise _refuse("log_gradients", "True or False", self.log_gradients, "Pass a bool.")
        several = isinstance(self.optimizer, Mapping)
        for chosen in self.optimizer.values() if several else (self.optimizer,):
            _check_optimizer(chosen)
        size = self.minibatch_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            expected = "a whole number of at least 1, or None"
            raise _refuse(
                "minibatch_size", expected, size, "Pass None to use the size given to the call."
            )

    def rate_of(self, update_name: str) -> Any:
        """Returns the learning rate of an update, a number or a schedule; None as for `lr`."""
        return self.lr.get(update_name) if isinstance(self.lr, Mapping) else self.lr

    def make_optimizer(self, update_name: str) -> Any:
        """Returns the optimizer of an update, a native one or an unused Keras optimizer."""
        chosen = self.optimizer
        if isinstance(chosen, Mapping):
            chosen = chosen.get(update_name, "adam")
        if keras.is_optimizer(chosen):
            return keras.fresh(chosen)
        if not isinstance(chosen, str):
            return chosen
        optimizer = optimizers.BY_NAME[chosen]
        return optimizer(epsilon=self.adam_epsilon) if issubclass(optimizer, Adam) else optimizer()

    def logic(self) -> dict[str, Any]:
        """Returns a key that is equal for equal settings, including Keras optimizers."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        chosen = self.optimizer
        if isinstance(chosen, Mapping):
            chosen = {name: keras.optimizer_logic(x) for name, x in chosen.items()}
        return {**fields, "optimizer": keras.optimizer_logic(chosen)}

    def with_overrides(
        self, overrides: "ModuleConfig | Mapping[str, Any] | None" = None
    ) -> "ModuleConfig":
        """Returns these settings with some changed.

        Args:
          overrides: `{name: value}` of changed fields, a ModuleConfig to replace all, or None.

        Raises:
          UserError: For unknown fields and invalid values.
        """
        if overrides is None:
            return self
        if isinstance(overrides, ModuleConfig):
            return overrides
        if not isinstance(overrides, Mapping):
            raise UserError(
                "config_overrides",
                expected="a dict of ModuleConfig's fields, or a ModuleConfig",
                got=repr(overrides),
                remedy="Write it as {'lr': 1e-3}.",
            )
        _check_names("config_overrides", ModuleConfig, overrides)
        return self.replace(**overrides)


_TURNED = "Use a positive value; a negative one reverses the steps."


def _in_json(value: Any) -> Any:
    """Returns NumPy's numbers as Python's, since settings are written as JSON."""
    if isinstance(value, Mapping):
        return {name: _in_json(x) for name, x in value.items()}
    return value.item() if isinstance(value, np.integer | np.floating) else value


def _refuse(name: str, expected: str, got: Any, remedy: str) -> UserError:
    return UserError(f"ModuleConfig.{name}", expected=expected, got=repr(got), remedy=remedy)


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _check_optimizer(chosen: Any) -> None:
    """Rejects a value that is neither an optimizer nor the name of one."""
    if isinstance(chosen, Optimizer) or keras.is_optimizer(chosen):
        return
    if chosen not in list(optimizers.BY_NAME):
        names = ", ".join(optimizers.BY_NAME)
        expected = f"one of {names}, or an optimizer from tfrl.learning.optimizers or Keras"
        remedy = did_you_mean(chosen, optimizers.BY_NAME) if isinstance(chosen, str) else ""
        raise _refuse("optimizer", expected, chosen, remedy or "The usual choice is 'adam'.")


def _check_rate(lr: Any) -> None:
    """Rejects values that are not schedules, and known rates below 0."""
    if not isinstance(lr, schedules.Schedule | list | tuple) and not _number(lr):
        expected = "a number of at least 0, points [[0, v0], [t1, v1], ...], or a schedule"
        raise _refuse("lr", expected, lr, "Use a number or a schedule from tfrl.ops.schedules.")
    schedule = schedules.make_schedule(lr)
    if isinstance(schedule, schedules.PiecewiseLinearSchedule):
        named = [value for _, value in schedule.points]
    else:
        named = [getattr(schedule, name, 0.0) for name in ("constant", "start", "end")]
    if any(value is not None and value < 0 for value in named):
        raise _refuse("lr", "a number of at least 0", lr, _TURNED)
