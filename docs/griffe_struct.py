"""Constructors of `tfrl.struct` dataclasses for the API reference, with the fields of all bases."""

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
