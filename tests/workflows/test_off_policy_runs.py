"""OffPolicyWorkflow: any split into calls, copies, checkpoints."""

import collections
import functools
import tempfile
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from tests.workflows.small_off_policy import (
    BUFFER,
    PRIORITIZED,
    assert_same,
    bits,
    run,
)
from tests.workflows.small_off_policy import workflow as small_workflow
from tfrl import traces
from tfrl.learners import ModuleConfig
from tfrl.workflows.off_policy import OffPolicyWorkflow

# Adam's steps have the size of its rate even if a gradient is near rounding error.
workflow = functools.partial(small_workflow, learner_config=ModuleConfig(lr=1e-4))


class RunTest(parameterized.TestCase):
    @parameterized.parameters("graph", "xla")
    @pytest.mark.variants(1)
    def test_the_split_into_calls_changes_no_bit(self, mode):
        self.compare_splits(mode, BUFFER)

    @pytest.mark.slow
    def test_the_split_into_calls_changes_no_priority(self):
        self.compare_splits("xla", PRIORITIZED)

    def compare_splits(self, mode, replay):
        flow = workflow(compile=mode, replay=replay, updates_per_step=0.75)
        whole, _ = run(flow, 3, 60)
        parts = flow.setup(3)
        while flow.env_steps(parts) < 60:
            parts = flow.advance(parts, 3, 60).state
        assert_same(bits(flow, whole), bits(flow, parts))

    # The second run learns during random actions, so the acting policy changes while it learns.
    @parameterized.parameters((PRIORITIZED, 20), (BUFFER, 10))
    @pytest.mark.slow
    def test_one_program_of_rollout_and_sample_changes_no_bit(self, replay, learning_starts):
        """Rollout, addition and sample as one XLA program, and as three graph stages."""
        found = []
        for together in (True, False):
            flow = workflow(
                compile={"rollout": "xla", "update": "graph"},
                replay=replay,
                num_envs=1,
                learning_starts=learning_starts,
            )
            with pytest.MonkeyPatch.context() as patch:
                gather = mock.Mock(side_effect=OffPolicyWorkflow._fused_sampling, autospec=True)
                patch.setattr(
                    OffPolicyWorkflow, "_fused_sampling", lambda *a, own=gather, **k: own(*a, **k)
                )
                if not together:
                    patch.setattr(OffPolicyWorkflow, "fuses_sampling", lambda *_: False)
                patch.setattr(traces, "_all", collections.OrderedDict())  # traced anew
                state, _ = run(flow, 5, 40)
            self.assertEqual(gather.called, together)
            found.append(bits(flow, state))
        assert_same(*found)

    def test_eager_graph_and_xla_agree(self):
        found = {}
        for mode in ("eager", "graph", "xla"):
            flow = workflow(compile=mode)
            found[mode] = bits(flow, run(flow, 1, 26)[0])
        for mode in ("graph", "xla"):
            for path, value in found["eager"].items():
                np.testing.assert_allclose(
                    value, found[mode][path], rtol=2e-3, atol=2e-4, err_msg=f"{mode} {path}"
                )

    def test_rows_are_means_of_their_iterations(self):
        rows = {n: run(workflow(iterations_per_row=n), 0, 60)[1] for n in (1, 4)}
        learnt = [r for r in rows[1] if "loss" in r]
        self.assertLen(learnt, 20)
        for i, row in enumerate(r for r in rows[4] if "loss" in r):
            own = learnt[4 * i : 4 * i + 4]
            for name in ("loss", "grad_norm", "td_error"):
                mean = np.mean([r[name] for r in own], dtype=np.float32)
                np.testing.assert_allclose(row[name], mean, rtol=1e-5)
            self.assertEqual(row["gradient_steps"], 8)
            for name in ("env_steps", "learner_steps", "episodes", "iterations"):
                self.assertEqual(row[name], own[-1][name])
            np.testing.assert_equal(row["episode_return"], own[-1]["episode_return"])

    @parameterized.parameters(BUFFER, PRIORITIZED)
    @pytest.mark.variants(1)
    def test_a_restored_run_goes_on_to_the_bit(self, replay):
        flow = workflow(replay=replay)
        state, _ = run(flow, 2, 40)
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            state, _ = flow.advance(state, 10, 80).state, None
            again = workflow(replay=replay)
            other = again.restore(folder, seed=9)
            self.assertEqual(again.env_steps(other), 40)
            other = again.advance(other, 10, 80).state
        assert_same(bits(flow, state), bits(again, other))

    @pytest.mark.slow
    def test_without_its_buffer_a_resumed_run_fills_it_first(self):
        flow = workflow(checkpoint_replay=False)
        state, _ = run(flow, 2, 40)
        self.assertFalse([p for p in flow.state_values(state) if p.startswith("replay/")])
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            again = workflow(checkpoint_replay=False, iterations_per_row=1)
            other = again.restore(folder)
        rows = []
        while again.env_steps(other) < 80:
            done = again.advance(other, 100, 80)
            other, rows = done.state, rows + list(done.rows)
        self.assertEqual([r["env_steps"] for r in rows if "loss" in r][0], 62)
        self.assertEqual(int(again.replay_buffer(other).size()), 40)

    def test_a_snapshot_stays(self):
        flow = workflow()
        state, _ = run(flow, 0, 30)
        copy = flow.snapshot(state)
        before = bits(flow, copy)
        state = flow.advance(state, 5).state
        assert_same(before, bits(flow, copy))
        assert_same(bits(flow, flow.advance(copy, 5).state), bits(flow, state))

    def test_timing_the_stages_leaves_the_run_as_it_was(self):
        flow = workflow(compile="auto", replay=PRIORITIZED)
        state = flow.setup(0)
        before = bits(flow, state)
        flow.compile_choices(state)
        assert_same(before, bits(flow, state))

    def test_learn_evaluates_and_writes(self):
        flow = workflow()
        with tempfile.TemporaryDirectory() as folder:
            state = flow.learn(
                flow.setup(0),
                total_env_steps=60,
                eval_interval=30,
                root_dir=folder,
                progress=False,
                recorders=("jsonl",),
            )
            self.assertEqual(flow.env_steps(state), 60)
            text = open(f"{folder}/metrics.jsonl").read()
        self.assertIn("eval_return_mean", text)
        self.assertIn("td_error", text)
