"""A learner that takes one of its module's updates alone, in every step."""

from typing import Any

import tensorflow as tf

from tfrl.agents.off_policy.agent import polyak_update
from tfrl.learners import Learner
from tfrl.types import AgentState


class OneUpdate:
    """An off-policy agent of which one update runs, whatever its `every`.

    The target networks of the groups that it trains follow after each step; others stay.
    """

    def __init__(self, agent: Any, name: str):
        """Takes the agent, and the name of the update."""
        self._agent = agent
        (self._update,) = (u for u in agent.updates if u.name == name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @property
    def updates(self) -> tuple[Any, ...]:
        """The one."""
        return (self._update.replace(every=1),)

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """Counts nothing: no target network waits."""
        return state

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> None:
        """None: target networks move after every step."""
        return None

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Moves the target networks of the groups that are trained."""
        own = [g for g in self._update.groups if g in state.target_params]
        target = {g: state.target_params[g] for g in own}
        moved = polyak_update(target, {g: state.params[g] for g in own}, self._agent.tau)
        return state.replace(target_params={**state.target_params, **moved})  # type: ignore[no-any-return]


def with_one_update(learner: Learner, module_id: str, name: str) -> Learner:
    """Returns a learner over the same variables that takes one update of a module alone.

    Args:
      learner: The learner of off-policy agents.
      module_id: The module.
      name: The name of the update: "critic" or "actor".
    """
    one = learner.over(learner.learner_state)
    module: Any = OneUpdate(learner.modules[module_id], name)
    one.modules = {module_id: module}
    return one


def named_by(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the metrics of one update under its name, as a step of several updates has them."""
    found = {}
    for key, value in row.items():
        before, _, rest = key.rpartition("nonfinite/")
        if key.endswith("learning_rate"):
            if key in ("learning_rate", f"{name}/learning_rate"):
                found[f"{name}/learning_rate"] = value
        elif rest != key:
            found[f"{before}nonfinite/{name}/{rest}"] = value
        else:
            found[f"{name}/{key}"] = value
    return found
