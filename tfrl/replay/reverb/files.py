"""The folder of a saved buffer: the checkpoint of Reverb's tables beside what lives on our side."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfrl.errors import UserError
from tfrl.replay.reverb.packing import packs
from tfrl.storage.files import from_json

if TYPE_CHECKING:
    from tfrl.replay.reverb.maker import ReverbReplay

_VALUES, _SCHEMA = "values.json", 1
# Where the tables of a server in this process lie.
_TABLES = "tables"


def save(
    folder: str,
    replay: "ReverbReplay",
    values: dict[str, float],
    write_tables: Callable[[pathlib.Path], Any],
) -> None:
    """Writes a folder; one that is there is replaced when all is written.

    Args:
      folder: Its path.
      replay: The maker.
      values: Numbers of our side.
      write_tables: Writes Reverb's checkpoint into the path that it is given.
    """
    target = pathlib.Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (target.with_name(f".{target.name}.{part}") for part in ("new", "old"))
    for rest in (fresh, old):
        if rest.exists():
            shutil.rmtree(rest)
    fresh.mkdir()
    write_tables(fresh / _TABLES)
    content = {"schema": _SCHEMA, "tables": made_with(replay), "values": values}
    (fresh / _VALUES).write_text(json.dumps(content, indent=1))
    if target.exists():
        target.rename(old)
    fresh.rename(target)
    if old.exists():
        shutil.rmtree(old)


def restore(
    folder: str, replay: "ReverbReplay", packed: bool | None
) -> tuple[dict[str, float], pathlib.Path, bool]:
    """Reads what `save` wrote.

    Args:
      folder: Its path.
      replay: The maker.
      packed: Whether items must be packed there; None for either.

    Returns:
      The numbers, where Reverb's checkpoint is (it is not there for a server elsewhere), and
      whether its items are packed.

    Raises:
      UserError: For a folder that is none, or of a buffer that was made in another way.
    """
    root = pathlib.Path(folder)
    try:
        content = from_json((root / _VALUES).read_text())
        tables, values = dict(content["tables"]), content["values"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"replay buffer {folder}",
            expected="a folder that ReverbBuffer.save wrote",
            got=f"{type(error).__name__}: {error}",
            remedy="Restore another one.",
        ) from error
    for stored in tables.values():
        stored.setdefault("packed", False)  # before there were packed items
    found = any(stored["packed"] for stored in tables.values())
    either = packed is None and (packs(replay) or not found)
    form = replay.replace(packed=found) if either else replay
    _compare(folder, tables, made_with(form))
    return values, root / _TABLES, found


def made_with(replay: "ReverbReplay") -> dict[str, dict[str, Any]]:
    """Returns what the meaning of saved tables depends on, `{table: {argument: value}}`."""
    names = [n for n in replay.table_configs[0].__dataclass_fields__ if n != "name"]
    return {
        config.name: {
            **{n: getattr(config, n) for n in names},
            "discount": replay.discount,
            "packed": bool(replay.packed),
        }
        for config in replay.table_configs
    }


def _compare(folder: str, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    if stored.keys() != wanted.keys():
        raise UserError(
            "ReverbReplay.tables",
            expected=f"{', '.join(stored)}, as the buffer in {folder} was made with",
            got=", ".join(wanted),
            remedy="Make the buffer as it was when it was saved.",
        )
    for table, arguments in wanted.items():
        for name, value in arguments.items():
            if stored[table].get(name) != value:
                raise UserError(
                    f"ReverbReplay table {table!r}, {name}",
                    expected=f"{stored[table].get(name)!r}, as in the buffer in {folder}",
                    got=repr(value),
                    remedy="Make the buffer as it was when it was saved.",
                )
