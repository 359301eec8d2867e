"""The threads of an operation: what leaves a core to Python, and what is left alone."""

import json
import types

import pytest
import tensorflow as tf

from tfrl.experiment import metadata
from tfrl.launch import threads


def workflow_of(on_host, overlap):
    """A workflow's stand-in."""
    env = types.SimpleNamespace(on_host=on_host)
    env.unwrapped = env
    return types.SimpleNamespace(env=env, overlap=overlap)


@pytest.fixture
def configured(monkeypatch):
    """What `tf.config` is told, on four cores without a GPU."""
    told = [0]
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [])
    config = types.SimpleNamespace(
        get_intra_op_parallelism_threads=lambda: told[-1],
        set_intra_op_parallelism_threads=told.append,
    )
    monkeypatch.setattr(tf.config, "threading", config)
    return told


@pytest.mark.parametrize(
    ("on_host", "overlap", "number"), [(True, True, 3), (True, False, 0), (False, True, 0)]
)
def test_a_core_is_left_to_python_where_it_steps_beside_the_learner(
    configured, on_host, overlap, number
):
    assert threads.settle(workflow_of(on_host, overlap)) == (number or 4)
    assert configured[-1] == number


def test_one_thread_is_left_on_one_core(configured, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))
    assert threads.settle(workflow_of(True, True)) == 1


@pytest.mark.parametrize(("before", "number"), [(2, 2), (4, 4), (64, 4), (None, 4)])
def test_a_run_keeps_its_number(configured, tmp_path, before, number):
    kept = {} if before is None else {"intra_op_threads": before}
    (tmp_path / "metadata.json").write_text(json.dumps({"seed": 0, **kept}))
    assert threads.settle(workflow_of(True, True), str(tmp_path)) == number
    assert configured[-1] == (2 if before == 2 else 0)


def test_a_damaged_folder_is_not_told_of_here(configured, tmp_path):
    (tmp_path / "metadata.json").write_text("{")
    assert threads.settle(workflow_of(True, True), str(tmp_path)) == 3


def test_what_is_set_stays(configured, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "2")
    assert threads.settle(workflow_of(True, True)) == 2 == metadata.intra_op_threads()
    configured.append(7)
    assert threads.settle(workflow_of(True, True)) == 7
    assert configured == [0, 7]


def test_it_is_too_late_where_tensorflow_has_computed(configured, monkeypatch):
    def refuse(number):
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")

    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", refuse)
    assert threads.settle(workflow_of(True, True)) == 4
