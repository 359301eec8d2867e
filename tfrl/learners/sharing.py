"""Parameter groups that modules of a Learner have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError, did_you_mean
from tfrl.types import AgentState


def shared_groups(
    shared: Mapping[str, Sequence[str]], modules: Mapping[str, Any]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Reads who borrows what from whom.

    Args:
      shared: `{"owner/group": ["borrower/group", ...]}`; owners come first in the order of modules.
      modules: `{module_id: module}`.

    Returns:
      `{(borrower, group): (owner, group)}`.

    Raises:
      UserError: For other names, and owners that come later.
    """
    order = list(modules)
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for lender, borrowers in shared.items():
        for borrower in [borrowers] if isinstance(borrowers, str) else borrowers:
            (owner, _, lent), (taker, _, group) = lender.partition("/"), borrower.partition("/")
            known = owner in modules and taker in modules and lent and group
            if not known or order.index(owner) >= order.index(taker):
                raise UserError(
                    "shared",
                    expected="names module_id/group, the owner before those that borrow from it "
                    f"in the order of the modules {order}",
                    got=f"{lender!r}: {borrower!r}",
                    remedy="Write shared={'a/encoder': ['b/encoder']}.",
                )
            found[taker, group] = (owner, lent)
    return found


def check_groups(named: Mapping[str, tuple[AgentState, str]]) -> None:
    """Checks that modules have the groups that they are to share.

    Args:
      named: `{module_id: (state, group)}`.
    """
    unknown = {m: (state, g) for m, (state, g) in named.items() if g not in state.params}
    if unknown:
        raise UserError(
            "shared",
            expected="; ".join(
                f"a group of module {m!r}, out of {sorted(state.params)}"
                for m, (state, _) in unknown.items()
            ),
            got=", ".join(repr(f"{m}/{g}") for m, (_, g) in unknown.items()),
            remedy=" ".join(did_you_mean(g, state.params) for state, g in unknown.values()),
        )


def check_shared(
    module_id: str, shared: Mapping[str, tf.Variable], paths: Mapping[str, Any]
) -> None:
    """Checks that a borrowed group has the very leaves of the borrower's own.

    Args:
      module_id: The borrower.
      shared: `{path: variable}` of the owner's group.
      paths: `{path: value}` of the borrower's.
    """
    wrong = [
        f"{p} of shape {tuple(v.shape)}"
        for p, v in shared.items()
        if p not in paths or tuple(paths[p].shape) != tuple(v.shape)
    ]
    wrong += [f"none for {p}" for p in paths if p not in shared]
    if wrong:
        raise UserError(
            f"shared parameters of module {module_id!r}",
            expected="the leaves and shapes of its own group",
            got="; ".join(wrong),
            remedy="Share groups of equal networks only.",
        )
