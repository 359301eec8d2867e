"""AutoGraph, which a user's tf.function applies, leaves the library's functions as they are."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.learners.learner_fakes import SumAgent
from tfrl import seeding, struct
from tfrl.learners import DEFAULT_MODULE_ID, Learner, train_step


@pytest.fixture(name="warnings")
def fixture_warnings(caplog):
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("WARNING")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.WARNING):
        yield lambda: [r.getMessage() for r in caplog.records if "AutoGraph" in r.getMessage()]
    logger.removeHandler(caplog.handler)
    logger.setLevel(level)


def test_an_iteration_in_a_tf_function(warnings):
    env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
    workflow = tfrl.OnPolicyWorkflow(
        env, tfrl.PPO, rollout_length=4, num_epochs=1, num_minibatches=1
    )
    state = struct.values(workflow.setup(0))
    _, after = tf.function(workflow.iterate)(state, seeding.key(0))
    assert int(after.metrics.iterations) == 1
    assert warnings() == []


def test_a_train_step_in_a_tf_function(monkeypatch):
    learner, found, loss = Learner(SumAgent()), [], SumAgent.loss

    def noted(*args, **kwargs):
        found.append(tf.__internal__.autograph.control_status_ctx().status.name)
        return loss(*args, **kwargs)

    monkeypatch.setattr(SumAgent, "loss", noted)
    learner.build(0)
    batch = {DEFAULT_MODULE_ID: {"x": np.zeros([4], np.float32)}}
    tf.function(lambda: train_step(learner, learner.learner_state, batch, seeding.key(0))[1])()
    assert set(found) == {"DISABLED"}
