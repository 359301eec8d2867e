"""TF-Agents' networks as pure functions of values, and calls of their factories."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.networks.network import Network

from tfrl import keras, networks, specs, struct
from tfrl.compat.tf_agents import distributions
from tfrl.compat.tf_agents.from_tf_agent_variables import drawn_from
from tfrl.compat.tf_agents.specs import plain, tensor_spec
from tfrl.compat.tf_agents.trajectories import FIRST, MID
from tfrl.errors import UserError
from tfrl.types import Nest

MakeNetwork = Callable[..., Any]


def make(make_network: MakeNetwork, spec: Nest, action_spec: Nest) -> Any:
    """Makes the network; see `from_tf_agents_network` for the arguments.

    Raises:
      UserError: Unless `make_network` is a function of these specs that makes a TF-Agents Network.
    """
    arguments = [tensor_spec(floats(spec), "observation")]
    if action_spec is not None:
        arguments.append(tensor_spec(action_spec, "action"))
    _check_makes(make_network, len(arguments))
    try:
        network = make_network(*arguments)
    except UserError:
        raise  # a UserError is a ValueError too
    except (TypeError, ValueError) as error:
        raise UserError(
            "make_network",
            expected="a function that creates a network from these specs",
            got=f"{_name_of(make_network)}, which raises {type(error).__name__}: {error}",
            remedy="Fix the error above; for a critic pass obs_spec=(env.obs_spec, "
            "env.action_spec) and no action_spec.",
        ) from error
    if not isinstance(network, Network):
        raise UserError(
            "make_network",
            expected="a function of TF-Agents' specs that returns a Network of TF-Agents",
            got=repr(network),
            remedy="Pass a function such as functools.partial(QNetwork, fc_layer_params=(64,)), or "
            "use KerasNetwork for a plain Keras model.",
        )
    return network


def _check_makes(make_network: Any, count: int) -> None:
    """Raises unless it is a function of `count` specs: 1 (observation) or 2 (with action)."""
    if isinstance(make_network, tf.Module) or not callable(make_network):
        raise UserError(
            "make_network",
            expected="a function that creates the network, such as functools.partial(QNetwork, "
            "fc_layer_params=(64,))",
            got=f"an instance of {type(make_network).__name__}",
            remedy="Pass its class, or functools.partial of the class and its settings, since "
            "tfrl creates the network.",
        )
    if _takes(make_network, count):
        return
    name = _name_of(make_network)
    if count == 1 and _takes(make_network, 2):
        raise UserError(
            "action_spec",
            expected=f"the spec of one action, which {name} takes",
            got="None",
            remedy="Pass action_spec=env.action_spec for a policy or a Q-network, or use a "
            "network of observations such as EncodingNetwork for a torso.",
        )
    if count == 2 and _takes(make_network, 1):
        raise UserError(
            "action_spec",
            expected=f"None, since {name} takes only observations",
            got="a spec",
            remedy="Leave action_spec out for values and torsos.",
        )
    raise UserError(
        "make_network",
        expected="a function of obs_spec and, if passed, action_spec",
        got=f"{name}{inspect.signature(make_network)}",
        remedy="Bind its other arguments with functools.partial and keywords.",
    )


def _takes(make_network: Any, count: int) -> bool:
    """Whether the function takes `count` specs: of observations, and of actions for 2."""
    try:
        bound = inspect.signature(make_network).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # some C callables have no signature
        return True
    # The second argument of a value network or an encoder is a setting.
    return "preprocessing_layers" not in bound.arguments


def _name_of(make_network: Any) -> str:
    function = getattr(make_network, "func", make_network)
    return str(getattr(function, "__name__", type(function).__name__))


def floats(spec: Nest) -> Nest:
    """Returns specs with float32 in place of other floats."""

    def one(s: Any) -> Any:
        if not s.dtype.is_floating or s.dtype == tf.float32:
            return tf.TensorSpec(s.shape, s.dtype) if not hasattr(s, "minimum") else s
        if not hasattr(s, "minimum"):
            return tf.TensorSpec(s.shape, tf.float32)
        return specs.BoundedTensorSpec(s.shape, tf.float32, s.minimum, s.maximum)

    return tf.nest.map_structure(one, spec)


Params = dict[str, Any]


class _NetworkModel(keras.api.Model):
    """A TF-Agents network as a Keras model of (observation, step_type, network_state)."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network
        accepted = inspect.signature(network.call).parameters
        keywords = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
        self._takes_training = keywords or "training" in accepted

    def draws_from(self, key: tf.Tensor | None) -> Any:
        """Returns the context of a call: TF-Agents' dropout uses stateful random operations."""
        return contextlib.nullcontext() if key is None else drawn_from(key)

    def call(self, inputs: Nest, training: bool = False) -> tuple[Nest, Nest]:
        obs, step_type, state = inputs
        state = tf.nest.pack_sequence_as(self.network.state_spec, tf.nest.flatten(state))
        options = {"training": training} if self._takes_training else {}
        output, after = self.network(obs, step_type=step_type, network_state=state, **options)
        leaves = tf.nest.flatten(output)
        if any(isinstance(leaf, tfp.distributions.Distribution) for leaf in leaves):
            output = distributions.parameters(output)
        return output, plain(after)


@struct.logic_dataclass
class TFAgentsNetwork(networks.Network):
    """A TF-Agents network with the parameters of a `KerasNetwork`.

    Attributes:
      make_network: See `from_tf_agents_network`.
      spec: The nest of specs of one input, without an action mask.
      action_spec: The nest of specs of one action, or None.
      model: The network inside a Keras model.
    """

    make_network: MakeNetwork
    spec: Nest
    action_spec: Nest = None
    model: networks.KerasNetwork = struct.derived()

    def __post_init__(self) -> None:
        """Makes the network once."""
        arguments = (self.make_network, self.spec, self.action_spec)
        inputs = _input_spec(make(*arguments), self.spec)
        self.model = networks.KerasNetwork(
            model_fn=lambda: _NetworkModel(make(*arguments)), spec=inputs
        )
        if self.recurrent:
            self._check_memory()

    @property
    def output(self) -> Nest:
        """The output for one input; see `output_spec`."""
        return self.model.template.output[0]

    def init(self, key: tf.Tensor, spec: Nest = None) -> Params:
        """Makes parameters with the network's own initialisers, seeded by the key; eagerly only.

        Args:
          key: int32 [2].
          spec: A spec with the shapes of `self.spec`, or None.
        """
        if spec is not None and _shapes(spec) != _shapes(self.spec):
            raise UserError(
                "spec",
                expected=f"the spec of the TF-Agents network, {self.spec!r}",
                got=repr(spec),
                remedy="Create the network with the spec of the same environment.",
            )
        with drawn_from(key):
            return self.model.init(key)

    def _inputs(self, x: Nest, step_type: Any, carry: Nest) -> Nest:
        obs_spec, _, state_spec = self.model.spec
        obs = [
            _cast(v, s) for v, s in zip(tf.nest.flatten(x), tf.nest.flatten(obs_spec), strict=True)
        ]
        if not tf.is_tensor(step_type):  # one value for all rows
            rank = obs[0].shape.rank - tf.nest.flatten(obs_spec)[0].shape.rank
            step_type = tf.fill(tf.shape(obs[0])[:rank], step_type)
            step_type.set_shape(obs[0].shape[:rank])
        state = tf.nest.flatten(carry) if self.recurrent else []
        packed = tf.nest.pack_sequence_as(state_spec, state)
        return tf.nest.pack_sequence_as(obs_spec, obs), step_type, packed

    def apply(self, params: Params, x: Nest) -> Any:
        """Returns the output for inputs `[..., *spec shape]`; see `Network.apply`."""
        self._needs_no_carry()
        return self.model.apply(params, self._inputs(x, MID, ()))[0]

    def apply_training(self, params: Params, x: Nest, key: tf.Tensor) -> tuple[Any, Params]:
        """Returns the output in training mode, and the parameters after the call."""
        self._needs_no_carry()
        inputs = self._inputs(x, MID, ())
        (output, _), after = self.model.apply_training(params, inputs, key)
        return output, after

    def _needs_no_carry(self) -> None:
        if self.recurrent:
            raise UserError(
                type(self).__name__,
                expected="a call of step(params, x, carry) or unroll(params, x, carry, starts)",
                got="a call without a carry, for a recurrent network",
                remedy="Pass a carry, or use a feedforward network for agents that learn from "
                "single transitions.",
            )

    # Memory.

    @property
    def recurrent(self) -> bool:
        """Whether the network has a state."""
        return bool(tf.nest.flatten(self.model.spec[2]))

    def initial_carry(self, batch_size: int) -> Nest:
        """Returns the network's initial state, a nest of tuples; None without memory."""
        if not self.recurrent:
            return None
        return plain(self.model.template.model.network.get_initial_state(batch_size))

    def step(self, params: Params, x: Nest, carry: Nest = None) -> tuple[Any, Nest]:
        """Takes one step of an episode; see `Network.step`."""
        if not self.recurrent:
            return self.apply(params, x), carry
        _check_carry(carry)
        output, after = self.model.apply(params, self._inputs(x, MID, carry))
        return output, after

    def unroll(
        self, params: Params, x: Nest, carry: Nest, starts: tf.Tensor, key: tf.Tensor | None
    ) -> tuple[Any, Params]:
        """Runs over sequences; see `Network.unroll`."""
        if not self.recurrent:
            return super().unroll(params, x, carry, starts, key)
        _check_carry(carry)
        kinds = tf.where(starts, FIRST, MID)
        obs, kinds, state = self._inputs(_swapped(x), tf.transpose(kinds), carry)  # [B, T, ...]
        (output, _), after = self.model.call(params, (obs, kinds, state), key is not None, key)
        return _swapped(output), {**params, "state": after}

    def _check_memory(self) -> None:
        """Raises for a network that does not reset its state at a FIRST step type."""
        params = self.model.init(tf.zeros([2], tf.int32))
        inputs = specs.zeros(self.model.spec[0], (1, 2))
        call = tf.function(self.model.call, autograph=False)
        kinds = tf.constant([[MID, FIRST]])
        result = []
        for carry in (0.0, 1.0):
            state = tf.nest.map_structure(
                lambda s, c=carry: tf.fill([1, *s.shape], tf.cast(c, s.dtype)), self.model.spec[2]
            )
            (_, after), _ = call(params, (inputs, kinds, state), False, None)
            result.append(tf.nest.flatten(after))
        if any(tf.reduce_any(tf.abs(a - b) > 1e-6) for a, b in zip(*result, strict=True)):
            raise UserError(
                "TF-Agents network",
                expected="a recurrent network that resets its state where step_type is FIRST",
                got=f"{type(self.model.template.model.network).__name__}, whose state continues",
                remedy="Pass lstm_size=... instead of rnn_construction_fn.",
            )


def output_spec(make_network: MakeNetwork, spec: Nest, action_spec: Nest) -> Nest:
    """Returns the spec of a network's output for one input, without the batch axis.

    Args:
      make_network: See `from_tf_agents_network`.
      spec: The nest of specs of one input.
      action_spec: The nest of specs of one action, or None.

    Returns:
      A nest of specs; for distributions a tuple of dicts of their parameters' specs.
    """
    with tf.init_scope():
        network = make(make_network, spec, action_spec)
        output, _ = _NetworkModel(network)(specs.zeros(_input_spec(network, spec), (1,)))
    return tf.nest.map_structure(lambda y: tf.TensorSpec(y.shape[1:], y.dtype), output)


def _input_spec(network: Any, spec: Nest) -> Nest:
    """Returns the specs of (observation, step_type, network_state)."""
    return floats(spec), tf.TensorSpec([], tf.int32), floats(plain(network.state_spec))


def _cast(x: Any, spec: Any) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    if x.dtype == spec.dtype:
        return x
    if spec.dtype.is_floating:
        return tf.cast(x, spec.dtype)
    raise UserError(
        "input of a TF-Agents network",
        expected=f"{spec.dtype.name}, as in its spec",
        got=x.dtype.name,
        remedy="Create it with float specs if observations are normalised.",
    )


def _shapes(spec: Nest) -> dict[str, list[int]]:
    return {path: s.shape.as_list() for path, s in struct.paths(plain(spec)).items()}


def _swapped(nest: Nest) -> Nest:
    return tf.nest.map_structure(lambda x: tf.transpose(x, [1, 0, *range(2, x.shape.rank)]), nest)


def _check_carry(carry: Nest) -> None:
    """Raises for a missing carry: zeros in every step would be another policy."""
    if carry is None:
        raise UserError(
            "TF-Agents network",
            expected="a carry",
            got="None",
            remedy="Start an episode with initial_carry(batch_size), and pass the carry returned "
            "by each step to the next.",
        )
