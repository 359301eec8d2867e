"""What the losses of a gradient step must give."""

from collections.abc import Collection, Mapping
from typing import Any

import tensorflow as tf

from tfrl.errors import UserError

# Names of what an update reports of every module by itself.
RESERVED = (
    "loss",
    "grad_norm",
    "learning_rate",
    "gradient_steps",
    "skipped_steps",
    "num_trainable_parameters",
    "num_non_trainable_parameters",
)


def check_ids(found: Collection[str], module_ids: Collection[str]) -> None:
    """Checks that `compute_losses` returned a loss of every module, and of no other.

    Args:
      found: Ids that it returned losses for.
      module_ids: Ids of the modules that are trained.

    Raises:
      UserError: Listing both.
    """
    if set(found) != set(module_ids):
        raise UserError(
            "compute_losses",
            expected=f"a loss of each of the modules {sorted(module_ids)}",
            got=f"losses of {sorted(found)}",
            remedy="Where one loss is that of several modules, return it for one of them and "
            "tf.constant(0.0) for the others.",
        )


def check_scalars(module_id: str, metrics: Mapping[str, Any]) -> None:
    """Checks that what a loss reports are scalars, under names that the Learner leaves free.

    Args:
      module_id: The module.
      metrics: `{name: scalar}`.

    Raises:
      UserError: Naming all that are none, and all names that are taken.
    """
    taken = [str(name) for name in metrics if _is_reserved(str(name))]
    if taken:
        raise UserError(
            f"the metrics of module {module_id!r}",
            expected=f"other names than those that the Learner reports itself: "
            f"{', '.join(RESERVED)}, grad_norm/..., nonfinite/... and .../learning_rate",
            got=", ".join(map(repr, taken)),
            remedy="Name them by what they are, 'policy_loss' say.",
        )
    wrong = [f"{name} {fault}" for name, x in metrics.items() if (fault := _fault(x))]
    if wrong:
        raise UserError(
            f"the metrics of module {module_id!r}",
            expected="scalars, of numbers",
            got=", ".join(wrong),
            remedy="Reduce them over the rows, with tfrl.ops.masked_mean(x, mask) where some do "
            "not count.",
        )


def _is_reserved(name: str) -> bool:
    return (
        name in RESERVED
        or name.startswith(("nonfinite/", "grad_norm/"))
        or name.endswith("/learning_rate")
    )


def _fault(x: Any) -> str | None:
    """What keeps a metric from being a scalar of a number."""
    try:
        x = tf.convert_to_tensor(x)
    except (TypeError, ValueError):
        return f"of type {type(x).__name__}"
    if x.shape.rank:
        return f"of shape {x.shape}"
    is_number = x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool
    return None if is_number else f"of dtype {x.dtype.name}"
