"""The Learner in two processes, each with rows of its own: the numbers of one device with all."""

import json
import textwrap

import pytest

from tests.distribute import processes

pytestmark = pytest.mark.slow

HEAD = """
    import json, sys, zlib
    from tfrl.distribute import make_strategy

    strategy = make_strategy("multi_worker")
    import numpy as np
    import tensorflow as tf
    from tfrl import make_env, seeding
    from tfrl.agents.ppo import PPO
    from tfrl.episodes import SingleAgentEpisode
    from tfrl.errors import UserError
    from tfrl.learners import Learner, ModuleConfig
    from tfrl.rollout import rollout

    from tests.learners.learner_fakes import RegressionAgent

    KEY = seeding.key(0)
    place = strategy.cluster_resolver.task_id


    def digest(learner):
        return zlib.crc32(b"".join(np.array(v).tobytes() for v in learner.variables().values()))


    def part(rows, counts):
        start = sum(counts[:place])
        return tf.nest.map_structure(lambda x: x[start : start + counts[place]], rows)
"""

# The first process also trains a learner of its own on all rows, without the strategy, and tells
# the largest difference between the two in units of 1e-5, and how far training has moved anything.
PROGRAM = """
    found = {}


    def values(learner):
        return {p: np.array(v, np.float64) for p, v in learner.variables().items()}


    def compare(name):
        found[name] = {"digest": digest(several)}
        if one is None:
            return
        mine, whole = values(several), values(one)
        assert set(mine) == set(whole)
        differences = [
            np.max(np.abs(mine[p] - x) / np.maximum(np.abs(x), 1.0), initial=0.0) / 1e-5
            for p, x in whole.items()
        ]
        moves = [
            np.max(np.abs(whole[p] - x))
            for p, x in start.items()
            if p.startswith("modules/default_policy/params/")
        ]
        found[name].update(difference=float(max(differences)), moved=float(min(moves)))


    # PPO with NEXT_STEP: some rows are invalid, and each process has another number of them.
    env = make_env("tf:CartPole-v1", num_envs=8, autoreset="NEXT_STEP")
    agent = PPO(
        obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(16,), normalize_obs=True
    )
    state = agent.init(KEY)
    play = tf.function(lambda: rollout(env, agent, env.reset(KEY), state, KEY, 40), autograph=False)
    trajectory = play()[0]
    batch, _ = agent.learner_batch(state, trajectory)
    found["valid"] = [int(np.sum(x)) for x in (batch.mask[:96], batch.mask[96:])]
    config = ModuleConfig(lr=1e-2, grad_clip=0.1)
    several = Learner(agent, config=config, strategy=strategy)
    one = None if place else Learner(agent, config=config)
    for learner in filter(None, (several, one)):
        learner.build(KEY)
    start = values(several)
    for _ in range(10):
        several.update_from_batch(part(batch, (96, 224)))
        if one is not None:
            one.update_from_batch(batch)
    compare("batches")

    # Environment i of the trajectory as one episode; the second process has one more.
    def episode(i):
        ends = np.flatnonzero((trajectory.termination | trajectory.truncation)[:, i])
        n = int(ends[0]) + 1
        column = tf.nest.map_structure(lambda x: x[:n, i].numpy(), trajectory)
        return SingleAgentEpisode(
            obs=np.concatenate([column.obs, column.next_obs[-1:]]),
            action=column.action,
            reward=column.reward,
            policy_extras=column.policy_extras,
            termination=column.termination[-1],
            truncation=column.truncation[-1],
        )

    episodes = [episode(i) for i in range(5)]
    start = values(several)
    for _ in range(3):
        several.update_from_episodes(episodes[:2] if place == 0 else episodes[2:])
        if one is not None:
            one.update_from_episodes(episodes)
    compare("episodes")
    found["lengths"] = [len(e) for e in episodes]
    print(json.dumps(found))
"""


# Minibatches of 4 rows, 2 of each process. One has 3 of them in its 6 rows, the other 1 in 2.
UNEVEN = """
    rows = {"x": np.ones([8, 2], np.float32), "y": np.ones([8], np.float32)}
    learner = Learner(RegressionAgent(), config=ModuleConfig(lr=0.1), strategy=strategy)
    learner.build(KEY)
    result = learner.update_from_batch(part(rows, (6, 2)), minibatch_size=4)
    print(json.dumps([result["default_policy"]["gradient_steps"], digest(learner)]))
"""

# Rows of other modules in each process are refused; the order of the modules in a batch is free.
MODULES = """
    rng = np.random.default_rng(place)
    rows = {
        m: {
            "x": rng.normal(size=[4, 2]).astype(np.float32),
            "y": rng.normal(size=[4]).astype(np.float32),
        }
        for m in ("a", "b")
    }
    agents = {"a": RegressionAgent(), "b": RegressionAgent()}
    learner = Learner(agents, config=ModuleConfig(lr=0.1), strategy=strategy)
    learner.build(KEY)


    def said(batch):
        try:
            learner.update_from_batch(batch)
        except UserError as error:
            return str(error)


    found = [said(rows if place == 0 else {"a": rows["a"]})]
    learner.train_only(["b"] if place == 0 else [])
    found.append(said({"b": rows["b"]}))
    learner.train_only(None)
    learner.update_from_batch(dict(sorted(rows.items(), reverse=place == 1)))
    print(json.dumps([*found, digest(learner), int(learner.learner_steps.numpy())]))
"""


def run(program, folder, timeout=240.0):
    """What each of two processes prints last."""
    program = textwrap.dedent(HEAD) + textwrap.dedent(program)
    with processes.Cluster(program, 2, folder) as cluster:
        outputs = cluster.start().wait_all(timeout)
    return [json.loads(out.splitlines()[-1]) for out in outputs]


@pytest.fixture(name="found", scope="module")
def fixture_found(tmp_path_factory):
    """`{name: {"digest", and of the first "difference" and "moved"}}` of each process."""
    return run(PROGRAM, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", ["batches", "episodes"])
def test_updates_are_those_of_one_device_on_all_rows(found, name):
    first, second = (each[name] for each in found)
    assert first["difference"] < 1.0
    assert first["moved"] > 1e-3
    assert first["digest"] == second["digest"]


def test_the_rows_are_uneven(found):
    first, second = found[0]["valid"]
    assert first != second and first < 96
    lengths = found[0]["lengths"]
    assert sum(lengths[:2]) != sum(lengths[2:])


def test_every_process_takes_as_many_steps_as_the_one_with_most_rows(tmp_path):
    # The other goes round its rows.
    (steps, digest), (others, other_digest) = run(UNEVEN, tmp_path)
    assert steps == others == 3
    assert digest == other_digest


def test_modules_that_differ_are_named_in_every_process(tmp_path):
    first, second = run(MODULES, tmp_path)
    expected = "the batches of the processes: expected rows of the same modules in every "
    for found in (first, second):
        rows, chosen, _, steps = found
        assert rows.startswith(expected) and chosen.startswith(expected)
        assert "got ['a', 'b'] in worker 0; ['a'] in worker 1. Pass rows of" in rows
        assert "got ['b'] in worker 0; none in worker 1. Pass rows of 'b'" in chosen
        assert steps == 1  # what was refused has trained nothing
    assert first[2] == second[2]
