"""Parameters of a Learner's modules: as variables and as one list of values without duplicates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfrl import networks, struct
from tfrl.agents.core import ExternalUpdate
from tfrl.errors import UserError, did_you_mean
from tfrl.types import AgentState

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

# {variable.ref(): tensor}; gradients are keyed by their variables.
ParamDict = dict[Any, tf.Tensor]


class ParameterTable:
    """Converts the states of modules to values and back.

    A shared variable is one value in all modules, so its gradient is that of the sum of their
    losses.
    """

    def __init__(self, states: Mapping[str, AgentState], unread: Collection[str] = ()):
        """Lists the variables.

        Args:
          states: `{module_id: AgentState of tf.Variables}`.
          unread: Modules whose losses read the variables themselves: they stay variables.
        """
        self._states = dict(states)
        self._unread = frozenset(unread)
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
        """Reads every variable once, from states of equal structure."""
        values: dict[int, tf.Tensor] = {}
        for module_id, places in self._places.items():
            for place, leaf in zip(places, tf.nest.flatten(states[module_id]), strict=True):
                if place not in values:
                    read = module_id not in self._unread
                    values[place] = tf.convert_to_tensor(leaf) if read else leaf
        return [values[i] for i in range(len(self.variables))]

    def states(self, values: Sequence[tf.Tensor]) -> dict[str, AgentState]:
        """Puts values, in the order of `variables`, into states of the modules."""
        return {
            m: tf.nest.pack_sequence_as(self._states[m], [values[i] for i in places])
            for m, places in self._places.items()
        }

    def trained(self, groups: Mapping[str, Iterable[str]]) -> dict[Any, int]:
        """Returns `{ref: index}` of the parameters in groups `{module_id: group names}`."""
        places: dict[Any, int] = {}
        for module_id, names in groups.items():
            for variable in group_variables(module_id, self._states[module_id], tuple(names)):
                places[variable.ref()] = self._index[variable.ref()]
        return places


class VariableForm:
    """A placeholder for a variable in a learner without variables.

    Attributes:
      name: The variable's name.
      shape: The variable's shape.
      dtype: The variable's dtype.
      device: The variable's device.
    """

    def __init__(self, variable: Any):
        """Takes the form of a variable."""
        self.name, self.shape, self.dtype = variable.name, variable.shape, variable.dtype
        self.device = variable.device

    def ref(self) -> VariableForm:
        """Returns a key like a variable's `ref`."""
        return self


def group_variables(
    module_id: str, state: AgentState, groups: tuple[str, ...]
) -> list[tf.Variable]:
    """Returns the trained variables of parameter groups.

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
      prefix: Prefix of the names.
      shared: `{path: tf.Variable}` to use instead of new ones.
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
    """Makes an untrainable integer variable, int64 unless the value has a dtype."""
    return tf.Variable(
        value,
        dtype=getattr(value, "dtype", tf.int64),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def parameter_counts(learner: Learner, module_ids: Collection[str]) -> dict[str, int]:
    """Returns the numbers of trained and of other parameters.

    All parameters of a module with external updates (`ExternalUpdate`) count as trained.

    Args:
      learner: A built `Learner`.
      module_ids: Modules; shared parameters count once.
    """
    trained: set[Any] = set()
    counts: dict[Any, int] = {}
    for m in module_ids:
        params, updates = learner.module_state(m).params, learner.modules[m].updates
        groups = dict.fromkeys(g for u in updates for g in u.groups)
        if any(isinstance(u, ExternalUpdate) for u in updates):
            groups = dict.fromkeys(params)
        trained |= {v.ref() for v in group_variables(m, learner.module_states[m], tuple(groups))}
        counts.update({v.ref(): v.shape.num_elements() for v in tf.nest.flatten(params)})
    sizes = {True: 0, False: 0}
    for ref, size in counts.items():
        sizes[ref in trained] += size
    return {
        "num_trainable_parameters": sizes[True],
        "num_non_trainable_parameters": sizes[False],
    }


def own_variables(learner: Learner, module_id: str) -> list[tf.Variable]:
    """Returns the variables of a module that no other module shares."""
    others = {
        v.ref()
        for m, state in learner.module_states.items()
        if m != module_id
        for v in tf.nest.flatten(state)
    }
    mine = (
        tf.nest.flatten(learner.module_states[module_id])
        if module_id in learner.module_states
        else []
    )
    return [v for v in mine if v.ref() not in others]


def shared_groups(
    shared: Mapping[str, Sequence[str]], modules: Mapping[str, Any]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Parses `shared`.

    Args:
      shared: `{"owner/group": ["borrower/group", ...]}`; owners come first in the order of modules.
      modules: `{module_id: module}`.

    Returns:
      `{(borrower, group): (owner, group)}`.

    Raises:
      UserError: For unknown names, and owners that come after borrowers.
    """
    order = list(modules)
    owners: dict[tuple[str, str], tuple[str, str]] = {}
    for lender, borrowers in shared.items():
        for borrower in [borrowers] if isinstance(borrowers, str) else borrowers:
            (owner, _, lent), (taker, _, group) = lender.partition("/"), borrower.partition("/")
            known = owner in modules and taker in modules and lent and group
            if not known or order.index(owner) >= order.index(taker):
                raise UserError(
                    "shared",
                    expected="names module_id/group, with the owner before its borrowers in the "
                    f"module order {order}",
                    got=f"{lender!r}: {borrower!r}",
                    remedy="Write shared={'a/encoder': ['b/encoder']}.",
                )
            owners[taker, group] = (owner, lent)
    return owners


def check_groups(named: Mapping[str, tuple[AgentState, str]]) -> None:
    """Checks that modules have the groups to share.

    Args:
      named: `{module_id: (state, group)}`.
    """
    unknown = {m: (state, g) for m, (state, g) in named.items() if g not in state.params}
    if unknown:
        raise UserError(
            "shared",
            expected="; ".join(
                f"a group of module {m!r}, out of {sorted(state.params)}"
                for m, (state, _) in unknown.items()
            ),
            got=", ".join(repr(f"{m}/{g}") for m, (_, g) in unknown.items()),
            remedy=" ".join(did_you_mean(g, state.params) for state, g in unknown.values()),
        )


def check_shared(
    module_id: str, shared: Mapping[str, tf.Variable], paths: Mapping[str, Any]
) -> None:
    """Checks that a borrowed group has the same leaves as the borrower's own.

    Args:
      module_id: The borrower.
      shared: `{path: variable}` of the owner's group.
      paths: `{path: value}` of the borrower's.
    """
    wrong = [
        f"{p} of shape {tuple(v.shape)}"
        for p, v in shared.items()
        if p not in paths or tuple(paths[p].shape) != tuple(v.shape)
    ]
    wrong += [f"none for {p}" for p in paths if p not in shared]
    if wrong:
        raise UserError(
            f"shared parameters of module {module_id!r}",
            expected="the leaves and shapes of its own group",
            got="; ".join(wrong),
            remedy="Share groups of identical networks only.",
        )
