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
