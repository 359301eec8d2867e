"""Policy gradient steps of a population's members by shared critics, as in CEM-RL."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents.off_policy.agent import OffPolicy, polyak_update
from tfrl.learners import Learner
from tfrl.learning import leaves
from tfrl.metrics.accumulator import mean_of_steps
from tfrl.types import AgentState, Nest

Row = dict[str, tf.Tensor]
# `take(number, key)` takes learner steps and returns the means of their metrics.
LearnerSteps = Callable[[tf.Tensor, tf.Tensor], Row]


class OneUpdate:
    """Wraps an off-policy agent so that only one update runs, at every step.

    The target networks of its groups move after each step; others stay.
    """

    def __init__(self, agent: OffPolicy, name: str):
        """Takes the agent and the name of the update."""
        self._agent = agent
        (self._update,) = (u for u in agent.updates if u.name == name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @property
    def updates(self) -> tuple[Any, ...]:
        """The one update, with `every=1`."""
        return (self._update.replace(every=1),)

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """Returns the state unchanged: no update of a target network is delayed."""
        return state

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> None:
        """None: target networks move after every step."""
        return None

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Moves the target networks of the trained groups."""
        own = [g for g in self._update.groups if g in state.target_params]
        target = {g: state.target_params[g] for g in own}
        moved = polyak_update(target, {g: state.params[g] for g in own}, self._agent.tau)
        return state.replace(target_params={**state.target_params, **moved})


def with_one_update(learner: Learner, module_id: str, name: str) -> Learner:
    """Returns a learner over the same variables that runs only one update of one module.

    Args:
      learner: The learner of off-policy agents.
      module_id: The module.
      name: The name of the update: "critic" or "actor".
    """
    one = learner.over(learner.learner_state)
    module: Any = OneUpdate(cast(OffPolicy, learner.modules[module_id]), name)
    one.modules = {module_id: module}
    return one


def train_members(
    population: Nest,
    number_of_members: int,
    steps: Mapping[str, LearnerSteps],
    number: tf.Tensor,
    key: tf.Tensor,
    *,
    actor: Nest,
    target: Nest,
    slots: Nest,
) -> tuple[Nest, Row]:
    """Trains the first members of a population, one after the other; traced.

    Each member is copied into the actor and the target actor, with a fresh optimizer. The critics
    take their share of the steps, then the actor takes `number` steps.

    Source: Pourchot & Sigaud 2019, algorithm 1, https://arxiv.org/abs/1810.01222.

    Args:
      population: Leaves `[P, ...]`.
      number_of_members: The number of members to train.
      steps: `{name of the update: its steps}`, the critics' first.
      number: int32 scalar: steps of the critics in all, and of each member's actor.
      key: int32 [2].
      actor: The actor's variables.
      target: The target actor's variables, or None.
      slots: The variables of the actor's optimizer, by path.

    Returns:
      The population and the means of the metrics.
    """
    critic, _ = steps

    def begin(member: Nest) -> None:
        for variables in (actor, target):
            if variables is not None:
                tf.nest.map_structure(leaves.put, variables, member)
        for path, slot in struct.paths(slots).items():
            if path != "learning_rate":
                leaves.put(slot, tf.zeros_like(slot))

    def trained(i: tf.Tensor, population: Nest) -> tuple[Nest, Row]:
        begin(tf.nest.map_structure(lambda x: x[i], population))
        share = (i + 1) * number // number_of_members - i * number // number_of_members
        row: Row = {}
        for name, take in steps.items():
            own_key = seeding.stream(seeding.fold_in(key, i), name)
            trained_state = take(share if name == critic else number, own_key)
            row.update(named_by(name, trained_state))

        def put(x: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
            value = variable.read_value()[tf.newaxis]
            return tf.tensor_scatter_nd_update(x, tf.reshape(i, [1, 1]), value)

        return tf.nest.map_structure(put, population, actor), row

    return mean_of_steps(number_of_members, trained, population)


def named_by(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Prefixes the metrics of one update with its name, as in a step of several updates."""
    named = {}
    for key, value in row.items():
        before, _, rest = key.rpartition("nonfinite/")
        if key.endswith("learning_rate"):
            if key in ("learning_rate", f"{name}/learning_rate"):
                named[f"{name}/learning_rate"] = value
        elif rest != key:
            named[f"{before}nonfinite/{name}/{rest}"] = value
        else:
            named[f"{name}/{key}"] = value
    return named
