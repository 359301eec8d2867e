"""Writers flush on a schedule, and a buffer that only samples has none."""

import dataclasses

import numpy as np
import pytest

from benchmarks import replay_reverb
from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.replay.reverb import TableConfig
from tfrl.replay.reverb.stream import MOST_PENDING
from tfrl.types import Trajectory


def made(**options):
    return helpers.maker(**options).init()


@pytest.mark.parametrize("length", [1, 500])
@pytest.mark.variants(1)
def test_pending_items_are_bounded_and_reverb_does_not_complain(length, capfd):
    tables = (TableConfig(name="a"), TableConfig(name="b", n_step=3), TableConfig(name="c"))
    buffer = made(num_envs=2, tables=tables, capacity=10_000)
    streams = helpers.streams("SAME_STEP", 2, 1500)
    most = 0
    for start in range(0, 1500, length):
        buffer.add(oracle.trajectory(streams, start, start + length))
        most = max(most, sum(stream.pending for stream in buffer._writer._streams))
    assert 0 < most <= 2 * MOST_PENDING
    assert int(buffer.size("c")) == 3000
    assert buffer.items_created == sum(int(buffer.size(name)) for name in "abc")
    buffer.close()
    assert "alarmingly" not in capfd.readouterr().err


def test_a_blocked_writer_is_told_and_reverb_does_not_complain(capfd):
    buffer = made(num_envs=1, kind="fifo", capacity=5, timeout=0.6)
    streams = helpers.streams("SAME_STEP", 1, 2000)
    with pytest.raises(
        UserError, match="ReverbBuffer, writing: expected the server to accept items within"
    ):
        buffer.add(oracle.trajectory(streams, 0, 2000))
    assert buffer.items_created == MOST_PENDING
    buffer.close()
    assert "alarmingly" not in capfd.readouterr().err


def test_a_buffer_that_only_samples_opens_no_writer():
    server = made(num_envs=1)
    server.add(helpers.rows(0, 20))
    server.flush()
    learner = made(num_envs=1, address=server.address)
    assert learner.sample(None, 4).obs.shape == (4, 1)
    learner.cut()
    learner.flush()
    assert learner._writer is None and learner.items_created == 0
    learner.close()
    server.close()


def test_many_environments_in_one_call():
    buffer = made(num_envs=70)
    streams = [oracle.script([(7, "term")], "SAME_STEP", 5, 100 * b) for b in range(70)]
    buffer.add(oracle.trajectory(streams, 0, 5))
    found = helpers.read_all(buffer)
    assert int(buffer.size()) == 350
    wanted = [100 * b + t for b in range(70) for t in range(5)]
    np.testing.assert_array_equal(sorted(item[0] for item in found.values()), wanted)
    buffer.close()


@pytest.mark.parametrize("name", ["1_step_frames", "3_step_frames", "sequences_frames"])
@pytest.mark.variants(1)
def test_frames_take_no_more_room_than_with_a_bare_writer(name):
    case = dataclasses.replace(replay_reverb.CASES[name], steps=500)
    found = replay_reverb.bytes_per_frame(case)
    assert 50 < found["ours"] <= 1.03 * found["bare"]


@pytest.mark.parametrize("kind", ["prioritized", "uniform"])
def test_a_thread_that_adds_and_samples_does_not_wait_for_itself(kind):
    """A rollout has more items than the limiter takes before samples."""
    limits = {"samples_per_insert": 1.0, "min_size": 100, "timeout": 10.0, "capacity": 20_000}
    buffer = helpers.maker(64, kind=kind, packed=True, **limits).init()
    specs = helpers.maker(64)
    zeros = [np.zeros([4, 64, *spec.shape], spec.dtype.as_numpy_dtype)
             for spec in (specs.obs_spec, specs.action_spec)]  # fmt: skip
    no = np.zeros([4, 64], np.bool_)
    rollout = Trajectory(
        obs=zeros[0], action=zeros[1], reward=np.zeros([4, 64], np.float32), next_obs=zeros[0],
        termination=no, truncation=no, valid=~no,
    )  # fmt: skip
    for step in range(6):
        buffer.add(rollout)
        for _ in range(8 if step else 2):
            buffer.sample(None, 32)
    assert int(buffer.size()) <= 24 * 64
    buffer.close()
