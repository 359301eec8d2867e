"""benchmarks.off_policy: figures of rounds, peers in processes of their own, the command line."""

import functools
import json
import pathlib
import sys

import pytest

from benchmarks import dqn, off_policy, peer_serving, sac, td3

# Stands for a peer: ready at once; the nth measurement gives n; "die" and "hang" for what they say.
FAKE = """
import sys, time
print('{"ready": true}', flush=True)
if "--die" in sys.argv:
    sys.exit("no such luck")
for n, _ in enumerate(sys.stdin, 1):
    if "--hang" in sys.argv:
        time.sleep(60)
    print('{"updates_per_second": %d, "cpu_ms_per_update": 1.0}' % n, flush=True)
"""


def measured(*rates):
    return [{"updates_per_second": r, "cpu_ms_per_update": 1000.0 / r} for r in rates]


def test_ratios_are_those_of_each_round():
    # The machine slows down tenfold in the last round, for both alike.
    line = off_policy.beside(measured(100.0, 120.0, 10.0), {"sb3": measured(50.0, 40.0, 5.0)})
    assert line == {
        "updates_per_second": 100.0,
        "cpu_ms_per_update": 10.0,
        "sb3_updates_per_second": 40.0,
        "sb3_cpu_ms_per_update": 25.0,
        "ratio_to_sb3": 2.0,  # of 2, 3 and 2; the ratio of the medians would be 2.5
        "cpu_ratio_to_sb3": 2.0,
    }


def test_contestants_take_turns():
    calls = []

    def contestant(name):
        calls.append(name)
        return {"updates_per_second": float(len(calls)), "cpu_ms_per_update": 1.0}

    runs = {name: functools.partial(contestant, name) for name in "ab"}
    found = off_policy.take_turns(runs, rounds=2)
    assert calls == ["a", "b", "a", "b"]
    assert [one["updates_per_second"] for one in found["b"]] == [2.0, 4.0]


def test_names():
    assert off_policy.names_of("b,a", ["a", "b"], "--peers") == ["b", "a"]
    assert off_policy.names_of("", ["a"], "--peers") == []
    with pytest.raises(SystemExit, match="^--peers: expected some of a, b; got c$"):
        off_policy.names_of("a,c", ["a", "b"], "--peers")


def test_rate_counts_updates_and_time(monkeypatch):
    clock = iter([0.0, 0.0, 1.0, 2.0, 2.0])
    cpu = iter([10.0, 13.0])
    monkeypatch.setattr(peer_serving.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(peer_serving.time, "process_time", lambda: next(cpu))
    # Starts at 0, asks at 0 and 1 whether it may go on, is told no at 2 and ends there.
    assert peer_serving.rate(lambda: 3, 1.5) == {
        "updates_per_second": 6 / 2.0,
        "cpu_ms_per_update": 3000.0 / 6,
    }


@pytest.mark.parametrize(
    ("argv", "lines", "expected"),
    [
        ([], "", ['{"n": 1}']),
        (["--served"], "\n\n", ['{"ready": true}', '{"n": 1}', '{"n": 2}']),
    ],
)
def test_serving(monkeypatch, capsys, argv, lines, expected):
    class Lines(list):
        pass

    monkeypatch.setattr(peer_serving.sys, "stdin", Lines(lines.splitlines(keepends=True)))
    counts = iter([1, 2, 3])
    peer_serving.serve(
        lambda: {"n": next(counts)}, peer_serving.parser("what it does").parse_args(argv)
    )
    assert capsys.readouterr().out.splitlines() == expected


@pytest.fixture(name="fake")
def fixture_fake(tmp_path, monkeypatch):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(off_policy, "FOLDER", tmp_path)
    started = []

    def start(*args, timeout=20.0):
        started.append(off_policy.Served("fake", None, "fake.py", *args, timeout=timeout))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_peer_measures_when_it_is_called(fake):
    peer = fake()
    peer.wait()
    assert [peer()["updates_per_second"] for _ in range(3)] == [1, 2, 3]


def test_what_a_dead_peer_said_is_told(fake):
    peer = fake("--die")
    peer.wait()
    with pytest.raises(SystemExit, match=r"^fake ended:\nno such luck"):
        for _ in range(2):  # the first line may still be taken by the pipe
            peer()


def test_a_silent_peer_is_not_waited_for(fake):
    peer = fake("--hang", timeout=0.2)
    peer.wait()
    with pytest.raises(SystemExit, match="^fake printed nothing for 0.2 s:\n"):
        peer()
    assert peer._process.poll() is not None


def test_a_peer_that_is_not_installed():
    with pytest.raises(
        SystemExit, match=r"^sbx is not installed here; run: make \.venv-peers/\.installed$"
    ):
        off_policy.Served("sbx", pathlib.Path("/no/python"), "peer_sbx.py", timeout=1.0)


def test_peers_that_were_started_end_when_one_does_not_start(fake, monkeypatch):
    task = sac.TASK._replace(peers={"one": (None, "fake.py"), "two": (None, "no_such_file.py")})
    made = []
    real = off_policy.Served

    def recorded(*args, **kwargs):
        made.append(real(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(off_policy, "Served", recorded)
    with pytest.raises(SystemExit, match="(?s)^two ended:.*no_such_file.py"):
        off_policy.start_peers(task, ["one", "two"], seconds=1.0)
    assert [one._process.poll() is None for one in made] == [False, False]


@pytest.mark.parametrize("benchmark", [sac, td3, dqn], ids=lambda m: m.__name__)
def test_the_modes_are_those_of_the_reference(benchmark):
    made = benchmark.TASK.reference(benchmark.TASK.modes[0], capacity=8)
    reference = sys.modules[type(made).__module__]
    assert set(benchmark.TASK.modes) == set(reference.MODES)
    assert made.batch_size == benchmark.TASK.batch_size
    for interpreter, script in benchmark.TASK.peers.values():
        assert (off_policy.FOLDER / script).exists(), (interpreter, script)


@pytest.mark.parametrize("benchmark", [sac, dqn], ids=lambda m: m.__name__)
def test_an_unknown_place_is_refused(benchmark):
    with pytest.raises(SystemExit, match="^--where: expected some of device, host.*; got moon$"):
        benchmark.main(["--where=moon"])


@pytest.mark.slow
def test_a_line_of_dqn_on_the_device(capsys):
    dqn.main(["--seconds=0.2", "--rounds=1"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (line["benchmark"], line["where"], line["env"]) == ("dqn", "device", "tf:CartPole-v1")
    assert line["batch_size"] == 64
    rates = line["updates_per_second"], line["reference_updates_per_second"]
    assert line["ratio_to_reference"] == pytest.approx(rates[0] / rates[1], rel=1e-3)
    assert set(line["compile"]) >= {"rollout", "update"}
