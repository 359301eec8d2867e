"""The variables of several modules as one list of values, each shared variable once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl import networks, struct
from tfrl.errors import UserError
from tfrl.types import AgentState

# {variable.ref(): tensor}; gradients travel under the names of their variables.
ParamDict = dict[Any, tf.Tensor]


class ParameterTable:
    """Reads the states of modules into values and puts values back into states.

    A variable that two modules share is one value in both, so that its gradient is that of the
    sum of their losses.
    """

    def __init__(self, states: Mapping[str, AgentState]):
        """Lists the variables of `{module_id: AgentState of tf.Variables}`."""
        self._states = dict(states)
        self.variables: list[tf.Variable] = []
        self._index: dict[Any, int] = {}
        self._places: dict[str, list[int]] = {}
        for module_id, state in states.items():
            self._places[module_id] = [self._add(v) for v in tf.nest.flatten(state)]

    def _add(self, variable: tf.Variable) -> int:
        ref = variable.ref()
        if ref not in self._index:
            self._index[ref] = len(self.variables)
            self.variables.append(variable)
        return self._index[ref]

    def values(self, states: Mapping[str, AgentState]) -> list[tf.Tensor]:
        """Reads every variable once, out of states of the same form."""
        found: dict[int, tf.Tensor] = {}
        for module_id, places in self._places.items():
            for place, leaf in zip(places, tf.nest.flatten(states[module_id]), strict=True):
                if place not in found:
                    found[place] = tf.convert_to_tensor(leaf)
        return [found[i] for i in range(len(self.variables))]

    def states(self, values: Sequence[tf.Tensor]) -> dict[str, AgentState]:
        """Puts values, in the order of `variables`, into states of the modules."""
        return {
            m: tf.nest.pack_sequence_as(self._states[m], [values[i] for i in places])
            for m, places in self._places.items()
        }

    def trained(self, groups: Mapping[str, Iterable[str]]) -> list[int]:
        """Returns the places of what the groups `{module_id: group names}` train, each once."""
        found: dict[int, None] = {}
        for module_id, names in groups.items():
            for variable in group_variables(module_id, self._states[module_id], tuple(names)):
                found[self._index[variable.ref()]] = None
        return list(found)


def group_variables(
    module_id: str, state: AgentState, groups: tuple[str, ...]
) -> list[tf.Variable]:
    """Returns the variables of parameter groups that gradients train.

    Raises:
      UserError: For a group that the module does not have.
    """
    unknown = [g for g in groups if g not in state.params]
    if unknown:
        raise UserError(
            f"module {module_id!r}",
            expected=f"updates over its parameter groups {sorted(state.params)}",
            got=f"{unknown}",
            remedy="Name groups that init() returns.",
        )
    return [v for g in groups for v in networks.split_leaves(state.params[g])[0]]


def make_variables(
    state: AgentState, prefix: str, shared: Mapping[str, Any] | None = None
) -> AgentState:
    """Makes a tf.Variable of every leaf, named by its path.

    Args:
      state: Values.
      prefix: What the names begin with.
      shared: `{path: tf.Variable}` to take instead of a new one.
    """
    shared = shared or {}
    variables = [
        shared[path]
        if path in shared
        else tf.Variable(
            value,
            name=f"{prefix}/{path}",
            trainable=path.startswith("params/"),
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        for path, value in struct.paths(state).items()
    ]
    return tf.nest.pack_sequence_as(state, variables)


def make_counter(name: str, value: Any = 0) -> tf.Variable:
    """Makes a variable of integers, int64 unless they have a dtype, that no gradient trains."""
    return tf.Variable(
        value,
        dtype=getattr(value, "dtype", tf.int64),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
