"""Checks of what a user's own code returns: `iterate`, and the hooks of a setup."""

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import checks, struct
from tfrl.errors import UserError
from tfrl.storage.checkpoint_format import check_fits
from tfrl.types import Nest
from tfrl.workflows.run_state import ROW_COUNTERS, RunMetrics, State

if TYPE_CHECKING:
    from tfrl.workflows.core import Workflow


def first_nests(workflow: "Workflow", result: Any) -> tuple[Nest, Nest]:
    """Returns `agent_state` and `opt_state` that `setup_agent_and_optimizer` returned.

    Args:
      workflow: Has the hook.
      result: What it returned.

    Raises:
      UserError: For anything but two nests.
    """
    if isinstance(result, tuple | list) and len(result) == 2:
        return result[0], result[1]
    raise UserError(
        f"what {type(workflow).__name__}.setup_agent_and_optimizer returns",
        expected="agent_state and opt_state, two nests of tensors",
        got=_described(result),
        remedy="Return {} in place of a state that the workflow does not have.",
    )


def with_tensors(name: str, nest: Nest) -> Nest:
    """Returns a part of a state with tensors in place of numbers and arrays; variables stay.

    Raises:
      UserError: For a leaf without a value.
    """

    def tensor(x: Any) -> Any:
        return x if tf.is_tensor(x) or isinstance(x, tf.Variable) else tf.convert_to_tensor(x)

    try:
        return None if nest is None else tf.nest.map_structure(tensor, nest)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"a leaf of {name} in a state",
            expected="a number, an array, a tensor or a variable",
            got=str(error).splitlines()[0],
            remedy="Leave out what has no value.",
        ) from error


def first_metrics(workflow: "Workflow") -> RunMetrics:
    """Returns the result of a workflow's `setup_workflow_metrics`; checks its class."""
    return checks.instance(
        f"what {type(workflow).__name__}.setup_workflow_metrics returns",
        workflow.setup_workflow_metrics(),
        RunMetrics,
        "RunMetrics",
        remedy="Return super().setup_workflow_metrics(), with other values by `replace`.",
    )


def check_iterated(before: State, result: Any) -> tuple[dict[str, Any], State]:
    """Returns the metrics and the state that `iterate` returned.

    Args:
      before: The state before the iteration.
      result: What it returned.

    Raises:
      UserError: For anything but scalar metrics and a state of the same structure.
    """
    thing = "what `iterate` returns"
    pair = isinstance(result, tuple | list) and len(result) == 2
    if not (pair and isinstance(result[0], Mapping) and isinstance(result[1], State)):
        raise UserError(
            thing,
            expected="the metrics, a dict of scalars, and the state",
            got=_described(result),
            remedy="Return metrics, state.replace(...).",
        )
    metrics, after = result
    for name, x in metrics.items():
        number = tf.is_tensor(x) or isinstance(x, numbers.Number | np.ndarray | tf.Variable)
        if not number or tf.TensorShape(np.shape(x) if not hasattr(x, "shape") else x.shape).rank:
            raise UserError(
                f"the metric {name!r} of {thing}",
                expected="a scalar",
                got=_described(x),
                remedy="Return its mean, or another scalar.",
            )
    check_fits(
        f"the state of {thing}",
        _of_a_replica(before),
        _of_a_replica(after),
        expected="the leaves of the state before the iteration, in their shapes and dtypes",
        remedy="Make all leaves in setup; an iteration only changes their values.",
    )
    return dict(metrics), after


def _of_a_replica(state: State) -> dict[str, Any]:
    """Returns the leaves of a state by path; of several replicas' values the first."""
    return {
        path: x.values[0] if isinstance(x, tf.distribute.DistributedValues) else x
        for path, x in struct.paths(state).items()
    }


def _described(x: Any) -> str:
    if isinstance(x, tuple | list):
        return f"{type(x).__name__} of {', '.join(type(item).__name__ for item in x)}"
    if hasattr(x, "shape"):
        return f"{type(x).__name__} of shape {tuple(x.shape)}"
    return type(x).__name__


def check_names(names: Sequence[str], metrics: Mapping[str, Any]) -> None:
    """Raises a UserError for metrics named like counters, and for others than in the first row."""
    if taken := sorted(set(ROW_COUNTERS).intersection(metrics)):
        raise UserError(
            "the metrics of an iteration",
            expected="other names than those of the counters",
            got=", ".join(taken),
            remedy="Rename them; the counters are in each row.",
        )
    if names != sorted(metrics):
        raise UserError(
            "the metrics of an iteration",
            expected=f"those of the first one, {', '.join(names)}",
            got=", ".join(sorted(metrics)),
            remedy="Return the same metrics each time; NaN is a metric without a value.",
        )
