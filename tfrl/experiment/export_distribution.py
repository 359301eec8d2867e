"""The parameters of a policy's distribution, by name: what the signature `distribution` answers."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfrl import distributions, specs, struct
from tfrl.agents import DQN, SAC, TD3, MultiAgent
from tfrl.agents.actor_critic.agent import ActorCritic
from tfrl.distributions.core import shaped_action
from tfrl.envs.action_masks import split_mask
from tfrl.networks.actor_critic import mask_argument
from tfrl.storage import files

Nest = Any

# What a kind of distribution is, given its parameters; it goes into metadata.json.
KINDS = {
    "categorical": "action = start + i with probability softmax(logits)_i",
    "multi_categorical": "element k = start_k + i with probability softmax(logits_k)_i",
    "bernoulli": "element k = 1 with probability sigmoid(logits_k)",
    "gaussian": "action ~ N(loc, scale^2), not clipped",
    "tanh_gaussian": "action = (low + high) / 2 + (high - low) / 2 tanh(u), u ~ N(loc, scale^2)",
    "q_values": "the greedy action is start + argmax q_values; explore takes any valid one with "
    "probability epsilon",
    "deterministic": "action = loc; explore adds clipped Gaussian noise",
}


def has_distribution(agent: Any) -> bool:
    """Whether `policy_parameters` knows the agent's distribution."""
    if isinstance(agent, MultiAgent):
        return all(has_distribution(module) for module in agent.modules.values())
    return isinstance(agent, ActorCritic | DQN | SAC | TD3)


def policy_parameters(
    agent: Any, state: Any, obs: Nest, carry: Nest = None
) -> tuple[dict[str, tuple[str, dict[str, Any]]], Nest]:
    """Returns the parameters of the policy at a batch of observations.

    Args:
      agent: An agent that `has_distribution`.
      state: Its state.
      obs: A nest `[B, ...]` of its `obs_spec`.
      carry: The recurrent state before the step, or None.

    Returns:
      `{path of an action's leaf: (kind, {parameter: tensor [B, ...]})}`, kinds as in `KINDS`, path
      "." for the only leaf, or where one distribution is that of all leaves in one vector; and the
      carry after the step.
    """
    if isinstance(agent, MultiAgent):
        return _of_several(agent, state, obs, carry)
    if isinstance(agent, DQN):
        return {".": ("q_values", {"q_values": agent.action_values(state, obs)})}, carry
    seen, mask = split_mask(agent.normalized(state, obs))
    if isinstance(agent, SAC):
        actor: Any = agent.actor
        policy = actor.apply(state.params["actor"], seen, **mask_argument(mask))
        return {".": _parameters(policy)}, carry
    if isinstance(agent, TD3):
        action = agent.evaluate_actions(state, obs, tf.zeros([2], tf.int32)).action
        leaves = dict(zip(struct.paths(agent.action_spec), tf.nest.flatten(action), strict=True))
        return {path: ("deterministic", {"loc": x}) for path, x in leaves.items()}, carry
    policy, after = agent.network.act(state.params, seen, carry, mask)
    parts = policy.parts if isinstance(policy, distributions.Joint) else (policy,)
    paths = struct.paths(agent.action_spec)
    return {p: _parameters(d) for p, d in zip(paths, parts, strict=True)}, after


def _of_several(agent: MultiAgent, state: Any, obs: Nest, carry: Nest) -> Any:
    found, carries = {}, {}
    for agent_id in sorted(agent.action_spec):
        m = agent.module_of(agent_id)
        before = None if carry is None else carry.get(agent_id)
        each, after = policy_parameters(agent.modules[m], state[m], obs[agent_id], before)
        for path, parameters in each.items():
            found[agent_id if path == "." else f"{agent_id}/{path}"] = parameters
        if after is not None:
            carries[agent_id] = after
    return found, carries or None


def _parameters(policy: Any) -> tuple[str, dict[str, Any]]:
    """The kind of one distribution and its parameters, those of Gaussians in an action's shape."""
    if isinstance(policy, distributions.Categorical):
        return "categorical", {"logits": policy.logits}
    if isinstance(policy, distributions.MultiCategorical):
        return "multi_categorical", {"logits": policy.logits}
    if isinstance(policy, distributions.Bernoulli):
        return "bernoulli", {"logits": policy.logits}
    shape = policy.event_shape or (policy.loc.shape[-1],)
    scale = tf.broadcast_to(tf.exp(policy.log_std), tf.shape(policy.loc))
    kind = "gaussian" if isinstance(policy, distributions.DiagonalGaussian) else "tanh_gaussian"
    return kind, {"loc": shaped_action(policy.loc, shape), "scale": shaped_action(scale, shape)}


def described(agent: Any, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Returns what a reader must know to act by the parameters, out of JSON's types.

    Args:
      agent: The agent.
      kinds: `{path: kind}`, as `policy_parameters` gave them.
    """
    leaves = struct.paths(agent.action_spec)
    found: dict[str, Any] = {}
    for path, kind in kinds.items():
        about: dict[str, Any] = {"kind": kind, "meaning": KINDS[kind]}
        of = [leaves[path]] if path in leaves else list(leaves.values())
        if kind in ("categorical", "multi_categorical", "q_values"):
            about["start"] = specs.bounds(of[0])[0]
        elif kind == "tanh_gaussian":
            bounds = [[b.reshape(-1) for b in specs.bounds(spec)] for spec in of]
            about["low"] = [x for low, _ in bounds for x in low]
            about["high"] = [x for _, high in bounds for x in high]
            if len(of) > 1:
                about["order"] = list(leaves)
        found[path] = files.plain(about)
    return found
