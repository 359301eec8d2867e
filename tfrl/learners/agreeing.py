"""What the processes of a learner must agree on before they enter a compiled update."""

import json
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl.errors import UserError


def agreed_steps(replicas: Any, module_ids: Collection[str], steps: int) -> int:
    """Returns the number of gradient steps that all processes take: the largest of any.

    Every process must call it for every update, also where it has nothing to train.

    Args:
      replicas: The `Replicas` of the learner; one process agrees with itself at no cost.
      module_ids: The modules that this process would train.
      steps: The gradient steps that its own rows make, 0 without any.

    Raises:
      UserError: In every process, when they would train different modules: the sums over replicas
        would never match.
    """
    if replicas.num_workers == 1:
        return steps
    ids = json.dumps(sorted(module_ids)).encode()
    code = zlib.crc32(ids) & 0x7FFFFFFF  # an int32, which every device can sum
    said = _of_workers(replicas, np.array([code, len(ids), steps], np.int32))
    if (said[:, :2] != said[0, :2]).any():
        # Only now the names themselves: all processes know how long the longest list is.
        padded = np.frombuffer(ids.ljust(int(said[:, 1].max())), np.uint8).astype(np.int32)
        raise _different([bytes(row.astype(np.uint8)) for row in _of_workers(replicas, padded)])
    return int(said[:, 2].max())


def _of_workers(replicas: Any, row: np.ndarray) -> np.ndarray:
    """`[W, n]`: what every process says, in their order."""
    return replicas.gathered(tf.constant(row)).numpy()[:: replicas.num_local]


def _different(lists: list[bytes]) -> UserError:
    trained = [set(json.loads(ids)) for ids in lists]
    differ = sorted(set.union(*trained) - set.intersection(*trained))
    return UserError(
        "the batches of the processes",
        expected="rows to train the same modules in every process",
        got="; ".join(f"{sorted(ids) or 'none'} in worker {i}" for i, ids in enumerate(trained)),
        remedy=f"Give every process rows of {', '.join(map(repr, differ))}, or none. A function "
        "policies_to_train has to answer the same in all of them.",
    )
