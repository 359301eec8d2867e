"""A buffer over several servers: where items go, where priorities come home, and what is kept."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.replay import oracle
from tests.replay.reverb import helpers
from tfrl.errors import UserError
from tfrl.replay.reverb import sharded as sharded_lib
from tfrl.replay.reverb.server import ReverbServer


@pytest.fixture(name="sharded")
def fixture_sharded():
    """A prioritised buffer over two servers, that maker, and the servers."""
    maker = helpers.maker(kind="prioritized", alpha=1.0, num_servers=2, min_size=2)
    servers = [ReverbServer(maker.of_one_server.make_tables()) for _ in range(2)]
    maker = maker.replace(address=",".join(server.address for server in servers))
    buffer = maker.init()
    yield buffer, maker, servers
    buffer.close()
    for server in servers:
        server.stop()


def test_addresses_may_have_spaces_but_no_repetition():
    maker = helpers.maker(num_servers=2, address="a:1, b:2")
    assert maker.addresses == ["a:1", "b:2"]
    with pytest.raises(UserError, match="address: expected each server once, got a:1, a:1"):
        maker.replace(address="a:1, a:1").init()


def test_limits_are_shared():
    maker = helpers.maker(num_servers=4, capacity=1000, min_size=10)
    (table,) = maker.of_one_server.make_tables()
    assert table.info.max_size == 250
    assert table.info.rate_limiter_info.min_size_to_sample == 3


def test_items_of_an_environment_have_one_server_and_none_is_lost(sharded):
    buffer, maker, _ = sharded
    rows = helpers.streams("next_step", 2, 30)
    expected = helpers.Expected(maker.table(), 2)
    helpers.add_all(buffer, rows, expected, (7, 8, 30))
    buffer.flush()
    sizes = [int(shard.size()) for shard in buffer.shards]
    assert sum(sizes) == int(buffer.size()) == len(expected.all()) and min(sizes) > 10
    found = [helpers.read_all(shard).values() for shard in buffer.shards]
    everything = sorted((item for items in found for item in items), key=helpers.first_obs)
    helpers.close_to(everything, sorted(expected.all(), key=helpers.first_obs))
    firsts = [{helpers.first_obs(item) // 1000 for item in items} for items in found]
    assert firsts == [{0.0}, {1.0}]


def test_servers_grow_alike_though_episodes_differ_in_length():
    """Else writers would wait for samples of one server, and the learner for items of the other."""
    maker = helpers.maker(n_step=3, kind="prioritized", num_servers=2)
    servers = [ReverbServer(maker.of_one_server.make_tables()) for _ in range(2)]
    buffer = maker.replace(address=",".join(server.address for server in servers)).init()
    rows = helpers.streams("same_step", 2, 60, [(7, "term"), (100, "term")])
    buffer.add(oracle.trajectory(rows, 0, 60))
    buffer.flush()
    first, second = (int(shard.size()) for shard in buffer.shards)
    assert abs(first - second) <= 3
    buffer.close()
    for server in servers:
        server.stop()


class ToldToEndError(Exception):
    pass


def test_a_server_that_takes_no_items_does_not_hold_up_another():
    """Else the learner would wait for items of the other, and the first for the learner."""
    limits = {"samples_per_insert": 1.0, "min_size": 8, "tolerance": 2.0}
    maker = helpers.maker(kind="prioritized", num_servers=2, **limits)
    servers = [ReverbServer(maker.of_one_server.make_tables()) for _ in range(2)]
    buffer = maker.replace(address=",".join(server.address for server in servers)).init()
    buffer.shards[0].new_priority = buffer.shards[1].new_priority = 1.0
    ended = []
    rows = oracle.trajectory(helpers.streams("same_step", 2, 300), 0, 300)

    def end():
        counts = [shard.connection.table_counts()[maker.table().name] for shard in buffer.shards]
        if min(count.current_size for count in counts) >= 4:  # the smallest size of each
            raise ToldToEndError

    buffer.on_wait = end
    adding = threading.Thread(
        target=lambda: ended.append(pytest.raises(ToldToEndError, buffer.add, rows))
    )
    adding.start()
    adding.join(20.0)
    assert ended
    buffer.on_wait = None
    for server in servers:
        server.stop()


def test_the_error_of_one_server_does_not_wait_for_another(sharded, monkeypatch):
    left = []
    monkeypatch.setattr(sharded_lib, "leave_behind", lambda *calls: left.extend(calls))
    buffer, *_ = sharded
    goes_on = threading.Event()
    monkeypatch.setattr(buffer.shards[0], "add", lambda _: goes_on.wait(20.0))

    def fail(_):
        raise ToldToEndError

    monkeypatch.setattr(buffer.shards[1], "add", fail)
    began = time.monotonic()
    with pytest.raises(ToldToEndError):
        buffer.add(oracle.trajectory(helpers.streams("same_step", 2, 8), 0, 8))
    assert time.monotonic() - began < 5.0 and len(left) == 1
    goes_on.set()


def test_a_folder_of_another_number_of_servers_is_refused(sharded, tmp_path):
    buffer, *_ = sharded
    buffer.save(str(tmp_path / "two"))
    one = helpers.maker(2).init()
    with pytest.raises(
        UserError, match="the replay servers: expected 2, as in the checkpoint, got"
    ):
        one.restore(str(tmp_path / "two"))
    one.save(str(tmp_path / "one"))
    with pytest.raises(
        UserError, match="the replay servers: expected 1, as in the checkpoint, got"
    ):
        buffer.restore(str(tmp_path / "one"))
    one.close()


@pytest.mark.parametrize("block_size", [1, 4])
def test_packed_items_of_one_step_go_to_servers_in_turn(block_size):
    limits = {"min_size": 16, "samples_per_insert": 1.0, "tolerance": 16.0}
    maker = helpers.maker(1, packed=True, block_size=block_size, num_servers=2, **limits)
    servers = [ReverbServer(maker.of_one_server.make_tables()) for _ in range(2)]
    buffer = maker.replace(address=",".join(server.address for server in servers)).init()
    rows = helpers.streams("same_step", 1, 16, [(1000, "term")])  # no episode ends
    for start in range(16):
        buffer.add(oracle.trajectory(rows, start, start + 1))
    buffer.flush()
    assert [int(shard.size()) for shard in buffer.shards] == [8, 8]
    # The limiter of each lets a learner begin, and each has every second step.
    drawn = buffer.sample(None, 8).obs[:, 0].numpy()
    assert (drawn % 2).tolist() == [0.0] * 4 + [1.0] * 4
    buffer.close()
    for server in servers:
        server.stop()


def test_priorities_come_home(sharded):
    buffer, _, _ = sharded
    buffer.add(oracle.trajectory(helpers.streams("next_step", 2, 30), 0, 30))
    buffer.flush()
    assert bool(buffer.can_sample(8))
    batch = buffer.sample(None, 8)
    assert batch.obs.shape == [8, 1]
    homes = [set(helpers.read_all(shard)) for shard in buffer.shards]
    assert set(batch.index.numpy()[:4]) <= homes[0] and set(batch.index.numpy()[4:]) <= homes[1]
    # Nothing but one item of each server is left with a priority that counts.
    for shard, keys in zip(buffer.shards, homes, strict=True):
        shard.update_priorities(np.array(list(keys)), np.zeros(len(keys)))
    chosen = batch.index.numpy()[[0, 4]]
    keep = np.where(np.isin(batch.index.numpy(), chosen), 1.0, 0.0)
    buffer.update_priorities(batch.index, keep)
    (again,) = list(buffer.dataset(32, prefetch=0).skip(8).take(1))
    assert set(again.index.numpy()[:16]) == {chosen[0]}
    assert set(again.index.numpy()[16:]) == {chosen[1]}


def test_a_distributed_dataset_is_infinite(sharded):
    """A strategy of several workers rejects the batches of any other dataset."""
    buffer, _, _ = sharded
    made = []
    strategy = SimpleNamespace(
        num_replicas_in_sync=2,
        distribute_datasets_from_function=lambda fn: made.append(
            fn(tf.distribute.InputContext(num_input_pipelines=2, num_replicas_in_sync=2))
        ),
    )
    buffer.distributed_dataset(strategy, 8)
    assert made[0].cardinality() == tf.data.INFINITE_CARDINALITY
    assert buffer._block == 4  # the rows of one replica
    with pytest.raises(UserError, match="batch_size: expected a multiple of the 2 replicas, got 7"):
        buffer.distributed_dataset(strategy, 7)


def test_values_are_put_back(sharded):
    buffer, _, _ = sharded
    buffer.add(oracle.trajectory(helpers.streams("next_step", 2, 9), 0, 9))
    values = buffer.state_values()
    assert {path.partition("/")[0] for path in values} == {"0", "1"}
    changed = {path: value + 1 for path, value in values.items()}
    buffer.load_values(changed)
    assert buffer.state_values() == changed
    assert buffer.items_created == values["0/items_created"] + values["1/items_created"] + 2


def test_what_cannot_be_shared_is_refused(sharded):
    buffer, maker, _ = sharded
    with pytest.raises(UserError, match="a multiple of the 2 replay servers, got 7"):
        buffer.dataset(7)
    with pytest.raises(UserError, match="num_servers: expected as many as there are addresses"):
        maker.replace(num_servers=3).init()
