"""What `as_tf_agent` checks of its arguments."""

from collections.abc import Mapping
from typing import Any

from tfrl.agents.core import Agent
from tfrl.agents.off_policy import OffPolicy
from tfrl.errors import UserError


def check_agent(agent: Any) -> bool:
    """Returns whether an agent learns from replayed windows; else it learns from rollouts.

    Raises:
      UserError: For what does neither.
    """
    rolls = isinstance(agent, Agent) and type(agent).learner_batch is not Agent.learner_batch
    if not rolls and not isinstance(agent, OffPolicy):
        raise UserError(
            "as_tf_agent",
            expected="an agent that learns: a subclass of tfrl.agents.OffPolicy, or one with "
            "learner_batch",
            got=f"the class {agent.__name__}" if isinstance(agent, type) else type(agent).__name__,
            remedy="as_tf_policy takes agents that only act.",
        )
    return isinstance(agent, OffPolicy)


def check_settings(
    agent: Any,
    counts: Mapping[str, Any],
    remainder: Any,
    off_policy: bool,
    by_row: bool,
    check_numerics: Any,
    compile: Any,
) -> None:
    """Refuses arguments that would have no effect, or none that is meant.

    Args:
      agent: The agent.
      counts: Whole numbers or None, by their names.
      remainder: As of `as_tf_agent`.
      off_policy: Whether the agent learns from replayed windows.
      by_row: Whether `compute_value_and_advantage_in_train` is False.
      check_numerics: As of `as_tf_agent`.
      compile: As of `as_tf_agent`.

    Raises:
      UserError: Naming the first argument that does not fit.
    """
    name = type(agent).__name__
    given = [n for n, x in counts.items() if x is not None]
    given += ["remainder"] if remainder != "pad" else []
    given += ["compute_value_and_advantage_in_train"] if by_row else []
    if off_policy and given:
        raise UserError(
            given[0],
            expected=f"its default for {name}, whose train is one step on one batch",
            got="another value",
            remedy="Leave it out; it is for on-policy agents.",
        )
    for argument, count in counts.items():
        whole = isinstance(count, int) and not isinstance(count, bool) and count >= 1
        if count is not None and not whole:
            raise UserError(
                argument,
                expected="a whole number of at least 1, or None",
                got=repr(count),
                remedy="Leave it out for the usual.",
            )
    unused = [n for n in given if n in ("num_epochs", "num_minibatches", "remainder")]
    if by_row and unused:
        raise UserError(
            unused[0],
            expected="its default without compute_value_and_advantage_in_train",
            got="another value",
            remedy="PPOLearner has num_epochs and minibatch_size.",
        )
    if check_numerics not in ("skip", "off"):
        raise UserError(
            "check_numerics",
            expected="skip or off: nothing can be raised where TF-Agents trains",
            got=repr(check_numerics),
            remedy="skip counts steps that were left out in the extra of LossInfo.",
        )
    if compile not in ("graph", "xla"):
        raise UserError(
            "compile",
            expected="graph or xla",
            got=repr(compile),
            remedy="graph is the faster on CPUs for all but small networks.",
        )
