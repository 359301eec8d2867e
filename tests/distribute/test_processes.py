import time

import pytest

from tests.distribute import processes


def test_each_worker_knows_its_place(tmp_path):
    program = """
        import json, os, sys
        config = json.loads(os.environ["TF_CONFIG"])
        print(config["task"]["index"], len(config["cluster"]["worker"]), sys.argv[1:])
    """
    with processes.Cluster(program, 3, tmp_path, args=("a", 1)) as cluster:
        outputs = cluster.start().wait_all(30.0)
    assert outputs == [f"{i} 3 ['a', '1']\n" for i in range(3)]
    assert len(set(cluster.ports)) == 3


def test_none_outlives_the_block(tmp_path):
    with processes.Cluster("import time\ntime.sleep(1000)", 2, tmp_path) as cluster:
        cluster.start()
        with pytest.raises(AssertionError, match="worker 0 still runs"):
            cluster.wait(0, 0.1)
    started = time.monotonic()
    assert [cluster.wait(i) for i in (0, 1)] == [-9, -9]
    assert time.monotonic() - started < 1.0


def test_failures_show_all_output(tmp_path):
    program = "import sys; print('said'); sys.exit('broken')"
    with processes.Cluster(program, 1, tmp_path) as cluster:
        cluster.start()
        with pytest.raises(AssertionError, match=r"(?s)exit codes \[1\].*said.*broken"):
            cluster.wait_all(30.0)
        with pytest.raises(AssertionError, match="worker 0 ended with 1"):
            cluster.wait_for(0, "never said")
