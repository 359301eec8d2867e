"""A policy as flat named functions, with export metadata."""

import dataclasses
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.agents.core import Agent
from tfrl.errors import UserError
from tfrl.experiment.metadata import versions
from tfrl.storage import files

Nest = Any

# Descriptions of distribution kinds, for metadata.json.
KINDS = {
    "categorical": "action = start + i with probability softmax(logits)_i",
    "multi_categorical": "element k = start_k + i with probability softmax(logits_k)_i",
    "bernoulli": "element k = 1 with probability sigmoid(logits_k)",
    "gaussian": "action ~ N(loc, scale^2), clipped to its bounds",
    "tanh_gaussian": "action = (low + high) / 2 + (high - low) / 2 tanh(u), u ~ N(loc, scale^2)",
    "q_values": "the greedy action is start + argmax q_values; explore takes any valid one with "
    "probability epsilon",
    "deterministic": "action = loc; explore adds clipped Gaussian noise",
}


def has_distribution(agent: Agent) -> bool:
    """Whether an agent has `policy_parameters`, see `Agent`."""
    return getattr(agent, "has_distribution", False)


def described(agent: Agent, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Returns the information needed to act from the parameters, as JSON types.

    Args:
      agent: The agent.
      kinds: `{path: kind}` from the agent's `policy_parameters`.
    """
    leaves = struct.paths(agent.action_spec)
    result: dict[str, Any] = {}
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
        result[path] = files.plain(about)
    return result


# Up to this size a policy's values are constants of its functions. Every call would read every
# variable, which takes longer than a small policy's arithmetic; but a graph holds at most 2 GB, and
# each function has its own constants.
CONSTANT_BYTES = 64 * 2**20

SIGNATURES = ("action", "explore", "distribution")


@dataclasses.dataclass(frozen=True)
class PolicyFunctions:
    """A policy to export.

    Attributes:
      functions: `{signature: tf.function}` with input signatures; their inputs and outputs are
        named tensors.
      tracked: The holder of the functions' variables; empty if all are constants.
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      inputs: Names of the leaves of an observation, in `tf.nest` order.
      outputs: Names of the leaves of an action.
      state: Names of the leaves of the recurrent state; () without memory.
      distributions: Meaning of the outputs of `distribution`, for `metadata.json`.
      left_out: `{missing signature: reason}`.
    """

    functions: Mapping[str, Any]
    tracked: Sequence[Any]
    obs_spec: Any
    action_spec: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...] = ()
    distributions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)


def leaf_names(nest: Any, base: str) -> dict[str, str]:
    """Returns `{path: name}` of a nest's leaves: `base`, or `base_<path>` with `/` as `_`."""
    names = {path: leaf_name(path, base) for path in struct.paths(nest)}
    if len(set(names.values())) < len(names):
        raise UserError(
            f"names of the exported {base}",
            expected="a different name for every part",
            got=f"{', '.join(sorted(names))}, of which some collide once / is replaced by _",
            remedy="Rename the keys of the space.",
        )
    return names


def leaf_name(path: str, base: str) -> str:
    """Returns the name of one leaf."""
    return base if path == "." else f"{base}_{path.replace('/', '_')}"


def initial_carry(agent: Agent, batch_size: Any) -> Any:
    """Returns an agent's recurrent state at an episode start; None without memory."""
    make = getattr(agent, "initial_carry", None)
    return None if make is None else make(batch_size)


def policy_functions(
    agent: Agent, agent_state: Nest, signatures: Sequence[str] = SIGNATURES
) -> PolicyFunctions:
    """Makes the functions of an agent's policy, with copies of its state's values.

    - `action(observation, [state])` acts greedily.
    - `explore(observation, [state], seed)` acts as in training; equal seeds, int64 scalars, give
      equal draws. Both clip continuous actions to their bounds.
    - `distribution(observation, [state])` returns the parameters of the policy's distribution, see
      `KINDS`.
    - `initial_state(batch_size)` returns the state at an episode start, with memory.

    Args:
      agent: An agent with `obs_spec`, `action_spec` and `evaluate_actions`.
      agent_state: Its state.
      signatures: The requested ones of the first three. Unsupported ones are omitted, except
        `action`.

    Raises:
      UserError: Names collide, or a policy with memory has no initial state.
    """
    maker = _Maker(agent, agent_state)
    functions: dict[str, Any] = {"action": maker.trace(maker.act)}
    left_out: dict[str, str] = {}
    if "explore" in signatures:
        _add(functions, left_out, "explore", lambda: maker.trace(maker.explore, _SEED))
    if "distribution" in signatures:
        if has_distribution(agent):
            functions["distribution"] = maker.trace(maker.distribution)
        else:
            name = getattr(agent, "algorithm", None) or type(agent).__name__
            left_out["distribution"] = f"the distribution of {name} is not known"
    if maker.carry is not None:
        functions["initial_state"] = maker.begin()
    return PolicyFunctions(
        functions=functions,
        tracked=maker.values.read,
        obs_spec=agent.obs_spec,
        action_spec=agent.action_spec,
        inputs=tuple(maker.obs_names.values()),
        outputs=maker.action_names,
        state=tuple(maker.carry_names.values()),
        distributions=described(agent, maker.kinds),
        left_out=left_out,
    )


_SEED = (tf.TensorSpec([], tf.int64, name="seed"),)


def _add(
    functions: dict[str, Any], left_out: dict[str, str], name: str, make: Callable[[], Any]
) -> None:
    """Adds an optional function; if it fails, the reason goes into the metadata."""
    try:
        functions[name] = make()
    except Exception as error:  # a user's agent may raise anything on symbolic tensors
        first = next(iter(str(error).strip().splitlines()), "")
        left_out[name] = f"{type(error).__name__}: {first}" if first else type(error).__name__


class _Values:
    """The values of an agent's state that a function uses.

    Critics and target networks are not used for acting.
    """

    def __init__(self, agent_state: Nest):
        leaves = struct.paths(agent_state)
        self._arrays = {path: np.asarray(leaf).copy() for path, leaf in leaves.items()}
        # Structure only: the tensors themselves must not be captured.
        self._structure = tf.nest.map_structure(
            lambda leaf: None if leaf is None else 0, agent_state
        )
        self._variables: dict[str, tf.Variable] = {}

    @property
    def read(self) -> list[tf.Variable]:
        """The existing variables."""
        return list(self._variables.values())

    @property
    def specs(self) -> dict[str, tf.TensorSpec]:
        return {path: tf.TensorSpec(x.shape, x.dtype) for path, x in self._arrays.items()}

    def pack(self, leaves: Mapping[str, Any]) -> Any:
        """Returns the agent's state with these leaves."""
        rest = iter(leaves[path] for path in self._arrays)
        flat = [None if x is None else next(rest) for x in tf.nest.flatten(self._structure)]
        return tf.nest.pack_sequence_as(self._structure, flat)

    def prepare(self, used: set[str]) -> bool:
        """Creates variables for the used values if they are large; returns whether it did."""
        if sum(self._arrays[path].nbytes for path in used) <= CONSTANT_BYTES:
            return False
        for path in sorted(used - set(self._variables)):
            self._variables[path] = tf.Variable(self._arrays[path], trainable=False)
        return True

    def inside(self, used: set[str], large: bool) -> dict[str, tf.Tensor]:
        """Returns the leaves inside the traced function."""
        result = {}
        for path, array in self._arrays.items():
            if path not in used:
                result[path] = tf.fill(array.shape, tf.zeros([], array.dtype))  # needs no space
            elif large:
                result[path] = tf.convert_to_tensor(self._variables[path])
            else:
                result[path] = tf.constant(array)
        return result


class _Maker:
    """Makes flat functions of an agent's methods."""

    def __init__(self, agent: Agent, agent_state: Nest):
        self._agent = agent
        self.values = _Values(agent_state)
        self.carry = initial_carry(agent, 1)
        self.obs_names = leaf_names(agent.obs_spec, "observation")
        self.action_names = tuple(leaf_names(agent.action_spec, "action").values())
        self.carry_names = {} if self.carry is None else leaf_names(self.carry, "state")
        self.kinds: dict[str, str] = {}

    @property
    def _specs(self) -> list[tf.TensorSpec]:
        result = [
            tf.TensorSpec([None, *spec.shape], spec.dtype, name=self.obs_names[path])
            for path, spec in struct.paths(self._agent.obs_spec).items()
        ]
        if self.carry is not None:
            result += [
                tf.TensorSpec([None, *x.shape[1:]], x.dtype, name=self.carry_names[path])
                for path, x in struct.paths(self.carry).items()
            ]
        return result

    def trace(self, call: Callable[..., Any], more: Sequence[tf.TensorSpec] = ()) -> Any:
        """Returns `call(state, obs, carry, *more)` as a function of named tensors, traced."""
        specs = [*self._specs, *more]

        def flat(leaves: Mapping[str, Any], *inputs: tf.Tensor) -> Any:
            return call(self.values.pack(leaves), *self._nests(inputs))

        probe = tf.function(flat, autograph=False)
        used = _used(probe.get_concrete_function(self.values.specs, *specs), self.values.specs)
        large = self.values.prepare(used)
        function = tf.function(
            lambda *inputs: flat(self.values.inside(used, large), *inputs),
            input_signature=specs,
            autograph=False,
        )
        function.get_concrete_function()
        return function

    def _nests(self, inputs: Sequence[tf.Tensor]) -> tuple[Any, ...]:
        num_obs, num_carry = len(self.obs_names), len(self.carry_names)
        obs = tf.nest.pack_sequence_as(self._agent.obs_spec, inputs[:num_obs])
        carry = None
        if self.carry is not None:
            leaves = inputs[num_obs : num_obs + num_carry]
            carry = tf.nest.pack_sequence_as(self.carry, leaves)
        return obs, carry, *inputs[num_obs + num_carry :]

    # The methods.

    def act(self, state: Any, obs: Any, carry: Any) -> dict[str, tf.Tensor]:
        # A greedy policy draws nothing; any draws are the same each time.
        output = self._agent.evaluate_actions(state, obs, seeding.key(0), carry)
        return self._acted(output, carry)

    def explore(self, state: Any, obs: Any, carry: Any, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        output = self._agent.compute_actions(state, obs, seeding.key(seed), carry)
        return self._acted(output, carry)

    def _acted(self, output: Any, carry: Any) -> dict[str, tf.Tensor]:
        self._check_carry(carry, output.carry)
        tf.nest.assert_same_structure(self._agent.action_spec, output.action)
        action = tf.nest.map_structure(specs.clip, output.action, self._agent.action_spec)
        result = dict(zip(self.action_names, tf.nest.flatten(action), strict=True))
        return {**result, **self._after(output.carry)}

    def _after(self, carry: Any) -> dict[str, tf.Tensor]:
        if self.carry is None:
            return {}
        return dict(zip(self.carry_names.values(), tf.nest.flatten(carry), strict=True))

    def distribution(self, state: Any, obs: Any, carry: Any) -> dict[str, tf.Tensor]:
        result, after = self._agent.policy_parameters(state, obs, carry)
        named = {}
        for path, (kind, parameters) in result.items():
            self.kinds[path] = kind
            named.update({leaf_name(path, name): x for name, x in parameters.items()})
        return {**named, **self._after(after)}

    def begin(self) -> Any:
        """Returns the function `initial_state`."""
        names = tuple(self.carry_names.values())

        def initial_state(batch_size: tf.Tensor) -> dict[str, tf.Tensor]:
            carry = tf.nest.flatten(initial_carry(self._agent, batch_size))
            return dict(zip(names, carry, strict=True))

        signature = [tf.TensorSpec([], tf.int32, name="batch_size")]
        return tf.function(initial_state, input_signature=signature, autograph=False)

    def _check_carry(self, before: Any, after: Any) -> None:
        """Rejects a carry without an initial value."""
        if before is None and after is not None:
            raise UserError(
                f"export of {type(self._agent).__name__}",
                expected="a method initial_carry(batch_size), since evaluate_actions returns a "
                "carry",
                got="a recurrent policy without an initial carry",
                remedy="Define it to return the initial recurrent state.",
            )


def _used(concrete: Any, leaves: Mapping[str, Any]) -> set[str]:
    """The names of the leaves in the first argument on which the outputs depend."""
    visited, rest = set(), [tensor.op for tensor in concrete.graph.outputs]
    while rest:
        op = rest.pop()
        if op.name not in visited:
            visited.add(op.name)
            rest += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    inputs = concrete.graph.inputs  # dicts are flattened by sorted names
    return {path for path, x in zip(sorted(leaves), inputs, strict=False) if x.op.name in visited}


METADATA_FILE = "metadata.json"
_PACKAGES = {
    "tf_agents": "tf-agents",
    "tf2onnx": "tf2onnx",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
}
# Packages of each format.
_PACKAGES_OF = {"tf_agents": ("tf_agents",), "onnx": ("tf2onnx", "onnx", "onnxruntime")}


def export_versions(form: str) -> dict[str, str]:
    """Returns the package versions of an export, including its format's."""
    result = versions()
    for name in _PACKAGES_OF.get(form, ()):
        result[name] = importlib.metadata.version(_PACKAGES[name])
    return result


def specs_of(policy: PolicyFunctions) -> dict[str, Any]:
    """Returns observation, action and state: names, shapes, dtypes and bounds, for JSON."""
    return {
        "observation": _leaves(policy.obs_spec, "observation"),
        "action": _leaves(policy.action_spec, "action"),
        "state": list(policy.state),
    }


def _leaves(nest: Any, base: str) -> list[dict[str, Any]]:
    result = []
    for path, spec in struct.paths(nest).items():
        low, high = specs.bounds(spec)
        about: dict[str, Any] = {
            "name": leaf_name(path, base),
            "path": path,
            "shape": spec.shape.as_list(),
            "dtype": spec.dtype.name,
            "minimum": _bound(low),
            "maximum": _bound(high),
        }
        if isinstance(spec, specs.DiscreteSpec):
            about["num_values"] = spec.num_values
        result.append(about)
    return result


def _bound(bound: np.ndarray) -> Any:
    """One number if all are equal; null for unbounded."""
    if bound.size and np.all(bound == bound.flat[0]):
        return bound.flat[0]
    return bound
