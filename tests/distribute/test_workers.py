import json

import pytest
import tensorflow as tf

from tfrl.distribute import workers
from tfrl.errors import UserError

TWO = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


def read(config):
    text = config if isinstance(config, str) else json.dumps(config)
    return workers.from_tf_config({"TF_CONFIG": text})


def changed(**changes):
    return {**TWO, **changes}


def task(job, index):
    return changed(task={"type": job, "index": index})


def test_reads_a_cluster():
    found = read(TWO)
    assert found == workers.Workers((("worker", 0), ("worker", 1)), ("a:1", "b:2"), 1)
    assert (found.count, found.is_chief, found.others) == (2, False, (0,))
    assert found.name(0) == "worker 0 (a:1)"
    assert found.names([1, 0]) == "worker 0 (a:1), worker 1 (b:2)"
    assert found.cluster() == TWO["cluster"]


def test_the_chief_comes_first():
    cluster = {"worker": ["a:1", "b:2"], "chief": ["c:3"]}
    found = read({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    assert found.addresses == ("c:3", "a:1", "b:2")
    assert (found.index, found.is_chief, found.name(0)) == (1, False, "chief (c:3)")
    assert found.cluster() == {"chief": ["c:3"], "worker": ["a:1", "b:2"]}
    assert read({"cluster": cluster, "task": {"type": "chief", "index": 0}}).is_chief


@pytest.mark.parametrize("text", ["", " ", "{}", '{"cluster": {}}'])
def test_no_cluster(text):
    assert read(text) is None
    assert workers.from_tf_config({}) is None


def test_an_index_may_be_a_string_of_digits():
    assert read(task("worker", "1")).index == 1


@pytest.mark.parametrize(
    ("config", "got"),
    [
        ('{"cluster": ', "invalid JSON: Expecting value at character 12: '{\"cluster\": '"),
        ("[]", "'[]', which is not an object"),
        ({"task": {"type": "worker", "index": 0}}, "a task, but no cluster"),
        ({"cluster": ["a:1"]}, "cluster '[\"a:1\"]', which is not an object of jobs"),
        (changed(task=None), "no task (needs type and index of this process)"),
        (changed(task={"type": "worker"}), 'the task \'{"type": "worker"}\' (needs type and'),
        (task("worker", 2), "the task index '2' of 2 workers"),
        (task("worker", -1), "the task index '-1' of 2 workers"),
        (task("worker", True), "the task index 'true' of 2 workers"),
        (task("worker", "x"), "the task index 'x' of 2 workers"),
        (task("chief", 0), "the task type 'chief', of which the cluster has none"),
        (task("evaluator", 0), "the task type 'evaluator'"),
        (task(3, 0), "the task type '3'"),
        (changed(cluster={"worker": "a:1"}), "addresses of 'worker' that are no list: 'a:1'"),
        (changed(cluster={"worker": ["a:1", "a:1"]}), "the address a:1 more than once"),
        (changed(cluster={"worker": ["a:1", "b:99999"]}), "the address 'b:99999', not host:port"),
        (changed(cluster={"worker": ["a:1", "b"]}), "the address 'b', not host:port"),
        (
            changed(cluster={"worker": ["a:1", "b:2"], "chief": ["c:1", "d:1"]}),
            "2 chiefs (at most one)",
        ),
    ],
)
def test_malformed(config, got):
    with pytest.raises(UserError) as error:
        read(config)
    assert error.value.thing == "TF_CONFIG"
    assert error.value.got.startswith(got)
    assert "or unset it to train in one process" in str(error.value)


def test_tells_everything_that_is_wrong_at_once():
    with pytest.raises(UserError) as error:
        read({"cluster": {"ps": ["a:1"], "worker": ["b"]}, "task": {"type": "worker", "index": 7}})
    assert error.value.got == (
        "the job 'ps' (known: chief, worker); the address 'b', not host:port; the task index '7' "
        "of 1 worker"
    )


def test_strategies_of_one_process():
    one = workers.Workers()
    assert (one.count, one.is_chief, one.others) == (1, True, ())
    assert workers.workers_of(None) == one
    assert workers.workers_of(tf.distribute.get_strategy()) == one
    assert workers.workers_of(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])) == one
