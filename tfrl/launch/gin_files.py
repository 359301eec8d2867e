"""Gin files: where they are, and reading them so that no mistake passes in silence.

gin itself lets pass: undotted bindings (they become macros), misspelt scopes, duplicate bindings,
bindings that nothing reads, and values of the wrong type. Here each is an error that says where.
"""

import importlib
import logging
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import gin
from absl import flags

from tfrl.errors import UserError, did_you_mean
from tfrl.launch import gin_reader, gin_registry, gin_types

T = TypeVar("T")

_scopes: set[str] = set()

# Bindings that may go unread, see `_replaced_parts`.
_excused: set[str] = set()


def declare_scopes(*names: str) -> None:
    """Allows gin scopes, for example `eval` for `eval/make_env.num_envs`.

    Args:
      *names: Scopes that the calling module opens with `gin.config_scope`.
    """
    _scopes.update(names)


def package_gin_dir() -> pathlib.Path:
    """Returns the folder of the shipped gin files, of a wheel or of a checkout."""
    package = pathlib.Path(__file__).resolve().parents[1]
    shipped = package / "_gin_configs"
    return shipped if shipped.is_dir() else package.parent / "gin_configs"


def resolve(path: str, where: str = "--gin_file") -> pathlib.Path:
    """Finds a gin file: as it stands from the working directory, then in the package.

    Args:
      path: A path, for example `ppo/tf_cartpole.gin`.
      where: Who asks for it, for the message.

    Returns:
      The existing file.

    Raises:
      UserError: There is no such file in either place.
    """
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


def read(files: Sequence[str], bindings: Sequence[str] = ()) -> list[gin_reader.Binding]:
    """Reads files and bindings without applying them, which needs no TensorFlow.

    Args:
      files: Gin files, as `resolve` finds them.
      bindings: Bindings such as `train.total_env_steps=1000`.

    Returns:
      Every binding, in gin's order.

    Raises:
      UserError: A file is missing, or a line is malformed.
    """
    found = [b for path in files for b in gin_reader.read_file(resolve(path), resolve)]
    for text in bindings:
        found += gin_reader.read_binding(text)
    return found


def parse(files: Sequence[str], bindings: Sequence[str] = (), modules: Iterable[str] = ()) -> None:
    """Clears gin and reads files, then bindings, strictly.

    Args:
      files: Gin files, as `resolve` finds them; later ones win.
      bindings: Bindings such as `train.total_env_steps=1000`; they win over the files.
      modules: Names of the modules that define the configurables; they are imported first.

    Raises:
      UserError: Anything that the user got wrong; gin then holds no bindings at all.
    """
    for module in modules:
        importlib.import_module(module)
    gin.clear_config()
    try:
        found = read(files, bindings)
        _check_names(found)
        _check_duplicates(found)
        _check_macros(found)
        _check_scopes(found)
        _apply([resolve(path) for path in files], bindings)
        gin_registry.inherit()
        check_types()
        _excused.clear()
        _excused.update(_replaced_parts(found))
    except BaseException:
        gin.clear_config()
        raise


def _apply(paths: Sequence[pathlib.Path], bindings: Sequence[str]) -> None:
    """Lets gin itself read what has been checked."""
    location = str(package_gin_dir())
    if location not in gin_registry.search_path():
        gin.add_config_file_search_path(location)
    before = logging.root.manager.disable
    # gin logs an error for every place in which it looks for an include and does not find it.
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
            remedy="Change the line that it names.",
        ) from error
    finally:
        logging.disable(before)


def _check_names(found: Sequence[gin_reader.Binding]) -> None:
    """Every configurable and parameter exists."""
    for binding in found:
        for leaf in gin_reader.leaves(binding.value):
            if isinstance(leaf, gin_reader.Reference):
                gin_registry.find(leaf.scoped_name.rpartition("/")[2], binding.where, "@")
        if binding.parameter and binding.selector != "macro":
            gin_registry.check_parameter(binding.selector, binding.parameter, binding.where)


def _check_duplicates(found: Sequence[gin_reader.Binding]) -> None:
    """Nobody binds a parameter twice in one file or in one list of --gin_bindings."""
    seen: dict[tuple[str, str], gin_reader.Binding] = {}
    for binding in found:
        name = binding.key
        if binding.parameter and binding.selector != "macro":
            full = gin_registry.find(binding.selector, binding.where).selector
            name = f"{binding.scope}/{full}.{binding.parameter}"
        first = seen.setdefault((binding.source, name), binding)
        # A file that two others include is read twice; that is the same line, no second binding.
        if first is not binding and (first.line != binding.line or first.source.startswith("--")):
            raise UserError(
                f"Gin binding {binding.key} ({binding.where})",
                expected="one value",
                got=f"a second one; the first is {first.value!r} ({first.where})",
                remedy="Take one of them out.",
            )


def _check_macros(found: Sequence[gin_reader.Binding]) -> None:
    """Every %macro is defined, and every definition (an undotted binding) is used."""
    defined = {_macro_name(b): b for b in found if not b.parameter or b.selector == "macro"}
    used = {
        leaf.name: b
        for b in found
        for leaf in gin_reader.leaves(b.value)
        if isinstance(leaf, gin_reader.Macro)
    }
    for name, binding in used.items():
        if name not in defined and not gin_registry.is_constant(name):
            raise UserError(
                f"Gin macro %{name} in {binding.key} ({binding.where})",
                expected="a macro that some line defines",
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
                got=f"'{name}' without a dot, which nothing uses",
                remedy=remedy,
            )


def _macro_name(binding: gin_reader.Binding) -> str:
    return binding.scope if binding.selector == "macro" else binding.key


def _check_scopes(found: Sequence[gin_reader.Binding]) -> None:
    """Every scope is one that the code opens or that a reference opens, and the other way round."""
    real = [b for b in found if b.parameter and b.selector != "macro"]
    bound = {part for b in real for part in b.scope.split("/") if part}
    opened: dict[str, gin_reader.Binding] = {}
    for binding in found:
        for leaf in gin_reader.leaves(binding.value):
            if isinstance(leaf, gin_reader.Reference):
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

    A whole number such as 1e5 becomes the int that a parameter asks for.

    Raises:
      UserError: A value is of another type. References and unannotated parameters are left out.
    """
    for (scope, selector), parameters in gin_registry.bound().items():
        configurable = gin_registry.find(selector, "gin")
        for name, value in parameters.items():
            plain = gin_registry.without_references(value)
            if not gin_registry.is_plain(plain):
                continue
            expected = gin_types.mismatch(configurable.wrapped, name, plain)
            whole = isinstance(plain, float) and plain.is_integer()
            if expected is not None and whole:
                if not gin_types.mismatch(configurable.wrapped, name, int(plain)):
                    gin_registry.bind(scope, selector, name, int(plain))
                    continue
            if expected is not None:
                key = f"{configurable.name}.{name}"
                raise UserError(
                    f"Gin binding {scope + '/' if scope else ''}{key}",
                    expected=expected,
                    got=f"{plain!r} ({type(plain).__name__})",
                    remedy=f"Write {key} = <{expected}>.",
                )


def _replaced_parts(found: Sequence[gin_reader.Binding]) -> set[str]:
    """Returns the bindings, out of files, of what only replaced values refer to.

    Who replaces `ModuleConfig.lr = @LinearSchedule()` of a shipped file by a number cannot take the
    file's `LinearSchedule.start` out; what stands in a file of the user's, or in --gin_bindings,
    must be read.
    """
    real = [b for b in found if b.parameter and b.selector != "macro"]
    last: dict[str, gin_reader.Binding] = {_full_name(b): b for b in real}
    replaced = [b for b in real if last[_full_name(b)] is not b]
    parts: set[str] = set()
    while replaced:
        leaves = [leaf for b in replaced for leaf in gin_reader.leaves(b.value)]
        referred = {
            gin_registry.find(leaf.scoped_name.rpartition("/")[2], "gin").selector
            for leaf in leaves
            if isinstance(leaf, gin_reader.Reference)
        }
        new = {
            name: b
            for name, b in last.items()
            if gin_registry.find(b.selector, "gin").selector in referred
            and pathlib.Path(b.source).is_relative_to(package_gin_dir())
            and name not in parts
        }
        parts.update(new)
        replaced = list(new.values())
    return parts


def _full_name(binding: gin_reader.Binding) -> str:
    selector = gin_registry.find(binding.selector, binding.where).selector
    return gin_registry.binding_name(binding.scope, selector, binding.parameter)


def call(configurable: Callable[..., T]) -> T:
    """Calls a configurable whose arguments gin gives.

    Raises:
      UserError: It, or one that it refers to, lacks bindings.
    """
    try:
        return configurable()
    except (TypeError, RuntimeError) as error:
        missing = gin_registry.missing_bindings(error)
        if not missing:
            raise
        raise UserError(
            f"Gin binding{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            expected="a value, since there is no default",
            got="none in the gin files and bindings",
            remedy=f"Add {' and '.join(f'{name} = ...' for name in missing)}, or include a file "
            "that does.",
        ) from error


def check_used() -> None:
    """Checks that the program has read every binding; call it when everything is assembled.

    What a file binds for a part that a later binding has replaced may go unread.

    Raises:
      UserError: Bindings of configurables that were never called, or of parameters to which the
        program itself always gave a value.
    """
    unused = [name for name in gin_registry.unused() if name not in _excused]
    if unused:
        raise UserError(
            f"Gin binding{'s' if len(unused) > 1 else ''} {', '.join(unused)}",
            expected="bindings that this run uses",
            got="nothing that reads them",
            remedy="Take them out, or choose the part that they configure.",
        )
