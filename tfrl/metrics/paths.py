"""Names of metrics as paths in a nested dict."""

from typing import Any

from tfrl.errors import UserError

Path = tuple[str, ...]

# Added to the name of a metric for its throughput.
PER_SECOND = "_per_second"


def as_path(name: str | Path) -> Path:
    """Returns the path of a name; a string is a path of one part, slashes included.

    Raises:
      UserError: For anything but strings that are not empty.
    """
    path = (name,) if isinstance(name, str) else tuple(name) if _is_sequence(name) else ()
    if not path or not all(isinstance(part, str) and part for part in path):
        raise UserError(
            "metric name",
            expected="a string, or a tuple of strings, none of them empty",
            got=repr(name),
            remedy="Name it as in log('loss', x) or log(('policy_0', 'loss'), x).",
        )
    return path


def _is_sequence(name: Any) -> bool:
    return isinstance(name, tuple | list)


def join(path: Path) -> str:
    """Returns the path as messages show it."""
    return "/".join(path)


def rate_path(path: Path) -> Path:
    """Returns where the throughput of a metric is reported."""
    return (*path[:-1], path[-1] + PER_SECOND)


def begins(path: Path, prefix: Path) -> bool:
    """Tells whether a path is a prefix or lies under it."""
    return path[: len(prefix)] == prefix


def put(row: dict[str, Any], path: Path, value: Any) -> None:
    """Puts a value into a nested dict, making the dicts on the way."""
    for part in path[:-1]:
        row = row.setdefault(part, {})
    row[path[-1]] = value
