"""A learner's metrics in the rows of a run: `name`, with several modules `<module_id>/<name>`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learners import DEFAULT_MODULE_ID, raise_if_nonfinite
from tfrl.workflows.rollout_result import NONFINITE_STATISTICS


def name_in_row(module_id: str, name: str) -> str:
    """Returns the name of a module's metric in a row."""
    return name if module_id == DEFAULT_MODULE_ID else f"{module_id}/{name}"


def in_one_row(results: Mapping[str, Mapping[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
    """Returns a learner's results `{module_id: {name: x}}` as one dict."""
    return {name_in_row(m, name): x for m, row in results.items() for name, x in row.items()}


def checked_rows(
    rows: Sequence[Mapping[str, Any]], module_ids: Iterable[str], *, raises: bool
) -> list[dict[str, Any]]:
    """Returns rows without the counts of non-finite values that are 0.

    Args:
      rows: The rows of iterations.
      module_ids: The learner's modules.
      raises: Whether a count above 0 is an error.

    Raises:
      UserError: For a non-finite value, with its module and iteration.
    """
    for row in rows if raises else ():
        where = f" at iteration {row['iterations']}, env step {row['env_steps']}"
        prefixes = {m: name_in_row(m, "") for m in module_ids}
        by_module = {
            m: {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
            for m, prefix in prefixes.items()
        }
        raise_if_nonfinite(by_module, where)
        if row.get(NONFINITE_STATISTICS):
            raise UserError(
                f"the statistics of observations{where}",
                expected="finite moments",
                got="non-finite moments, which were skipped",
                remedy="Check the agent's `update_normalizer` and the restored checkpoint, "
                "or choose check_numerics='skip'.",
            )
    return [{k: v for k, v in row.items() if "nonfinite/" not in k or v} for row in rows]
