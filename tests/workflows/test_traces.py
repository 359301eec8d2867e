"""Equal logic is traced once, also for another seed, a copy, a checkpoint or another object."""

import dataclasses
import functools
import gc

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.workers.processes import resident_mb
from tests.workflows.small_off_policy import workflow as off_policy
from tfrl import struct, traces
from tfrl.agents import DQN, PPO
from tfrl.keras import api as keras
from tfrl.learners import Learner, ModuleConfig
from tfrl.replay import ReverbReplay
from tfrl.workflows import OnPolicyWorkflow

TRACED = []


@struct.logic_dataclass
class TracedPPO(PPO):
    """Records each Python call of a traced function."""

    def compute_actions(self, *args, **kwargs):
        TRACED.append("act")
        return super().compute_actions(*args, **kwargs)

    def evaluate_actions(self, *args, **kwargs):
        TRACED.append("evaluate")
        return super().evaluate_actions(*args, **kwargs)

    def loss(self, *args, **kwargs):
        TRACED.append("loss")
        return super().loss(*args, **kwargs)


@struct.logic_dataclass
class TracedDQN(DQN):
    """Records each Python call of a traced function."""

    def compute_actions(self, *args, **kwargs):
        TRACED.append("act")
        return super().compute_actions(*args, **kwargs)

    def loss(self, *args, **kwargs):
        TRACED.append("loss")
        return super().loss(*args, **kwargs)


def on_policy(env_id="tf:CartPole-v1", compile="graph", **options):
    return OnPolicyWorkflow(
        env=tfrl.make_env(env_id, num_envs=4),
        agent=functools.partial(TracedPPO, hidden=(4,), normalize_obs=True),
        **{"rollout_length": 8, "num_epochs": 1, "num_minibatches": 2, "eval_episodes": 2},
        learner_config=ModuleConfig(lr=[[0, 1e-2], [1000, 0.0]], grad_clip=0.5),
        compile=compile,
        **options,
    )


CASES = {
    "graph": on_policy,
    "legacy_keras": lambda: on_policy(optimizer=keras.optimizers.legacy.Adam(1e-2, decay=1e-3)),
    "stages": functools.partial(on_policy, compile={"loop": "eager", "rollout": "graph"}),
    "replay": lambda: off_policy(agent=functools.partial(TracedDQN, hidden=(4,))),
    "xla": functools.partial(on_policy, compile="xla"),
}
ON_HOST = {
    "host": functools.partial(on_policy, "gymnasium:CartPole-v1"),
    "host_replay": lambda: off_policy(
        agent=functools.partial(TracedDQN, hidden=(4,)), env_id="gymnasium:CartPole-v1"
    ),
}


def values(workflow, state):
    return {path: np.array(x) for path, x in workflow.state_values(state).items()}


def assert_same(a, b):
    assert set(a) == set(b)
    for path in a:
        np.testing.assert_array_equal(a[path], b[path], err_msg=path)


def trained(workflow, seed):
    state = workflow.setup(seed)
    for _ in range(3):  # a call ends with a phase
        state = workflow.advance(state, 20).state
    workflow.evaluate(state)
    return state


@pytest.mark.parametrize("name", CASES)
@pytest.mark.variants(1)
def test_equal_logic_traces_nothing_and_gives_the_same_bits(name, tmp_path):
    make = CASES[name]
    traces.forget_all()
    alone = values(*(w := make(), trained(w, 1)))  # a separate trace
    traces.forget_all()
    workflow = make()
    first = trained(workflow, 0)
    before = values(workflow, first)
    TRACED.clear()
    second = trained(workflow, 1)
    assert_same(values(workflow, second), alone)
    assert_same(values(workflow, first), before)
    copy = workflow.snapshot(first)
    stepped = workflow.advance(copy, 5).state
    assert_same(values(workflow, first), before)
    assert_same(values(workflow, workflow.advance(first, 5).state), values(workflow, stepped))
    other = make()
    assert_same(values(other, trained(other, 1)), alone)
    workflow.save(second, tmp_path)
    restored = other.restore(tmp_path)
    other.evaluate(other.advance(restored, 5).state)
    assert TRACED == []
    for w in (workflow, other):
        w.close()


@pytest.mark.parametrize("name", ON_HOST)
@pytest.mark.slow
def test_environments_on_the_host(name):
    def bits(seed):
        workflow = ON_HOST[name]()
        found = values(workflow, trained(workflow, seed))
        workflow.close()
        return found

    traces.forget_all()
    alone = bits(1)
    traces.forget_all()
    bits(0)
    TRACED.clear()
    assert_same(bits(1), alone)
    assert TRACED == []


def test_replay_on_reverb():
    """Where Python reads the batches; a graph that reads them holds its own iterator."""
    pytest.importorskip("reverb")

    def run(seed):
        agent = functools.partial(TracedDQN, hidden=(4,))
        replay = functools.partial(ReverbReplay, capacity=400)
        workflow = off_policy(agent=agent, replay=replay, compile="xla")
        state = trained(workflow, seed)
        steps = int(state.metrics.learner["learner_steps"])
        workflow.close()
        return steps

    traces.forget_all()
    steps = run(0)
    TRACED.clear()
    assert run(1) == steps > 0
    assert TRACED == []


def test_other_logic_is_traced_anew():
    for workflow in (on_policy(), on_policy(check_numerics="off")):
        TRACED.clear()
        workflow.step(workflow.setup(0))
    assert "loss" in TRACED


def test_a_function_of_a_class_belongs_to_its_logic(monkeypatch):
    class Loose(PPO):
        scale = staticmethod(lambda x: x)

        def policy_loss(self, policy, value, batch, state):
            loss, metrics = super().policy_loss(policy, value, batch, state)
            return self.scale(loss), metrics

    def loss():
        workflow = OnPolicyWorkflow(
            tfrl.make_env("tf:CartPole-v1", 4), Loose, rollout_length=8, compile="graph"
        )
        return workflow.step(workflow.setup(0))[0]["loss"]

    before = loss()
    monkeypatch.setattr(Loose, "scale", staticmethod(lambda x: 0.0 * x))
    assert before != 0.0 and loss() == 0.0
    monkeypatch.setattr(Loose, "policy_loss", lambda *_: (tf.constant(5.0), {}))
    assert loss() == 5.0


def test_attributes_of_a_plain_dataclass_belong_to_its_logic():
    @dataclasses.dataclass
    class Plain:
        scale: float
        twice: float = dataclasses.field(init=False)

        def __post_init__(self):
            self.twice = self.thrice = self.scale

    one, other = Plain(1.0), Plain(1.0)
    assert traces.logic_key(one) == traces.logic_key(other)
    other.twice = 3.0
    assert traces.logic_key(one) != traces.logic_key(other)
    other.twice, other.thrice = 1.0, 3.0
    assert traces.logic_key(one) != traces.logic_key(other)


def test_one_mirrored_replica_is_traced_for_its_own_variables():
    losses = []
    for strategy in (None, tf.distribute.MirroredStrategy(["CPU:0"])):
        workflow = on_policy(strategy=strategy)
        metrics, _ = workflow.step(workflow.setup(0))
        losses.append(metrics["loss"])
    assert losses[0] == losses[1]


# TensorFlow keeps XLA programs until the process ends.
@pytest.mark.parametrize(
    ("name", "runs"), [("xla", 12), ("xla", 100), ("replay", 100), ("host", 100)]
)
@pytest.mark.slow
def test_many_runs_keep_the_memory(name, runs):
    """The smallest program of a workflow takes 8 MB, all its programs about 100."""
    for i in range(runs):
        workflow = {**CASES, **ON_HOST}[name]()
        state = workflow.advance(workflow.setup(i), 3).state
        workflow.evaluate(workflow.advance(workflow.snapshot(state), 2).state)
        workflow.close()
        del workflow, state
        if i == 4:
            gc.collect()
            early = resident_mb()
            TRACED.clear()
    gc.collect()
    assert TRACED == []
    assert resident_mb() < early + runs


def learner(**options):
    env = tfrl.make_env("tf:CartPole-v1")
    agent = TracedPPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(4,))
    made = Learner(agent, config=ModuleConfig(**{"lr": 0.01, **options}))
    made.build(0)
    return made


def test_learners_of_equal_logic(ppo_rows):
    one, other = learner(), learner()
    found = [one.update_from_batch(ppo_rows, key=1) for _ in range(2)]
    TRACED.clear()
    assert [other.update_from_batch(ppo_rows, key=1) for _ in range(2)] == found
    assert_same(*({p: v.numpy() for p, v in x.variables().items()} for x in (one, other)))
    assert TRACED == []
    learner(grad_clip=0.5).update_from_batch(ppo_rows, key=1)
    assert TRACED


def test_the_memory_of_a_state_ends_with_it(ppo_rows):
    traces.forget_all()
    one = learner()
    one.update_from_batch(ppo_rows, key=1)
    variable = one.get_parameters()[0]
    handle, size = variable.handle, variable.shape
    assert tf.raw_ops.VariableShape(input=handle).numpy().tolist() == size.as_list()
    del one, variable
    gc.collect()
    assert tf.raw_ops.VariableShape(input=handle).numpy().tolist() == [0]


@pytest.fixture(name="ppo_rows")
def fixture_ppo_rows():
    rng = np.random.default_rng(0)
    return struct.TensorDict(
        {
            "obs": rng.normal(size=[8, 4]).astype(np.float32),
            "action": rng.integers(0, 2, [8]),
            "log_prob": np.full([8], -0.7, np.float32),
            "advantage": rng.normal(size=[8]).astype(np.float32),
            "value_target": rng.normal(size=[8]).astype(np.float32),
            "value": np.zeros([8], np.float32),
        }
    )
