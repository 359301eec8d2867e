"""Finds gin files and reads them strictly.

gin itself accepts undotted bindings (they become macros), misspelt scopes, duplicate bindings,
unused bindings, and values of the wrong type. Here each is an error that names the place.
"""

import ast
import dataclasses
import functools
import importlib
import io
import logging
import os
import pathlib
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import gin
from absl import flags
from gin import config_parser

from tfrl.errors import UserError, did_you_mean
from tfrl.launch import gin_registry
from tfrl.loading import import_code
from tfrl.storage import remote


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A gin file at an address, for example `gs://bucket/experiment.gin`."""

    url: str

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]

    def __str__(self) -> str:
        return self.url


GinFile = pathlib.Path | RemoteFile
# Finds an included file: (path as written, place of the line) -> existing file.
Resolve = Callable[[str, str], GinFile]


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@scope/name` or `@scope/name()` in a value."""

    scoped_name: str


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name` in a value."""

    name: str


class _Delegate(config_parser.ParserDelegate):
    """Makes gin's parser build `Reference` and `Macro` instead of gin's references."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        """Keeps the name as written; `evaluate` does not matter for checking."""
        return Reference(scoped_configurable_name)

    def macro(self, macro_name: str) -> Macro:
        """Keeps the name as written."""
        return Macro(macro_name)


@dataclasses.dataclass(frozen=True)
class Binding:
    """One `scope/selector.parameter = value`, and its place."""

    scope: str
    selector: str
    parameter: str
    value: Any
    source: str
    line: int

    @property
    def where(self) -> str:
        """The place, for messages."""
        return self.source if self.source == "--gin_bindings" else f"{self.source}:{self.line}"

    @property
    def key(self) -> str:
        """The left-hand side, as a user would write it."""
        name = f"{self.selector}.{self.parameter}" if self.parameter else self.selector
        return f"{self.scope}/{name}" if self.scope else name


def read_file(
    path: GinFile, resolve: Resolve, parents: tuple[GinFile, ...] = ()
) -> Iterator[Binding]:
    """Yields the bindings of a file and of its includes, in gin's order.

    Args:
      path: An existing gin file.
      resolve: Finds the included files.
      parents: The files that include this one.

    Yields:
      Every binding, with its place.

    Raises:
      UserError: Syntax errors, missing or circular includes, failing imports.
    """
    if path in parents:
        raise UserError(
            f"Gin file {path}",
            expected="files without circular includes",
            got=" -> ".join(p.name for p in (*parents, path)),
            remedy="Remove one of the include lines.",
        )
    for statement in _statements(_text_of(path), str(path)):
        where = f"{path}:{statement.location.line_num}"
        if isinstance(statement, config_parser.IncludeStatement):
            included = resolve(statement.filename, where)
            yield from read_file(included, resolve, (*parents, path))
        else:
            yield from _to_bindings(statement, str(path), where)


def _text_of(path: GinFile) -> str:
    try:
        if isinstance(path, RemoteFile):
            return remote.read_bytes(path.url).decode("utf-8")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"Gin file {path}",
            expected="a readable UTF-8 text file",
            got=str(error),
            remedy="Repair it, or restore a backup copy.",
        ) from error


def read_binding(text: str) -> list[Binding]:
    """Reads one value of --gin_bindings.

    Args:
      text: `name.parameter=value`.

    Returns:
      Its bindings; one, unless the text has several lines.

    Raises:
      UserError: The text has another form.
    """
    if "=" not in text:
        raise UserError(
            f"Gin binding '{text}'",
            expected="name.parameter=value",
            got="no '='",
            remedy="Write for example --gin_bindings='train.total_env_steps=100000'.",
        )
    result = []
    for statement in _statements(text, "--gin_bindings"):
        result += list(_to_bindings(statement, "--gin_bindings", "--gin_bindings"))
    return result


def _to_bindings(statement: Any, source: str, where: str) -> Iterator[Binding]:
    """Converts a statement of the parser to bindings; executes import statements."""
    if isinstance(statement, config_parser.ImportStatement):
        try:
            import_code(statement.module, f"Gin import of {statement.module} ({where})")
        except ImportError as error:
            raise UserError(
                f"Gin import of {statement.module} ({where})",
                expected="an importable module",
                got=str(error),
                remedy="Install it, or add its folder to PYTHONPATH.",
            ) from error
    elif isinstance(statement, config_parser.BindingStatement):
        scope, selector, parameter, value, location = statement
        yield Binding(scope, selector, parameter, value, source, location.line_num)
    elif isinstance(statement, config_parser.IncludeStatement):
        raise UserError(
            f"Gin binding 'include' ({where})",
            expected="include lines in files only",
            got=f"include '{statement.filename}'",
            remedy=f"Add --gin_file={statement.filename} instead.",
        )


def _statements(text: str, source: str) -> Iterator[Any]:
    """Parses gin text; converts syntax errors to a UserError."""
    try:
        yield from config_parser.ConfigParser(io.StringIO(text), _Delegate())
    except (SyntaxError, tokenize.TokenError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise _syntax_error(text, source, error) from error


def _syntax_error(text: str, source: str, error: Exception) -> UserError:
    detail, line, number = str(error.args[0]).split("\n")[0], text, 1
    detail = detail.partition(": <ast.")[0]
    place = error.args[1] if len(error.args) > 1 else None
    if isinstance(place, tuple) and len(place) >= 4:
        number, line = place[1], place[3]
    elif isinstance(place, tuple) and isinstance(place[0], int):  # tokenize's (line, column)
        number = place[0]
        line = (text.splitlines() or [""])[min(number, len(text.splitlines())) - 1]
    line = str(line).strip()
    name, _, value = line.partition("=")
    value = value.strip()
    remedy = "Check brackets, quotes and the form name.parameter = value."
    if value and not value.startswith(("@", "%", "'", '"')) and not _is_literal(value):
        remedy = f"Text needs quotes: {name.strip()}='{value}'. {remedy}"
    where = source if source == "--gin_bindings" else f"{source}:{number}"
    return UserError(
        f"Gin binding '{line}' ({where})",
        expected="name.parameter = value, where value is a Python literal, @reference or %macro",
        got=f"a syntax error: {detail.rstrip('.')}",
        remedy=remedy,
    )


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def leaves(value: Any) -> Iterator[Any]:
    """Yields the innermost values of nested dicts, lists and tuples."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (*leaves(key), *leaves(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


T = TypeVar("T")

BUDGET = "train.total_env_steps"
# Name of the file in a run folder with the configuration that it used.
RUN_CONFIG = "operative_config.gin"

_scopes: set[str] = set()

# Bindings that may stay unused, see `_replaced_parts`.
_excused: set[str] = set()


def declare_scopes(*names: str) -> None:
    """Allows gin scopes, for example `eval` for `eval/make_env.num_envs`.

    Args:
      *names: Scopes that the calling module opens with `gin.config_scope`.
    """
    _scopes.update(names)


def package_gin_dir() -> pathlib.Path:
    """Returns the folder of the shipped gin files, in a wheel or a checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    shipped = package / "_gin_configs"
    return shipped if shipped.is_dir() else package.parent / "gin_configs"


def resolve(path: str, where: str = "--gin_file") -> GinFile:
    """Finds a gin file: relative to the working directory, then in the package.

    Args:
      path: A path, for example `ppo/tf_cartpole.gin`, or an address like `gs://bucket/mine.gin`.
      where: The place of the name, for the message.

    Returns:
      The existing file.

    Raises:
      UserError: There is no such file in either place.
    """
    if remote.is_remote(path):
        return _resolve_remote(path, where)
    places = [pathlib.Path.cwd() / path, package_gin_dir() / path]
    for place in places:
        if place.is_file():
            return place
    shipped = [
        p.relative_to(package_gin_dir()).as_posix() for p in package_gin_dir().rglob("*.gin")
    ]
    raise UserError(
        f"Gin file '{path}' ({where})",
        expected="a file in the working directory or in the package",
        got=f"none at {places[0]} nor at {places[1]}",
        remedy=did_you_mean(path, shipped) if shipped else "Give the path of an existing file.",
    )


def _resolve_remote(url: str, where: str) -> RemoteFile:
    remote.connect(url)
    if not remote.exists(url):
        raise UserError(
            f"Gin file '{url}' ({where})",
            expected="an existing file",
            got="no such file",
            remedy="Check the names of the file and the bucket.",
        )
    _let_gin_read()
    return RemoteFile(url)


@functools.cache
def _let_gin_read() -> None:
    """Makes gin open addresses."""
    gin.config.register_file_reader(
        lambda url: io.StringIO(_text_of(RemoteFile(url))), remote.is_remote
    )


def as_paths(files: Any) -> list[str]:
    """Returns one path or several, as a user passes them, as strings.

    Raises:
      UserError: For anything else, such as a workflow.
    """
    several = [files] if isinstance(files, str | os.PathLike) else files
    if isinstance(several, Sequence) and all(isinstance(f, str | os.PathLike) for f in several):
        return [os.fspath(file) for file in several]
    raise UserError(
        "gin_files",
        expected="the path of a gin file, or a list of such paths",
        got=repr(files),
        remedy="Pass a path such as 'ppo/tf_cartpole.gin'; a workflow trains with its own `learn`.",
    )


def read(
    files: Sequence[str], bindings: Sequence[str] = (), where: str = "--gin_file"
) -> list[Binding]:
    """Reads files and bindings without applying them; needs no TensorFlow.

    Args:
      files: Gin files, see `resolve`.
      bindings: Bindings, for example `train.total_env_steps=1000`.
      where: The place of the files' names, for messages.

    Returns:
      Every binding, in gin's order.

    Raises:
      UserError: A file is missing, or a line is malformed.
    """
    result = [b for path in files for b in read_file(resolve(path, where), resolve)]
    for text in bindings:
        result += read_binding(text)
    return result


def included(files: Sequence[str], where: str = "--gin_file") -> dict[str, GinFile]:
    """Returns gin files and the files that they include, by the path as written.

    Args:
      files: Gin files, see `resolve`, without circular includes.
      where: The place of the files' names, for messages.

    Raises:
      UserError: A file is missing, or a line is malformed.
    """
    result: dict[str, GinFile] = {}
    for name in files:
        result[name] = file = resolve(name, where)
        statements = _statements(_text_of(file), str(file))
        names = [s.filename for s in statements if isinstance(s, config_parser.IncludeStatement)]
        result.update(included(names, str(file)))
    return result


def imported(file: GinFile) -> set[str]:
    """Returns the names of the Python modules that a gin file imports itself."""
    statements = _statements(_text_of(file), str(file))
    return {s.module for s in statements if isinstance(s, config_parser.ImportStatement)}


def macro_names(bindings: Iterable[Binding]) -> set[str]:
    """Returns the names of the macros that bindings define or use."""
    bindings = list(bindings)
    used = {x.name for b in bindings for x in leaves(b.value) if isinstance(x, Macro)}
    return used | {b.key for b in bindings if not b.parameter}


def budget_binding(files: Sequence[str], bindings: Sequence[str], env_steps: int) -> str:
    """Returns the binding of a budget: of its macro where only schedules share the macro.

    These schedules then end with the budget. A macro that `bindings` set keeps its value.

    Args:
      files: Gin files, see `resolve`.
      bindings: Bindings, which override the files.
      env_steps: The budget.
    """
    by_key = {b.key: b for b in read(files, bindings)}
    macro = by_key[BUDGET].value if BUDGET in by_key else None
    sharing = [b for b in by_key.values() if macro in leaves(b.value)]
    tied = isinstance(macro, Macro) and all(
        b.key == BUDGET or is_schedule(b.selector) for b in sharing
    )
    if tied and macro.name in by_key and by_key[macro.name].source != "--gin_bindings":
        return f"{macro.name} = {env_steps!r}"
    return f"{BUDGET} = {env_steps!r}"


def is_schedule(selector: str) -> bool:
    """Whether a configurable is a schedule, by its name: `LinearSchedule`."""
    return selector.rpartition(".")[2].endswith("Schedule")


def parse(files: Sequence[str], bindings: Sequence[str] = (), modules: Iterable[str] = ()) -> None:
    """Clears gin and reads files, then bindings, strictly.

    Args:
      files: Gin files, see `resolve`; later ones override earlier ones.
      bindings: Bindings, for example `train.total_env_steps=1000`; they override the files.
      modules: Names of the modules that define the configurables; they are imported first.

    Raises:
      UserError: For any mistake in them; gin then has no bindings.
    """
    for module in modules:
        importlib.import_module(module)
    gin.clear_config()
    try:
        result = read(files, bindings)
        _check_names(result)
        _check_duplicates(result)
        _check_macros(result)
        _check_scopes(result)
        _apply([resolve(path) for path in files], bindings)
        gin_registry.inherit()
        check_types()
        _excused.clear()
        _excused.update(_replaced_parts(result))
    except BaseException:
        gin.clear_config()
        raise


def _apply(paths: Sequence[GinFile], bindings: Sequence[str]) -> None:
    """Makes gin read the checked files and bindings."""
    location = str(package_gin_dir())
    if location not in gin_registry.search_path():
        gin.add_config_file_search_path(location)
    before = logging.root.manager.disable
    # gin logs an error for every folder that lacks an included file.
    logging.disable(logging.ERROR)
    try:
        gin.parse_config_files_and_bindings(
            [str(path) for path in paths], list(bindings), finalize_config=False
        )
    except (ValueError, SyntaxError, OSError) as error:
        raise UserError(
            "Gin configuration",
            expected="files and bindings that gin accepts",
            got=str(error),
        ) from error
    finally:
        logging.disable(before)


def _check_names(bindings: Sequence[Binding]) -> None:
    """Checks that every configurable and parameter exists."""
    for binding in bindings:
        for leaf in leaves(binding.value):
            if isinstance(leaf, Reference):
                gin_registry.find(leaf.scoped_name.rpartition("/")[2], binding.where, "@")
        if binding.parameter and binding.selector != "macro":
            gin_registry.check_parameter(binding.selector, binding.parameter, binding.where)


def _check_duplicates(bindings: Sequence[Binding]) -> None:
    """Checks that no file and no list of --gin_bindings binds a parameter twice."""
    earlier: dict[tuple[str, str], Binding] = {}
    for binding in bindings:
        name = binding.key
        if binding.parameter and binding.selector != "macro":
            full = gin_registry.find(binding.selector, binding.where).selector
            name = f"{binding.scope}/{full}.{binding.parameter}"
        first = earlier.setdefault((binding.source, name), binding)
        # A file that two others include is read twice; the same line is no second binding.
        if first is not binding and (first.line != binding.line or first.source.startswith("--")):
            raise UserError(
                f"Gin binding {binding.key} ({binding.where})",
                expected="one value",
                got=f"a second one; the first is {first.value!r} ({first.where})",
            )


def _check_macros(bindings: Sequence[Binding]) -> None:
    """Checks that every %macro is defined, and every definition (an undotted binding) is used."""
    defined = {_macro_name(b): b for b in bindings if not b.parameter or b.selector == "macro"}
    used = {leaf.name: b for b in bindings for leaf in leaves(b.value) if isinstance(leaf, Macro)}
    for name, binding in used.items():
        if name not in defined and not gin_registry.is_constant(name):
            raise UserError(
                f"Gin macro %{name} in {binding.key} ({binding.where})",
                expected="a macro that is defined",
                got=f"no line '{name} = value'",
                remedy=did_you_mean(name, defined) if defined else f"Add '{name} = value'.",
            )
    for name, binding in defined.items():
        if name not in used:
            known = gin_registry.bindable_names()
            dotted = [full for full in known if full.endswith(f".{name}")]
            remedy = did_you_mean(name, dotted or known)
            if name in flags.FLAGS:
                remedy = f"It is a flag: --{name}={binding.value}."
            raise UserError(
                f"Gin binding {name} ({binding.where})",
                expected="name.parameter = value, or a macro that a value uses as %" + name,
                got=f"'{name}' without a dot, which is unused",
                remedy=remedy,
            )


def _macro_name(binding: Binding) -> str:
    return binding.scope if binding.selector == "macro" else binding.key


def _check_scopes(bindings: Sequence[Binding]) -> None:
    """Checks that code or a reference opens every bound scope, and that opened scopes are bound."""
    real = [b for b in bindings if b.parameter and b.selector != "macro"]
    bound = {part for b in real for part in b.scope.split("/") if part}
    opened: dict[str, Binding] = {}
    for binding in bindings:
        for leaf in leaves(binding.value):
            if isinstance(leaf, Reference):
                for part in leaf.scoped_name.split("/")[:-1]:
                    opened.setdefault(part, binding)
    for binding in real:
        for part in binding.scope.split("/"):
            if part and part not in _scopes and part not in opened:
                _raise_scope(part, f"Gin binding {binding.key} ({binding.where})", opened)
    for part, binding in opened.items():
        if part not in _scopes and part not in bound:
            _raise_scope(part, f"Gin reference in {binding.key} ({binding.where})", bound)


def _raise_scope(part: str, thing: str, others: Iterable[str]) -> None:
    known = sorted({*_scopes, *others})
    raise UserError(
        thing,
        expected="a scope that the program opens",
        got=f"scope '{part}'",
        remedy=did_you_mean(part, known) if known else "Leave the scope out.",
    )


def check_types() -> None:
    """Compares every bound value with the annotation of its parameter.

    A whole number like 1e5 is converted for an int parameter. References and unannotated parameters
    are left out.

    Raises:
      UserError: A value has another type.
    """
    for (scope, selector), parameters in gin_registry.bound().items():
        configurable = gin_registry.find(selector, "gin")
        for name, value in parameters.items():
            plain = gin_registry.without_references(value)
            if not gin_registry.is_plain(plain):
                continue
            expected = gin_registry.mismatch(configurable.wrapped, name, plain)
            is_integer = isinstance(plain, float) and plain.is_integer()
            if expected is not None and is_integer:
                if not gin_registry.mismatch(configurable.wrapped, name, int(plain)):
                    gin_registry.bind(scope, selector, name, int(plain))
                    continue
            if expected is not None:
                key = f"{configurable.name}.{name}"
                remedy = f"Write {key} = <{expected}>."
                if "Schedule" in expected:
                    remedy += f" A schedule is a reference: {key} = @LinearSchedule()."
                raise UserError(
                    f"Gin binding {scope + '/' if scope else ''}{key}",
                    expected=expected,
                    got=f"{plain!r} ({type(plain).__name__})",
                    remedy=remedy,
                )


def _replaced_parts(bindings: Sequence[Binding]) -> set[str]:
    """Returns the files' bindings of configurables that only overridden values refer to.

    A user who overrides `ModuleConfig.lr = @LinearSchedule()` of a shipped file, or of a run's
    `operative_config.gin`, with a number cannot remove the file's `LinearSchedule.start`. Bindings
    in the user's files or --gin_bindings must be used.
    """
    real = [b for b in bindings if b.parameter and b.selector != "macro"]
    last: dict[str, Binding] = {_full_name(b): b for b in real}
    replaced = [b for b in real if last[_full_name(b)] is not b]
    parts: set[str] = set()
    while replaced:
        values = [leaf for b in replaced for leaf in leaves(b.value)]
        referred = {
            gin_registry.find(leaf.scoped_name.rpartition("/")[2], "gin").selector
            for leaf in values
            if isinstance(leaf, Reference)
        }
        new = {
            name: b
            for name, b in last.items()
            if gin_registry.find(b.selector, "gin").selector in referred
            and _is_written(pathlib.Path(b.source))
            and name not in parts
        }
        parts.update(new)
        replaced = list(new.values())
    return parts


def _is_written(source: pathlib.Path) -> bool:
    """Whether tfrl wrote a file: a shipped file, or the configuration of a run."""
    return source.name == RUN_CONFIG or source.is_relative_to(package_gin_dir())


def _full_name(binding: Binding) -> str:
    selector = gin_registry.find(binding.selector, binding.where).selector
    return gin_registry.binding_name(binding.scope, selector, binding.parameter)


def call(configurable: Callable[..., T]) -> T:
    """Calls a configurable; gin passes its arguments.

    Raises:
      UserError: It, or a configurable that it refers to, lacks bindings; or their own error.
    """
    try:
        return configurable()
    except UserError as error:  # gin has appended its call chain
        kind = next(t for t in type(error).__mro__ if "__init__" not in vars(t) or t is UserError)
        user_error = kind(error.thing, expected=error.expected, got=error.got, remedy=error.remedy)
        raise user_error.with_traceback(error.__traceback__) from error.__cause__
    except (TypeError, RuntimeError) as error:
        missing = gin_registry.missing_bindings(error)
        if not missing:
            raise
        raise UserError(
            f"Gin binding{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            expected="a value, since there is no default",
            got="none in the gin files and bindings",
            remedy=f"Add {' and '.join(f'{name} = ...' for name in missing)}, or include a file "
            "that defines it.",
        ) from error


def check_used() -> None:
    """Checks that the program has used every binding; call it when everything is assembled.

    A file's bindings for a configurable that a later binding has replaced may stay unused.

    Raises:
      UserError: Bindings of configurables that were never called, or of parameters that the program
        always passes itself.
    """
    unused = [name for name in gin_registry.unused() if name not in _excused]
    if unused:
        raise UserError(
            f"Gin binding{'s' if len(unused) > 1 else ''} {', '.join(unused)}",
            expected="bindings that this run uses",
            got="bindings that it does not read",
            remedy="Remove them, or choose the component that they configure.",
        )
