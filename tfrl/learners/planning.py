"""What an update of a Learner trains, and how the rows are cut."""

from collections.abc import Mapping
from typing import Any

from tfrl.errors import UserError
from tfrl.learners import batches as batches_lib
from tfrl.learners.agreeing import agreed_steps
from tfrl.learners.learner_core import LearnerCore
from tfrl.learners.minibatches import MultiPlan, Remainder, plan_minibatches, whole_number
from tfrl.types import Nest

MinibatchSize = int | Mapping[str, int] | None


class Planning(LearnerCore):
    """The plan of an update; a part of `Learner`."""

    def _to_train(self, batch: Nest) -> dict[str, Nest]:
        """`{module_id: rows}` of those modules that the update trains, in the learner's order."""
        batches = batches_lib.by_module(batch, list(self.modules))
        # Processes add up their gradients in this order, whatever that of each batch.
        return {
            m: batches_lib.whole_sequences(batches[m])
            for m in self.modules
            if m in batches and self.should_module_be_updated(m, batches[m])
        }

    def _sizes(self, batches: Mapping[str, Nest], asked: MinibatchSize) -> dict[str, int | None]:
        """The asked minibatch size of each module, over all replicas."""
        if isinstance(asked, Mapping):
            unknown = sorted(set(asked) - set(self.modules))
            if unknown:
                raise UserError(
                    "minibatch_size",
                    expected=f"sizes for modules out of {sorted(self.modules)}",
                    got=f"ones for {sorted(asked)}",
                    remedy=f"Leave out {unknown}.",
                )
            found = {m: asked.get(m, self.configs[m].minibatch_size) for m in batches}
        else:
            own = {m: self.configs[m].minibatch_size for m in batches}
            found = own if asked is None else dict.fromkeys(batches, asked)
        # What is no whole number the plan refuses.
        return {m: s if whole_number(s) is None else whole_number(s) for m, s in found.items()}

    def _plan_of_replica(
        self, batches: Mapping[str, Nest], minibatch_size: MinibatchSize, **options: Any
    ) -> MultiPlan:
        """The plan of each replica for rows of its own; traced."""
        rows = {m: batches_lib.num_rows(self.replicas.local(b)[0], m) for m, b in batches.items()}
        sizes = divided(self._sizes(batches, minibatch_size), self.replicas.num_replicas)
        return _plan(rows, sizes, **options)

    def _plan_of_process(
        self, batches: Mapping[str, Nest], minibatch_size: MinibatchSize, **options: Any
    ) -> MultiPlan | None:
        """The plan of this process for rows that its replicas divide; None for nothing to train.

        All processes take the same number of steps, and must train the same modules.
        """
        plan = None
        parts = self.replicas.num_local
        if batches:
            rows = {m: batches_lib.num_rows(b, m) for m, b in batches.items()}
            sizes = divided(self._sizes(batches, minibatch_size), self.replicas.num_workers)
            plan = _plan(rows, sizes, parts=parts, **options)
        steps = agreed_steps(self.replicas, batches, plan.steps if plan else 0)
        if plan is None:
            return None
        plan = plan.with_steps(steps)
        for m, one in plan.modules.items():
            check_divides(one.size, parts, m)
        return plan


def _plan(
    rows: Any, sizes: Mapping[str, int | None], *, parts: int = 1, **options: Any
) -> MultiPlan:
    """The plan; "all rows" is what so many replicas can divide, where `remainder` allows."""
    sizes = {
        m: divisible(rows[m], parts, m, options["remainder"]) if sizes[m] is None else sizes[m]
        for m in rows
    }
    return plan_minibatches(rows, sizes, **options)


def divided(sizes: Mapping[str, int | None], parts: int) -> dict[str, int | None]:
    """Sizes for one of so many parts; what does not divide is an error."""
    for m, size in sizes.items():
        if isinstance(size, int):
            check_divides(size, parts, m)
    return {m: s // parts if isinstance(s, int) else s for m, s in sizes.items()}


def divisible(rows: int, parts: int, module_id: str, remainder: Remainder) -> int:
    """Returns the size of a minibatch of all rows that so many replicas can divide."""
    if rows % parts == 0:
        return rows
    if remainder in ("pad", "wrap"):
        return -(-rows // parts) * parts
    if remainder == "drop" and rows > parts:
        return rows // parts * parts
    raise UserError(
        f"the batch of module {module_id!r}",
        expected=f"rows for minibatches that the {parts} replicas divide",
        got=f"{rows} rows, all of them in one minibatch",
        remedy="Choose remainder='pad', 'drop' or 'wrap', or a minibatch_size.",
    )


def check_divides(size: int, parts: int, module_id: str) -> None:
    """Raises a UserError unless a minibatch's rows can be divided among so many replicas."""
    if size % parts:
        near = [n for n in (size // parts * parts, -(-size // parts) * parts) if n]
        raise UserError(
            f"minibatch_size of module {module_id!r}",
            expected=f"a multiple of the {parts} replicas that divide it",
            got=size,
            remedy=f"The nearest that divide are {' and '.join(map(str, near))}.",
        )
