"""Tasks in worker processes: with and without TensorFlow in them."""

import sys
import textwrap

import pytest

from tests.docs_helpers import run

ENVS = """
    import sys
    import gymnasium
    import numpy as np

    class Tells(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, [1], np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return self._told(), {}

        def step(self, action):
            return self._told(), 1.0, False, False, {}

        def _told(self):
            return np.float32(["tensorflow" in sys.modules])

    def make(size=1):
        return Tells()
"""
TASK = """
    import functools
    import numpy as np
    import tfrl
    import tensorflow as tf
    import my_envs
    from tfrl.tasks import RLTask, RLTaskConfig, TaskWorkflow

    class Model(tf.Module):
        def __init__(self):
            self.w = tf.Variable(1.0)

    class MyTask(RLTask):
        ENVIRONMENT

        def get_model(self):
            return Model()

        def get_actions(self, model, states, optimal):
            return np.zeros(len(states), np.int64)

        def run_model(self, model, batch):
            return model.w

        def compute_loss(self, outputs, batch):
            return outputs, {"told": tf.reduce_mean(batch.obs)}

    def main():
        config = RLTaskConfig(
            num_env_workers=2, num_update_steps=2, num_collect_steps=20, max_episode_steps=5
        )
        workflow = TaskWorkflow(task=MyTask(config))
        row, state = workflow.step(workflow.setup(0))
        pids = workflow.runner(state)._sampler.pool.pids
        result = workflow.final_evaluation(state, 3)
        workflow.close()
        print(row["told"], len(pids), result.episode_lengths.tolist())
"""
PARTIAL = "get_environment = staticmethod(functools.partial(my_envs.make, size=3))"
FUNCTION = "get_environment = staticmethod(my_envs.make)"
METHOD = """
        def get_environment(self):
            return my_envs.make(self.config.num_samples)
"""
LAMBDA = "get_environment = staticmethod(lambda: my_envs.make())"
# In a module: what of it a worker's process needs.
WITHOUT, WITH = "0.0", "1.0"


def play(folder, environment, in_main):
    (folder / "my_envs.py").write_text(textwrap.dedent(ENVS))
    code = textwrap.dedent(TASK.replace("ENVIRONMENT", environment.strip()))
    (folder / "my_task.py").write_text(code)
    last = f"{code}\nmain()" if in_main else "import my_task\nmy_task.main()"
    (folder / "script.py").write_text(last)
    return run([sys.executable, "script.py"], folder)


def case(environment, in_main, told, name, slow=True):
    return pytest.param(environment, in_main, told, id=name, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize(
    "environment, in_main, told",
    [
        case(PARTIAL, False, WITHOUT, "partial", slow=False),
        case(METHOD, False, WITH, "method"),
        case(FUNCTION, False, WITHOUT, "function"),
        case(PARTIAL, True, WITHOUT, "partial_in_main"),
        case(LAMBDA, True, WITHOUT, "lambda_in_main"),
        case(METHOD, True, WITH, "method_in_main"),
    ],
)
def test_what_a_worker_imports(tmp_path, environment, in_main, told):
    out = play(tmp_path, environment, in_main)
    assert out.splitlines()[-1] == f"{told} 2 [5, 5, 5]"
