"""Transitions that come as a dict of columns."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.types import Nest, Transition

# What every transition says, and what one may say besides.
COLUMNS = ("obs", "action", "reward", "next_obs", "discount")
_MORE = ("extras", "weight", "index", "mask")


@struct.dataclass
class MaskedTransition(Transition):
    """Transitions of which some do not count.

    Attributes:
      mask: bool `[N]`; False for a row that does not count, None where all do.
    """

    mask: tf.Tensor | None = None


def transition_of(
    owner: str, columns: Mapping[str, Nest], needed: tuple[str, ...] = COLUMNS
) -> MaskedTransition:
    """Turns a dict of columns into transitions; other columns are left out.

    Args:
      owner: What learns from them, for messages.
      columns: By the names of the fields of `Transition`.
      needed: Those that must be there; others are None.

    Raises:
      UserError: For columns that are missing, all of which it names.
    """
    missing = [name for name in needed if name not in columns]
    if missing:
        raise UserError(
            f"the batch of {owner}",
            expected=f"the columns {', '.join(needed)}",
            got=f"{', '.join(sorted(map(str, columns)))}, without {', '.join(missing)}",
            remedy="Name the columns as the fields of tfrl.types.Transition.",
        )
    known: dict[str, Any] = {name: columns.get(name) for name in (*COLUMNS, *_MORE)}
    return MaskedTransition(**known)


def check_rows(owner: str, batch: Any, **specs: Nest) -> None:
    """Raises a UserError for columns whose rows are not as an agent's specs say.

    Args:
      owner: What learns from them, for messages.
      batch: A `Transition`, or what has its fields; those that are None are not looked at.
      **specs: The nest of specs of a row, by field.
    """
    for name, spec in specs.items():
        rows = getattr(batch, name)
        if rows is None:
            continue
        want = {path: tuple(s.shape) for path, s in struct.paths(spec).items()}
        have = {path: tuple(x.shape[1:]) for path, x in struct.paths(rows).items()}
        for path in sorted(want.keys() | have.keys()):
            if want.get(path) != have.get(path):
                raise UserError(
                    f"the batch of {owner}, {name if path == '.' else f'{name}/{path}'}",
                    expected=_rows_of(want.get(path)),
                    got=_rows_of(have.get(path)),
                    remedy="Give rows of the specs that the agent was made with.",
                )


def _rows_of(shape: tuple[int | None, ...] | None) -> str:
    return "nothing of this name" if shape is None else f"rows of shape {list(shape)}"
