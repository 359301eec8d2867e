"""The plan of a Learner's update: trained modules, and the split into minibatches.

All processes of a learner must run the same compiled update, so they agree on its number of steps.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.distribute.replicas import Replicas
from tfrl.errors import UserError
from tfrl.learners import batches as batches_lib
from tfrl.learners.metric_keys import NUM_ENV_STEPS_SAMPLED_LIFETIME
from tfrl.learners.minibatches import (
    MinibatchIndices,
    MultiPlan,
    Remainder,
    minibatch_indices,
    plan_minibatches,
    whole_number,
)
from tfrl.types import Nest

if TYPE_CHECKING:
    from tfrl.learners.learner import Learner

MinibatchSize = int | Mapping[str, int] | None


def batches_to_train(learner: Learner, batch: Nest) -> dict[str, Nest]:
    """`{module_id: rows}` of the trained modules, in the learner's order."""
    batches = batches_lib.by_module(batch, list(learner.modules))
    # Processes sum their gradients in this order, independent of each batch's.
    return {
        m: batches_lib.whole_sequences(batches[m])
        for m in learner.modules
        if m in batches and learner.should_module_be_updated(m, batches[m])
    }


def plan_of_replica(
    learner: Learner, batches: Mapping[str, Nest], minibatch_size: MinibatchSize, **options: Any
) -> MultiPlan:
    """The plan of each replica for its own rows; traced."""
    rows = {
        m: batches_lib.num_rows(learner.replicas.per_replica(b)[0], m) for m, b in batches.items()
    }
    asked = _sizes(learner, batches, minibatch_size, learner.replicas.num_replicas)
    return _plan(learner, rows, asked, **options)


def plan_of_process(
    learner: Learner, batches: Mapping[str, Nest], minibatch_size: MinibatchSize, **options: Any
) -> MultiPlan | None:
    """The plan of this process for rows divided among its replicas; None if nothing is trained.

    All processes take the same number of steps, and must train the same modules.
    """
    plan = None
    parts = learner.replicas.num_local
    if batches:
        rows = {m: batches_lib.num_rows(b, m) for m, b in batches.items()}
        asked = _sizes(learner, batches, minibatch_size, learner.replicas.num_workers)
        plan = _plan(learner, rows, asked, parts=parts, **options)
    steps = agreed_steps(learner.replicas, batches, plan.steps if plan else 0)
    if plan is None:
        return None
    plan = plan.with_steps(steps)
    for m, one in plan.modules.items():
        check_divides(one.size, parts, m)
    return plan


def _sizes(
    learner: Learner, batches: Mapping[str, Nest], asked: MinibatchSize, parts: int
) -> dict[str, int | None]:
    """The requested minibatch size of each module on one of `parts` parts of the replicas."""
    if isinstance(asked, Mapping):
        unknown = sorted(set(asked) - set(learner.modules))
        if unknown:
            raise UserError(
                "minibatch_size",
                expected=f"sizes for modules among {sorted(learner.modules)}",
                got=f"sizes for {sorted(asked)}",
                remedy=f"Leave out {unknown}.",
            )
        sizes = {m: asked.get(m, learner.configs[m].minibatch_size) for m in batches}
    else:
        own = {m: learner.configs[m].minibatch_size for m in batches}
        sizes = own if asked is None else dict.fromkeys(batches, asked)
    for m, size in sizes.items():
        number = whole_number(size)
        if number is not None:  # the plan rejects others
            check_divides(number, parts, m)
            sizes[m] = number // parts
    return sizes


def _plan(
    learner: Learner,
    rows: Any,
    sizes: Mapping[str, int | None],
    *,
    shuffle: bool,
    shuffle_batch_per_epoch: bool | None = None,
    remainder: Remainder | None,
    num_total_minibatches: int | None,
    parts: int = 1,
    **options: Any,
) -> MultiPlan:
    """The plan of the arguments of an update.

    "All rows" is rounded to a multiple of the replicas, if `remainder` allows.
    """
    remainder = remainder or learner.remainder
    sizes = {
        m: divisible(rows[m], parts, m, remainder) if sizes[m] is None else sizes[m] for m in rows
    }
    return plan_minibatches(
        rows,
        sizes,
        shuffle=shuffle if shuffle_batch_per_epoch is None else shuffle_batch_per_epoch,
        remainder=remainder,
        num_total_minibatches=num_total_minibatches or None,
        **options,
    )


def divisible(rows: int, parts: int, module_id: str, remainder: Remainder) -> int:
    """Returns the size of a minibatch of all rows that `parts` replicas can divide."""
    if rows % parts == 0:
        return rows
    if remainder in ("pad", "wrap"):
        return -(-rows // parts) * parts
    if remainder == "drop" and rows > parts:
        return rows // parts * parts
    raise UserError(
        f"the batch of module {module_id!r}",
        expected=f"minibatches that divide evenly over the {parts} replicas",
        got=f"{rows} rows in one minibatch",
        remedy="Choose remainder='pad', 'drop' or 'wrap', or a minibatch_size.",
    )


def check_divides(size: int, parts: int, module_id: str) -> None:
    """Raises a UserError unless `parts` divides a minibatch's rows."""
    if size % parts:
        near = [n for n in (size // parts * parts, -(-size // parts) * parts) if n]
        raise UserError(
            f"minibatch_size of module {module_id!r}",
            expected=f"a multiple of the {parts} replicas",
            got=size,
            remedy=f"The nearest multiples are {' and '.join(map(str, near))}.",
        )


def indices_of(plan: MultiPlan, key: tf.Tensor) -> dict[str, tf.Tensor]:
    """`{module_id: int32 [steps, size]}`, equal traced and eagerly."""
    several = len(plan.modules) > 1
    indices = {}
    for m, one in plan.modules.items():
        own = seeding.stream(key, m) if several else key
        indices[m] = minibatch_indices(one, own)[: plan.steps]
    return indices


def as_minibatches(
    plan: MultiPlan, indices: dict[str, tf.Tensor], parts: int = 1
) -> MinibatchIndices:
    """Returns the minibatches for the indices of a plan.

    Args:
      plan: The plan.
      indices: The indices of each replica.
      parts: Number of replicas that divide each minibatch.
    """
    return MinibatchIndices(
        indices=indices,
        steps=plan.steps,
        padded={m: p.padded for m, p in plan.modules.items()},
        full_batch={
            m: p.rows == p.size // parts and not p.shuffle for m, p in plan.modules.items()
        },
    )


def rows_of_step(learner: Learner, plan: MultiPlan) -> dict[str, float]:
    """Returns `{module_id: rows of a gradient step, over all processes}`; if padded, the mean."""
    workers = learner.replicas.num_workers
    return {
        m: workers * (p.rows / p.steps_per_epoch if p.padded else p.size)
        for m, p in plan.modules.items()
    }


def shared_out(learner: Learner, indices: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Divides the columns of every minibatch's indices among the replicas of this process."""
    if not learner.replicas.several:
        return indices
    n = learner.replicas.num_local

    def own(indices: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        i = learner.replicas.local_index()
        sizes = {m: x.shape[1] // n for m, x in indices.items()}
        return {
            m: tf.ensure_shape(
                tf.slice(x, [0, i * sizes[m]], [-1, sizes[m]]), [x.shape[0], sizes[m]]
            )
            for m, x in indices.items()
        }

    return learner.replicas.run(own, indices)


def agreed_steps(replicas: Replicas, module_ids: Collection[str], steps: int) -> int:
    """Returns the number of gradient steps for all processes: the maximum.

    Every process must call it for every update, even if it trains nothing.

    Args:
      replicas: The learner's `Replicas`; free with one process.
      module_ids: The modules that this process would train.
      steps: The gradient steps for its own rows, or 0.

    Raises:
      UserError: In every process, if they would train different modules, since their collectives
        would not match.
    """
    if replicas.num_workers == 1:
        return steps
    ids = json.dumps(sorted(module_ids)).encode()
    code = zlib.crc32(ids) & 0x7FFFFFFF  # an int32, which every device can sum
    reports = _of_workers(replicas, np.array([code, len(ids), steps], np.int32))
    if (reports[:, :2] != reports[0, :2]).any():
        # Now the names themselves, since all processes know the maximum length.
        padded = np.frombuffer(ids.ljust(int(reports[:, 1].max())), np.uint8).astype(np.int32)
        raise _different([bytes(row.astype(np.uint8)) for row in _of_workers(replicas, padded)])
    return int(reports[:, 2].max())


def _of_workers(replicas: Replicas, row: np.ndarray) -> np.ndarray:
    """`[W, n]`: the rows of all processes, in order."""
    return replicas.all_gather(tf.constant(row)).numpy()[:: replicas.num_local]


def _different(lists: list[bytes]) -> UserError:
    trained = [set(json.loads(ids)) for ids in lists]
    differ = sorted(set.union(*trained) - set.intersection(*trained))
    return UserError(
        "the batches of the processes",
        expected="rows of the same modules in every process",
        got="; ".join(f"{sorted(ids) or 'none'} in worker {i}" for i, ids in enumerate(trained)),
        remedy=f"Pass rows of {', '.join(map(repr, differ))} in every process or in none, and make "
        "policies_to_train return the same in all.",
    )


def env_steps_of(learner: Learner, timesteps: Any) -> tf.Tensor:
    """Returns the env steps of an update, an int64 scalar."""
    if isinstance(timesteps, Mapping):
        theirs = NUM_ENV_STEPS_SAMPLED_LIFETIME
        if theirs not in timesteps and set(timesteps) != {"env_steps"}:
            raise UserError(
                "timesteps",
                expected=f'{{"env_steps": n}} or {{"{theirs}": n}}',
                got=repr(dict(timesteps)),
                remedy="Schedules are driven by the env steps of all workers.",
            )
        timesteps = timesteps[theirs if theirs in timesteps else "env_steps"]
    if timesteps is None:
        return tf.convert_to_tensor(learner.env_steps)
    number = np.asarray(timesteps)
    if number.shape != () or not np.issubdtype(number.dtype, np.integer) or number < 0:
        raise UserError(
            "timesteps",
            expected='the number of env steps so far, or {"env_steps": n}',
            got=repr(timesteps),
            remedy="Pass None to use the learner's last value.",
        )
    return tf.constant(int(number), tf.int64)
