"""Which module acts for which agent, and whether they fit."""

from collections.abc import Callable, Mapping
from typing import Any

from tfrl import struct
from tfrl.agents.core import Agent
from tfrl.errors import UserError, did_you_mean
from tfrl.types import Nest

# agent_id -> module_id; None for one module for all, or one of each agent's own name.
PolicyMapping = Callable[[str], str] | Mapping[str, str] | None


def map_agents(
    obs_spec: Nest, action_spec: Nest, policies: Mapping[str, Any], mapping: PolicyMapping
) -> tuple[dict[str, tuple[str, ...]], dict[str, Agent]]:
    """Maps agents to modules and makes the modules that are given as functions.

    Args:
      obs_spec: `{agent_id: nest of specs}`.
      action_spec: `{agent_id: nest of specs}`.
      policies: `{module_id: agent or function of obs_spec and action_spec}`.
      mapping: See `PolicyMapping`.

    Returns:
      `{module_id: its agent ids}` and `{module_id: agent}`, in the order of `policies`.

    Raises:
      UserError: For specs that are not keyed by agent id, agents without a module, unknown modules,
        modules without an agent, and specs that differ among the agents of a module or from the
        module's own. Each names all that are wrong.
    """
    _check_specs(obs_spec, action_spec)
    if not isinstance(policies, Mapping) or not policies:
        raise UserError(
            "MultiAgent.policies",
            expected="a dict {module_id: agent} with at least one item",
            got=repr(policies) if isinstance(policies, Mapping) else type(policies).__name__,
            remedy="Give for example policies={'shared': PPO}.",
        )
    members = _members(tuple(obs_spec), tuple(policies), mapping)
    modules = {}
    for m, ids in members.items():
        _check_equal(m, ids, obs_spec, action_spec)
        given, first = policies[m], ids[0]
        made = given
        if not isinstance(given, Agent) and callable(given):
            made = given(obs_spec=obs_spec[first], action_spec=action_spec[first])
        _check_module(m, made, first, obs_spec[first], action_spec[first])
        modules[m] = made
    return members, modules


def _check_specs(obs_spec: Nest, action_spec: Nest) -> None:
    for name, spec in (("obs_spec", obs_spec), ("action_spec", action_spec)):
        if not isinstance(spec, Mapping) or not spec:
            raise UserError(
                f"MultiAgent.{name}",
                expected="a dict of specs keyed by agent id",
                got=repr(spec),
                remedy="Use an environment with several agents (tfrl.envs.MultiAgentEnv); for one "
                "agent, use the module itself.",
            )
    if set(obs_spec) != set(action_spec):
        raise UserError(
            "MultiAgent.action_spec",
            expected=f"the agents of obs_spec, {', '.join(sorted(obs_spec))}",
            got=", ".join(sorted(action_spec)),
            remedy="Give both specs of the same environment.",
        )


def _members(
    agent_ids: tuple[str, ...], module_ids: tuple[str, ...], mapping: PolicyMapping
) -> dict[str, tuple[str, ...]]:
    """`{module_id: its agents}`."""
    chosen = {a: _module_of(a, module_ids, mapping) for a in agent_ids}
    missing = [a for a, m in chosen.items() if m is None]
    if missing:
        raise UserError(
            "MultiAgent.policy_mapping_fn",
            expected=f"a module for every agent, {', '.join(agent_ids)}",
            got=f"none for {', '.join(missing)}",
            remedy=f"Map them to one of {', '.join(module_ids)}.",
        )
    unknown = {a: m for a, m in chosen.items() if m not in module_ids}
    if unknown:
        listed = ", ".join(f"{m!r} for {a}" for a, m in unknown.items())
        raise UserError(
            "MultiAgent.policy_mapping_fn",
            expected=f"ids of modules, {', '.join(module_ids)}",
            got=listed,
            remedy=did_you_mean(str(next(iter(unknown.values()))), module_ids),
        )
    members = {m: tuple(a for a in agent_ids if chosen[a] == m) for m in module_ids}
    idle = [m for m, ids in members.items() if not ids]
    if idle:
        raise UserError(
            "MultiAgent.policies",
            expected="policies that act for some agent",
            got=f"none for {', '.join(idle)}",
            remedy="Map an agent to them, or leave them out.",
        )
    return members


def _module_of(agent_id: str, module_ids: tuple[str, ...], mapping: PolicyMapping) -> str | None:
    if mapping is None:
        return module_ids[0] if len(module_ids) == 1 else agent_id
    if isinstance(mapping, Mapping):
        return mapping.get(agent_id)
    if callable(mapping):
        return mapping(agent_id)
    raise UserError(
        "MultiAgent.policy_mapping_fn",
        expected="a function agent_id -> module_id, or a dict",
        got=repr(mapping),
        remedy="Give for example policy_mapping_fn={'agent_0': 'shared', 'agent_1': 'shared'}.",
    )


def _check_equal(m: str, ids: tuple[str, ...], obs_spec: Nest, action_spec: Nest) -> None:
    """The agents of a module must see and do things of one shape."""
    for name, spec in (("observation", obs_spec), ("action", action_spec)):
        leaves = {a: struct.paths(spec[a]) for a in ids}
        others = [a for a in ids if leaves[a] != leaves[ids[0]]]
        if others:
            raise UserError(
                f"module {m!r}",
                expected=f"agents with one {name} spec, that of {ids[0]}: {leaves[ids[0]]}",
                got="; ".join(f"{a}: {leaves[a]}" for a in others),
                remedy="Map agents that differ to modules of their own, or make them alike by a "
                "wrapper.",
            )


def _check_module(m: str, made: Any, agent_id: str, obs_spec: Nest, action_spec: Nest) -> None:
    if not isinstance(made, Agent):
        raise UserError(
            f"module {m!r}",
            expected="an agent, or a function of obs_spec and action_spec that makes one",
            got=type(made).__name__,
            remedy="Give for example policies={'shared': PPO}.",
        )
    for name, spec in (("obs_spec", obs_spec), ("action_spec", action_spec)):
        own = getattr(made, name)
        if struct.paths(own) != struct.paths(spec):
            raise UserError(
                f"module {m!r}: {name}",
                expected=f"that of {agent_id}, {struct.paths(spec)}",
                got=str(struct.paths(own)),
                remedy="Make the module for the environment's agents; a class, such as PPO, is "
                "made for them when it is given itself.",
            )
