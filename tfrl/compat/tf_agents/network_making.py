"""Calls of the user's function that makes a network of TF-Agents, and what can be wrong with it."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.networks.network import Network

from tfrl import specs
from tfrl.compat.tf_agents.specs import tensor_spec
from tfrl.errors import UserError
from tfrl.types import Nest

MakeNetwork = Callable[..., Any]


def made(make_network: MakeNetwork, spec: Nest, action_spec: Nest) -> Any:
    """Makes the network; arguments as of `from_tf_agents_network`.

    Raises:
      UserError: For what is no function of these specs, or makes no Network of TF-Agents.
    """
    given = [tensor_spec(floats(spec), "observation")]
    if action_spec is not None:
        given.append(tensor_spec(action_spec, "action"))
    _check_makes(make_network, len(given))
    try:
        network = make_network(*given)
    except UserError:
        raise  # it is a ValueError, and says enough
    except (TypeError, ValueError) as error:
        raise UserError(
            "make_network",
            expected="a function that makes a network of these specs",
            got=f"{_name_of(make_network)}, which raises {type(error).__name__}: {error}",
            remedy="See above what it stumbles over. A critic has (env.obs_spec, env.action_spec) "
            "for an obs_spec, and no action_spec.",
        ) from error
    if not isinstance(network, Network):
        raise UserError(
            "make_network",
            expected="a function of TF-Agents' specs that returns a Network of TF-Agents",
            got=repr(network),
            remedy="Pass the function, such as functools.partial(QNetwork, "
            "fc_layer_params=(64,)); a plain Keras model is for KerasNetwork.",
        )
    return network


def _check_makes(make_network: Any, count: int) -> None:
    """Refuses what is no function of `count` specs: 1 of observations, 2 with actions."""
    if isinstance(make_network, tf.Module) or not callable(make_network):
        raise UserError(
            "make_network",
            expected="a function that makes the network, such as functools.partial(QNetwork, "
            "fc_layer_params=(64,))",
            got=f"an object of {type(make_network).__name__}",
            remedy="The network is made anew, with parameters of its own: give its class, or "
            "functools.partial of the class and its settings.",
        )
    if _takes(make_network, count):
        return
    name = _name_of(make_network)
    if count == 1 and _takes(make_network, 2):
        raise UserError(
            "action_spec",
            expected=f"the spec of one action, which {name} takes",
            got="None",
            remedy="Give action_spec=env.action_spec for a policy or a Q-network; for a torso take "
            "a network of observations alone, such as EncodingNetwork.",
        )
    if count == 2 and _takes(make_network, 1):
        raise UserError(
            "action_spec",
            expected=f"None: {name} takes observations alone",
            got="a spec",
            remedy="Leave action_spec out for values and torsos.",
        )
    raise UserError(
        "make_network",
        expected="a function of obs_spec, and of action_spec where that is given",
        got=f"{name}{inspect.signature(make_network)}",
        remedy="Give its other arguments with functools.partial, by their names.",
    )


def _takes(make_network: Any, count: int) -> bool:
    """Whether a call with specs of observations, and of actions with a count of 2, fits."""
    try:
        bound = inspect.signature(make_network).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some callables of C have no signature
        return True
    # The second of a value network's or an encoder's arguments is a setting.
    return "preprocessing_layers" not in bound.arguments


def _name_of(make_network: Any) -> str:
    function = getattr(make_network, "func", make_network)
    return str(getattr(function, "__name__", type(function).__name__))


def floats(spec: Nest) -> Nest:
    """Specs with float32 in place of other floats."""

    def one(s: Any) -> Any:
        if not s.dtype.is_floating or s.dtype == tf.float32:
            return tf.TensorSpec(s.shape, s.dtype) if not hasattr(s, "minimum") else s
        if not hasattr(s, "minimum"):
            return tf.TensorSpec(s.shape, tf.float32)
        return specs.BoundedTensorSpec(s.shape, tf.float32, s.minimum, s.maximum)

    return tf.nest.map_structure(one, spec)
