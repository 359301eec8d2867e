"""A task's policy in the formats of an export; see tests/experiment for those of agents."""

import numpy as np
import pytest
import tensorflow as tf

from tests.tasks.small_tasks import KerasTask, config
from tfrl.errors import UserError
from tfrl.experiment import export
from tfrl.experiment.export_verify import draw_observations
from tfrl.tasks.policy_export import TaskOracle, task_functions


def test_a_task_has_its_greedy_actions_in_every_format(tmp_path):
    task = KerasTask(config())
    model = task.get_model()
    policy = task_functions(task, model)
    assert list(policy.functions) == ["action"] and sorted(policy.left_out) == [
        "distribution", "explore",
    ]  # fmt: skip
    observations = draw_observations(policy.obs_spec, memory=False)
    own = TaskOracle(task, model, policy).answers(observations, ("action",))["action/action"]
    assert own.shape == (1, 1000) and len(np.unique(own)) == 2
    export.write_tflite(policy, tmp_path)
    runner = tf.lite.Interpreter(str(tmp_path / "policy.tflite")).get_signature_runner("action")
    np.testing.assert_array_equal(runner(observation=observations[0].numpy())["action"], own[0])


def test_actions_in_numpy_are_refused():
    class InNumpy(KerasTask):
        def get_actions(self, model, states, optimal):
            return np.argmax(model(tf.convert_to_tensor(states)).numpy(), -1)

    task = InNumpy(config())
    with pytest.raises(UserError, match="export of InNumpy: expected get_actions that runs on sym"):
        task_functions(task, task.get_model())
