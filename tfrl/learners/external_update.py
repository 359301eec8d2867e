"""Updates by external training steps, see `tfrl.agents.core.ExternalUpdate`."""

from typing import Any

import tensorflow as tf

from tfrl.agents.core import ExternalUpdate
from tfrl.errors import UserError
from tfrl.learners.loss_checks import check_scalars, scalar_loss
from tfrl.types import AgentState, Nest


def only_external_updates(module: object) -> bool:
    """Whether all updates of an agent or a module are external."""
    updates = getattr(module, "updates", ())
    return bool(updates) and all(isinstance(u, ExternalUpdate) for u in updates)


def take_external_step(
    module_id: str,
    update: ExternalUpdate,
    state: AgentState,
    batch: Nest,
    key: tf.Tensor,
    *,
    guard: bool,
    several: bool,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Takes one step; traced, outside of the replicas.

    Args:
      module_id: The module.
      update: Its update.
      state: Its state, variables, updated in place.
      batch: Rows.
      key: int32 [2].
      guard: Whether to undo a step with a non-finite loss or resulting parameters.
      several: Whether there are several replicas, which is an error.

    Returns:
      Metrics, float32 scalars, and whether the loss (with `guard` also the parameters) was finite.
    """
    if several:
        raise UserError(
            f"module {module_id!r}",
            expected="one replica, since the gradients of its own training step cannot be "
            "summed over replicas",
            got="several replicas",
            remedy="Use --strategy=one_device.",
        )
    variables = tf.nest.flatten(state)
    # Copies, since the step overwrites variables that are read later.
    before = [tf.identity(v.read_value()) for v in variables] if guard else []
    with tf.control_dependencies([] if tf.executing_eagerly() else before):
        metrics = dict(update.step(state, batch, key))
    if "loss" not in metrics:
        raise UserError(
            f"update {update.name!r} of module {module_id!r}",
            expected="metrics with an item 'loss'",
            got=sorted(metrics),
            remedy="Return {'loss': loss, ...} from its step.",
        )
    loss, _ = scalar_loss(f"module {module_id!r}", metrics["loss"])
    check_scalars(module_id, {n: x for n, x in metrics.items() if n != "loss"})
    row = {n: tf.cast(x, tf.float32) for n, x in {"loss": loss, **metrics}.items()}
    finite = tf.math.is_finite(row["loss"])
    if guard:
        # TensorFlow orders reads of a variable after its writes.
        with tf.control_dependencies([] if tf.executing_eagerly() else list(row.values())):
            finite &= _all_finite(state.params)
            _undo_unless(finite, variables, before)
    return row, finite


def _all_finite(variables: Nest) -> tf.Tensor:
    """Whether all floats are finite: a finite loss may have non-finite gradients."""
    values = [v.read_value() for v in tf.nest.flatten(variables) if v.dtype.is_floating]
    finite = [tf.reduce_all(tf.math.is_finite(x)) for x in values]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)


def _undo_unless(finite: tf.Tensor, variables: list[Any], before: list[tf.Tensor]) -> None:
    def undo() -> tf.Tensor:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return tf.constant(0)

    tf.cond(finite, lambda: tf.constant(0), undo)
