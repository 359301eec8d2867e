"""Checks the outputs of an agent's network arguments.

They check outputs, not classes, so they work for networks of any origin.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import checks, networks, seeding, specs
from tfrl.errors import UserError
from tfrl.ops import statistics
from tfrl.types import Nest

_REMEDY = (
    "Pass a network of distributions as policy=, of scalars as value=, and of one value per action "
    "as DQN's q=."
)
_REMEDIES = {
    "actor_network": "Return distributions from a stochastic actor, and actions from a "
    "deterministic one.",
    "critic_network": "Return one number for the tuple (observation, action vector), or for a "
    "Discrete action one value per action for the observation.",
}
_ASKED_OF_POLICIES = ("sample", "log_prob", "mode", "entropy")


def check_torso(name: str, torso: Any, example: str) -> None:
    """Raises a UserError unless a field is None or a torso; `example` is code for a torso."""
    remedy = origin_remedy(torso, name) or f"Pass for example {example}."
    expected = "a tfrl.networks torso, or None"
    checks.instance(name, torso, networks.Torso | None, expected, remedy=remedy)


def check_network(
    name: str,
    network: Any,
    expected: str,
    remedy: str,
    *,
    torso: bool = False,
    memory: bool = True,
    discrete: bool = False,
) -> None:
    """Checks that an agent's network argument is a network of `tfrl.networks`.

    Args:
      name: The agent's field.
      network: The argument.
      expected: Its name in the message.
      remedy: How to make a network, for other objects.
      torso: Whether it may be a torso.
      memory: Whether it may be recurrent.
      discrete: Whether the agent's action is a Discrete one.

    Raises:
      UserError: For a Keras model, or any other object that is not such a network.
    """
    bare = isinstance(network, networks.Torso) and not torso
    if bare or not isinstance(network, networks.Network):
        remedy = origin_remedy(network, name, discrete) or remedy
        raise UserError(name, expected=expected, got=type(network).__name__, remedy=remedy)
    if network.recurrent and not memory:
        raise UserError(
            name,
            expected="a network without memory, since the agent learns from single steps",
            got=f"{type(network).__name__}, which is recurrent",
            remedy="Leave the recurrent layer out, or use PPO with memory='lstm'.",
        )


def check_policy(
    name: str, network: networks.Network, spec: Nest, action_spec: Nest, normalize_obs: bool
) -> None:
    """Checks that a network outputs distributions over the actions of a spec.

    Args:
      name: The agent's field.
      network: The network.
      spec: The nest of specs of its input.
      action_spec: The nest of specs of one action.
      normalize_obs: Whether its observations are normalised.

    Raises:
      UserError: For another output, and for a distribution over other actions.
    """

    def fits(output: Any) -> bool:
        if not all(hasattr(output, name) for name in _ASKED_OF_POLICIES):
            return False
        number, logits = num_actions(action_spec), getattr(output, "logits", None)
        if number and logits is not None and logits.shape[-1] not in (number, None):
            return False
        return _is_like(output.sample(seeding.key(0)), action_spec)

    wanted = f"a distribution of actions for each observation, of {action_spec!r}"
    _check_output(name, network, spec, normalize_obs, wanted, fits)


def check_value(
    name: str,
    network: networks.Network,
    spec: Nest,
    normalize_obs: bool,
    num_actions: int | None = None,
    action_spec: Nest = None,
    values: Callable[[Any], Any] = lambda output: output,
) -> None:
    """Checks that a network outputs one number, or one per action; or `values` of its output.

    With an `action_spec` its input is the tuple (observation, action), with a normalised
    observation. Other arguments and errors are as in `check_policy`.
    """
    wanted, shape = "one number for each observation", [1]
    if num_actions is not None:
        wanted = f"one value for each of {num_actions} actions, float32 [..., {num_actions}]"
        shape = [1, num_actions]

    def fits(output: Any) -> bool:
        if not _is_float(output):
            return False
        try:
            return bool(values(output).shape.is_compatible_with(shape))
        except ValueError:  # of other sizes than `values` reshapes
            return False

    _check_output(name, network, spec, normalize_obs, wanted, fits, action_spec)


def check_actions(
    name: str, network: networks.Network, spec: Nest, action_spec: Nest, normalize_obs: bool
) -> None:
    """Checks that an actor network outputs actions of the spec; see `check_policy`."""

    def fits(output: Any) -> bool:
        return all(map(_is_float, tf.nest.flatten(output))) and _is_like(output, action_spec)

    wanted = f"an action of {action_spec!r} for each observation"
    _check_output(name, network, spec, normalize_obs, wanted, fits)


def _check_output(
    name: str,
    network: networks.Network,
    spec: Nest,
    normalize_obs: bool,
    wanted: str,
    fits: Callable[[Any], bool],
    action_spec: Nest = None,
) -> None:
    """Traces a network's output for one observation, `[1, ...]`."""
    with tf.init_scope():
        both_specs = spec if action_spec is None else (spec, action_spec)
        params = network.init(seeding.key(0), both_specs)

        def run() -> None:
            x = specs.zeros(spec, (1,))
            if normalize_obs:
                x = statistics.normalize(statistics.init(spec), x)
            if action_spec is not None:
                x = (x, specs.zeros(action_spec, (1,)))
            output = network.step(params, x, network.initial_carry(1))[0]
            if not fits(output):
                raise UserError(
                    name,
                    expected=f"a network that returns {wanted}",
                    got=f"{type(network).__name__}, which returns {_described(output)}",
                    remedy=_REMEDIES.get(name.rpartition(".")[2], _REMEDY),
                )

        tf.function(run, autograph=False).get_concrete_function()


def _is_float(output: Any) -> bool:
    return tf.is_tensor(output) and output.dtype.is_floating


def _is_like(output: Nest, spec: Nest) -> bool:
    """Whether a nest has a spec's structure, and its shapes after a batch axis of 1."""
    try:
        tf.nest.assert_same_structure(output, spec, check_types=False)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(output), tf.nest.flatten(spec), strict=True)
    return all(x.shape.is_compatible_with([1, *s.shape]) for x, s in pairs)


def _described(output: Any) -> str:
    if tf.is_tensor(output):
        shape = ["...", *(output.shape[1:] if output.shape.rank else ())]
        return f"{output.dtype.name} [{', '.join(map(str, shape))}]"
    if not all(hasattr(output, n) for n in _ASKED_OF_POLICIES):
        return f"a {type(output).__name__}"
    logits = getattr(output, "logits", None)
    of = "" if logits is None else f" of {logits.shape[-1]} actions"
    return f"a distribution, {type(output).__name__}{of}"


def num_actions(spec: Nest) -> int | None:
    """Returns the number of actions of one Discrete spec; None for others."""
    if specs.is_spec(spec) and specs.is_discrete(spec) and not spec.shape.rank:
        return specs.num_actions(spec)
    return None


def origin_remedy(network: Any, name: str, discrete: bool = False) -> str | None:
    """The remedy for a network of TF-Agents or a function that makes one; None for others.

    Args:
      network: The network.
      name: The agent's field.
      discrete: Whether the agent's action is a Discrete one.
    """
    factory = network.func if isinstance(network, functools.partial) else network
    classes = factory.__mro__ if isinstance(factory, type) else type(factory).__mro__
    if not any(c.__module__.split(".")[0] == "tf_agents" for c in classes):
        return None
    arguments = "env.obs_spec, env.action_spec"
    if name.endswith(("torso", "value")):
        arguments = "env.obs_spec"
    if name.endswith("critic_network"):
        arguments = "(env.obs_spec, env.action_spec)"
        if discrete:
            arguments = arguments.strip("()")
    return (
        "A network of TF-Agents becomes one of tfrl as tfrl.compat.tf_agents."
        f"from_tf_agents_network(make_network, {arguments}), where make_network makes it: the "
        "class, or functools.partial of the class and its settings."
    )
