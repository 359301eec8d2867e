"""Servers restore what they saved, and say what keeps them from it."""

import pathlib
import re
import shutil
import socket
import tempfile
import time

import pytest
import reverb
import tensorflow as tf

from tests.replay.reverb.server_runs import (
    contents,
    ended,
    free_port,
    samples,
    serve,
    tables,
    wait_for_line,
    wait_until,
    write,
)
from tfrl.errors import UserError
from tfrl.replay.reverb.server import ReverbServer


@pytest.fixture(name="make")
def fixture_make():
    """Makes servers, and stops them after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(ReverbServer(*args, **kwargs))
        return made[-1]

    yield make
    for server in made:
        server.stop(checkpoint=False)


def client_of(server):
    return reverb.Client(server.address)


def names(folder):
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))


def test_it_serves_and_stops(make, capfd):
    server = make(tables())
    assert server.alive
    assert server.address == f"localhost:{server.port}"
    assert (server.restored, server.restored_from) == (None, None)
    client = client_of(server)
    write(client, [1, 2, 3])
    assert contents(client) == {1, 2, 3}
    server.stop()
    assert not server.alive
    server.stop()
    out, err = capfd.readouterr()
    # What Reverb's client says where the server is in the same process is not the server's.
    lines = [line for line in err.splitlines() if not line.startswith("[reverb/cc/client.cc")]
    assert (out, lines) == ("", []), "Reverb's progress lines stay away"
    with socket.socket() as probe:
        assert probe.connect_ex(("localhost", server.port)) != 0
    with pytest.raises(UserError, match="^ReverbServer: expected a running server, got a stopped"):
        server.save("anywhere")


def test_stop_writes_a_checkpoint_and_the_next_server_restores_it(make, tmp_path):
    first = make(tables(), checkpoint_dir=tmp_path / "new" / "c")
    client = client_of(first)
    write(client, [1, 2, 3, 4])
    keys = {s.data["x"][0][0]: s.info.key for s in samples(client, "data", 64)}
    client.mutate_priorities("data", updates={keys[4.0]: 0.0}, deletes=[keys[1.0]])
    limiter = client.server_info(10)["data"].rate_limiter_info
    first.stop()
    second = make(tables(), checkpoint_dir=tmp_path / "new" / "c")
    assert second.restored == {"data": 3, "empty": 0, "full": 0}
    assert second.restored_from == tmp_path / "new" / "c" / "ckpt-000001"
    client = client_of(second)
    assert contents(client) == {2, 3}, "priorities came back, and what was deleted did not"
    again = client.server_info(10)["data"].rate_limiter_info
    assert again.insert_stats.completed == limiter.insert_stats.completed == 4
    assert again.sample_stats.completed > limiter.sample_stats.completed >= 64


def test_the_last_few_are_kept(make, tmp_path):
    server = make(tables(), checkpoint_dir=tmp_path, max_to_keep=2)
    for value in range(1, 5):
        write(client_of(server), [value])
        assert server.checkpoint() == tmp_path / f"ckpt-00000{value}"
    assert names(tmp_path) == ["ckpt-000003", "ckpt-000004"]
    server.stop()
    assert names(tmp_path) == ["ckpt-000004", "ckpt-000005"]
    assert make(tables(), checkpoint_dir=tmp_path).restored["data"] == 4


def test_checkpoints_at_intervals(make, tmp_path):
    make(tables(), checkpoint_dir=tmp_path, checkpoint_interval=0.1)
    wait_until(lambda: "ckpt-000003" in names(tmp_path))


def test_what_a_client_asked_for_is_kept_though_the_server_was_killed(make, tmp_path):
    server = make(tables(), checkpoint_dir=tmp_path)
    write(client_of(server), [1, 2])
    client_of(server).checkpoint()
    half = tmp_path / ".writing" / "2000-01-01"
    half.mkdir()
    (half / "tables.tfrecord").touch()
    server.stop(checkpoint=False)
    assert names(tmp_path) == []
    again = make(tables(), checkpoint_dir=tmp_path)
    assert (again.restored["data"], names(tmp_path)) == (2, ["ckpt-000001"])
    assert not half.exists()
    client_of(again).checkpoint()
    again.stop()
    assert names(tmp_path) == ["ckpt-000001", "ckpt-000002", "ckpt-000003"]


def test_what_clients_asked_for_is_taken_meanwhile(make, tmp_path):
    lines = []
    server = make(tables(), checkpoint_dir=tmp_path, log=lines.append)
    for value in (1, 2):
        write(client_of(server), [value])
        client_of(server).checkpoint()
        server.adopt_checkpoints()
    assert names(tmp_path) == ["ckpt-000001", "ckpt-000002"]
    cut = pathlib.Path(client_of(server).checkpoint())
    (cut / "items.tfrecord").write_bytes(b"x\x9c no zlib")
    server.adopt_checkpoints()
    assert names(tmp_path) == ["ckpt-000001", "ckpt-000002"]
    assert len(lines) == 1 and "is not complete, and was removed: [Errno 28]" in lines[0]
    in_place_of(tmp_path / ".writing")
    for _ in range(2):
        server.adopt_checkpoints()
    assert len(lines) == 2 and lines[1].startswith(f"replay checkpoints in {tmp_path}: expected a")
    server.stop(checkpoint=False)


def test_save_to_a_folder_of_ones_own(make, tmp_path):
    server = make(tables())
    write(client_of(server), [1, 2])
    server.save(tmp_path / "own")
    write(client_of(server), [3])
    server.save(tmp_path / "own")
    assert names(tmp_path) == ["own"]
    other = make(tables(), checkpoint_dir=tmp_path / "c", restore_from=tmp_path / "own")
    assert other.restored["data"] == 3
    assert contents(client_of(other)) == {1, 2, 3}


def damage_by_truncation(folder):
    path = folder / "items.tfrecord"
    path.write_bytes(path.read_bytes()[:-8])
    return r"items.tfrecord has \d+ bytes instead of \d+"


def damage_by_other_bytes(folder):
    path = folder / "chunks.tfrecord"
    content = path.read_bytes()
    path.write_bytes(content[:-8] + bytes(b ^ 255 for b in content[-8:]))
    return "corrupted record at 0"


def damage_of_the_tables(folder):
    path = folder / "tables.tfrecord"
    content = path.read_bytes()
    path.write_bytes(bytes(b ^ 255 for b in content[:8]) + content[8:])
    return "its tables cannot be read: "


def damage_by_emptiness(folder):
    """Reverb itself would serve empty tables."""
    (folder / "tables.tfrecord").write_bytes(b"")
    return r"tables.tfrecord has 0 bytes instead of \d+"


def damage_by_absence(folder):
    (folder / "chunks.tfrecord").unlink()
    return "no chunks.tfrecord"


def damage_of_the_manifest(folder):
    (folder / "manifest.json").write_text("{")
    return r"manifest.json cannot be read \(JSONDecodeError\)"


def damage_by_the_future(folder):
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"schema": 1', '"schema": 2'))
    return "manifest.json has schema 2, which this version does not know"


DAMAGES = [
    damage_by_truncation,
    damage_by_other_bytes,
    damage_of_the_tables,
    damage_by_emptiness,
    damage_by_absence,
    damage_of_the_manifest,
    damage_by_the_future,
]


@pytest.fixture(name="two", scope="module")
def fixture_two(tmp_path_factory):
    """A folder with two checkpoints, of two and of three items."""
    folder = tmp_path_factory.mktemp("two")
    server = ReverbServer(tables(), checkpoint_dir=folder)
    write(reverb.Client(server.address), [1, 2])
    server.checkpoint()
    write(reverb.Client(server.address), [3])
    server.stop()
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint(make, two, tmp_path, damage):
    folder = pathlib.Path(shutil.copytree(two, tmp_path / "c"))
    reason = damage(folder / "ckpt-000002")
    lines = []
    server = make(tables(), checkpoint_dir=folder, log=lines.append)
    assert server.restored["data"] == 2
    assert server.restored_from == folder / "ckpt-000001"
    assert len(lines) == 1
    wanted = re.escape(f"Replay checkpoint {folder / 'ckpt-000002'} is damaged (") + reason
    assert re.match(wanted, lines[0]), lines[0]
    assert lines[0].endswith(").")
    assert contents(client_of(server)) == {1, 2}
    server.stop(checkpoint=False)
    damage(folder / "ckpt-000001")
    with pytest.raises(UserError) as error:
        make(tables(), checkpoint_dir=folder, log=lines.append)
    assert error.value.thing == f"replay checkpoints in {folder}"
    assert error.value.expected == "a usable checkpoint"
    assert re.match(f"ckpt-000002: {reason}.*; ckpt-000001: {reason}", error.value.got)
    assert names(folder) == ["ckpt-000001", "ckpt-000002"]


def test_a_damaged_checkpoint_is_told_as_a_warning(make, two, tmp_path):
    folder = pathlib.Path(shutil.copytree(two, tmp_path / "c"))
    damage_by_absence(folder / "ckpt-000002")
    with pytest.warns(UserWarning, match="ckpt-000002 is damaged"):
        make(tables(), checkpoint_dir=folder)


def test_other_limits(make, two):
    spec = {"x": tf.TensorSpec([None, 4], tf.float32), "y": tf.TensorSpec([], tf.int64)}
    changed = tables(
        max_size=50,
        max_times_sampled=3,
        sampler=reverb.selectors.Prioritized(0.7),
        remover=reverb.selectors.Lifo(),
        rate_limiter=reverb.rate_limiters.SampleToInsertRatio(4.0, 5, 8.0),
        signature=spec,
    )
    with pytest.raises(UserError) as error:
        make(changed, checkpoint_dir=two)
    assert error.value.thing == f"replay checkpoint {two / 'ckpt-000002'}"
    assert error.value.got.split("; ") == [
        "table 'data' with capacity = 100 (asked: 50)",
        "table 'data' with min_size = 2 (asked: 5)",
        "table 'data' with remover = fifo (asked: lifo)",
        "table 'data' with sampler = prioritized (priority_exponent: 0.6) "
        "(asked: prioritized (priority_exponent: 0.7))",
        "table 'data' with samples of an item = 0 (asked: 3)",
        "table 'data' with samples_per_insert = 1 (asked: 4)",
        "table 'data' with signature x = float32 [None, 3] (asked: float32 [None, 4])",
        "table 'data' with signature y = nothing (asked: int64 [])",
        "table 'data' with tolerance = a difference from -1.79769e+308 to 1.79769e+308 (asked: a "
        "difference from 12 to 28)",
    ]
    with pytest.raises(UserError) as error:
        make(tables()[:2] + [reverb.Table.queue("more", 1)], checkpoint_dir=two)
    assert error.value.got == "no table 'more'; table 'full', which is not configured"


def test_a_port_that_is_taken(make):
    port = make(tables()).port
    for take in ("Reverb", "another program"):
        with socket.socket() as other:
            if take != "Reverb":
                other.bind(("localhost", 0))
                other.listen()
                port = other.getsockname()[1]
            with pytest.raises(UserError) as error:
                make(tables(), port=port)
        assert str(error.value) == (
            f"port {port} of the Reverb server: expected an unused port from 1 to 65535, got one "
            "that another program listens on. Choose another port, or end the program that uses it."
        )
    for wrong in (0, 65536, True, "8000"):
        with pytest.raises(
            UserError, match=f"^port {wrong} of the Reverb server: .* got {wrong!r}"
        ):
            make(tables(), port=wrong)


def test_folders_that_do_not_do(make, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as error:
        make(tables(), checkpoint_dir=tmp_path / "file" / "c")
    assert str(error.value) == (
        f"replay checkpoints in {tmp_path / 'file' / 'c'}: expected a writable folder, got a path "
        f"that leads through a file ({tmp_path / 'file' / 'c'}). Choose a different path, or free "
        "disk space."
    )
    first = make(tables(), checkpoint_dir=tmp_path / "c")
    with pytest.raises(UserError, match="got a folder that another server is using"):
        make(tables(), checkpoint_dir=tmp_path / "c")
    first.stop()
    make(tables(), checkpoint_dir=tmp_path / "c")
    with pytest.raises(
        UserError, match="^replay checkpoint .*file/own: expected a writable folder"
    ):
        first = make(tables())
        first.save(tmp_path / "file" / "own")


def in_place_of(folder):
    shutil.rmtree(folder)
    folder.touch()


def test_a_checkpoint_that_cannot_be_written(make, tmp_path, monkeypatch):
    server = make(tables(), checkpoint_dir=tmp_path / "c")
    in_place_of(tmp_path / "c" / ".writing")
    for call in (server.checkpoint, server.stop):
        with pytest.raises(
            UserError, match="^replay checkpoints in .*/c: expected a writable folder"
        ):
            call()
    assert not server.alive
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = make(tables())
    (scratch,) = tmp_path.glob("tfrl-reverb-*")
    in_place_of(scratch)
    with pytest.raises(UserError, match=f"^a checkpoint of the Reverb server at {server.address}"):
        server.save(tmp_path / "own")


def test_checkpoints_that_fail_at_intervals_are_told(make, tmp_path):
    lines = []
    make(tables(), checkpoint_dir=tmp_path, checkpoint_interval=0.3, log=lines.append)
    in_place_of(tmp_path / ".writing")
    wait_until(lambda: len(lines) > 1)
    assert lines[0].startswith(f"No checkpoint was written. replay checkpoints in {tmp_path}: exp")


def test_arguments(make, tmp_path):
    with pytest.raises(UserError, match="^ReverbServer.checkpoint: expected a server with a check"):
        make(tables()).checkpoint()
    for interval in (0, -1.0, True, "5", float("nan"), float("inf")):
        with pytest.raises(
            UserError, match="^ReverbServer's checkpoint_interval: expected a number above 0"
        ):
            make(tables(), checkpoint_dir=tmp_path, checkpoint_interval=interval)
    with pytest.raises(UserError, match="got 5 with checkpoint_dir=None"):
        make(tables(), checkpoint_interval=5)
    for keep in (0, 1.5, True):
        with pytest.raises(UserError, match="^ReverbServer's max_to_keep: expected a whole number"):
            make(tables(), checkpoint_dir=tmp_path, max_to_keep=keep)
    assert not tmp_path.exists() or names(tmp_path) == []


def test_a_client_that_waits_holds_nobody_at_the_end(make):
    server = make(tables())
    client = client_of(server)
    iterator = iter(
        reverb.TrajectoryDataset.from_table_signature(
            server.address, "data", max_in_flight_samples_per_worker=2
        )
    )
    write(client, [1, 2])
    next(iterator)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 15


def test_a_killed_server_goes_on_from_its_last_checkpoint(make, tmp_path):
    port = free_port()
    with ended(serve(port, tmp_path)) as process:
        wait_for_line(process, "serving")
        client = reverb.Client(f"localhost:{port}")
        write(client, [1, 2])
        client.checkpoint()
        write(client, [3])
        process.kill()
        process.wait()
    server = make(tables(), port=port, checkpoint_dir=tmp_path)
    assert server.restored == {"data": 2, "empty": 0, "full": 0}
