"""Checks of the settings of agents that learn from replayed transitions."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, networks, struct
from tfrl.agents import network_checks
from tfrl.agents.actor_critic import numbers as numbers_lib
from tfrl.agents.actor_critic.numbers import Bound
from tfrl.errors import UserError
from tfrl.types import Nest, Transition

# Fields of every transition, and optional ones.
COLUMNS = ("obs", "action", "reward", "next_obs", "discount")
_MORE = ("extras", "weight", "index", "mask")
_TYPICAL = "Typical: discount 0.99, tau 0.005 (1 for a copy), obs_clip 10."


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
      owner: The name of the learning agent, for messages.
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
    """Raises a UserError for columns whose rows do not have the shapes of an agent's specs.

    Args:
      owner: The name of the learning agent, for messages.
      batch: A `Transition`, or a record with its fields; those that are None are not checked.
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


def check_number(owner: str, name: str, number: Any, bound: Bound) -> None:
    """Raises a UserError for a field `owner.name` that is no finite number within its bounds."""
    numbers_lib.check_number(owner, name, number, bound, f"Give one finite number. {_TYPICAL}")


def check_count(owner: str, name: str, number: Any, high: int | None = None) -> None:
    """Raises a UserError for a field `owner.name` that is no whole number from 1 to `high`."""
    checks.at_least(f"{owner}.{name}", number, 1, maximum=high, remedy="Give for example 1.")


def check_flag(owner: str, name: str, value: Any) -> None:
    """Raises a UserError for a field `owner.name` that is no bool, such as "no"."""
    if isinstance(value, bool | np.bool_):
        return
    raise UserError(
        f"{owner}.{name}",
        expected="True or False",
        got=repr(value),
        remedy="Give one of the two, without quotes.",
    )


def check_flags(agent: Any) -> None:
    """Raises a UserError for the first field of an agent that is declared a bool and is none."""
    for field in dataclasses.fields(agent):
        if field.type in (bool, "bool"):
            check_flag(type(agent).__name__, field.name, getattr(agent, field.name))


def check_unused(owner: str, given: str, unused: dict[str, Any]) -> None:
    """Raises a UserError for the first of `{field: value}` whose value is not None or False.

    Args:
      owner: The name of the agent's class.
      given: The argument that replaces the fields, with its verb: "a torso is".
      unused: Fields that would have no effect.
    """
    for name, value in unused.items():
        # False, NumPy's too; a 0 counts as an argument.
        off = isinstance(value, bool | np.bool_) and not value
        if value is not None and not off:
            raise UserError(
                f"{owner}.{name}",
                expected=f"its default where {given} given",
                got=repr(value),
                remedy="It would have no effect; put it into what is given, or leave it out.",
            )


def check_torso(owner: str, name: str, torso: Any, example: str) -> None:
    """Raises a UserError unless a field `owner.name` is None or a torso.

    Args:
      owner: The name of the agent's class.
      name: The field.
      torso: The argument.
      example: A torso that fits, as code.
    """
    if torso is None or isinstance(torso, networks.Torso):
        return
    raise UserError(
        f"{owner}.{name}",
        expected="a tfrl.networks torso, or None",
        got=type(torso).__name__,
        remedy=network_checks.origin_remedy(torso, name) or f"Give for example {example}.",
    )


def _check_network(owner: str, name: str, network: Any, discrete: bool) -> None:
    if network is None:
        return
    if not isinstance(network, networks.Network):
        remedy = network_checks.origin_remedy(network, name, discrete)
        raise UserError(
            f"{owner}.{name}",
            expected="a tfrl.networks network, or None",
            got=type(network).__name__,
            remedy=remedy or "See docs/custom_network.md.",
        )
    if network.recurrent:
        raise UserError(
            f"{owner}.{name}",
            expected="a network without memory",
            got=f"{type(network).__name__}, which has one",
            remedy=f"{owner} learns from single steps; PPO and A2C train policies with memory.",
        )


def check_torsos(agent: Any) -> None:
    """Raises a UserError unless torsos and networks of actor and critics fit their settings.

    Args:
      agent: An agent with `actor_torso`, `critic_torso`, `actor_network`, `critic_network`,
        `hidden` and `obs_key`.
    """
    owner = type(agent).__name__
    for part in ("actor", "critic"):
        network = getattr(agent, f"{part}_network")
        _check_network(owner, f"{part}_network", network, getattr(agent, "discrete", False))
        if network is not None:
            unused = {f"{part}_torso": getattr(agent, f"{part}_torso")}
            check_unused(owner, f"{part}_network is", unused)
    example = "make_torso(env.obs_spec, hidden=(256, 256))"
    check_torso(owner, "actor_torso", agent.actor_torso, example)
    example = f"StateActionTorso(encoder={example}, body=MLP(hidden=(256,)))"
    check_torso(owner, "critic_torso", agent.critic_torso, example)
    parts = (agent.actor_torso or agent.actor_network, agent.critic_torso or agent.critic_network)
    if all(part is not None for part in parts):
        unused = {"hidden": agent.hidden, "obs_key": agent.obs_key}
        torsos = agent.actor_torso is not None and agent.critic_torso is not None
        what = "a torso" if torsos else "a torso or network"
        check_unused(owner, f"{what} for the actor and one for the critics are", unused)
    hidden = agent.hidden
    whole = isinstance(hidden, tuple | list)
    if hidden is not None and not (whole and all(type(h) is int and h >= 1 for h in hidden)):
        raise UserError(
            f"{owner}.hidden",
            expected="None or a tuple of sizes, each an int of at least 1",
            got=repr(hidden),
            remedy="(256, 256) makes two layers, (256,) one.",
        )
