"""The page docs/custom_workflow.md: its snippets, its gin file, and its claims about states."""

import functools
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.docs_helpers import ROOT, blocks, session, write_files
from tfrl import make_env, seeding, struct
from tfrl.agents import PPO
from tfrl.errors import UserError
from tfrl.launch import settings
from tfrl.workflows import RunMetrics, State, Workflow

PAGE = blocks((ROOT / "docs" / "custom_workflow.md").read_text())


@pytest.fixture(name="open_es", scope="module")
def fixture_open_es(tmp_path_factory):
    """The page's module."""
    folder = tmp_path_factory.mktemp("own")
    assert write_files(PAGE, folder) == ["open_es.py"]
    assert len((folder / "open_es.py").read_text().splitlines()) < 100
    sys.path.insert(0, str(folder))
    try:
        import open_es

        yield open_es
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("open_es", None)


def _workflow(open_es, max_episode_steps=500, **options):
    env = make_env("tf:CartPole-v1", num_envs=4, max_episode_steps=max_episode_steps)
    agent = functools.partial(PPO, hidden=(8,))
    return open_es.PlainES(env, agent, population=8, eval_episodes=4, **options)


def _assert_same(a, b, atol=0.0):
    def same(x, y):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, equal_nan=True)

    tf.nest.map_structure(same, a, b)


def test_the_session_solves_its_task(open_es, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space = {}
    exec("\n".join(session(PAGE)), space)
    assert float(capsys.readouterr().out.split()[-1]) > 450
    assert isinstance(space["state"], State)


def test_a_run_goes_on_to_the_bit(open_es, tmp_path):
    workflow = _workflow(open_es)
    state = workflow.advance(workflow.setup(1), 3).state
    workflow.save(state, tmp_path)
    again = _workflow(open_es)
    restored = again.restore(tmp_path)
    _assert_same(restored, state)
    _assert_same(again.advance(restored, 2).state, workflow.advance(state, 2).state)
    # One call or several give the same iterations; no state is consumed.
    _assert_same(workflow.advance(workflow.setup(1), 5).state, workflow.advance(state, 2).state)
    one, after = workflow.evaluate(state)
    two, _ = workflow.evaluate(after)
    assert one != two
    assert workflow.evaluate(state)[0] == one
    assert workflow.final_evaluation(state, 6, seed=3).episode_returns.shape == (6,)
    with pytest.raises(UserError, match="the checkpoint: expected the shapes of this workflow"):
        env = make_env("tf:CartPole-v1", num_envs=4)
        open_es.PlainES(env, functools.partial(PPO, hidden=(4,)), population=8).restore(tmp_path)


@pytest.mark.slow
def test_eager_graph_and_xla_agree(open_es):
    found = []
    for mode in ("graph", "xla", "eager"):
        workflow = _workflow(open_es, max_episode_steps=20)
        workflow.use_compile(mode)
        assert workflow.compile_choices(None) == {"iterations": mode}
        found.append(workflow.advance(workflow.setup(0), 2, until=10**6).state)
    for state in found[1:]:
        _assert_same(state.agent_state, found[0].agent_state, atol=1e-4)
    with pytest.raises(UserError, match="compile: expected xla, graph, eager, got 'fast'"):
        workflow.use_compile("fast")


def test_equal_workflows_share_their_trace(open_es, monkeypatch):
    calls = []
    iterate = open_es.PlainES.iterate

    def counted(self, state, key):
        calls.append(1)
        return iterate(self, state, key)

    monkeypatch.setattr(open_es.PlainES, "iterate", counted)
    for seed in range(3):
        workflow = _workflow(open_es, noise=0.2)
        workflow.advance(workflow.advance(workflow.setup(seed), 1).state, 3)
    assert len(calls) == 1


def test_a_population_of_trainings(open_es):
    workflow = _workflow(open_es)
    states = [workflow.setup(seed) for seed in range(2)]

    @functools.partial(tf.function, autograph=False)
    def together(states):
        def once(state):
            return workflow.iterate(state, seeding.fold_in(state.key, state.metrics.iterations))[1]

        return tf.map_fn(once, states)

    after = together(struct.stack(states))
    for i, state in enumerate(states):
        _assert_same(struct.take(after, i), workflow.advance(state, 1).state, atol=1e-6)


def test_the_gin_file_of_the_page(open_es, tmp_path):
    page = (ROOT / "docs" / "custom_workflow.md").read_text()
    (text,) = re.findall(r"```\n(import open_es\n.*?)```", page, flags=re.DOTALL)
    (tmp_path / "open_es.gin").write_text(text)
    made = settings.assemble([str(tmp_path / "open_es.gin")])
    assert isinstance(made.workflow, open_es.PlainES)
    assert made.workflow.population == 64
    assert made.workflow.describe() == "PlainES of PPO on CartPole"


def test_hooks_of_a_fresh_run(open_es):
    class Filled(open_es.PlainES):
        def setup_replay_buffer(self, key):
            return {"rewards": tf.zeros([3])}

        def postsetup_replay_buffer(self, state):
            return state.replace(replay_buffer_state={"rewards": tf.ones([3])})

    env = make_env("tf:CartPole-v1", num_envs=4)
    workflow = Filled(env, functools.partial(PPO, hidden=(8,)), population=8)
    state = workflow.step(workflow.setup(0))[1]
    assert state.replay_buffer_state["rewards"].numpy().tolist() == [1.0] * 3


def test_one_workflow_takes_states_of_several_forms(open_es):
    workflow = _workflow(open_es, max_episode_steps=20)
    state = workflow.setup(0)
    for names in (["a"], ["a", "b"], ["a"]):
        given = {name: tf.ones([3]) for name in names}
        after = workflow.step(state.replace(replay_buffer_state=given))[1]
        _assert_same(after.replay_buffer_state, given)


def test_what_is_missing_is_said():
    class Nothing(Workflow):
        def iterate(self, state, key):
            return {}, state

    with pytest.raises(
        NotImplementedError, match="Nothing must define setup_agent_and_optimizer or"
    ):
        Nothing().setup(0)
    assert len(Workflow.__abstractmethods__) <= 6
    with pytest.raises(UserError, match="Nothing.evaluator: expected an Evaluator, got None"):
        Nothing().final_evaluation(struct.values(_state()), 2)
    with pytest.raises(UserError, match="the strategy of Nothing: expected one device"):
        Nothing().use_strategy(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))


def _state():
    return State(
        key=seeding.key(0),
        metrics=RunMetrics.start(),
        agent_state={},
        opt_state={},
        env_state=None,
        replay_buffer_state={},
    )
