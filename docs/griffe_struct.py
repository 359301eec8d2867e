"""Constructors and attributes of `tfrl.struct` dataclasses, bases included, for the reference."""

import inspect
import re

import griffe

_DECORATORS = ("tfrl.struct.logic_dataclass", "tfrl.struct.dataclass")


def _decorated(cls):
    return any(d.callable_path in _DECORATORS for d in cls.decorators)


def _fields(cls):
    """Yields the parameters that the class itself adds to the constructor."""
    for member in cls.members.values():
        if not member.is_attribute or member.annotation is None or "property" in member.labels:
            continue
        class_variable = "class-attribute" in member.labels
        if class_variable and "instance-attribute" not in member.labels:  # ClassVar
            continue
        if member.name.startswith("_") or "derived(" in str(member.value):
            continue
        kind = griffe.ParameterKind.keyword_only
        default = "..." if "field(" in str(member.value) else member.value
        yield griffe.Parameter(
            member.name, annotation=member.annotation, kind=kind, default=default
        )


def _attributes(cls):
    """Returns `{name: lines}` of the section of attributes of a docstring."""
    text = inspect.cleandoc(cls.docstring.value) if cls.docstring else ""
    section = re.search(r"^Attributes:\n((?:  .*\n?)+)", text, flags=re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^  (\w+):.*\n?(?:   +.*\n?)*", section[1], flags=re.MULTILINE)
    bodies = re.split(r"^(?=  \w+:)", section[1], flags=re.MULTILINE)[1:]
    return dict(zip(entries, (body.rstrip("\n") for body in bodies), strict=True))


class StructDataclasses(griffe.Extension):
    """Adds `__init__` to the classes that `tfrl.struct` decorates."""

    def on_package(self, *, pkg, **kwargs):
        """Called with the whole package."""
        self._visit(pkg)

    def _visit(self, owner):
        for member in list(owner.members.values()):
            if member.is_alias or not (member.is_module or member.is_class):
                continue
            if member.is_class and "__init__" not in member.members and _decorated(member):
                self._add_constructor(member)
            self._visit(member)

    def _add_constructor(self, cls):
        try:
            bases = [base for base in reversed(cls.mro()) if _decorated(base)]
        except (ValueError, griffe.GriffeError):
            bases = []
        found = {p.name: p for owner in (*bases, cls) for p in _fields(owner)}
        own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        parameters = griffe.Parameters(own, *found.values())
        init = griffe.Function("__init__", lineno=0, endlineno=0, parameters=parameters)
        cls.set_member("__init__", init)
        self._add_attributes(cls, bases, found)

    def _add_attributes(self, cls, bases, fields):
        """Lists the attributes of bases behind those of the class."""
        own = _attributes(cls)
        others = {}
        for base in reversed(bases):
            for name, entry in _attributes(base).items():
                if name in fields and name not in own:
                    others.setdefault(name, entry)
        if not others or cls.docstring is None:
            return
        text = inspect.cleandoc(cls.docstring.value).rstrip("\n")
        heading = "" if own else "\n\nAttributes:"
        # The section is the last one in these docstrings.
        cls.docstring.value = "\n".join([text + heading, *others.values()])
