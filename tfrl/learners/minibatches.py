"""Which rows of a batch make which minibatch: permutation, epochs, remainder."""

from typing import Literal

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.errors import UserError
from tfrl.ops.permutation import permutation

Remainder = Literal["error", "pad", "drop", "wrap"]
_REMAINDERS = ("error", "pad", "drop", "wrap")


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
        for name in ("rows", "size", "epochs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(
                    {"rows": "the batch", "size": "minibatch_size", "epochs": "num_epochs"}[name],
                    expected="at least 1" if name != "rows" else "at least one row",
                    got=repr(value),
                    remedy="Give a positive whole number.",
                )
        if self.remainder not in _REMAINDERS:
            raise UserError(
                "remainder",
                expected=f"one of {', '.join(_REMAINDERS)}",
                got=repr(self.remainder),
                remedy="Choose what happens to rows that do not fill a minibatch.",
            )
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
