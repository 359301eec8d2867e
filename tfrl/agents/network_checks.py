"""Checks that a network argument of an agent has the outputs that the agent needs.

They check outputs, not classes, so that they hold for networks of any origin.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import networks, seeding, specs
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.types import Nest

_REMEDY = (
    "A policy gives distributions (policy=), a value network numbers (value=), a Q-network a value "
    "for each action (DQN's q=)."
)
_REMEDIES = {
    "actor_network": "A stochastic actor gives distributions, a deterministic one gives actions.",
    "critic_network": "A critic gives one number for the tuple (observation, action vector), and "
    "for a Discrete action a value for each of an observation alone.",
}
_ASKED_OF_POLICIES = ("sample", "log_prob", "mode", "entropy")


def check_policy(
    owner: str,
    network: networks.Network,
    spec: Nest,
    action_spec: Nest,
    normalize_obs: bool,
    name: str = "policy",
) -> None:
    """Checks that a network gives distributions over the actions of a spec.

    Args:
      owner: The name of the agent's class.
      network: The network.
      spec: The nest of specs of its input.
      action_spec: The nest of specs of one action.
      normalize_obs: Whether it sees observations that are normalised.
      name: The agent's field.

    Raises:
      UserError: For another output, and for a distribution over other actions.
    """

    def check(found: Any) -> None:
        if not all(hasattr(found, name) for name in _ASKED_OF_POLICIES):
            wanted = "a distribution of actions for each observation"
            raise _refused(owner, name, wanted, network, found)
        number, logits = num_actions(action_spec), getattr(found, "logits", None)
        drawn = found.sample(seeding.key(0))
        if not _same_shapes(drawn, action_spec):
            got = repr(tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), drawn))
        elif number and logits is not None and logits.shape[-1] not in (number, None):
            got = f"one of {logits.shape[-1]} actions"
        else:
            return
        raise UserError(
            f"{owner}.{name}",
            expected=f"a policy of the actions {action_spec!r}",
            got=f"{type(network).__name__} of {got}",
            remedy="Make the policy with the action_spec of the same environment.",
        )

    _trace(network, spec, normalize_obs, check)


def check_value(
    owner: str,
    network: networks.Network,
    spec: Nest,
    normalize_obs: bool,
    name: str = "value",
    action_spec: Nest = None,
) -> None:
    """Checks that a network gives one number; arguments and errors as of `check_policy`.

    With an `action_spec` it is one of the tuple (observation, action), of which the observation is
    normalised.
    """

    def check(found: Any) -> None:
        if not _is_float(found, [1]):
            wanted = "one number for each observation"
            raise _refused(owner, name, wanted, network, found)

    _trace(network, spec, normalize_obs, check, action_spec)


def check_action_values(
    owner: str,
    network: networks.Network,
    spec: Nest,
    num_actions: int,
    normalize_obs: bool,
    name: str = "q",
) -> None:
    """Checks that a network gives one value for each action; see `check_policy`."""

    def check(found: Any) -> None:
        if not _is_float(found, [1, num_actions]):
            wanted = f"one value for each of {num_actions} actions, float32 [..., {num_actions}]"
            raise _refused(owner, name, wanted, network, found)

    _trace(network, spec, normalize_obs, check)


def check_actions(
    owner: str, network: networks.Network, spec: Nest, action_spec: Nest, normalize_obs: bool
) -> None:
    """Checks that an actor network gives actions of the spec; see `check_policy`."""

    def check(found: Any) -> None:
        try:
            tf.nest.assert_same_structure(found, action_spec, check_types=False)
            pairs = zip(tf.nest.flatten(found), tf.nest.flatten(action_spec), strict=True)
            alike = all(_is_float(x, [1, *s.shape]) for x, s in pairs)
        except (TypeError, ValueError):
            alike = False
        if not alike:
            wanted = f"an action of {action_spec!r} for each observation"
            raise _refused(owner, "actor_network", wanted, network, found)

    _trace(network, spec, normalize_obs, check)


def _trace(
    network: networks.Network,
    spec: Nest,
    normalize_obs: bool,
    check: Callable[[Any], None],
    action_spec: Nest = None,
) -> None:
    """Calls `check` with a network's output for one observation, `[1, ...]`, while tracing."""
    with tf.init_scope():
        whole = spec if action_spec is None else (spec, action_spec)
        params = network.init(seeding.key(0), whole)

        def run() -> None:
            x = specs.zeros(spec, (1,))
            if normalize_obs:
                x = statistics.normalize(statistics.init(spec), x)
            if action_spec is not None:
                x = (x, specs.zeros(action_spec, (1,)))
            check(network.step(params, x, network.initial_carry(1))[0])

        tf.function(run, autograph=False).get_concrete_function()


def _is_float(found: Any, shape: list[int]) -> bool:
    floats = tf.is_tensor(found) and found.dtype.is_floating
    return floats and found.shape.is_compatible_with(shape)


def num_actions(spec: Nest) -> int | None:
    """Returns how many actions one Discrete spec has; None for others."""
    if specs.is_spec(spec) and specs.is_discrete(spec) and not spec.shape.rank:
        return specs.num_actions(spec)
    return None


def _same_shapes(drawn: Nest, spec: Nest) -> bool:
    try:
        tf.nest.assert_same_structure(drawn, spec, check_types=False)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(drawn), tf.nest.flatten(spec), strict=True)
    return all(x.shape.is_compatible_with([1, *s.shape]) for x, s in pairs)


def origin_remedy(network: Any, name: str, discrete: bool = False) -> str | None:
    """The remedy for a network of TF-Agents or a function that makes one; None for others.

    Args:
      network: The network.
      name: The agent's field.
      discrete: Whether the agent's action is a Discrete one.
    """
    made = network.func if isinstance(network, functools.partial) else network
    classes = made.__mro__ if isinstance(made, type) else type(made).__mro__
    if not any(c.__module__.split(".")[0] == "tf_agents" for c in classes):
        return None
    given = "env.obs_spec" if name == "value" else "env.obs_spec, env.action_spec"
    if "torso" in name:
        given = "env.obs_spec"
    if name == "critic_network":
        given = "(env.obs_spec, env.action_spec)"
        if discrete:
            given = given.strip("()")
    return (
        "A network of TF-Agents becomes one of tfrl as tfrl.compat.tf_agents."
        f"from_tf_agents_network(make_network, {given}), where make_network makes it: the class, "
        "or functools.partial of the class and its settings."
    )


def _refused(
    owner: str, name: str, wanted: str, network: networks.Network, found: Any
) -> UserError:
    if tf.is_tensor(found):
        shape = ["...", *(found.shape[1:] if found.shape.rank else ())]
        given = f"{found.dtype.name} [{', '.join(map(str, shape))}]"
    elif all(hasattr(found, n) for n in _ASKED_OF_POLICIES):
        given = f"a distribution, {type(found).__name__}"
    else:
        given = f"a {type(found).__name__}"
    return UserError(
        f"{owner}.{name}",
        expected=f"a network that gives {wanted}",
        got=f"{type(network).__name__}, which gives {given}",
        remedy=_REMEDIES.get(name, _REMEDY),
    )
