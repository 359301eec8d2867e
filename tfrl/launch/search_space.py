"""Search spaces of `tfrl-tune`: a gin file with ranges as values, or Python."""

import dataclasses
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfrl import extras
from tfrl.errors import UserError
from tfrl.launch import gin_files

_RANGE = {"low", "high", "log", "step"}
_REMEDY = (
    "Write {'low': 1e-5, 'high': 1e-2, 'log': True}, {'low': 1, 'high': 20}, or "
    "{'choices': [0.9, 0.99]}."
)


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """The hyperparameters that a trial chooses.

    Attributes:
      name: The value of the flag.
      entries: `{binding: range or value}`; None for a function.
      function: Takes an optuna trial and returns `{binding: value}`.
    """

    name: str
    entries: Mapping[str, Any] | None = None
    function: Callable[[Any], Mapping[str, Any]] | None = None

    def choose(self, trial: Any) -> dict[str, Any]:
        """Returns the bindings of an optuna trial, `{name: value}`.

        Raises:
          UserError: A function failed, or returned something else.
        """
        if self.entries is not None:
            return {name: _suggest(trial, name, value) for name, value in self.entries.items()}
        try:
            chosen = self.function(trial) if self.function is not None else None
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            got = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            raise self._wrong(got) from error
        if not isinstance(chosen, Mapping):
            raise self._wrong(repr(chosen))
        return dict(chosen)

    def _wrong(self, got: str) -> UserError:
        return UserError(
            f"the search space {self.name}",
            expected="a function of an optuna trial that returns {binding: value}",
            got=got,
            remedy="Return for example {'ModuleConfig.lr': trial.suggest_float('lr', 1e-5, 1e-2, "
            "log=True)}.",
        )


def read(name: str, files: Sequence[str] = (), bindings: Sequence[str] = ()) -> SearchSpace:
    """Reads a search space.

    If the configuration binds a parameter to `@LinearSchedule()`, its range applies to the start of
    the schedule.

    Args:
      name: A gin file, or `module:name` of a dict or of a function of an optuna trial.
      files: The gin files of the trials.
      bindings: The bindings of the trials.

    Raises:
      UserError: There is no such space, or a range is malformed.
    """
    if name.endswith(".gin"):
        file_bindings = gin_files.read([name], where="--space")
        entries = {b.key: _literal(b) for b in file_bindings}
        where = {b.key: b.where for b in file_bindings}
    else:
        value = _imported(name)
        if callable(value):
            return SearchSpace(name, function=value)
        if not isinstance(value, Mapping):
            raise UserError(
                f"--space={name}",
                expected="a dict {binding: range}, or a function of an optuna trial",
                got=type(value).__name__,
                remedy=_REMEDY,
            )
        entries, where = dict(value), {}
    for key, value in entries.items():
        check_range(f"{key} ({where.get(key, name)})", value)
    if not any(is_range(value) for value in entries.values()):
        raise UserError(f"--space={name}", expected="a range", got="none", remedy=_REMEDY)
    schedules = _schedules(files, bindings)
    return SearchSpace(name, {schedules.get(key, key): value for key, value in entries.items()})


def default(gin_file: str) -> str | None:
    """Returns the shipped search space for the algorithm of a shipped gin file, or None.

    For `ppo/tf_cartpole.gin` it is `tune/ppo.gin`.
    """
    name = f"tune/{gin_file.partition('/')[0]}.gin"
    return name if (gin_files.package_gin_dir() / name).is_file() else None


def is_range(value: Any) -> bool:
    """Whether a value of a space is a range; a dict with other keys is a value."""
    return isinstance(value, Mapping) and bool({"low", "high", "choices"} & set(value))


def check_range(thing: str, value: Any) -> None:
    """Checks a value that is a range.

    Raises:
      UserError: Optuna does not support the range.
    """
    if not is_range(value):
        return
    try:
        if "choices" in value:
            if set(value) != {"choices"} or not list(value["choices"]):
                raise ValueError("choices must be non-empty, without other keys")
            return
        if not {"low", "high"} <= set(value) <= _RANGE:
            raise ValueError(f"keys {', '.join(map(repr, value))}")
        distributions = extras.require("optuna.distributions", "tune")
        kind = "IntDistribution" if _has_int_bounds(value) else "FloatDistribution"
        getattr(distributions, kind)(**value)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"the range of {thing}",
            expected="low and high with optional log or step, or choices",
            got=f"{dict(value)} ({str(error).rstrip('.')})",
            remedy=_REMEDY,
        ) from error


def _has_int_bounds(value: Mapping[str, Any]) -> bool:
    bounds = [value[name] for name in ("low", "high", "step") if value.get(name) is not None]
    return all(isinstance(x, int) and not isinstance(x, bool) for x in bounds)


def _suggest(trial: Any, name: str, value: Any) -> Any:
    if not is_range(value):
        return value
    if "choices" not in value:
        suggest = trial.suggest_int if _has_int_bounds(value) else trial.suggest_float
        return suggest(name, **value)
    choices = list(value["choices"])
    # Optuna stores numbers and strings; other values are stored as their `repr`.
    plain = (bool, int, float, str, type(None))
    labels = [x if isinstance(x, plain) else repr(x) for x in choices]
    return choices[labels.index(trial.suggest_categorical(name, labels))]


def _literal(binding: gin_files.Binding) -> Any:
    for leaf in gin_files.leaves(binding.value):
        if isinstance(leaf, gin_files.Reference | gin_files.Macro):
            raise UserError(
                f"the search space's {binding.key} ({binding.where})",
                expected="references as strings: '@MLP()' or '%total_steps'",
                got="a reference without quotes",
                remedy="Put the reference in quotes.",
            )
    return binding.value


def _schedules(files: Sequence[str], bindings: Sequence[str]) -> dict[str, str]:
    """Returns `{parameter: name of its schedule's start}`."""
    bound = {b.key: b.value for b in gin_files.read(files, bindings)}
    return {
        key: f"{value.scoped_name}.start"
        for key, value in bound.items()
        if isinstance(value, gin_files.Reference)
        and value.scoped_name.rpartition("/")[2] == "LinearSchedule"
    }


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in (module, None):
            raise  # an import of the user's module failed
        raise UserError(
            f"--space={name}",
            expected="a gin file, or module:name of a dict or function in a module that imports",
            got=str(error) or "no name after a colon",
            remedy=f"Modules are looked up in {', '.join(p for p in sys.path[-1:] if p)} too.",
        ) from error
