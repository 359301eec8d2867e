"""Which rows of a batch make which minibatch: permutation, epochs, remainder."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.ops.permutation import permutation

Remainder = Literal["error", "pad", "drop", "wrap"]
REMAINDERS = ("error", "pad", "drop", "wrap")
# {field: (what messages call it, what to do)}
_COUNTS = {
    "rows": ("the rows of the batch", "Collect experience before the update."),
    "size": ("minibatch_size", "Leave it out for a minibatch of all rows."),
    "epochs": ("num_epochs", "It is the number of passes over the batch; leave it out for one."),
}


@struct.logic_dataclass
class MinibatchPlan(struct.Struct):
    """How the rows of a batch are cut.

    Attributes:
      rows: Rows of the batch.
      size: Rows of a minibatch.
      epochs: Passes over the batch.
      shuffle: A fresh permutation in every epoch, the first included.
      remainder: For rows that do not fill a minibatch: "error"; "pad" (every row exactly once, the
        last minibatch filled up with masked rows); "drop" (at most once, the left-over rows differ
        by epoch when shuffled); "wrap" (at least once, the last one filled up from the start).
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
            object.__setattr__(self, field, count)  # one kind of number: plans are compared
        shuffle = checks.boolean("shuffle", self.shuffle)
        object.__setattr__(self, "shuffle", bool(shuffle))
        remedy = "Choose what happens to rows that do not fill a minibatch."
        checks.one_of("remainder", self.remainder, REMAINDERS, remedy=remedy)
        left = self.rows % self.size
        if left and self.remainder == "error":
            raise UserError(
                "minibatch_size",
                expected=f"a divisor of the {self.rows} rows of the batch",
                got=f"{self.size} (remainder {left})",
                remedy=f"The nearest that divide are {_nearest_divisors(self.rows, self.size)}; or "
                "choose remainder='pad', 'drop' or 'wrap'.",
            )
        if self.remainder == "drop" and self.size > self.rows:
            raise UserError(
                "minibatch_size",
                expected=f"at most the {self.rows} rows of the batch with remainder='drop'",
                got=self.size,
                remedy="Nothing would be left to train on; choose 'pad' or a smaller size.",
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
    """Returns a whole number of Python or NumPy as an int; None for anything else."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    return None


def _nearest_divisors(rows: int, size: int) -> str:
    divisors = [d for d in range(1, rows + 1) if rows % d == 0]
    below = [d for d in divisors if d <= size][-1:]
    above = [d for d in divisors if d > size][:1]
    return " and ".join(str(d) for d in below + above)


def minibatch_indices(plan: MinibatchPlan, key: tf.Tensor) -> tf.Tensor:
    """Lays out the rows of every minibatch of every epoch.

    Args:
      plan: The cut.
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
        # Named: TensorFlow numbers unnamed loops, and their names are in the collectives' keys.
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
        # A minibatch larger than the batch goes round more than once.
        order = tf.tile(order, [-(-used // plan.rows)])[:used]
    return tf.reshape(order, [plan.steps_per_epoch, plan.size])


def _on_host(plan: MinibatchPlan, key: tf.Tensor) -> np.ndarray:
    """`minibatch_indices` in NumPy, for batches whose number of rows changes from call to call."""
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
    """How the rows of several modules are cut into the same number of minibatches.

    Attributes:
      modules: `{module_id: MinibatchPlan}`, each with as many epochs as cover `steps`; of its
        minibatches the first `steps` are taken.
      steps: Gradient steps.
    """

    modules: dict[str, MinibatchPlan]
    steps: int

    def with_steps(self, steps: int) -> "MultiPlan":
        """Returns the plan for another number of steps; what both have is the same."""
        return MultiPlan(
            modules={
                m: plan.replace(epochs=_epochs(plan, steps)) for m, plan in self.modules.items()
            },
            steps=steps,
        )


def _epochs(plan: MinibatchPlan, steps: int) -> int:
    return -(-steps // plan.steps_per_epoch)


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

    There are as many as the module with the most minibatches has in `num_epochs` epochs; a module
    with fewer goes on with further epochs, each a fresh permutation. `remainder` holds for the
    modules with the most rows as it is. A module with fewer rows, whose number follows from the
    episodes and is nobody's choice, takes "wrap" for "error" and "drop" where its rows do not
    divide, so that each of them is seen.

    Args:
      rows: `{module_id: rows of its batch}`.
      minibatch_size: Rows of a gradient step, for all modules or each; None (or no item) takes all
        rows of the module.
      num_epochs: Passes over the batch.
      shuffle: A fresh permutation in every epoch, the first included.
      remainder: What happens to rows that do not fill a minibatch, see `MinibatchPlan`.
      num_total_minibatches: Gradient steps, instead of those that follow from the epochs.

    Raises:
      UserError: For no module, a module without rows, sizes for other modules, and sizes that do
        not divide, of all modules at once.
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
        remedy = "None takes those of the epochs."
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
                # A minibatch of all rows is the same in any order.
                shuffle=shuffle and sizes[module_id] != count,
                remainder=kind,
            )
        except UserError as error:
            if error.thing in ("num_epochs", "remainder"):  # of no module
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
            got=f"ones for {sorted(size)}",
            remedy=f"Leave out {', '.join(map(repr, unknown))}.",
        )
    return {m: count if size.get(m) is None else size[m] for m, count in rows.items()}


def _of_fewer(rows: Any, size: Any, remainder: Remainder) -> Remainder:
    """The remainder policy of a module with fewer rows than another."""
    if not all(whole_number(n) and n > 0 for n in (rows, size)):
        return remainder  # The plan refuses them.
    return "wrap" if remainder in ("error", "drop") and rows % size else remainder


def _all_wrong(wrong: Mapping[str, UserError], *, several: bool) -> UserError:
    """One error for all modules that cannot be cut."""
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
