import json
import socket

import pytest
import tensorflow as tf

from tests.distribute import processes
from tfrl.distribute import make_strategy
from tfrl.errors import UserError

START = """
    import os, signal, sys, time
    started = time.monotonic()
    from tfrl.distribute import describe, make_strategy
    from tfrl.errors import UserError
    signal.signal(signal.SIGTERM, lambda *_: print("SIGTERM came"))
    try:
        strategy = make_strategy(startup_seconds=float(sys.argv[1]), log=print)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(describe(strategy))
    os.kill(os.getpid(), signal.SIGTERM)
    import tensorflow as tf
    @tf.function
    def total():
        one = lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([]) * 1.0)
        return strategy.run(one)
    print(float(total()))
"""


def test_two_processes_meet(tmp_path):
    with processes.Cluster(START, 2, tmp_path, args=(60,)) as cluster:
        outputs = cluster.start(1).start(0).wait_all()
    for i, output in enumerate(outputs[::-1]):
        chief = " and the chief" if i == 0 else ""
        assert output == (
            "multi_worker, 2 replicas on CPU:0 of each of 2 workers; this is "
            f"worker {i} (127.0.0.1:{cluster.ports[i]}){chief}\nSIGTERM came\n2.0\n"
        )


def test_a_worker_that_never_comes(tmp_path):
    with processes.Cluster(START, 2, tmp_path, args=(1,)) as cluster:
        assert cluster.start(0).wait(0, 60.0) == 2
    assert cluster.err(0).startswith(
        "TF_CONFIG: expected all 2 workers to connect within 1 s, got no answer from worker 1 "
        "(127.0"
    )


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.variants(1)
def test_a_worker_that_is_something_else(tmp_path, index):
    # It accepts connections, but is no TensorFlow; TensorFlow alone would wait for ever.
    with processes.Cluster(START, 2, tmp_path, args=(3,)) as cluster:
        with socket.create_server(("127.0.0.1", cluster.ports[1 - index])):
            code = cluster.start(index).wait(index, 60.0)
    assert code in (2, -9)
    assert (
        cluster.err(index)
        .removeprefix("Error: ")
        .startswith(f"TF_CONFIG, worker {index} (127.0.0.1:{cluster.ports[index]}): expected the ")
    ), cluster.report()


def test_comes_before_any_computation(monkeypatch, free_port):
    cluster = {"worker": [f"127.0.0.1:{free_port}"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    tf.constant(1.0)
    with pytest.raises(UserError, match="expected creation before TensorFlow runs any operation"):
        make_strategy("multi_worker")
