"""What TensorFlow takes for a function that retraces all the time, and what it does not."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

import tfrl
from tests.learners.learner_fakes import Dot, built, column
from tfrl.agents import RandomAgent
from tfrl.distribute.replicas import Replicas
from tfrl.evaluation import video
from tfrl.learners.connectors.columns import RowFunction
from tfrl.traces import counted_separately


@pytest.fixture(autouse=True)
def fixture_fresh_counts(monkeypatch):
    """TensorFlow warns twice of a function: other tests may have used that up."""
    manager = polymorphic_function._FrequentTracingDetectorManager()
    monkeypatch.setattr(polymorphic_function, "_frequent_tracing_detector_manager", manager)


@pytest.fixture(name="found")
def fixture_found(monkeypatch):
    """What TensorFlow warns of, whatever the level of its logger."""
    found = []
    monkeypatch.setattr(polymorphic_function.logging, "warning", lambda m, *_: found.append(m))
    return found


class Doubling:
    def double(self, x, *, times=2.0):
        return x * times

    def rows(self, state, rows):
        return state * rows


def test_methods_of_many_objects_are_no_retracing(found):
    plain = [tf.function(Doubling().double) for _ in range(5)]
    apart = [tf.function(counted_separately(Doubling().double)) for _ in range(5)]
    assert [float(fn(tf.constant(1.0))) for fn in apart] == [2.0] * 5
    assert found == []
    assert [float(fn(tf.constant(1.0))) for fn in plain] == [2.0] * 5
    assert len(found) == 1 and "5 out of the last 5 calls" in found[0]


def test_one_that_does_retrace_is_warned_of(found):
    fn = tf.function(counted_separately(Doubling().double))
    for n in range(1, 6):
        fn(tf.zeros([n]))
    assert len(found) == 1 and "5 out of the last 5 calls" in found[0]


def test_name_and_arguments_are_kept():
    fn = tf.function(counted_separately(Doubling().double), autograph=False)
    assert float(fn(tf.constant(1.0), times=tf.constant(3.0))) == 3.0
    assert b"_double_" in fn.get_concrete_function(tf.constant(1.0)).name


def test_learners_and_their_copies_train_in_silence(found):
    batch = column([1.0, 2.0], [3.0, 4.0])
    learner = built({"m": Dot()})
    for i in range(5):
        learner.copy_module("m", f"m{i}", policies_to_train=["m"])
        learner.update_from_batch({"m": batch})
    assert learner.trace_count == 1 and found == []


def test_other_functions_made_for_each_object(found):
    rows = np.ones([3], np.float32)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for i in range(5):
        RowFunction(Doubling().rows)(rows[0], rows)
        replicas = Replicas(strategy)
        replicas.all_gather(tf.constant(i))
        replicas.run_traced(tf.square, tf.constant(i))
    sizes = RowFunction(lambda state, rows: rows)
    for n in (8, 16, 32, 64, 128):
        sizes(rows[0], np.ones([n], np.float32))
    assert found == []
    assert sizes.traces == 5


def test_environments_and_videos_made_for_each_object(found):
    for _ in range(5):
        env = tfrl.make_env("tf:CartPole-v1")
        player = tfrl.envs.as_gymnasium(env)
        player.reset(seed=0)
        player.step(0)
        agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
        state = agent.init(tfrl.seeding.key(0))
        steps = video._DeviceSteps(env, agent, state, agent.evaluate_actions, 2)
        steps.begin(tfrl.seeding.key(0), tfrl.seeding.key(1))
        steps.step(0)
    assert found == []
