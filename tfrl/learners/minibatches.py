"""The split of a batch into minibatches: permutation, epochs, remainder."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.ops.permutation import permutation

Remainder = Literal["error", "pad", "drop", "wrap"]
REMAINDERS = ("error", "pad", "drop", "wrap")
# {field: (name in messages, remedy)}
_COUNTS = {
    "rows": ("the rows of the batch", "Collect experience before the update."),
    "size": ("minibatch_size", "Leave it out for a minibatch of all rows."),
    "epochs": ("num_epochs", "It is the number of passes over the batch; leave it out for one."),
}


@struct.dataclass
class MinibatchIndices(struct.Struct):
    """The split of batches into minibatches.

    Attributes:
      indices: `{module_id: int32 [steps, size]}`, row indices on each replica; -1 for padding.
      steps: Number of steps, an int or an int32 scalar.
      padded: Whether a module's indices contain -1.
      full_batch: Whether every step of a module uses the whole batch in order.
    """

    indices: dict[str, tf.Tensor]
    steps: Any
    padded: dict[str, bool] = struct.field(static=True)
    full_batch: dict[str, bool] = struct.field(static=True)


@struct.logic_dataclass
class MinibatchPlan(struct.Struct):
    """The split of a batch's rows.

    Attributes:
      rows: Rows of the batch.
      size: Rows of a minibatch.
      epochs: Passes over the batch.
      shuffle: A fresh permutation in every epoch, the first included.
      remainder: For rows that do not fill a minibatch: "error"; "pad" (every row exactly once,
        masked rows fill the last minibatch); "drop" (at most once; with shuffling, other rows are
        dropped in each epoch); "wrap" (at least once, rows from the start fill the last minibatch).
      steps_per_epoch: Minibatches of one epoch.
      padded: Whether the last minibatch has masked rows.
    """

    rows: int
    size: int
    epochs: int = 1
    shuffle: bool = True
    remainder: Remainder = "error"
    steps_per_epoch: int = struct.derived()
    padded: bool = struct.derived()

    def __post_init__(self) -> None:
        """Checks the sizes."""
        for field, (thing, remedy) in _COUNTS.items():
            count = checks.at_least(thing, getattr(self, field), 1, remedy=remedy)
            object.__setattr__(self, field, count)  # a single number type, since plans are compared
        shuffle = checks.boolean("shuffle", self.shuffle)
        object.__setattr__(self, "shuffle", bool(shuffle))
        remedy = "Choose how to treat rows that do not fill a minibatch."
        checks.one_of("remainder", self.remainder, REMAINDERS, remedy=remedy)
        left = self.rows % self.size
        if left and self.remainder == "error":
            raise UserError(
                "minibatch_size",
                expected=f"a divisor of the {self.rows} rows of the batch",
                got=f"{self.size} (remainder {left})",
                remedy=f"The nearest divisors are {_nearest_divisors(self.rows, self.size)}; or "
                "choose remainder='pad', 'drop' or 'wrap'.",
            )
        if self.remainder == "drop" and self.size > self.rows:
            raise UserError(
                "minibatch_size",
                expected=f"at most the {self.rows} rows of the batch with remainder='drop'",
                got=self.size,
                remedy="Choose remainder='pad' or a smaller size.",
            )
        steps = self.rows // self.size
        if left and self.remainder != "drop":
            steps += 1
        self.steps_per_epoch = steps
        self.padded = bool(left) and self.remainder == "pad"

    @property
    def steps(self) -> int:
        """Minibatches of all epochs."""
        return self.steps_per_epoch * self.epochs


def whole_number(value: Any) -> int | None:
    """Returns a Python or NumPy integer as an int; None for other values."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return None


def _nearest_divisors(rows: int, size: int) -> str:
    divisors = [d for d in range(1, rows + 1) if rows % d == 0]
    below = [d for d in divisors if d <= size][-1:]
    above = [d for d in divisors if d > size][:1]
    return " and ".join(str(d) for d in below + above)


def minibatch_indices(plan: MinibatchPlan, key: tf.Tensor) -> tf.Tensor:
    """Returns the row indices of every minibatch of every epoch.

    Args:
      plan: The plan.
      key: int32 [2]; epoch e is permuted by `fold_in(key, e)`.

    Returns:
      int32 `[plan.steps, plan.size]` of row numbers; -1 for a masked row (remainder "pad").
    """
    if tf.executing_eagerly():
        return tf.constant(_on_host(plan, key), tf.int32)
    if plan.epochs == 1:
        return _epoch_indices(plan, seeding.fold_in(key, 0))
    # A loop, because the graph of a permutation is large.
    rows = tf.TensorArray(tf.int32, plan.epochs, element_shape=[plan.steps_per_epoch, plan.size])
    _, rows = tf.while_loop(
        lambda epoch, _: epoch < plan.epochs,
        lambda epoch, rows: (
            epoch + 1,
            rows.write(epoch, _epoch_indices(plan, seeding.fold_in(key, epoch))),
        ),
        (tf.constant(0), rows),
        # Named, since TensorFlow numbers unnamed loops, and collectives' keys contain the names.
        name="permutations",
    )
    return tf.reshape(rows.stack(), [plan.steps, plan.size])


def _epoch_indices(plan: MinibatchPlan, key: tf.Tensor) -> tf.Tensor:
    """int32 `[steps_per_epoch, size]`: one epoch's row numbers."""
    used = plan.steps_per_epoch * plan.size
    if plan.shuffle:
        order = permutation(key, plan.rows)
    else:
        order = tf.range(plan.rows, dtype=tf.int32)
    if used < plan.rows:
        order = order[:used]
    elif used > plan.rows and plan.remainder == "pad":
        order = tf.concat([order, tf.fill([used - plan.rows], -1)], axis=0)
    elif used > plan.rows:
        # A minibatch larger than the batch repeats it.
        order = tf.tile(order, [-(-used // plan.rows)])[:used]
    return tf.reshape(order, [plan.steps_per_epoch, plan.size])


def _on_host(plan: MinibatchPlan, key: tf.Tensor) -> np.ndarray:
    """`minibatch_indices` in NumPy, for changing numbers of rows."""
    used = plan.steps_per_epoch * plan.size
    epochs = []
    for epoch in range(plan.epochs):
        order = np.arange(plan.rows)
        if plan.shuffle:
            order = permutation(seeding.fold_in(key, epoch), plan.rows).numpy()
        if used > plan.rows and plan.remainder == "pad":
            order = np.pad(order, (0, used - plan.rows), constant_values=-1)
        epochs.append(np.resize(order, [plan.steps_per_epoch, plan.size]))
    return np.concatenate(epochs)


@struct.logic_dataclass
class MultiPlan(struct.Struct):
    """The split of several modules' rows into the same number of minibatches.

    Attributes:
      modules: `{module_id: MinibatchPlan}`, each with enough epochs for `steps`; the first `steps`
        minibatches are used.
      steps: Gradient steps.
    """

    modules: dict[str, MinibatchPlan]
    steps: int

    def with_steps(self, steps: int) -> "MultiPlan":
        """Returns the plan for another number of steps; common steps are equal."""
        return MultiPlan(
            modules={
                m: plan.replace(epochs=-(-steps // plan.steps_per_epoch))
                for m, plan in self.modules.items()
            },
            steps=steps,
        )


def plan_minibatches(
    rows: Mapping[str, int],
    minibatch_size: int | Mapping[str, int | None] | None = None,
    *,
    num_epochs: int = 1,
    shuffle: bool = True,
    remainder: Remainder = "error",
    num_total_minibatches: int | None = None,
) -> MultiPlan:
    """Plans the gradient steps of an update.

    The number of steps is that of the module with the most minibatches in `num_epochs` epochs;
    other modules run more epochs, each a fresh permutation. `remainder` applies to the modules with
    the most rows. For modules with fewer rows, "error" and "drop" become "wrap" if their rows do
    not divide, since their number is not the user's choice and each row should be used.

    Args:
      rows: `{module_id: rows of its batch}`.
      minibatch_size: Rows of a gradient step, one number or by module; None (or no item) for all
        rows of the module.
      num_epochs: Passes over the batch.
      shuffle: A fresh permutation in every epoch, the first included.
      remainder: Treatment of rows that do not fill a minibatch, see `MinibatchPlan`.
      num_total_minibatches: Number of gradient steps, instead of `num_epochs`.

    Raises:
      UserError: For no module, a module without rows, sizes for unknown modules, and sizes that do
        not divide, for all modules at once.
    """
    if not rows:
        raise UserError(
            "the batch",
            expected="rows of at least one module",
            got="none",
            remedy="Collect experience before the update.",
        )
    shuffle = bool(checks.boolean("shuffle", shuffle))
    if num_total_minibatches is not None:
        total = num_total_minibatches
        remedy = "Pass None for the minibatches of all epochs."
        num_total_minibatches = checks.at_least("num_total_minibatches", total, 1, remedy=remedy)
    sizes = _sizes(rows, minibatch_size)
    most = max(rows.values())
    plans: dict[str, MinibatchPlan] = {}
    wrong: dict[str, UserError] = {}
    for module_id, count in rows.items():
        kind = remainder if count == most else _of_fewer(count, sizes[module_id], remainder)
        try:
            plans[module_id] = MinibatchPlan(
                rows=count,
                size=sizes[module_id],
                epochs=num_epochs,
                # The order does not matter for a minibatch of all rows.
                shuffle=shuffle and sizes[module_id] != count,
                remainder=kind,
            )
        except UserError as error:
            if error.thing in ("num_epochs", "remainder"):  # not of a module
                raise
            wrong[module_id] = error
    if wrong:
        raise _all_wrong(wrong, several=len(rows) > 1)
    steps = num_total_minibatches or max(plan.steps for plan in plans.values())
    return MultiPlan(modules=plans, steps=steps).with_steps(steps)


def _sizes(rows: Mapping[str, int], size: int | Mapping[str, int | None] | None) -> dict[str, Any]:
    """`{module_id: rows of a minibatch}`."""
    if not isinstance(size, Mapping):
        return {m: count if size is None else size for m, count in rows.items()}
    unknown = sorted(set(size) - set(rows))
    if unknown:
        raise UserError(
            "minibatch_size",
            expected=f"sizes for modules of the batch, {sorted(rows)}",
            got=f"sizes for {sorted(size)}",
            remedy=f"Leave out {', '.join(map(repr, unknown))}.",
        )
    return {m: count if size.get(m) is None else size[m] for m, count in rows.items()}


def _of_fewer(rows: Any, size: Any, remainder: Remainder) -> Remainder:
    """The remainder policy of a module with fewer rows than another."""
    if not all(whole_number(n) and n > 0 for n in (rows, size)):
        return remainder  # The plan rejects them.
    return "wrap" if remainder in ("error", "drop") and rows % size else remainder


def _all_wrong(wrong: Mapping[str, UserError], *, several: bool) -> UserError:
    """One error for all modules that cannot be split."""
    if not several:
        return next(iter(wrong.values()))
    if len(wrong) == 1:
        ((module_id, error),) = wrong.items()
        return UserError(
            f"{error.thing} of module {module_id!r}",
            expected=error.expected,
            got=error.got,
            remedy=error.remedy,
        )
    return UserError(
        "the minibatches",
        expected="rows and sizes that fit for every module",
        got="; ".join(
            f"module {m!r}: {e.thing} {e.got}, expected {e.expected}" for m, e in wrong.items()
        ),
        remedy=next(iter(wrong.values())).remedy,
    )
