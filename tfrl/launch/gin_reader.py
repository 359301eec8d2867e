"""Reads the text of gin files and bindings into plain records, with the place of each."""

import ast
import dataclasses
import io
import pathlib
import tokenize
from collections.abc import Callable, Iterator
from typing import Any

from gin import config_parser

from tfrl.errors import UserError
from tfrl.loading import import_code

# Finds an included file: (path as written, place of the line) -> existing file.
Resolve = Callable[[str, str], pathlib.Path]


@dataclasses.dataclass(frozen=True)
class Reference:
    """`@scope/name` or `@scope/name()` in a value."""

    scoped_name: str


@dataclasses.dataclass(frozen=True)
class Macro:
    """`%name` in a value."""

    name: str


class _Delegate(config_parser.ParserDelegate):
    """Builds the two classes above where gin would build its own references."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        """Keeps the name as written; `evaluate` does not matter for checking."""
        return Reference(scoped_configurable_name)

    def macro(self, macro_name: str) -> Macro:
        """Keeps the name as written."""
        return Macro(macro_name)


@dataclasses.dataclass(frozen=True)
class Binding:
    """One `scope/selector.parameter = value`, and where it stands."""

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
        """The left-hand side as the user may have written it."""
        name = f"{self.selector}.{self.parameter}" if self.parameter else self.selector
        return f"{self.scope}/{name}" if self.scope else name


def read_file(
    path: pathlib.Path, resolve: Resolve, parents: tuple[pathlib.Path, ...] = ()
) -> Iterator[Binding]:
    """Yields the bindings of a file and of what it includes, in gin's order.

    Args:
      path: An existing gin file.
      resolve: Finds the files that it includes.
      parents: The files that include this one.

    Yields:
      Every binding, where it stands.

    Raises:
      UserError: Syntax errors, missing or circular includes, failing imports.
    """
    if path in parents:
        raise UserError(
            f"Gin file {path}",
            expected="files that do not include each other in a circle",
            got=" -> ".join(p.name for p in (*parents, path)),
            remedy="Take one of the include lines out.",
        )
    for statement in _statements(_text_of(path), str(path)):
        where = f"{path}:{statement.location.line_num}"
        if isinstance(statement, config_parser.IncludeStatement):
            included = resolve(statement.filename, where)
            yield from read_file(included, resolve, (*parents, path))
        else:
            yield from _to_bindings(statement, str(path), where)


def _text_of(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"Gin file {path}",
            expected="a text file (UTF-8) that can be read",
            got=str(error),
            remedy="Mend it, or put back a copy of it.",
        ) from error


def read_binding(text: str) -> list[Binding]:
    """Reads one value of --gin_bindings.

    Args:
      text: `name.parameter=value`.

    Returns:
      Its bindings; one, unless the text has several lines.

    Raises:
      UserError: The text is not of that form.
    """
    if "=" not in text:
        raise UserError(
            f"Gin binding '{text}'",
            expected="name.parameter=value",
            got="no '='",
            remedy="Write for example --gin_bindings='train.total_env_steps=100000'.",
        )
    found = []
    for statement in _statements(text, "--gin_bindings"):
        found += list(_to_bindings(statement, "--gin_bindings", "--gin_bindings"))
    return found


def _to_bindings(statement: Any, source: str, where: str) -> Iterator[Binding]:
    """Turns a statement of the parser into a binding; imports what it asks to import."""
    if isinstance(statement, config_parser.ImportStatement):
        try:
            import_code(statement.module, f"Gin import of {statement.module} ({where})")
        except ImportError as error:
            raise UserError(
                f"Gin import of {statement.module} ({where})",
                expected="a module that can be imported",
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
    """Parses gin text; syntax errors become one paragraph."""
    try:
        yield from config_parser.ConfigParser(io.StringIO(text), _Delegate())
    except (SyntaxError, tokenize.TokenError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise _syntax_error(text, source, error) from error


def _syntax_error(text: str, source: str, error: Exception) -> UserError:
    detail, line, number = str(error.args[0]).split("\n")[0], text, 1
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
