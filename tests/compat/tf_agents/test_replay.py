"""TF-Agents' buffer reads what our writers wrote, and ours what its observers wrote."""

import numpy as np
import pytest
import reverb
import tensorflow as tf
from absl.testing import parameterized
from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils
from tf_agents.trajectories import trajectory as trajectory_lib

from tests.replay import oracle
from tfrl.compat.tf_agents import replay
from tfrl.errors import UserError

OBS, ACTION = tf.TensorSpec([1], tf.float32), tf.TensorSpec([], tf.int64)
EPISODES = [(5, "term"), (1, "trunc"), (4, "trunc"), (7, "both"), (1, "term"), (2, "trunc")]
GAMMA = 0.9
FIRST, MID, LAST = (np.int32(i) for i in range(3))


def stream(mode="SAME_STEP", length=40):
    return oracle.script(EPISODES, mode, length)


def expected(rows, n_step, num=1, length=None, period=None):
    one = oracle.Oracle(10**6, 10**6, n_step, GAMMA, length, period)
    one.add(rows)
    return one


def frames(rows):
    """What TF-Agents' drivers show their observers of these rows, made by hand."""
    begins = True
    for row in rows:
        if not row.valid:
            continue
        ends = row.termination or row.truncation
        obs = np.array([row.obs], np.float32)
        yield trajectory_lib.Trajectory(
            FIRST if begins else MID,
            obs,
            np.int64(row.action),
            (),
            LAST if ends else MID,
            np.float32(row.reward),
            np.float32(0.0 if row.termination else 1.0),
        )
        if ends:
            last = np.array([row.next_obs], np.float32)
            one, zero = np.float32(1.0), np.float32(0.0)
            yield trajectory_lib.Trajectory(LAST, last, np.int64(0), (), FIRST, zero, one)
        begins = ends


class Served(parameterized.TestCase):
    def serve(self, length, max_size=1000, sampler=None, signature=None):
        table = reverb.Table(
            "windows",
            sampler=sampler or reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=max_size,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature or replay.trajectory_spec(OBS, ACTION, length),
        )
        server = reverb.Server([table])
        self.addCleanup(server.stop)
        return server, reverb.Client(f"localhost:{server.port}")


class ReadByTFAgentsTest(Served):
    def write(self, length, mode, num_envs=1, chunk=7, **options):
        server, client = self.serve(length)
        writer = replay.TrajectoryWriter(
            client, "windows", OBS, ACTION, num_envs, length=length, **options
        )
        rows = [oracle.script(EPISODES, mode, 42, 1000 * b) for b in range(num_envs)]
        for start in range(0, 42, chunk):
            writer.add(oracle.trajectory(rows, start, start + chunk))
        writer.cut()
        writer.close()
        return server, client, rows

    @parameterized.parameters(*oracle.MODES)
    @pytest.mark.variants(2)
    def test_transitions(self, mode):
        server, client, rows = self.write(2, mode, num_envs=2)
        buffer = reverb_replay_buffer.ReverbReplayBuffer(
            replay.trajectory_spec(OBS, ACTION),
            table_name="windows",
            sequence_length=2,
            local_server=server,
            rate_limiter_timeout_ms=300,
        )
        wanted = {}
        for env in rows:
            one = expected(env, 1)
            one.cut()
            wanted.update({item[0]: item for item in one.items().values()})
        assert buffer.num_frames() == len(wanted)
        found = {}
        for got, info in buffer.as_dataset(sample_batch_size=16, num_steps=2).take(60):
            assert got.observation.shape == (16, 2, 1) and info.key.shape == (16, 2)
            for i in range(16):
                obs, action, reward, after, last, discount = (
                    float(np.ravel(x)[0])
                    for x in (
                        got.observation[i, 0],
                        got.action[i, 0],
                        got.reward[i, 0],
                        got.observation[i, 1],
                        got.next_step_type[i, 0] == LAST,
                        got.discount[i, 0],
                    )
                )
                assert bool(last) == bool(got.step_type[i, 1] == LAST)
                assert last or discount == 1.0
                found[obs] = (obs, action, reward, after, GAMMA * discount)
        assert sorted(found) == sorted(wanted)
        for obs, item in wanted.items():
            np.testing.assert_allclose(found[obs], item, rtol=1e-6)

    def test_longer_windows(self):
        _, client, rows = self.write(4, "NEXT_STEP", stride=2)
        steps = {row.obs: row for row in rows[0] if row.valid}
        samples = list(client.sample("windows", 200, emit_timesteps=False))
        starts = sorted({float(s.data[1][0, 0]) for s in samples})
        # Episodes of 5, 1, 4, 7, 1, 2 steps, again: with frames 0 to T, a window of 4 at 0, 2, ...
        # as long as it ends at T or before. First observations are 0, 6, 8, 13, 21, 23, 26, ...
        assert starts[:7] == [0.0, 2.0, 8.0, 13.0, 15.0, 17.0, 26.0]
        assert all(start in steps for start in starts)

    def test_a_server_that_is_gone(self):
        server, client = self.serve(2)
        writer = replay.TrajectoryWriter(client, "windows", OBS, ACTION, 1, timeout=0.5)
        server.stop()
        writer.add(oracle.trajectory([stream()], 0, 20))
        with pytest.raises(
            UserError, match="'windows', writing: expected all items inserted within"
        ):
            writer.close()


class WrittenByTFAgentsTest(Served):
    def observed(self, length, mode="SAME_STEP", **options):
        server, client = self.serve(length)
        observer = reverb_utils.ReverbAddTrajectoryObserver(client, "windows", length, **options)
        rows = stream(mode)
        for frame in frames(rows):
            observer(frame)
        observer.flush()
        self.addCleanup(observer.close)
        return f"localhost:{server.port}", rows

    def read(self, address, length, count, **options):
        dataset = replay.window_dataset(
            address,
            "windows",
            replay.trajectory_spec(OBS, ACTION),
            length,
            16,
            timeout=0.3,
            **options,
        )
        found = {}
        for batch in dataset.take(60):
            for i, key in enumerate(batch.index.numpy()):
                found[key] = tf.nest.map_structure(lambda x, i=i: x[i].numpy(), batch)
            if len(found) == count:
                break
        return list(found.values())

    @parameterized.product(mode=oracle.MODES, n_step=(1, 3))
    @pytest.mark.variants(3)
    def test_transitions(self, mode, n_step):
        address, rows = self.observed(
            n_step + 1, mode, pad_end_of_episodes=True, tile_end_of_episodes=True
        )
        wanted = {item[0]: item for item in expected(rows, n_step).items().values()}
        if n_step == 1 and mode == "SAME_STEP":
            assert len(wanted) == 40
        found = {}
        for one in self.read(address, n_step + 1, len(wanted), discount=GAMMA):
            parts = (one.obs[0], one.action, one.reward, one.next_obs[0], one.discount)
            found[float(one.obs[0])] = parts
        # The newest steps of an open episode wait for the next frame.
        late = {obs for obs in wanted if obs not in found}
        assert found.keys() <= wanted.keys() and len(late) <= 1
        assert all(obs > max(wanted) - n_step for obs in late)
        for obs, parts in found.items():
            np.testing.assert_allclose(parts, wanted[obs], rtol=1e-6)

    def test_sequences(self):
        address, rows = self.observed(5, pad_end_of_episodes=True)
        found = self.read(address, 5, 100)
        starts = {row.obs: row for row in rows}
        seen = set()
        for one in found:
            steps = one.steps
            taken = int(steps.valid.sum())
            first = int(steps.obs[0, 0])
            seen.add(first)
            for j in range(4):
                if j < taken:
                    row = starts[first + j]
                    got = (
                        steps.obs[j, 0],
                        steps.action[j],
                        steps.reward[j],
                        steps.next_obs[j, 0],
                        steps.termination[j],
                        steps.truncation[j],
                    )
                    truncated = row.truncation and not row.termination
                    want = (row.obs, row.action, row.reward, row.next_obs, row.termination)
                    np.testing.assert_allclose(got, (*want, truncated), rtol=1e-6)
                else:
                    assert not steps.valid[j] and steps.reward[j] == 0.0 == steps.action[j]
                    assert steps.next_obs[j, 0] == steps.next_obs[taken - 1, 0] == steps.obs[j, 0]
                    assert not (steps.termination[j] or steps.truncation[j])
            assert taken == 4 or steps.termination[taken - 1] or steps.truncation[taken - 1]
        assert {0, 1, 6, 8} <= seen

    @pytest.mark.slow
    def test_windows_over_the_ends_of_episodes(self):
        """`ReverbTrajectorySequenceObserver` cuts nowhere; steps behind an end are left out."""
        server, client = self.serve(4)
        observer = reverb_utils.ReverbTrajectorySequenceObserver(client, "windows", 4)
        self.addCleanup(observer.close)
        rows = [row for row in stream() if row.valid]
        for frame in frames(rows):
            observer(frame)
        observer.flush()
        found = {}
        for one in self.read(f"localhost:{server.port}", 4, 100):
            found[int(one.steps.obs[0, 0])] = one.steps
        by_obs = {row.obs: i for i, row in enumerate(rows)}
        # All but the last, whose window is not complete.
        assert set(by_obs) - set(found) <= set(sorted(by_obs)[-4:])
        for obs, steps in found.items():
            begin = by_obs[obs]
            until = begin
            while until < begin + 3 and not (until > begin and ended(rows[until - 1])):
                until += 1
            check_steps(steps, rows[begin:until])

    def test_whole_episodes(self):
        spec = replay.trajectory_spec(OBS, ACTION)
        signature = tf.nest.map_structure(lambda s: tf.TensorSpec([None, *s.shape], s.dtype), spec)
        server, client = self.serve(None, signature=signature)
        observer = reverb_utils.ReverbAddEpisodeObserver(client, "windows", max_sequence_length=8)
        self.addCleanup(observer.close)
        rows = [row for row in stream() if row.valid]
        for frame in frames(rows):
            observer(frame)
        observer.reset(write_cached_steps=True)  # of the episode that goes on, too
        observer.flush()
        episodes, begin = [], 0
        for i, row in enumerate(rows):
            if ended(row) or i == len(rows) - 1:
                # The newest step of an open episode has no successor yet.
                episodes.append(rows[begin : i + ended(row)])
                begin = i + 1
        wanted = {episode[0].obs: episode for episode in episodes if episode}
        address = f"localhost:{server.port}"
        found = {}
        for one in self.read(address, 8, len(wanted), whole_episodes=True):
            assert one.steps.obs.shape == (7, 1)
            found[float(one.steps.obs[0, 0])] = one.steps
        assert found.keys() == wanted.keys()
        for obs, steps in found.items():
            check_steps(steps, wanted[obs])
        with pytest.raises(tf.errors.InvalidArgumentError, match="more frames than length=7"):
            self.read(address, 7, len(wanted), whole_episodes=True)
        with pytest.raises(UserError, match="discount: expected None for full episodes"):
            self.read(address, 8, 1, whole_episodes=True, discount=GAMMA)


def ended(row):
    return row.termination or row.truncation


def check_steps(steps, rows):
    """Steps of a sequence are those of the rows, and none behind them."""
    taken = int(steps.valid.sum())
    assert taken == len(rows) and steps.valid[:taken].all()
    for j, row in enumerate(rows):
        got = (steps.obs[j, 0], steps.action[j], steps.reward[j], steps.next_obs[j, 0])
        np.testing.assert_allclose(got, (row.obs, row.action, row.reward, row.next_obs), rtol=1e-6)
        truncation = row.truncation and not row.termination
        assert (steps.termination[j], steps.truncation[j]) == (row.termination, truncation)
    for name in ("action", "reward", "termination", "truncation"):
        assert not getattr(steps, name)[taken:].any()
    still = steps.next_obs[taken - 1]
    assert (steps.obs[taken:] == still).all() and (steps.next_obs[taken:] == still).all()
