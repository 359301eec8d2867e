"""A learner with collectors that was killed goes on by the same rollouts as one that was not."""

import numpy as np
import tensorflow as tf

from tests.roles.jobs import advance
from tfrl.envs.remote_env import RemoteEnv
from tfrl.launch import settings
from tfrl.roles import tables
from tfrl.types import Nest
from tfrl.workflows.collectors import CollectedRollouts, Collectors

IMPALA = ("make_env.num_envs=4", "OnPolicyWorkflow.rollout_length=8",
          "OnPolicyWorkflow.num_minibatches=2", "OnPolicyWorkflow.compile='graph'",
          "Impala.hidden=(4,)", "Impala.normalize_obs=True",
          "LinearSchedule.steps=200")  # fmt: skip


class Recorded(Collectors):
    """Hands out rollouts by the env steps of the learner, whoever asks."""

    def __init__(self, learner):
        self._form, self._at = tables.rollout_form(learner, 1), 0
        learner.use_collectors(self, RemoteEnv.of(learner.env, "here"))

    def begin(self, state):
        self._at = int(state.metrics.env_steps)

    def play(self, agent_state, *, waits):
        rng = np.random.default_rng(self._at)
        self._at += 32
        drawn = {
            "obs": rng.normal(size=[8, 4, 4]).astype(np.float32),
            "next_obs": rng.normal(size=[8, 4, 4]).astype(np.float32),
            "action": rng.integers(0, 2, [8, 4]).astype(np.int32),
            "reward": rng.normal(size=[8, 4]).astype(np.float32),
            "termination": rng.random([8, 4]) < 0.2,
            "valid": np.ones([8, 4], np.bool_),
            "policy_extras": {"log_prob": np.full([8, 4], np.log(0.5), np.float32)},
        }
        played = tf.nest.map_structure(np.asarray, self._form).replace(**drawn)
        return CollectedRollouts(trajectory=played, metrics={})

    def blank(self) -> Nest:
        return self._form


def learner():
    made = settings.assemble(["impala/tf_cartpole.gin"], list(IMPALA)).workflow
    Recorded(made)
    return made


def test_the_same_rollouts_lead_to_the_same_learner(tmp_path):
    workflow = learner()
    state, first = advance(workflow, workflow.setup(0), 64, iterations=2)
    workflow.save(state, tmp_path)
    state, rows = advance(workflow, state, 160, iterations=2)
    other, again = advance(workflow, workflow.restore(tmp_path), 160, iterations=2)

    # 200 agent steps from 2e-3 to 0, of which 64 were behind the first row that follows.
    np.testing.assert_allclose(again[0]["learning_rate"], 2e-3 * (1 - 64 / 200), rtol=1e-5)
    assert again == rows
    assert [row["env_steps"] for row in first + again] == [32, 64, 96, 128, 160]
    assert again[-1]["learner_steps"] == 10.0
    wanted, found = workflow.state_values(state), workflow.state_values(other)
    assert wanted.keys() == found.keys()
    for path in wanted:
        if path.startswith("learner/"):  # parameters, statistics, slots, counters
            np.testing.assert_array_equal(wanted[path], found[path], err_msg=path)
