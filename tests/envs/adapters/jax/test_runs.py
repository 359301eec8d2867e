"""Whole runs on JAX environments: replicas, resumption, populations, recorders, metrics of info."""

import functools
import json
import signal

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding, struct
from tfrl.agents import PPO, RandomAgent
from tfrl.distribute.replicas import Replicas
from tfrl.errors import UserError
from tfrl.evolution import OpenES, PolicyAgent
from tfrl.evolution.pbt import Hyperparameter
from tfrl.learners import ModuleConfig
from tfrl.rollout import rollout
from tfrl.workflows import EvolutionWorkflow, OnPolicyWorkflow, PBTWorkflow

pytest.importorskip("jax", reason="the extra 'jax' is not installed")
pytest.importorskip("gymnax", reason="the extra 'jax' is not installed")
from tests.launch import launch_runs  # noqa: E402
from tfrl.envs.adapters.jax import bridge, wrap  # noqa: E402

CARTPOLE = "jax/gymnax:CartPole-v1"


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def ppo(num_envs=4, strategy=None, agent=PPO, compile="graph", **kwargs):
    return OnPolicyWorkflow(
        env=tfrl.make_env(CARTPOLE, num_envs, **kwargs),
        agent=functools.partial(agent, hidden=(8,), normalize_obs=True),
        learner_config=ModuleConfig(lr=1e-3),
        **{"rollout_length": 16, "num_epochs": 1, "num_minibatches": 2, "eval_episodes": 2},
        strategy=strategy,
        compile=compile,
    )


def assert_same(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, struct.values(a), struct.values(b))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_replica_plays_what_one_device_plays(compiled):
    env = tfrl.make_env(CARTPOLE, 3, max_episode_steps=12)
    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    keys = seeding.split(seeding.key(0), 2)

    def play(key):
        start, own = tf.unstack(seeding.split(key, 2))
        state = agent.init(own)
        return rollout(env, agent, env.reset(start), state, own, 30)[:2]

    replicas = Replicas(mirrored())
    traced = tf.function(play, autograph=False, jit_compile=compiled)
    both = replicas.run_traced(lambda: traced(tf.gather(keys, replicas.index())))
    for key, (rows, state) in zip(keys, replicas.per_replica(both), strict=True):
        own_rows, own_state = traced(key)
        assert own_rows.truncation.numpy().any()
        assert_same(rows, own_rows)
        assert_same(state, own_state)


@pytest.mark.slow
def test_a_mirrored_run_goes_on_to_the_bit():
    flow = ppo(strategy=mirrored())
    state = flow.step(flow.setup(0))[1]
    kept = {path: np.array(value) for path, value in flow.state_values(state).items()}
    assert kept["progress/env_state/obs"].shape == (2, 2, 4)
    straight = flow.state_values(flow.advance(state, 2).state)
    again = flow.advance(flow.load_values(flow.setup(9), kept), 2).state
    for path, value in flow.state_values(again).items():
        np.testing.assert_array_equal(value, straight[path], err_msg=path)


def open_es(strategy=None):
    return EvolutionWorkflow(
        tfrl.make_env(CARTPOLE, 4),
        functools.partial(PolicyAgent, normalize_obs=True),
        OpenES(pop_size=32),
        max_episode_steps=20,
        eval_episodes=4,
        obs_statistics="running",
        compile="graph",
        strategy=strategy,
    )


@pytest.mark.slow
def test_a_population_on_two_replicas_is_that_of_one_device():
    results = []
    for strategy in (None, mirrored()):
        flow = open_es(strategy)
        state = flow.setup(0)
        for _ in range(2):
            metrics, state = flow.step(state)
        results.append((metrics, state))
    assert 5 < results[0][0]["fitness_mean"] <= 20
    assert_same(*results)


@pytest.mark.slow
def test_a_population_of_runs(tmp_path):
    rate = Hyperparameter(path="learning_rate", low=1e-4, high=1e-2)
    flow = PBTWorkflow(ppo(), [rate], 3, compile="graph", iterations_per_round=2)
    state = flow.advance(flow.setup(0), 1).state
    flow.save(state, tmp_path)
    straight = flow.advance(state, 1)
    again = flow.restore(tmp_path)
    assert_same(flow.advance(again, 1).state, straight.state)
    # 3 members, 2 rounds of 2 iterations of 16 steps in 4 environments.
    assert flow.env_steps(straight.state) == 3 * 2 * 2 * 16 * 4


def test_a_second_setup_converts_and_traces_nothing(monkeypatch):
    losses, conversions = [], []

    @struct.logic_dataclass
    class Counted(PPO):
        def loss(self, *args, **kwargs):
            losses.append(1)
            return super().loss(*args, **kwargs)

    convert = bridge._as_tensorflow
    monkeypatch.setattr(bridge, "_as_tensorflow", lambda *a: conversions.append(1) or convert(*a))
    first = ppo(num_envs=6, agent=Counted)
    first.advance(first.setup(0), 1)
    assert losses and len(conversions) == 2  # reset and step
    before = len(losses)
    first.advance(first.setup(1), 1)
    second = ppo(num_envs=6, agent=Counted)
    second.advance(second.setup(0), 1)
    assert (len(losses), len(conversions)) == (before, 2)


# Metrics of `info`.


def count_steps():
    """Environment 0 of length 3; `info` counts the steps of the episode, and twice of them."""

    def observed(steps):
        return steps[None].astype(np.float32)

    def reset(key):
        return key[0] * 0, observed(key[0] * 0)

    def step(steps, action):
        steps = steps + 1
        info = {"age": steps.astype(np.int32), "old": steps >= 3}
        return steps, observed(steps), steps * 1.0, steps >= 3, steps < 0, info

    return reset, step


def info_rows(env):
    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    flow = OnPolicyWorkflow(
        env=env, agent=agent, rollout_length=6, eval_episodes=4, compile="graph", num_minibatches=1
    )
    row, state = flow.step(flow.setup(0))
    return row, flow.evaluate(state)[0]


def test_numbers_of_info_are_metrics():
    make = functools.partial(wrap, *count_steps(), action_spec=tfrl.specs.DiscreteSpec(2))
    tfrl.envs.register("jax_test:Count", make, max_episode_steps=10)
    row, evaluated = info_rows(tfrl.make_env("jax_test:Count", 2, info_fields=("age", "old")))
    assert (row["episode_age"], row["episode_old"], row["episode_length"]) == (3, 1, 3)
    assert (evaluated["eval_age_mean"], evaluated["eval_old_mean"]) == (3, 1)


def test_info_of_gymnax():
    """Its discount is 0 where an episode ends by itself, and 1 where its time is over."""
    env = tfrl.make_env(CARTPOLE, 2, max_episode_steps=5, info_fields=("discount",))
    assert env.info_fields == ("discount",)
    assert info_rows(env)[0]["episode_discount"] == 1


@pytest.mark.slow
def test_metrics_of_brax_and_extras_of_jumanji():
    pytest.importorskip("brax")
    pytest.importorskip("jumanji")
    hopper = tfrl.make_env(
        "jax/brax:swimmer",
        2,
        max_episode_steps=3,
        info_fields=("reward_fwd",),
        backend="generalized",
    )
    assert np.isfinite(info_rows(hopper)[0]["episode_reward_fwd"])
    packing = tfrl.make_env(
        "jax/jumanji:BinPack-v2", 2, max_episode_steps=4, info_fields=("packed_items",)
    )
    assert 1 <= info_rows(packing)[0]["episode_packed_items"] <= 4


def test_info_that_is_not_there():
    with pytest.raises(UserError, match="success"):
        info_rows(tfrl.make_env(CARTPOLE, 2, info_fields=("success",)))


# A whole run of the binary.

OPTIONS = ("env_id='jax/gymnax:CartPole-v1'", "train.video=False")
EVERY = ("train.checkpoint_interval=32", "OnPolicyWorkflow.iterations_per_call=1")


@pytest.mark.slow
def test_a_run_that_is_stopped_and_killed_goes_on_to_the_bit(tmp_path):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    done = launch_runs.run("train", *launch_runs.arguments(straight, 512, *OPTIONS, *EVERY))
    assert done.returncode == 0, done.stderr
    args = launch_runs.arguments(stopped, 512, *OPTIONS, *EVERY)
    for sent, steps, code in ((signal.SIGTERM, 96, 143), (signal.SIGKILL, 256, -signal.SIGKILL)):
        process = launch_runs.start("train", *args, log=tmp_path / "log")
        launch_runs.wait_for_steps(process, stopped, steps)
        process.send_signal(sent)
        assert process.wait(timeout=60) == code, (tmp_path / "log").read_text()
    done = launch_runs.run("train", *args)
    assert done.returncode == 0, done.stderr
    assert "going on at" in done.stdout
    assert launch_runs.digest(stopped) == launch_runs.digest(straight)
    rows = list(range(32, 513, 32))
    for recorded in (launch_runs.csv_steps, launch_runs.jsonl_steps, launch_runs.tensorboard_steps):
        assert recorded(stopped) == rows
    metadata = json.loads((stopped / "metadata.json").read_text())
    assert metadata["seed"] == json.loads((straight / "metadata.json").read_text())["seed"]
