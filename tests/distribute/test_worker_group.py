import math

import numpy as np
import pytest
import tensorflow as tf

from tests.distribute import processes
from tfrl.distribute import WorkerGroup, is_chief


def test_one_process_has_its_own_bytes():
    own = np.arange(5, dtype=np.uint8)
    (found,) = WorkerGroup().gather_to_chief(own)
    np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("strategy", [None, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])])
def test_one_process_agrees_with_itself(strategy):
    group = WorkerGroup(strategy)
    assert (group.num_workers, group.index, group.is_chief) == (1, 0, True)
    assert is_chief(strategy)
    assert group.all_gather(0.1) == [0.1]
    assert group.broadcast(3) == 3
    assert group.any(True) is True
    assert group.any(False) is False
    group.barrier("end")


@pytest.mark.parametrize(
    "value", [0.1, -0.0, math.inf, 1e-300, True, False, 0, -1, 2**62, -(2**63)]
)
def test_values_keep_type_and_bits(value):
    answer = WorkerGroup().broadcast(value)
    assert type(answer) is type(value) and repr(answer) == repr(value)


def test_nan_too():
    assert math.isnan(WorkerGroup().broadcast(math.nan))


PROGRAM = """
    import sys, time
    from tfrl.distribute import WorkerGroup, is_chief, make_strategy
    from tfrl.errors import UserError
    strategy = make_strategy(startup_seconds=60)
    group = WorkerGroup(strategy, timeout_seconds=2)
    i = group.index
    assert is_chief(strategy) == group.is_chief == (i == 0)
    print(group.all_gather(0.1 + i), group.all_gather(-2**62 + i))
    print(group.broadcast(7 + i), group.broadcast(i == 0), group.any(i == 1))
    print(group.any(False), group._sum.experimental_get_tracing_count())
    import numpy as np
    import tfrl.distribute.worker_group as module
    parts = [np.random.default_rng(k).integers(0, 256, n, np.uint8) for k, n in enumerate((7, 21))]
    none = np.zeros(0, np.uint8)
    gives = group.gather_to_chief

    def right_of(own, *wanted):
        found = gives(own)  # the chief has all, the other nothing
        return [x.tolist() for x in found] == ([] if i else [x.tolist() for x in wanted])

    right = [right_of(parts[i], *parts)]  # in one piece
    module._PIECE_BYTES = 8
    right.append(right_of(parts[i], *parts))  # in three
    right.append(right_of(parts[0] if i else none, none, parts[0]))
    right.append(right_of(none, none, none))
    print("bytes", *right)
    time.sleep(i)
    started = time.monotonic()
    group.barrier("together")
    print("waited", time.monotonic() - started > 0.5)
    try:
        group.barrier("this" if i else "that")
    except RuntimeError as error:
        print(error)
    if i == 1:
        time.sleep(4)
    else:
        try:
            group.barrier("the end")
        except UserError as error:
            print(type(error).__name__, error)
"""


def test_two_processes_agree(tmp_path):
    with processes.Cluster(PROGRAM, 2, tmp_path) as cluster:
        outputs = cluster.start().wait_all()
    names = [f"worker {i} (127.0.0.1:{port})" for i, port in enumerate(cluster.ports)]
    places = ("the barrier 'that'", "the barrier 'this'")
    for i, output in enumerate(outputs):
        lines = output.splitlines()
        assert lines.pop(3) == "bytes True True True True"
        assert lines[:5] == [
            "[0.1, 1.1] [-4611686018427387904, -4611686018427387903]",
            "7 True True",
            "False 1",
            f"waited {i == 0}",  # the other one comes a second later
            f"{names[i]} is at {places[i]}, but {names[1 - i]} elsewhere: all workers must make "
            "the same calls",
        ]
    assert outputs[0].splitlines()[6] == (
        f"WorkerLostError {names[1]}: expected to reach the barrier 'the end' within 2 s, got "
        "at least one running worker that did not reach it. Check its output, and restart all "
        "workers with the same command to resume from the last complete checkpoint."
    )
