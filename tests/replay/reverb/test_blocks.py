"""Blocks of transitions: each transition of the oracle once, in full blocks, drawn alike."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import forked
from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.launch import settings
from tfrl.replay.reverb import TableConfig
from tfrl.replay.reverb.items import Columns
from tfrl.replay.reverb.packed import PackedStream, in_blocks
from tfrl.replay.reverb.server import ReverbServer
from tfrl.replay.reverb.signature import PackedItems
from tfrl.roles import tables

CHUNKS = (1, 2, 6, 7, 18, 19, 30, 60)


class Writer:
    """Takes blocks in Reverb's place."""

    def __init__(self):
        self.blocks, self._writer = [], self

    def trajectory_writer(self, num_keep_alive_refs):
        return self

    def Append(self, row):
        return row

    def CreateItem(self, table, priority, refs, squeezed):
        self.blocks.append(refs[0][0])


def maker(n_step, block_size, num_envs=2):
    return helpers.maker(num_envs, n_step=n_step, packed=True, block_size=block_size)


def unpacked(replay, blocks):
    """The transitions of blocks as the oracle has them."""
    packing = PackedItems(replay)
    rows = np.concatenate(blocks).view(packing.dtype) if blocks else np.empty(0, packing.dtype)
    names = ("obs", "action", "reward", "next_obs", "discount")
    columns = [np.squeeze(rows[name]).tolist() if len(rows) else [] for name in names]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("n_step", [1, 2, 3, 9])
@pytest.mark.parametrize("mode", helpers.MODES)
def test_the_transitions_are_those_of_the_oracle(n_step, mode):
    replay, client = maker(n_step, 2), Writer()
    stream = PackedStream(replay, PackedItems(replay), client, {"replay": 1.0}, lambda _: None)
    columns, expected = Columns(replay), helpers.Expected(replay.table(), 2)
    streams, start = helpers.streams(mode, 2, 60), 0
    for stop in CHUNKS:
        stream.add(columns.of(oracle.trajectory(streams, start, stop)))
        expected.add(streams, start, stop)
        start = stop
        # All but what waits for its block.
        assert len(client.blocks) == len(expected.all()) // 2
    stream.cut()
    expected.cut()
    wanted = sorted(expected.all(), key=helpers.first_obs)
    left = unpacked(replay, list(stream._partial_block))
    found = sorted(unpacked(replay, client.blocks) + left, key=helpers.first_obs)
    helpers.close_to(found, wanted)
    assert len(left) == len(wanted) % 2


def test_a_table_of_blocks():
    replay = maker(1, 4).replace(min_size=10, samples_per_insert=2.0, tolerance=5.0, capacity=42)
    (table,) = replay.make_tables()
    assert table.info.max_size == 10
    limiter = table.info.rate_limiter_info
    # 3 blocks of 4 before anything is sampled; 8 samples a block, twice that of tolerance.
    assert (limiter.min_size_to_sample, limiter.samples_per_insert) == (3, 8.0)
    assert (limiter.min_diff, limiter.max_diff) == (8.0, 40.0)
    (spec,) = table.info.signature.values()
    assert spec.shape.as_list() == [4 * 24]
    (table,) = replay.replace(batches_per_block=8).make_tables()
    limiter = table.info.rate_limiter_info  # a block gives a transition to each of 4 batches
    assert (limiter.samples_per_insert, limiter.min_diff, limiter.max_diff) == (2.0, 2.0, 10.0)


def test_min_size_is_no_more_than_there_is_room_for():
    (table,) = maker(1, 64).replace(min_size=1000, samples_per_insert=2.0).make_tables()
    assert (table.info.max_size, table.info.rate_limiter_info.min_size_to_sample) == (15, 15)


DETERMINISTIC = """
from tests.replay import oracle
from tests.replay.reverb import helpers
import tensorflow as tf
tf.config.experimental.enable_op_determinism()
tf.random.set_seed(1)
buffer = helpers.maker(2, packed=True, block_size=4).init()
buffer.add(oracle.trajectory(helpers.streams("SAME_STEP", 2, 10), 0, 10))
numbers = set()
batches = list(buffer.batches(buffer.dataset(20).take(9)))
for batch in [*batches, *(buffer.sample(None, 20) for _ in range(3))]:
    numbers |= set(batch.obs[:, 0].numpy().tolist())
print(len(numbers))
buffer.close()
"""


def test_deterministic_ops():
    result = forked.run([sys.executable, "-c", DETERMINISTIC])
    assert result.stdout.split() == ["20"], result.stderr


@pytest.mark.parametrize(
    ("obs_bytes", "options", "expected"),
    [
        (4, {}, 64),  # items of 24 bytes
        (448, {}, 16),  # 912 bytes: 17 in 16,384
        (8000, {}, 1),
        (4, {"capacity": 5000}, 16),  # 19 batches
        (4, {"block_size": 1}, 1),
        (4, {"block_size": 3}, 3),
        (4, {"kind": "prioritized"}, 1),
    ],
)
def test_the_size_that_is_chosen_for_collectors(obs_bytes, options, expected):
    options = {"capacity": 10**6, "packed": True, **options}
    replay = helpers.maker(**options).replace(obs_spec=tf.TensorSpec([obs_bytes], tf.uint8))
    assert in_blocks(replay, 256, 100).block == expected


def test_each_transition_is_drawn():
    buffer = maker(1, 4).init()
    streams = helpers.streams("SAME_STEP", 2, 10)
    buffer.add(oracle.trajectory(streams, 0, 10))
    assert int(buffer.size()) == 20
    drawn = [buffer.sample(None, 20) for _ in range(20)]
    numbers, counts = np.unique([b.obs[:, 0].numpy() for b in drawn], return_counts=True)
    # 20 a transition are expected; less than 5 or more than 45 has a probability below 1e-5.
    assert len(numbers) == 20 and counts.min() >= 5 and counts.max() <= 45
    assert len(np.unique([b.index.numpy() for b in drawn])) == 5
    buffer.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"packed": None}, "block_size: expected 1 unless there is one table of"),
        ({"kind": "prioritized"}, "block_size: expected 1 unless there is one table of"),
        ({"tables": (TableConfig(name="a"), TableConfig(name="b"))}, "block_size: expected 1"),
        ({"capacity": 3}, "capacity: expected a whole number of at least 4"),
        ({"block_size": 0}, "block_size: expected a whole number of at least 1"),
    ],
)  # fmt: skip
def test_what_has_no_blocks(changed, message):
    with pytest.raises(UserError) as error:
        maker(1, 4).replace(**changed)
    assert message in str(error.value)


def test_a_checkpoint_with_other_blocks_names_the_size_to_bind(tmp_path):
    old = maker(1, 1).replace(min_size=10)
    server = ReverbServer(old.make_tables(), checkpoint_dir=tmp_path / "replay")
    buffer = old.replace(address=server.address).init()
    buffer.add(oracle.trajectory(helpers.streams("SAME_STEP", 2, 10), 0, 10))
    buffer.save(str(tmp_path / "ours"))
    buffer.close()
    server.stop()
    with pytest.raises(UserError) as error:
        ReverbServer(old.replace(block_size=4).make_tables(), checkpoint_dir=tmp_path / "replay")
    message = str(error.value)
    assert "\n" not in message and "table 'replay' with block_size = 1 (asked: 4)" in message
    assert (
        "bind ReverbReplay.block_size=1" in message
        and f"or move {tmp_path / 'replay'} away" in message
    )
    # What a learner keeps of such a run suits an empty server of blocks.
    server = ReverbServer(old.replace(block_size=4).make_tables(), checkpoint_dir=tmp_path / "new")
    buffer = old.replace(block_size=4, address=server.address).init()
    buffer.restore(str(tmp_path / "ours"))
    buffer.close()
    server.stop()


def test_a_checkpoint_of_blocks_that_each_batch_sampled_names_the_binding(tmp_path):
    limits = {"samples_per_insert": 8.0, "tolerance": 1000.0}
    old = maker(1, 4).replace(batches_per_block=1, **limits)
    ReverbServer(old.make_tables(), checkpoint_dir=tmp_path).stop()
    with pytest.raises(UserError) as error:
        new = old.replace(batches_per_block=None)
        ReverbServer(in_blocks(new, 4, 4).make_tables(), checkpoint_dir=tmp_path)
    assert "bind ReverbReplay.batches_per_block=1, as in the checkpoint" in str(error.value)
    ReverbServer(in_blocks(old, 4, 4).make_tables(), checkpoint_dir=tmp_path).stop()


def test_the_size_is_bound_where_the_gin_file_has_a_buffer_in_the_graph():
    bindings = ["OffPolicyWorkflow.replay = @ReverbReplay", "ReverbReplay.capacity = 51_200"]
    bindings.append("ReverbReplay.block_size = 1")
    limits = []
    for bound in ([], bindings):
        workflow = settings.assemble(["dqn/gymnasium_cartpole.gin"], bound).workflow
        replay = tables.distributed_replay(workflow)
        limits.append((replay.capacity, replay.min_size, replay.samples_per_insert))
    assert replay.block_size == 1 and limits[0] == limits[1]
    # The tables of before there were blocks.
    item = 4 * 4 + 4 * 4 + 8 + 4 + 4 + 8
    (table,) = replay.make_tables()
    assert table.info.max_size == 51_200
    assert [s.shape.as_list() for s in table.info.signature.values()] == [[item]]


def test_a_checkpoint_goes_on_with_the_size_it_has(tmp_path):
    for _ in range(2):
        server = ReverbServer(maker(1, 1).make_tables(), checkpoint_dir=tmp_path / "replay")
        buffer = maker(1, 1).replace(address=server.address).init()
        before = int(buffer.size())
        buffer.add(oracle.trajectory(helpers.streams("SAME_STEP", 2, 10), 0, 10))
        assert int(buffer.size()) == before + 20
        buffer.save(str(tmp_path / "ours"))
        buffer.close()
        server.stop()
    assert before == 20


@pytest.mark.parametrize(("sizes", "packed"), [((1, 4), True), ((4, 1), None), ((4, 2), True)])
def test_a_server_in_this_process_takes_the_blocks_of_a_folder(tmp_path, sizes, packed):
    folder = str(tmp_path / "buffer")
    saved, other = (
        helpers.maker(2, packed=p, block_size=size).init()
        for size, p in zip(sizes, (packed or True, packed), strict=True)
    )
    saved.add(oracle.trajectory(helpers.streams("SAME_STEP", 2, 10), 0, 10))
    saved.save(folder)
    other.restore(folder)
    assert other.replay.block == sizes[0] and int(other.size()) == 20
    saved.close()
    other.close()


def test_batches_in_a_row_draw_from_the_same_blocks():
    replay = maker(1, 8).replace(batches_per_block=3)
    blocks = tf.reshape(tf.cast(tf.range(5 * 8), tf.uint8), [5, 8, 1])
    blocks = tf.reshape(tf.repeat(blocks, PackedItems(replay).dtype.itemsize, axis=2), [5, -1])
    drawn = np.stack([PackedItems(replay).draw(blocks, 3)[..., 0] for _ in range(400)])
    assert (drawn // 8 == np.arange(5)).all()  # [draws, K, N]: a transition of each block
    assert ((drawn[:, 1:] - drawn[:, :-1]) % 8 == 2).all()  # 8 // 3 apart
    counts = np.bincount(drawn[:, 2].ravel(), minlength=40)
    # 50 each are expected; less than 20 or more than 90 has a probability below 1e-4.
    assert counts.min() >= 20 and counts.max() <= 90


def test_a_dataset_samples_a_block_once_for_its_batches():
    buffer = maker(1, 4).replace(batches_per_block=4).init()
    buffer.add(oracle.trajectory(helpers.streams("SAME_STEP", 2, 10), 0, 10))
    batches = list(buffer.batches(buffer.dataset(3).take(12)))
    for start in range(0, 12, 4):
        indices = [batch.index.numpy().tolist() for batch in batches[start : start + 4]]
        assert indices == indices[:1] * 4
        drawn = np.stack([batch.obs[:, 0].numpy() for batch in batches[start : start + 4]])
        assert all(len(set(column)) == 4 for column in drawn.T)  # the whole block
    buffer.close()


def test_a_server_with_other_blocks_is_refused():
    served = maker(1, 2).init()
    with pytest.raises(UserError, match="block_size: expected blocks of 4 transitions, 96 bytes"):
        maker(1, 4).replace(address=served.address).init()
    served.close()
