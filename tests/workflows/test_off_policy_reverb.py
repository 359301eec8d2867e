"""OffPolicyWorkflow over Reverb: counts, priorities, checkpoints, a separate server, errors."""

import collections
import functools
import gc
import tempfile
import weakref
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tfrl
from tests.envs.host_backends import Scripted
from tfrl import seeding
from tfrl.agents import DQN
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError
from tfrl.experiment.checkpoints import CheckpointManager
from tfrl.learners import ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.replay.reverb import ReverbReplay, TableConfig
from tfrl.workflows import OffPolicyWorkflow, reverb_experience, stages
from tfrl.workflows.checks import on_reverb

BUFFER = functools.partial(ReverbReplay, capacity=400, timeout=20.0)
PRIORITIZED = functools.partial(ReverbReplay, capacity=400, kind="prioritized", timeout=20.0)


def workflow(env=None, **changes):
    settings = {
        "env": env or HostEnv(Scripted((2, 3, 1, 5)), "SAME_STEP"),
        "agent": functools.partial(DQN, hidden=(8,), target_every=3),
        "replay": BUFFER,
        "batch_size": 8,
        "random_steps": 20,
        "eval_episodes": 2,
        "compile": {"update": "graph"},
        "learner_config": ModuleConfig(lr=1e-3),
        "iterations_per_row": 4,
    }
    return OffPolicyWorkflow(**{**settings, **changes})


def run(flow, state, env_steps):
    rows = []
    while flow.env_steps(state) < env_steps:
        done = flow.advance(state, 1000, env_steps)
        state, rows = done.state, rows + list(done.rows)
    return state, rows


class ReverbWorkflowTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_batches_are_awaited_by_python_where_a_phase_is_traced(self):
        """Tracing would wait for them while it holds the interpreter lock."""
        asked = collections.defaultdict(list)
        read = reverb_experience.ReverbExperience.read

        def noted(experience, *, wait):
            asked[stages.current().phase.name].append(wait)
            return read(experience, wait=wait)

        flow = workflow(
            overlap=True, compile={"update": "xla"}, random_steps=40, learning_starts=16
        )
        self.addCleanup(flow.close)
        with mock.patch.object(reverb_experience.ReverbExperience, "read", noted):
            run(flow, flow.setup(0), 80)
        self.assertEqual(set(asked), {"random, learns", "policy, learns"})
        for found in asked.values():
            self.assertEqual(found, [True] + [False] * (len(found) - 1))
            self.assertGreater(len(found), 2)

    @parameterized.parameters((False, 1.0), (True, 1.0), (True, 0.25))
    @pytest.mark.variants(1)
    def test_counts(self, overlap, ratio):
        flow = workflow(overlap=overlap, updates_per_step=ratio)
        self.addCleanup(flow.close)
        state, rows = run(flow, flow.setup(0), 60)
        self.assertEqual(rows[-1]["learner_steps"], 40 * ratio)
        self.assertEqual(int(flow.replay_buffer(state).size()), 48)  # blocks of 16
        learnt = [r for r in rows if "loss" in r]
        self.assertTrue(all(np.isfinite(r["loss"]) for r in learnt))
        # The rollout acts with the parameters from before the learner steps of one iteration.
        lags = [r["policy_lag"] for r in learnt] if overlap else [0.0]
        self.assertLessEqual(max(lags), 4 * ratio)
        if overlap:
            self.assertEqual(lags[-1], 4 * ratio)

    @parameterized.parameters(False, True)
    @pytest.mark.variants(1)
    def test_priorities_are_those_of_the_errors(self, overlap):
        flow = workflow(replay=PRIORITIZED, overlap=overlap, updates_per_step=1.0)
        self.addCleanup(flow.close)
        state, _ = run(flow, flow.setup(0), 60)
        buffer = flow.replay_buffer(state)
        found = buffer.connection.client.sample("replay", 200, emit_timesteps=False)
        priorities = [float(np.ravel(s.info.priority)[0]) for s in found]
        # New items start at 1^alpha; errors have all sizes.
        self.assertGreater(len(set(np.round(priorities, 6))), 5)

    def test_environments_on_the_device(self):
        env = tfrl.make_env("tf:CartPole-v1", num_envs=2)
        flow = workflow(env, compile="graph")
        self.addCleanup(flow.close)
        state, rows = run(flow, flow.setup(0), 40)
        self.assertEqual(rows[-1]["learner_steps"], 20)
        self.assertEqual(int(flow.replay_buffer(state).size()), 32)  # blocks of 16

    def test_a_checkpoint_holds_the_tables(self):
        flow = workflow(replay=PRIORITIZED)
        self.addCleanup(flow.close)
        state, _ = run(flow, flow.setup(0), 40)
        before = self._content(flow, state)
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            again = workflow(replay=PRIORITIZED)
            self.addCleanup(again.close)
            other = again.restore(folder, seed=5)
        self.assertEqual(again.env_steps(other), 40)
        after = self._content(again, other)
        self.assertEqual(after[1], before[1])
        common = before[0].keys() & after[0].keys()  # of the drawn items
        self.assertGreater(len(common), 10)
        self.assertEqual({k: before[0][k] for k in common}, {k: after[0][k] for k in common})
        other, rows = run(again, other, 60)
        self.assertEqual(rows[-1]["learner_steps"], 40)
        self.assertEqual(int(again.replay_buffer(other).size()), 60)

    def _content(self, flow, state):
        buffer = flow.replay_buffer(state)
        buffer.flush()
        found = list(buffer.connection.client.sample("replay", 400, emit_timesteps=False))
        keys = [int(np.ravel(s.info.key)[0]) for s in found]
        priorities = [round(float(np.ravel(s.info.priority)[0]), 5) for s in found]
        table = buffer.connection.server_info()["replay"]
        return dict(zip(keys, priorities, strict=True)), table.current_size

    def test_a_snapshot_has_a_server_of_its_own(self):
        flow = workflow(replay=functools.partial(BUFFER, block_size=1, packed=True))
        self.addCleanup(flow.close)
        state, _ = run(flow, flow.setup(0), 30)
        copy = flow.snapshot(state)
        state = flow.advance(state, 3).state
        self.assertEqual(int(flow.replay_buffer(copy).size()), 32)
        self.assertEqual(int(flow.replay_buffer(state).size()), 44)

    def test_a_server_elsewhere(self):
        from tfrl.replay.reverb.server import ReverbServer

        flow = workflow()
        server = ReverbServer(flow.replay.make_tables())
        self.addCleanup(server.stop)
        self.addCleanup(flow.close)
        flow.use_replay_server(server.address, 7.0)
        self.assertEqual(flow.replay.reconnect_seconds, 7.0)
        state, rows = run(flow, flow.setup(0), 40)
        self.assertEqual(rows[-1]["learner_steps"], 20)
        self.assertEqual(int(flow.replay_buffer(state).size()), 40)
        with self.assertRaisesRegex(UserError, "snapshot: expected a replay buffer in this"):
            flow.snapshot(state)

    def test_a_server_with_other_tables(self):
        from tfrl.replay.reverb.server import ReverbServer

        flow = workflow()
        other = flow.replay.replace(obs_spec=tf.TensorSpec([4], tf.float32))
        server = ReverbServer(other.make_tables())
        self.addCleanup(server.stop)
        self.addCleanup(flow.close)
        flow.use_replay_server(server.address)
        with self.assertRaisesRegex(UserError, "obs"):
            flow.setup(0)

    @parameterized.parameters(
        BUFFER, functools.partial(InGraphReplay, capacity=400, kind="prioritized", alpha=0.5)
    )
    @pytest.mark.slow
    def test_a_server_holds_the_items_that_the_training_would(self, replay):
        """The same seed and a fixed policy give the same multiset of items."""
        from tfrl.replay.reverb.server import ReverbServer
        from tfrl.replay.reverb.signature import PackedItems

        found = []
        for elsewhere in (False, True):
            flow = workflow(replay=replay, random_steps=64)
            tables = on_reverb(flow.replay)
            self.addCleanup(flow.close)
            if elsewhere:
                server = ReverbServer(tables.make_tables())
                self.addCleanup(server.stop)
                flow.use_replay_server(server.address)
            else:
                flow.replay = tables
            state, _ = run(flow, flow.setup(3), 64)
            flow.replay_buffer(state).flush()
            options = {"emit_timesteps": False, "unpack_as_table_signature": True}
            client = flow.replay_buffer(state).connection.client
            self.assertIs(flow.replay_buffer(state).replay.packed, not elsewhere)
            packing = PackedItems(tables)
            items = {}
            for sample in client.sample("replay", num_samples=1500, **options):
                transitions = [sample.data]  # by path: the two servers hold them in two forms
                if flow.replay_buffer(state).replay.packed:
                    (block,) = sample.data.values()
                    rows = block.reshape(-1, 1, packing.dtype.itemsize)
                    transitions = [packing.unpack(row) for row in rows]
                for i, leaves in enumerate(transitions):
                    leaves = [np.asarray(x).tobytes() for x in tf.nest.flatten(leaves)]
                    items[sample.info.key, i] = b"|".join(leaves)
            found.append(collections.Counter(items.values()))
        self.assertEqual(found[0].total(), 64)
        self.assertEqual(found[0], found[1])

    @parameterized.parameters(False, True)
    @pytest.mark.slow
    def test_rows_that_are_no_steps(self, overlap):
        """The number of learner steps is unknown before the iteration."""
        env = HostEnv(Scripted((2, 3, 1, 5), "NEXT_STEP"), "NEXT_STEP")
        flow = workflow(env, overlap=overlap, compile={"update": "xla"})
        self.addCleanup(flow.close)
        _, rows = run(flow, flow.setup(0), 60)
        start = next(r["env_steps"] for r in rows if r["env_steps"] >= 20)
        self.assertEqual(rows[-1]["learner_steps"], rows[-1]["env_steps"] - start)

    @parameterized.parameters("xla", "graph")
    @pytest.mark.slow
    def test_compiled_in_any_way(self, mode):
        flow = workflow(replay=PRIORITIZED, compile={"update": mode}, updates_per_step=0.5)
        self.addCleanup(flow.close)
        _, rows = run(flow, flow.setup(0), 60)
        self.assertEqual(rows[-1]["learner_steps"], 20)
        self.assertTrue(np.isfinite(rows[-1]["loss"]))

    @parameterized.parameters((True, True), (True, False), (False, False))
    @pytest.mark.slow
    def test_how_many_batches_are_held_at_once(self, all_of_them, by_python):
        """Small batches of an XLA iteration are read before it, large ones one by one.

        Python reads a small number of batches.
        """
        if not all_of_them:
            self.enter_context(mock.patch.object(reverb_experience, "FETCHED_BYTES", 1000))
        most = 100 if by_python else 1
        self.enter_context(mock.patch.object(reverb_experience, "_READ_BATCHES", most))
        flow = workflow(compile={"update": "xla"}, updates_per_step=2.0)
        self.addCleanup(flow.close)
        state, rows = run(flow, flow.setup(0), 40)
        experience, made = flow.runner(state).experience, flow.runner(state).settled(state)
        self.assertEqual(experience.fetches(made), all_of_them)
        self.assertEqual(flow.fuses_on_host(state, made), all_of_them)
        self.assertEqual(experience.reads_batches(made) == "python", by_python)
        self.assertEqual(rows[-1]["learner_steps"], 40)
        # obs and next_obs of 3 float32, action, index, reward and discount
        self.assertEqual(experience.batch_bytes, 8 * (2 * 12 + 8 + 8 + 4 + 4))

    @parameterized.parameters("xla", "graph")
    @pytest.mark.slow
    def test_weights_are_those_of_the_iteration(self, mode):
        """Batches are prefetched; their beta belongs to the env steps of their use."""
        flow = workflow(
            replay=functools.partial(PRIORITIZED, alpha=1.0),
            priority_beta=[[0, 0.0], [100, 1.0]],
            compile={"update": mode},
        )
        self.addCleanup(flow.close)
        state, _ = run(flow, flow.setup(0), 40)
        experience, key = flow.runner(state).experience, seeding.key(0)
        made = flow.runner(state).settled(state)

        @tf.function(autograph=False)
        def used(env_steps):
            batches = experience.batches() if experience.fetches(made) else ()
            with experience.learner_call(batches):
                batch, _ = flow._sample_number(state, tf.constant(0), key, env_steps)
            return batch.index, batch.weight

        self.assertEqual(experience.fetches(made), mode == "xla")
        index, weight = used(tf.constant(0, tf.int64))
        np.testing.assert_array_equal(weight, np.ones(8))
        client = experience.buffer.connection.client
        found = client.sample("replay", 2000, emit_timesteps=False)
        keys = sorted({int(np.ravel(s.info.key)[0]) for s in found})
        # So large that draws exclude items without this priority.
        known = {key: 1e4 * number for number, key in enumerate(keys, 1)}
        client.mutate_priorities("replay", updates=known)
        for _ in range(5):  # batches in flight used the earlier priorities
            used(tf.constant(0, tf.int64))
        for steps in (100, 25):
            index, weight = used(tf.constant(steps, tf.int64))
            ours = np.array([known[key] for key in index.numpy().view(np.uint64).tolist()])
            want = (ours / ours.min()) ** -(steps / 100.0)
            np.testing.assert_allclose(weight, want, rtol=1e-5)
            self.assertLess(weight.numpy().min(), 0.99)

    @parameterized.parameters(False, True)
    @pytest.mark.variants(1)
    def test_a_limiter_that_allows_too_little_ends_in_an_error(self, overlap):
        replay = functools.partial(
            ReverbReplay, capacity=400, samples_per_insert=1.0, min_size=30, timeout=1.0
        )
        flow = workflow(replay=replay, overlap=overlap, batch_size=16)
        self.addCleanup(flow.close)
        with self.assertRaisesRegex(UserError, "expected items to sample within 1 s, got none"):
            run(flow, flow.setup(0), 400)

    def test_a_server_ends_with_its_run(self):
        flow = workflow()
        self.addCleanup(flow.close)
        state = flow.advance(flow.setup(0), 8).state
        buffer = weakref.ref(flow.replay_buffer(state))
        self.assertEqual(len(flow._servers), 1)
        del state
        for _ in range(3):  # freeing a program frees its buffer one round later
            gc.collect()
        self.assertEqual((len(flow._servers), buffer()), (0, None))

    def test_where_the_experience_of_a_checkpoint_was(self):
        from tfrl.replay.reverb.server import ReverbServer

        flow = workflow()
        self.addCleanup(flow.close)
        server = ReverbServer(flow.replay.make_tables())
        self.addCleanup(server.stop)
        state, _ = run(flow, flow.setup(0), 40)
        with tempfile.TemporaryDirectory() as folder:
            flow.save(state, folder)
            other = workflow()
            other.use_replay_server(server.address)
            self.addCleanup(other.close)
            with self.assertRaisesRegex(
                UserError, "stored in a Reverb server, .* process. Use the original --re"
            ):
                other.restore(folder)
            anew = workflow(checkpoint_replay=False)
            anew.use_replay_server(server.address)
            self.addCleanup(anew.close)
            self.assertEqual(anew.env_steps(anew.restore(folder)), 40)
            # An evaluation needs no experience, and no server.
            restored = CheckpointManager(folder, read_only=True).restore("latest")
            device = workflow(replay=functools.partial(InGraphReplay, capacity=40))
            state = device.load(device.setup(1), restored, environments=False)
            self.assertEqual(int(device.replay_buffer(state).size()), 0)
            self.assertEqual(int(device.learner_of(state).learner_steps), 20)

    def test_defaults(self):
        flow = workflow(replay=None)
        self.addCleanup(flow.close)
        self.assertIsInstance(flow.replay, ReverbReplay)
        self.assertIsNone(flow.replay.address)
        on_device = workflow(tfrl.make_env("tf:CartPole-v1", num_envs=4), replay=None)
        self.assertIsInstance(on_device.replay, InGraphReplay)
        for one in (flow, on_device):
            self.assertEqual((one.replay.capacity, one.replay.kind), (1_000_000, "uniform"))

    def test_errors(self):
        flow = workflow()
        with self.assertRaisesRegex(UserError, "expected host:port"):
            flow.use_replay_server("localhost")
        other = (TableConfig(name="other", n_step=2),)
        with self.assertRaisesRegex(UserError, "n_step of table 'other': expected 1, as in the ag"):
            workflow(replay=functools.partial(BUFFER, tables=other))
        tables = (TableConfig(name="first"), *other)  # other tables may belong to other clients
        workflow(replay=functools.partial(BUFFER, tables=tables)).close()
        with self.assertRaisesRegex(UserError, "expected None, since the agent learns"):
            workflow(
                replay=functools.partial(
                    ReverbReplay,
                    capacity=40,
                    tables=(TableConfig(name="long", sequence_length=4),),
                )
            )
