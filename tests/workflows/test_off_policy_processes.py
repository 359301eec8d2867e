"""OffPolicyWorkflow in two processes: each has a part of the experience, all have one policy."""

import functools
import json
import textwrap
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.distribute import processes
from tests.workflows.small_off_policy import bits, run, workflow
from tfrl.envs.wrappers import RewardNormalize
from tfrl.errors import UserError
from tfrl.replay.reverb import ReverbReplay, TableConfig
from tfrl.replay.reverb.server import ReverbServer
from tfrl.workflows.checks import check_place_of_replay

PROGRAM = """
    import functools, json, os, sys, zlib
    from tfrl.distribute import make_strategy

    strategy = make_strategy("multi_worker")
    import numpy as np
    import tfrl
    from tests.workflows.small_off_policy import BUFFER, PRIORITIZED, bits, run, workflow
    from tfrl.envs.wrappers import RewardNormalize
    from tfrl.replay.reverb import ReverbReplay

    folder, address, *names = sys.argv[1:]
    place = strategy.cluster_resolver.task_id
    # Items of one transition: a block would wait for 16.
    REVERB = functools.partial(ReverbReplay, capacity=400, timeout=20.0, block_size=1)
    ORDERED = functools.partial(REVERB, kind="prioritized")
    M2 = "learner/modules/default_policy/normalizer/m2"
    found = {}


    def digests(values):
        return {p: zlib.crc32(np.array(v).tobytes()) for p, v in values.items()}


    def learner(state):
        return digests(flow.learner_of(state).variables())


    def make(replay, **changes):
        return workflow(num_envs=4, strategy=strategy, replay=replay, **changes)


    def items(buffer):
        "The observations in this process' server."
        drawn = buffer.connection.client.sample("replay", 600, emit_timesteps=False)
        return sorted({zlib.crc32(b"".join(np.ravel(x).tobytes() for x in s.data)) for s in drawn})
"""

IN_GRAPH = """
    for name, replay in (("uniform", BUFFER), ("prioritized", PRIORITIZED)):
        if name not in names:
            continue
        flow = make(replay)
        state, rows = run(flow, 0, 40)
        own = {p: v.numpy() for p, v in flow.replay_buffer(state).state_values().items()}
        whole = bits(flow, state)
        flow.save(state, f"{folder}/{name}")
        again = make(replay)
        other = again.restore(f"{folder}/{name}")
        kept = {p: v.numpy() for p, v in again.replay_buffer(other).state_values().items()}
        same = all(np.array_equal(own[p], kept[p]) for p in own)
        state, other = flow.advance(state, 5).state, again.advance(other, 5).state
        found[name] = {
            "before": digests(whole),
            "m2": whole[M2].tolist(),
            "own": digests(own),
            "kept": same,
            "after": digests(bits(flow, state)),
            "resumed": digests(bits(again, other)),
            "taken": again.env_steps(again.ready(state)),  # a state of another workflow
            "row": {n: rows[-1][n] for n in ("env_steps", "learner_steps", "episodes")},
        }
    flow.worker_group.barrier("the end")  # who leaves earlier looks lost to the others
    print(json.dumps(found))
"""

REVERB_RUNS = """
    for name, replay, changes in (
        ("uniform", REVERB, {}),
        ("prioritized", ORDERED, {"overlap": False, "rollout_length": 2}),
        ("valid rows", REVERB, {"autoreset": "NEXT_STEP"}),
        ("elsewhere", functools.partial(REVERB, address=address), {}),
    ):
        if name not in names:
            continue
        flow = make(replay, **changes)
        state, rows = run(flow, 0, 60)
        buffer = flow.replay_buffer(state)
        before = items(buffer)
        path = f"{folder}/{name.replace(' ', '_')}"
        flow.save(state, path)
        told = {
            "row": {n: rows[-1][n] for n in ("env_steps", "learner_steps", "episodes")},
            "lag": rows[-1].get("policy_lag"),
            "learner": learner(state),
            "size": int(buffer.size()),
            "capacity": buffer.replay.capacity,
            "items": before,
        }
        if name == "prioritized":
            drawn = buffer.connection.client.sample("replay", 200, emit_timesteps=False)
            told["priorities"] = len({round(float(np.ravel(s.info.priority)[0]), 6) for s in drawn})
        flow.close()
        again = make(replay, **changes)
        other = again.restore(path)
        told["restored"] = items(again.replay_buffer(other))
        other = again.advance(other, 5).state
        told["after"] = learner(other)
        told["steps"] = again.env_steps(other)
        again.close()
        found[name] = told
    flow.worker_group.barrier("the end")  # who leaves earlier looks lost to the others
    print(json.dumps(found))
"""

REWARDS = """
    env = RewardNormalize(env=tfrl.make_env("tf:CartPole-v1", num_envs=4))
    flow = make(REVERB, env=env, eval_env=tfrl.make_env("tf:CartPole-v1", num_envs=2))
    state, rows = run(flow, 0, 200)
    values = flow.state_values(state)
    moments = {p: np.array(v).tolist() for p, v in values.items() if "own/statistics/" in p}
    found.update(steps=rows[-1]["env_steps"], learner=learner(state), moments=moments)
    flow.close()
    flow.worker_group.barrier("the end")  # who leaves earlier looks lost to the others
    print(json.dumps(found))
"""


def found_by(program, folder, address="", names=(), timeout=300.0):
    """The last line of each of two processes."""
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(program)
    args = [folder / "runs", address, *names]
    with processes.Cluster(program, 2, folder, args=args) as cluster:
        outputs = cluster.start().wait_all(timeout)
    return [json.loads(out.splitlines()[-1]) for out in outputs]


def digests(values):
    return {p: zlib.crc32(np.array(v).tobytes()) for p, v in values.items()}


@pytest.fixture(name="in_graph", scope="module")
def fixture_in_graph(tmp_path_factory):
    return found_by(IN_GRAPH, tmp_path_factory.mktemp("in_graph"), names=["uniform"])


def test_in_the_graph(in_graph):
    check_in_the_graph(*(found["uniform"] for found in in_graph))


@pytest.mark.slow
def test_in_the_graph_by_priority(tmp_path):
    found = found_by(IN_GRAPH, tmp_path, names=["prioritized"])
    check_in_the_graph(*(each["prioritized"] for each in found))


def check_in_the_graph(first, second):
    assert first["row"] == second["row"]
    # The first 20 steps are random.
    assert (first["row"]["env_steps"], first["row"]["learner_steps"]) == (40, 20)
    rest = {path: x for path, x in first["before"].items() if not path.startswith("replay/")}
    assert rest == second["before"], "the chief has the experience of all, the other none"
    assert {path[:9] for path in first["before"].keys() - rest.keys()} == {"replay/0/", "replay/1/"}
    assert first["own"] != second["own"], "each has experience of its own"
    assert first["kept"] and second["kept"], "each has its own experience back"
    assert first["after"] == first["resumed"], "and goes on to the bit"
    assert second["after"] == second["resumed"]
    assert first["taken"] == second["taken"] > 40


def test_two_processes_are_as_two_replicas_of_one(in_graph):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    flow = workflow(num_envs=4, strategy=strategy)
    state, rows = run(flow, 0, 40)
    assert np.isfinite(rows[-1]["loss"])
    assert int(flow.replay_buffer(state).size()) == 40
    for variable in flow.learner_of(state).variables().values():
        one, other = flow.replicas.per_replica(variable)
        np.testing.assert_array_equal(one, other)
    here, there = bits(flow, state), in_graph[0]["uniform"]["before"]
    m2 = "learner/modules/default_policy/normalizer/m2"  # rounded in another order
    np.testing.assert_allclose(here.pop(m2), in_graph[0]["uniform"]["m2"], rtol=1e-12)
    assert digests(here) == {path: x for path, x in there.items() if path != m2}


def maker(**changes):
    agent = workflow(num_envs=4).agent
    return ReverbReplay(
        obs_spec=agent.obs_spec,
        action_spec=agent.action_spec,
        discount=agent.discount,
        **changes,
    )


def reverb_runs(folder, *names):
    """The results of two processes for runs of these names, with a server."""
    replay = maker(num_envs=4, capacity=400, packed=False)
    server = ReverbServer(replay.make_tables())
    try:
        return found_by(REVERB_RUNS, folder, server.address, names)
    finally:
        server.stop()


def test_learner_steps_of_several_processes_do_not_run_in_the_background(monkeypatch):
    flow = workflow(replay=functools.partial(ReverbReplay, capacity=400))
    assert flow.overlaps_calls
    monkeypatch.setattr(flow, "_worker_group", object())
    assert not flow.overlaps_calls


@pytest.mark.slow
def test_each_process_has_a_server(tmp_path):
    first, second = (found["uniform"] for found in reverb_runs(tmp_path, "uniform"))
    check_servers(first, second, steps=60, learner_steps=40)
    assert first["size"] == second["size"]
    assert not set(first["items"]) & set(second["items"])


@pytest.mark.slow
def test_on_reverb_in_other_ways(tmp_path):
    others = ("prioritized", "valid rows", "elsewhere")
    first, second = reverb_runs(tmp_path, *others)
    # Rollouts of 8 steps: learning starts after 24.
    check_servers(first["prioritized"], second["prioritized"], steps=64, learner_steps=40)
    assert all(found["prioritized"]["priorities"] > 5 for found in (first, second))
    steps = first["valid rows"]["row"]["env_steps"]
    assert 60 <= steps < 64
    check_servers(first["valid rows"], second["valid rows"], steps=steps, learner_steps=steps - 20)
    first, second = first["elsewhere"], second["elsewhere"]
    assert first["row"] == second["row"]
    assert (first["row"]["env_steps"], first["row"]["learner_steps"]) == (60, 40)
    assert first["learner"] == second["learner"]
    assert (first["size"], second["size"]) == (60, 60), "items of both"
    assert (first["capacity"], second["capacity"]) == (400, 400)
    assert first["after"] == second["after"]


def check_servers(first, second, steps, learner_steps):
    """Each process has a part of the items, all have one policy, which goes on when restored."""
    assert first["row"] == second["row"]
    found = (first["row"]["env_steps"], first["row"]["learner_steps"])
    assert found == (steps, learner_steps)
    assert first["lag"] is None, "the learner steps of an iteration come before the next rollout"
    assert first["learner"] == second["learner"]
    assert (first["capacity"], second["capacity"]) == (200, 200)
    assert first["size"] + second["size"] == steps
    for own in (first, second):
        assert own["restored"] == own["items"], "each has its own items back"
        assert own["steps"] > steps
    assert first["after"] == second["after"]


@pytest.mark.slow
def test_statistics_of_rewards_are_common(tmp_path):
    first, second = found_by(REWARDS, tmp_path)
    assert first["steps"] == second["steps"] == 200
    assert first["learner"] == second["learner"]
    check_moments(first["moments"], 200)


@pytest.mark.slow
def test_statistics_of_rewards_are_common_to_replicas():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    env = RewardNormalize(env=tfrl.make_env("tf:CartPole-v1", num_envs=4))
    plain = tfrl.make_env("tf:CartPole-v1", num_envs=2)
    replay = functools.partial(ReverbReplay, capacity=400, timeout=20.0)
    flow = workflow(env=env, eval_env=plain, strategy=strategy, replay=replay)
    state, _ = run(flow, 0, 60)
    values = flow.state_values(state)
    flow.close()
    check_moments({p: np.array(v) for p, v in values.items() if "own/statistics/" in p}, 60)


def check_moments(moments, steps):
    """Reward moments [R] cover the steps of all replicas."""
    assert {path.rpartition("/")[2] for path in moments} == {"count", "mean", "m2"}
    for path, (one, other) in moments.items():
        assert one == other, path
        if path.endswith("count"):
            assert abs(one - steps) < 1e-3


def test_a_part_of_a_maker():
    replay = maker(
        num_envs=6,
        capacity=100,
        min_size=9,
        samples_per_insert=4.0,
        tolerance=90.0,
        tables=(TableConfig(name="a"), TableConfig(name="b", capacity=31, kind="fifo")),
    )
    part = replay.part(3)
    assert (part.num_envs, part.capacity) == (2, 34)
    found = [(t.capacity, t.min_size, t.tolerance) for t in part.table_configs]
    assert found == [(34, 3, 30.0), (11, 1, None)]
    assert replay.part(1) is replay
    mixed = (TableConfig(name="a", tolerance=100.0), TableConfig(name="b", sequence_length=4))
    part = replay.replace(samples_per_insert=64.0, tolerance=None, tables=mixed).part(2)
    found = [(t.capacity, t.min_size, t.tolerance) for t in part.table_configs]
    assert found == [(50, 5, 64.0), (50, 5, None)]
    assert [t.sequence_length for t in part.table_configs] == [None, 4]
    elsewhere = replay.replace(address="localhost:1").part(3)
    assert (elsewhere.num_envs, elsewhere.capacity, elsewhere.min_size) == (2, 100, 9)
    with pytest.raises(UserError, match="num_envs: expected a multiple of the 4 processes.*8"):
        replay.part(4)


def test_a_checkpoint_of_another_number_of_processes():
    several = {f"replay/worker_{i}/tables" for i in range(2)}
    with pytest.raises(
        UserError, match="expected experience stored in Reverb in the training's process"
    ) as e:
        check_place_of_replay("ckpt-1", {"replay/tables"}, several)
    assert "got experience stored in Reverb in the training's process, of 2 processes each" in str(
        e.value
    )
