"""Tests of on-policy training in environments on the host."""

import json
import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tests.envs.host_backends import Scripted
from tfrl import struct
from tfrl.agents import PPO
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.workflows import OnPolicyWorkflow

LENGTHS = (2, 3, 1, 5)


NUMPY = {"rollout": "numpy", "update": "graph"}


def make(mode="SAME_STEP", compile=NUMPY, **options):
    agent = {n: options.pop(n) for n in ("memory", "normalize_obs") if n in options}
    return OnPolicyWorkflow(
        env=HostEnv(Scripted(LENGTHS, mode), mode),
        agent=lambda **specs: PPO(**specs, hidden=(8,), **agent),
        rollout_length=8,
        num_epochs=2,
        num_minibatches=2,
        eval_episodes=6,
        compile=compile,
        **options,
    )


def params(workflow, state):
    found = struct.paths(workflow.agent_state(state).params)
    return {path: x.numpy() for path, x in found.items()}


class HostTrainingTest(parameterized.TestCase):
    @parameterized.parameters("SAME_STEP", "NEXT_STEP")
    @pytest.mark.variants(1)
    def test_counters_count_real_steps_and_episodes(self, mode):
        workflow = make(mode)
        done = workflow.advance(workflow.setup(0), 3)
        # 24 steps of each row; under NEXT_STEP a row of n steps takes n + 1.
        if mode == "SAME_STEP":
            steps, episodes = 4 * 24, 12 + 8 + 24 + 4
        else:
            steps = 16 + 18 + 12 + 20
            episodes = 8 + 6 + 12 + 4
        row = done.rows[-1]
        self.assertEqual(row["env_steps"], steps)
        self.assertEqual(row["episodes"], episodes)
        self.assertEqual(row["iterations"], 3)
        self.assertEqual(row["learner_steps"], 12)
        self.assertTrue(all(np.isfinite(v) for v in row.values()))
        self.assertGreater(done.seconds["rollout"], 0)
        self.assertGreater(done.seconds["update"], 0)

    def test_the_same_seed_gives_the_same_run_however_it_is_split(self):
        found = []
        for calls in ((4,), (1, 1, 2)):
            workflow = make(compile="graph")
            state = workflow.setup(7)
            for n in calls:
                state = workflow.advance(state, n).state
            found.append(params(workflow, state))
        for path, x in found[0].items():
            np.testing.assert_array_equal(x, found[1][path], err_msg=path)

    def test_numpy_and_graph_learn_the_same(self):
        found = []
        for mode in ("numpy", "graph"):
            workflow = make(compile={"rollout": mode, "update": "graph"}, normalize_obs=True)
            state = workflow.advance(workflow.setup(7), 2).state
            self.assertEqual(workflow.compile_choices(state)["rollout"], mode)
            found.append(params(workflow, state))
        for path, x in found[0].items():
            np.testing.assert_allclose(x, found[1][path], atol=1e-4, err_msg=path)

    def test_choices_are_made_and_told(self):
        workflow = make(compile="auto")
        choices = workflow.compile_choices(workflow.setup(0))
        self.assertIn(choices["rollout"], ("numpy", "graph"))
        self.assertIn(choices["update"], ("xla", "graph"))
        self.assertEqual(choices["loop"], "eager")
        # Choosing the mode takes no step.
        self.assertEmpty(workflow.env.backend.taken)

    @pytest.mark.slow
    def test_memory(self):
        workflow = make(memory="gru")
        state = workflow.advance(workflow.setup(0), 2).state
        metrics, _ = workflow.evaluate(state)
        self.assertEqual(metrics["eval_episodes"], 6)

    def test_evaluation_leaves_the_training_alone(self):
        workflow = make()
        state = workflow.advance(workflow.setup(0), 1).state
        before = len(workflow.env.backend.taken)
        metrics, state = workflow.evaluate(state)
        self.assertLen(workflow.env.backend.taken, before)
        self.assertIsNot(workflow.eval_env, workflow.env)
        # Lengths 2, 3, 1, 5, and the first two again.
        self.assertAlmostEqual(metrics["eval_length_mean"], 16 / 6, places=5)
        workflow.advance(state, 1)

    def test_a_resumed_run_has_everything_but_the_episodes(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        workflow = make(normalize_obs=True)
        state = workflow.advance(workflow.setup(5), 3).state
        workflow.save(state, folder)
        want = workflow.state_values(state)
        self.assertEmpty([p for p in want if "env_state" in p])

        other = make(normalize_obs=True)
        resumed = other.restore(folder)
        got = other.state_values(resumed)
        self.assertEqual(sorted(want), sorted(got))
        for path, x in want.items():
            np.testing.assert_array_equal(np.asarray(x), np.asarray(got[path]), err_msg=path)
        # New episodes, with seeds that differ from the start's and repeat at every resume.
        first, second = other.env.backend.seeds
        self.assertEmpty(set(first) & set(second))
        third = make(normalize_obs=True)
        third.restore(folder)
        self.assertEqual(third.env.backend.seeds[-1], second)
        self.assertEqual(other.advance(resumed, 1).rows[-1]["iterations"], 4)

    def test_a_whole_run_in_a_folder(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        workflow = make()
        state = workflow.learn(
            workflow.setup(0),
            total_env_steps=128,
            root_dir=str(folder),
            eval_interval=64,
            progress=False,
            recorders=("jsonl",),
        )
        rows = [json.loads(r) for r in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual(rows[-1]["env_steps"], 128)
        self.assertIn("eval_return_mean", rows[-1])
        self.assertEqual(workflow.env_steps(state), 128)

    def test_an_older_state_is_an_error_also_on_a_snapshot(self):
        workflow = make()
        state = workflow.setup(0)
        copy = workflow.snapshot(state)
        workflow.advance(state, 1)
        with self.assertRaisesRegex(UserError, "cannot be rewound to a snapshot"):
            workflow.advance(copy, 1)

    def test_closing_closes_both_environments(self):
        workflow = make()
        workflow.close()
        workflow.close()
        self.assertEqual(workflow.env.backend.closed, 1)
        self.assertEqual(workflow.eval_env.backend.closed, 1)

    def test_numpy_is_for_the_host(self):
        with self.assertRaisesRegex(UserError, "compile: expected one of xla, graph, eager, auto"):
            make(compile={"update": "numpy"})

    def test_several_replicas_are_an_error(self):
        devices = tf.config.list_logical_devices("CPU")
        if len(devices) < 2:
            self.skipTest("one device")
        strategy = tf.distribute.MirroredStrategy([d.name for d in devices[:2]])
        with self.assertRaisesRegex(UserError, "testing:ScriptedHost: expected one replica"):
            make(strategy=strategy)
