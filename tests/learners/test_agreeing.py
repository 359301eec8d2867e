"""What processes agree on before an update, with others that are played."""

import json
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.learners.planning import agreed_steps


class Played:
    """Replicas of three processes of two replicas each; what the others say is given.

    Attributes:
      calls: How often all met.
    """

    num_local = 2
    num_workers = 3

    def __init__(self, *others):
        self.others = others
        self.calls = 0

    def all_gather(self, mine):
        """`[R, n]`: the first process is this one."""
        self.calls += 1
        rows = [mine.numpy(), *(self._says(other, len(mine)) for other in self.others)]
        assert all(len(row) == len(mine) for row in rows)
        return tf.constant(np.repeat(rows, self.num_local, axis=0))

    def _says(self, other, size):
        module_ids, steps = other
        ids = json.dumps(sorted(module_ids)).encode()
        if self.calls == 1:
            return np.array([zlib.crc32(ids) & 0x7FFFFFFF, len(ids), steps], np.int32)
        return np.frombuffer(ids.ljust(size), np.uint8).astype(np.int32)


def test_the_most_steps_of_any_process():
    replicas = Played((["b", "a"], 7), (["a", "b"], 2))
    assert agreed_steps(replicas, {"a": 0, "b": 0}, 3) == 7
    assert replicas.calls == 1


def test_nobody_has_anything_to_train():
    assert agreed_steps(Played(([], 0), ([], 0)), {}, 0) == 0


def test_one_process_needs_no_meeting():
    replicas = Played()
    replicas.num_workers = 1
    assert agreed_steps(replicas, ["a"], 5) == 5
    assert replicas.calls == 0


@pytest.mark.parametrize("mine", [["a", "longer name"], ["a"], ["a", "ü"], []])
def test_different_modules_are_named(mine):
    with pytest.raises(UserError) as error:
        agreed_steps(Played((["a", "ü"], 3), (["b"], 1)), mine, len(mine))
    differ = sorted({"a", "b", "ü", *mine})
    assert str(error.value) == (
        "the batches of the processes: expected rows of the same modules in every process, "
        f"got {mine or 'none'} in worker 0; ['a', 'ü'] in worker 1; ['b'] in worker 2. Pass rows "
        f"of {', '.join(map(repr, differ))} in every process or in none, and make "
        "policies_to_train return the same in all."
    )
