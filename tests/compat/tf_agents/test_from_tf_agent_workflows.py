"""Agents of TF-Agents in our workflows: on the device, on the host, from Reverb, by gin."""

import functools
import importlib.util
import inspect
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.networks.q_rnn_network import QRnnNetwork

import tfrl
from tests import forked
from tests.compat.tf_agents.from_tf_agent_cases import make_cloning, make_dqn
from tests.workflows.small_off_policy import (
    PRIORITIZED,
    assert_same,
    bits,
    run,
)
from tests.workflows.small_off_policy import workflow as small_workflow
from tfrl.compat import tf_agents_factories as factories
from tfrl.compat.tf_agents import from_tf_agent
from tfrl.errors import UserError
from tfrl.replay import InGraphReplay
from tfrl.replay.reverb import ReverbReplay
from tfrl.workflows import OnPolicyWorkflow

DQN = functools.partial(factories.make_dqn, hidden=(8,), epsilon=((0, 1.0), (100, 0.1)))
# They have optimizers of their own.
workflow = functools.partial(small_workflow, learner_config=None)
ROOT = pathlib.Path(__file__).resolve().parents[3]
FORMATS = [
    "saved_model",
    "tf_agents",
    "tflite",
    *(["onnx"] if all(importlib.util.find_spec(n) for n in ("tf2onnx", "onnxruntime")) else []),
]


def on_policy(agent, autoreset="NEXT_STEP", **options):
    env = tfrl.make_env("tf:CartPole-v1", num_envs=4, autoreset=autoreset)
    settings = {"rollout_length": 16, "eval_episodes": 2, "compile": "graph", **options}
    return OnPolicyWorkflow(env=env, agent=agent, **settings)


class OffPolicyTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_a_run_is_a_value(self):
        self.check_run("tf:CartPole-v1", DQN)

    @parameterized.named_parameters(
        ("categorical_dqn", "tf:CartPole-v1", factories.make_categorical_dqn),
        ("td3", "tf:Pendulum-v1", factories.make_td3),
        ("ddpg", "tf:Pendulum-v1", factories.make_ddpg),
        ("sac", "tf:Pendulum-v1", factories.make_sac),
        ("cloning", "tf:CartPole-v1", from_tf_agent(make_cloning)),
    )
    @pytest.mark.slow
    def test_a_run_is_a_value_of(self, env_id, make):
        small = {"hidden": (8,)} if inspect.isfunction(make) else {}
        self.check_run(env_id, functools.partial(make, **small))

    def check_run(self, env_id, agent):
        workflow = functools.partial(small_workflow, env_id, agent=agent, learner_config=None)
        flow = workflow()
        state, rows = run(flow, 0, 60)
        self.assertEqual(rows[-1]["learner_steps"], 40)
        losses = [x for name, x in rows[-1].items() if name.endswith("loss")]
        self.assertNotEmpty(losses)
        self.assertTrue(np.isfinite(losses).all())
        copy = flow.snapshot(state)
        before = bits(flow, copy)
        state = flow.advance(state, 5).state
        assert_same(bits(flow, copy), before)
        other = workflow()  # as a new process has one, with a TFAgent of its own
        with tempfile.TemporaryDirectory() as folder:
            flow.save(copy, folder)
            restored = other.restore(folder)
        assert_same(bits(other, restored), before)
        restored = other.advance(restored, 5).state
        assert_same(bits(other, restored), bits(flow, state))
        metrics, _ = flow.evaluate(state)
        self.assertTrue(np.isfinite(metrics["eval_return_mean"]))
        if env_id == "tf:CartPole-v1":  # no episode is shorter
            self.assertGreater(metrics["eval_return_mean"], 5)

    @pytest.mark.slow
    def test_modes_agree(self):
        found = []
        for compile in ("graph", "xla"):
            flow = workflow(agent=DQN, compile=compile)
            state, _ = run(flow, 0, 40)
            values = bits(flow, state)
            found.append({p: x for p, x in values.items() if p.startswith("learner/")})
        for path, x in found[0].items():
            np.testing.assert_allclose(x, found[1][path], atol=1e-4, err_msg=path)

    @parameterized.parameters(InGraphReplay, ReverbReplay)
    @pytest.mark.slow
    def test_gymnasium(self, kind):
        flow = workflow(
            "gymnasium:CartPole-v1",
            agent=DQN,
            autoreset="NEXT_STEP",
            replay=functools.partial(kind, capacity=400),
            compile={"rollout": "numpy", "update": "graph"},
        )
        self.addCleanup(flow.close)
        state, rows = run(flow, 0, 60)
        self.assertGreater(rows[-1]["learner_steps"], 30)
        self.assertGreater(rows[-1]["policy_lag"], 0)
        self.assertEqual(flow.compile_choices(state)["rollout"], "numpy")

    @pytest.mark.slow
    def test_prioritised_items(self):
        flow = workflow(agent=DQN, replay=PRIORITIZED)
        _, rows = run(flow, 0, 40)
        self.assertTrue(np.isfinite(rows[-1]["loss"]))

    def test_prioritised_items_of_what_ignores_weights_are_refused(self):
        agent = functools.partial(factories.make_categorical_dqn, hidden=(8,))
        with self.assertRaisesRegex(
            UserError, "replay.kind: expected 'uniform', since CategoricalDqn"
        ):
            workflow(agent=agent, replay=PRIORITIZED)

    @pytest.mark.slow
    def test_a_memory_learns_from_replayed_sequences(self):
        agent = from_tf_agent(functools.partial(make_dqn, network=QRnnNetwork))
        replay = functools.partial(InGraphReplay, capacity=400, sequence_length=4)
        flow = workflow(agent=agent, replay=replay)
        _, rows = run(flow, 0, 60)
        self.assertTrue(np.isfinite(rows[-1]["loss"]))
        with self.assertRaisesRegex(UserError, "replay.sequence_length"):
            workflow(agent=agent)

    @pytest.mark.slow
    def test_what_learns_from_rollouts_is_refused(self):
        with self.assertRaisesRegex(UserError, "learns from replayed transitions"):
            workflow(agent=factories.make_ppo, autoreset="NEXT_STEP")
        with self.assertRaisesRegex(UserError, "learns from its own rollouts"):
            on_policy(factories.make_dqn)


class OnPolicyTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_ppo_under_xla(self):
        self.test_ppo(compile="xla")

    def test_ppo(self, compile="graph"):
        agent = functools.partial(factories.make_ppo, hidden=(8,), num_epochs=2)
        flow = on_policy(agent, compile=compile)
        done = flow.advance(flow.setup(0), 3)
        row = done.rows[-1]
        self.assertEqual((row["learner_steps"], row["gradient_steps"]), (3, 1))
        values = bits(flow, done.state)
        counters = [int(x) for path, x in values.items() if path.endswith("train_step_counter")]
        self.assertEqual(counters, [6])

    @pytest.mark.slow
    def test_the_boundary_frames_are_needed(self):
        with self.assertRaisesRegex(UserError, "make_env.autoreset = 'NEXT_STEP'"):
            on_policy(factories.make_ppo, autoreset="SAME_STEP")

    @pytest.mark.slow
    def test_reinforce_on_gymnasium(self):
        env = tfrl.make_env("gymnasium:CartPole-v1", num_envs=4, autoreset="NEXT_STEP")
        flow = OnPolicyWorkflow(
            env=env,
            agent=functools.partial(factories.make_reinforce, hidden=(8,)),
            rollout_length=64,
            compile={"rollout": "numpy", "update": "graph"},
        )
        self.addCleanup(flow.close)
        done = flow.advance(flow.setup(0), 2)
        self.assertTrue(np.isfinite(done.rows[-1]["loss"]))


class ImportTest(parameterized.TestCase):
    def test_gin_registers_the_agents_without_importing_tf_agents(self):
        code = """
import json, sys
from tfrl.launch import configurables
print(json.dumps([m for m in ("tf_agents", "reverb") if m in sys.modules]))
"""
        done = forked.run([sys.executable, "-c", code])
        self.assertEqual(json.loads(done.stdout), [], done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn_cartpole", "sac_pendulum", "ppo_cartpole"])
def test_binaries_train_evaluate_and_export(name, tmp_path):
    steps = 4096 if name == "ppo_cartpole" else 1536
    for binary, flags in (
        (
            "train",
            [
                f"--gin_file=tf_agents/{name}.gin",
                f"--gin_bindings=train.total_env_steps = {steps}",
                "--gin_bindings=train.final_eval_episodes = 4",
            ],
        ),
        ("evaluate", ["--episodes=4"]),
        *(("export", [f"--format={form}"]) for form in FORMATS),
    ):
        command = [sys.executable, str(ROOT / "bin" / f"{binary}.py"), f"--root_dir={tmp_path}"]
        done = subprocess.run(
            [*command, *flags], capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["env_steps"] >= steps
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    assert "action" in loaded.signatures
    for form in FORMATS:
        metadata = json.loads((tmp_path / "export" / form / "metadata.json").read_text())
        assert metadata["verification"]["observations"] == 1000, form
