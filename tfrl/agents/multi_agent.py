"""Several policies in one environment: a joint agent for rollouts, one module per policy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.core import Agent, ExternalUpdate, PolicyParameters, Update
from tfrl.envs.multi_agent import agent_flags
from tfrl.errors import UserError, did_you_mean
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory

# agent_id -> module_id; None for one shared module, or modules named after the agents.
PolicyMapping = Callable[[str], str] | Mapping[str, str] | None
States = dict[str, AgentState]


def map_agents(
    obs_spec: Nest, action_spec: Nest, policies: Mapping[str, Any], mapping: PolicyMapping
) -> tuple[dict[str, tuple[str, ...]], dict[str, Agent]]:
    """Maps agents to modules and constructs modules given as functions.

    Args:
      obs_spec: `{agent_id: nest of specs}`.
      action_spec: `{agent_id: nest of specs}`.
      policies: `{module_id: agent or function of obs_spec and action_spec}`.
      mapping: See `PolicyMapping`.

    Returns:
      `{module_id: its agent ids}` and `{module_id: agent}`, in the order of `policies`.

    Raises:
      UserError: For specs that are not keyed by agent id, agents without a module, unknown modules,
        modules without an agent, and specs that differ among a module's agents or from the module's
        own. Each error lists all problems.
    """
    _check_specs(obs_spec, action_spec)
    if not isinstance(policies, Mapping) or not policies:
        raise UserError(
            "MultiAgent.policies",
            expected="a dict {module_id: agent} with at least one item",
            got=repr(policies) if isinstance(policies, Mapping) else type(policies).__name__,
            remedy="Pass for example policies={'shared': PPO}.",
        )
    members = _members(tuple(obs_spec), tuple(policies), mapping)
    modules = {}
    for m, ids in members.items():
        _check_equal(m, ids, obs_spec, action_spec)
        policy, first = policies[m], ids[0]
        agent = policy
        if not isinstance(policy, Agent) and callable(policy):
            agent = policy(obs_spec=obs_spec[first], action_spec=action_spec[first])
        _check_module(m, agent, first, obs_spec[first], action_spec[first])
        modules[m] = agent
    return members, modules


def _check_specs(obs_spec: Nest, action_spec: Nest) -> None:
    for name, spec in (("obs_spec", obs_spec), ("action_spec", action_spec)):
        if not isinstance(spec, Mapping) or not spec:
            raise UserError(
                f"MultiAgent.{name}",
                expected="a dict of specs keyed by agent id",
                got=repr(spec),
                remedy="Use an environment with several agents (tfrl.envs.MultiAgentEnv); for a "
                "single agent, use the module itself.",
            )
    if set(obs_spec) != set(action_spec):
        raise UserError(
            "MultiAgent.action_spec",
            expected=f"the agents of obs_spec, {', '.join(sorted(obs_spec))}",
            got=", ".join(sorted(action_spec)),
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
            got=f"no module for {', '.join(missing)}",
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
            expected="policies that act for at least one agent",
            got=f"no agent for {', '.join(idle)}",
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
        remedy="Pass for example policy_mapping_fn={'agent_0': 'shared', 'agent_1': 'shared'}.",
    )


def _check_equal(m: str, ids: tuple[str, ...], obs_spec: Nest, action_spec: Nest) -> None:
    """Checks that the agents of a module have equal specs."""
    for name, spec in (("observation", obs_spec), ("action", action_spec)):
        leaves = {a: struct.paths(spec[a]) for a in ids}
        others = [a for a in ids if leaves[a] != leaves[ids[0]]]
        if others:
            raise UserError(
                f"module {m!r}",
                expected=f"agents with the {name} spec of {ids[0]}: {leaves[ids[0]]}",
                got="; ".join(f"{a}: {leaves[a]}" for a in others),
                remedy="Map agents with different specs to separate modules, or unify the specs "
                "with a wrapper.",
            )


def _check_module(m: str, agent: Agent, agent_id: str, obs_spec: Nest, action_spec: Nest) -> None:
    if not isinstance(agent, Agent):
        raise UserError(
            f"module {m!r}",
            expected="an agent, or a function of obs_spec and action_spec that returns one",
            got=type(agent).__name__,
            remedy="Pass for example policies={'shared': PPO}.",
        )
    for name, spec in (("obs_spec", obs_spec), ("action_spec", action_spec)):
        own = getattr(agent, name)
        if struct.paths(own) != struct.paths(spec):
            raise UserError(
                f"module {m!r}: {name}",
                expected=f"the spec of {agent_id}, {struct.paths(spec)}",
                got=str(struct.paths(own)),
                remedy="Create the module for the environment's agents, or pass its class, such "
                "as PPO.",
            )


@struct.logic_dataclass
class MultiAgent(Agent):
    """Lets the policies of several modules act in one environment with several agents.

    A policy is an ordinary agent, such as `PPO`; `policy_mapping_fn` assigns a policy to each
    agent. One module for all agents is a shared policy, one per agent is independent learning
    (IPPO: de Witt et al. 2020, https://arxiv.org/abs/2011.09533). A module processes its agents as
    one batch. The state is `{module_id: AgentState}`; a Learner of `modules` trains it with the
    batch of `learner_batch`.

    Attributes:
      obs_spec: `{agent_id: nest of specs}`, the environment's.
      action_spec: `{agent_id: nest of specs}`, the environment's.
      policies: `{module_id: agent}`; or functions (such as the class) that make the agent from the
        `obs_spec` and `action_spec` of its agents.
      policy_mapping_fn: A function agent_id -> module_id, or a dict; None maps every agent to the
        only policy, or to the policy with the agent's name.
      env_extra_fields: The `info` fields for `learner_batch`: the agents that act in a step. () if
        all agents end together and the environment has no `info["agents"]`.
      members: `{module_id: ids of its agents}`.
      modules: `{module_id: agent}`, the policies.
    """

    obs_spec: Nest
    action_spec: Nest
    policies: Mapping[str, Any]
    policy_mapping_fn: PolicyMapping = None
    env_extra_fields: tuple[str, ...] = ("agents",)
    members: Mapping[str, tuple[str, ...]] = struct.derived()
    modules: Mapping[str, Agent] = struct.derived()

    def __post_init__(self) -> None:
        """Maps agents to modules, makes the modules and checks that they fit."""
        self.members, self.modules = map_agents(
            self.obs_spec, self.action_spec, self.policies, self.policy_mapping_fn
        )

    @property
    def epochs_and_minibatches(self) -> tuple[int, int]:  # type: ignore[override]
        """The policies' value if all agree, else an agent's default."""
        asked = {module.epochs_and_minibatches for module in self.modules.values()}
        return asked.pop() if len(asked) == 1 else Agent.epochs_and_minibatches

    @property
    def screen_metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """The metrics of the first module."""
        module_id, module = next(iter(self.modules.items()))
        return tuple(f"{module_id}/{name}" for name in module.screen_metrics)

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """The agents, in the order of `obs_spec`."""
        return tuple(self.obs_spec)

    def module_of(self, agent_id: str) -> str:
        """Returns the id of the module that acts for an agent."""
        return next(m for m, ids in self.members.items() if agent_id in ids)

    # State.

    def init(self, key: tf.Tensor) -> States:  # type: ignore[override]
        """Makes fresh states, `{module_id: AgentState}`."""
        return {m: p.init(seeding.stream(key, m)) for m, p in self.modules.items()}

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns `{agent_id: recurrent state [B, ...]}` at an episode start, or None."""
        carries = {}
        for m, ids in self.members.items():
            initial = getattr(self.modules[m], "initial_carry", None)
            carry = None if initial is None else initial(batch_size)
            if carry is not None:
                carries.update(dict.fromkeys(ids, carry))
        return carries or None

    # Acting.

    def compute_actions(  # type: ignore[override]
        self, state: States, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns exploring actions of every policy.

        Args:
          state: `{module_id: AgentState}`.
          obs: `{agent_id: nest [B, ...]}`.
          key: int32 [2].
          carry: `{agent_id: recurrent state}`, or None.

        Returns:
          Actions, carries and extras, each a dict keyed by agent id.
        """
        return self._act("compute_actions", state, obs, key, carry)

    def evaluate_actions(  # type: ignore[override]
        self, state: States, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns greedy actions. Arguments and result as `compute_actions`."""
        return self._act("evaluate_actions", state, obs, key, carry)

    @property
    def has_distribution(self) -> bool:
        """Whether every policy has `policy_parameters`."""
        return all(module.has_distribution for module in self.modules.values())

    def policy_parameters(  # type: ignore[override]
        self, state: States, obs: Nest, carry: Nest = None
    ) -> tuple[PolicyParameters, Nest]:
        """Returns the parameters of every policy, with paths and carry by agent id."""
        result: PolicyParameters = {}
        carries = {}
        for agent_id in sorted(self.action_spec):
            m = self.module_of(agent_id)
            before = None if carry is None else carry.get(agent_id)
            each, after = self.modules[m].policy_parameters(state[m], obs[agent_id], before)
            for path, parameters in each.items():
                result[agent_id if path == "." else f"{agent_id}/{path}"] = parameters
            if after is not None:
                carries[agent_id] = after
        return result, carries or None

    def _act(
        self, method: str, state: States, obs: Nest, key: tf.Tensor, carry: Nest
    ) -> ActionOutput:
        actions: dict[str, Nest] = {}
        carries: dict[str, Nest] = {}
        extras: dict[str, Nest] = {}
        for m, ids in self.members.items():
            before = None
            if carry is not None and ids[0] in carry:
                before = _side_by_side([carry[a] for a in ids], axis=0)
            output = getattr(self.modules[m], method)(
                state[m],
                _side_by_side([obs[a] for a in ids], axis=0),  # [n B, ...]
                seeding.stream(key, m),
                before,
            )
            for results, nest in (
                (actions, output.action),
                (carries, output.carry),
                (extras, output.extras),
            ):
                if nest is not None:
                    results.update(zip(ids, _split_rows(nest, len(ids)), strict=True))
        return ActionOutput(action=actions, carry=carries or None, extras=extras or None)

    # Learning.

    @property
    def updates(self) -> tuple[Update | ExternalUpdate, ...]:
        """The updates of all modules; a Learner takes them from `modules`."""
        return tuple(u for p in self.modules.values() for u in p.updates)

    def learner_batch(  # type: ignore[override]
        self, state: States, trajectory: Trajectory
    ) -> tuple[dict[str, Nest], dict[str, tf.Tensor]]:
        """Turns joint experience `[T, B, ...]` into the batch of each module.

        Returns:
          `{module_id: rows}` of the trained modules, with the rows of all agents of a module in one
          batch; and `{"<module_id>/<metric>": scalar}`.
        """
        batches, metrics = {}, {}
        for m, view in self.views(trajectory).items():
            if self.modules[m].updates:
                batches[m], reported = self.modules[m].learner_batch(state[m], view)
                metrics.update({f"{m}/{name}": x for name, x in reported.items()})
        return batches, metrics

    def update_normalizer(self, state: States, trajectory: Trajectory) -> States:  # type: ignore[override]
        """Merges the observations of the agents of each module into its statistics."""
        views = self.views(trajectory)
        return {
            m: module.update_normalizer(state[m], views[m]) for m, module in self.modules.items()
        }

    def count_outliers(self, state: States, trajectory: Trajectory) -> tf.Tensor | None:  # type: ignore[override]
        """Returns the number of values that `update_normalizer` clips."""
        views = self.views(trajectory)
        counts = [module.count_outliers(state[m], views[m]) for m, module in self.modules.items()]
        counts = [count for count in counts if count is not None]
        return tf.add_n(counts) if counts else None

    def views(self, trajectory: Trajectory) -> dict[str, Trajectory]:
        """Returns each module's part of joint experience, its agents concatenated, `[T, n B, ...]`.

        A row is valid if the agent acted in the step. It ends if the agent ends, or if the
        environment ends while the agent is active; see `tfrl.envs.multi_agent.agent_flags`.
        """
        extras = trajectory.env_extras or {}
        flags = agent_flags(
            self.agent_ids,
            termination=trajectory.termination,
            truncation=trajectory.truncation,
            valid=trajectory.valid,
            agents=extras.get("agents"),
        )

        def view(name: str) -> dict[str, Nest]:
            own = {
                "obs": trajectory.obs[name],
                "action": trajectory.action[name],
                "reward": trajectory.reward[name],
                "next_obs": trajectory.next_obs[name],
                "termination": flags[name].termination,
                "truncation": flags[name].truncation,
            }
            if flags[name].valid is not None:
                own["valid"] = flags[name].valid
            if trajectory.policy_extras and name in trajectory.policy_extras:
                own["policy_extras"] = trajectory.policy_extras[name]
            return own

        return {
            m: Trajectory(**{"valid": None, **_side_by_side([view(a) for a in ids], axis=1)})
            for m, ids in self.members.items()
        }


def _side_by_side(nests: Sequence[Nest], axis: int) -> Nest:
    """Concatenates nests of equal structure along an axis."""
    if len(nests) == 1:
        return nests[0]
    return tf.nest.map_structure(lambda *xs: tf.concat(xs, axis), *nests)


def _split_rows(nest: Nest, count: int) -> list[Nest]:
    """Cuts the leading axis of a nest into `count` equal parts."""
    if count == 1:
        return [nest]
    leaves = [tf.split(x, count) for x in tf.nest.flatten(nest)]
    return [tf.nest.pack_sequence_as(nest, [parts[i] for parts in leaves]) for i in range(count)]
