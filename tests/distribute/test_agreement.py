import math

import numpy as np
import processes
import pytest
import tensorflow as tf

from tfrl.distribute import Agreement, is_chief


def test_one_process_has_its_own_bytes():
    own = np.arange(5, dtype=np.uint8)
    (found,) = Agreement().each_gives(own)
    np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("strategy", [None, tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])])
def test_one_process_agrees_with_itself(strategy):
    agreement = Agreement(strategy)
    assert (agreement.num_workers, agreement.index, agreement.is_chief) == (1, 0, True)
    assert is_chief(strategy)
    assert agreement.each_says(0.1) == [0.1]
    assert agreement.chief_says(3) == 3
    assert agreement.any(True) is True
    assert agreement.any(False) is False
    agreement.barrier("end")


@pytest.mark.parametrize(
    "value", [0.1, -0.0, math.inf, 1e-300, True, False, 0, -1, 2**62, -(2**63)]
)
def test_values_keep_type_and_bits(value):
    answer = Agreement().chief_says(value)
    assert type(answer) is type(value) and repr(answer) == repr(value)


def test_nan_too():
    assert math.isnan(Agreement().chief_says(math.nan))


PROGRAM = """
    import sys, time
    from tfrl.distribute import Agreement, is_chief, make_strategy
    from tfrl.errors import UserError
    strategy = make_strategy(startup_seconds=60)
    agreement = Agreement(strategy, timeout_seconds=2)
    i = agreement.index
    assert is_chief(strategy) == agreement.is_chief == (i == 0)
    print(agreement.each_says(0.1 + i), agreement.each_says(-2**62 + i))
    print(agreement.chief_says(7 + i), agreement.chief_says(i == 0), agreement.any(i == 1))
    print(agreement.any(False), agreement._sum.experimental_get_tracing_count())
    import numpy as np
    import tfrl.distribute.agreement as module
    parts = [np.random.default_rng(k).integers(0, 256, n, np.uint8) for k, n in enumerate((7, 21))]
    none = np.zeros(0, np.uint8)
    gives = agreement.each_gives

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
    agreement.barrier("together")
    print("waited", time.monotonic() - started > 0.5)
    try:
        agreement.barrier("this" if i else "that")
    except RuntimeError as error:
        print(error)
    if i == 1:
        time.sleep(4)
    else:
        try:
            agreement.barrier("the end")
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
            f"{names[i]} is at {places[i]}, but {names[1 - i]} elsewhere: all must make the same "
            "calls",
        ]
    assert outputs[0].splitlines()[6] == (
        f"WorkerLostError {names[1]}: expected to come to the barrier 'the end' within 2 s, got at "
        "least one that runs, but did not come. See its output; start all workers again with the "
        "same command: the run goes on from its last complete checkpoint."
    )
