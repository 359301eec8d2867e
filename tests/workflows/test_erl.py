"""ERLWorkflow: buffer content, update ratios, CEM-RL, host environments, resumed runs, errors."""

import functools
import inspect
import re

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.docs_helpers import ROOT
from tfrl import make_env, seeding, struct
from tfrl.errors import UserError
from tfrl.evolution import GA, NSGA2, MAPElites, OpenES
from tfrl.evolution.episodes import in_one_column
from tfrl.learners import ModuleConfig
from tfrl.replay import InGraphReplay
from tfrl.workflows import ERLWorkflow

TRACED = []


@struct.logic_dataclass
class TracedAgent(tfrl.TD3):
    """Records each Python call of a traced function."""

    def actor_loss(self, *args, **kwargs):
        TRACED.append("actor")
        return super().actor_loss(*args, **kwargs)


TD3 = functools.partial(TracedAgent, hidden=(4,), normalize_obs=True)
SAC = functools.partial(tfrl.SAC, hidden=(4,))
BUFFER = functools.partial(InGraphReplay, capacity=2_000)
CEM_RL = {"train_half": True, "inject": "none", "optimizer": OpenES(pop_size=4)}
ARCHIVE = {"pop_size": 4, "grid": (2,), "descriptor_bounds": ((0.0, 1.0),)}
INJECTED = {"inject": "replace", "inject_every": 2, "optimizer": OpenES(pop_size=4)}
CEM_RL_OF_SAC = {**CEM_RL, "agent": functools.partial(SAC, tau=0.1, normalize_obs=True)}


def workflow_of(task="tf:Pendulum-v1", agent=TD3, limit=10, num_envs=1, wrappers=(), **options):
    options = {
        "optimizer": GA(pop_size=4),
        "replay": BUFFER,
        "batch_size": 4,
        "learning_starts": 20,
        "eval_episodes": 2,
        "compile": "graph",
        **options,
    }
    env = make_env(task, num_envs=num_envs, max_episode_steps=limit, wrappers=wrappers)
    return ERLWorkflow(env, agent, **options)


def after(workflow, generations=2, seed=0):
    rows, state = [], workflow.setup(seed)
    for _ in range(generations):
        row, state = workflow.step(state)
        rows.append(row)
    return rows, state


def assert_same(a, b):
    assert a.keys() == b.keys()
    for path, value in a.items():
        np.testing.assert_array_equal(value, b[path], err_msg=path)


def values_of(workflow, state):
    return {path: np.array(x) for path, x in workflow.state_values(state).items()}


def stored(workflow, state):
    """All items of the buffer, the oldest first."""
    buffer = workflow.replay_buffer(state)
    steps = tf.range(int(buffer.size()), dtype=tf.int64)
    return buffer._reader.read(buffer._read_counts(), steps, tf.zeros_like(steps))


@pytest.mark.parametrize(
    "task, agent, limit", [("tf:CartPole-v1", SAC, 30), ("tf:Pendulum-v1", TD3, 10)]
)
@pytest.mark.variants(1)
def test_the_buffer_holds_the_episodes_of_members_and_agent(task, agent, limit):
    options = {"episodes_per_member": 2, "episodes_per_agent": 3, "learning_starts": 10_000}
    workflow = workflow_of(task, agent, limit, **options)
    state = workflow.setup(3)
    key = seeding.fold_in(state.key, 0)
    population, _ = workflow.injection.ask(state.opt_state.search, workflow._actors(state))
    play = tf.function(workflow.play, autograph=False)
    episodes = play(state, population, seeding.streams(key, ("train", "play"))["play"])
    row, state = workflow.step(state)
    column = in_one_column(episodes.kept())
    rows = np.flatnonzero(column.valid)
    items = stored(workflow, state)
    assert row["env_steps"] == len(rows) == len(items.reward) and row["episodes"] == 4 * 2 + 3
    for name in ("obs", "action", "reward", "next_obs"):
        wanted = getattr(column, name).numpy()[rows, 0]
        np.testing.assert_allclose(getattr(items, name), wanted, rtol=1e-5, atol=1e-6)
    returns = np.sum(np.where(episodes.trajectory.valid, episodes.trajectory.reward, 0.0), axis=0)
    fitness = returns[:8].reshape(4, 2).mean(axis=1)  # two episodes of each member
    found = [row[f"fitness_{name}"] for name in ("best", "mean", "std")]
    np.testing.assert_allclose(found, [fitness.max(), fitness.mean(), fitness.std()], rtol=1e-4)
    np.testing.assert_allclose(row["agent_return"], returns[8:].mean(), rtol=1e-4)
    best = struct.take(population, int(np.argmax(fitness)))
    tf.nest.map_structure(np.testing.assert_allclose, state.opt_state.best, best)
    ends = column.termination.numpy()[rows, 0]
    np.testing.assert_allclose(items.discount, np.where(ends, 0.0, 0.99), rtol=1e-6)
    if task == "tf:CartPole-v1":  # the agent's episodes explore, and end at different steps
        assert 0 < ends.sum() and len(rows) < 11 * limit


@pytest.mark.parametrize("task", ["tf:Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_members_start_alike_where_asked(task):
    workflow = workflow_of(task, num_envs=3, episodes_per_member=2, common_random_numbers=True)
    state = workflow.setup(0)
    population, _ = workflow.injection.ask(state.opt_state.search, workflow._actors(state))
    starts = workflow.play(state, population, seeding.key(1)).trajectory.obs[0].numpy()
    workflow.close()
    np.testing.assert_array_equal(starts[:8], np.tile(starts[:2], (4, 1)))
    assert len(np.unique(starts, axis=0)) == 3  # two of the members, one of the agent


@pytest.mark.parametrize("task", ["tf:Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_members_act_as_their_parameters_say(task):
    workflow = workflow_of(task, num_envs=3)
    state = workflow.setup(0)
    population, _ = workflow.injection.ask(state.opt_state.search, workflow._actors(state))
    episodes = workflow.play(state, population, seeding.key(1))
    for member in range(4):
        own = tf.nest.map_structure(lambda x, i=member: x[i], population)
        agent_state = workflow._with_actor(struct.values(state.agent_state), own)
        obs = episodes.trajectory.obs[:, member]
        action = workflow.agent.evaluate_actions(agent_state, obs, seeding.key(0)).action
        np.testing.assert_allclose(episodes.trajectory.action[:, member], action, atol=1e-5)
    explored = workflow.agent.evaluate_actions(
        workflow.agent_state(state), episodes.trajectory.obs[:, 4], seeding.key(0)
    )
    assert np.abs(explored.action - episodes.trajectory.action[:, 4]).max() > 0.05
    workflow.close()


@pytest.mark.parametrize("ratio, start", [(0.3, 37), (2.5, 0), (1.0, 20)])
@pytest.mark.variants(1)
def test_learner_steps_follow_the_env_steps_of_all(ratio, start):
    workflow = workflow_of(**INJECTED, updates_per_step=ratio, learning_starts=start)
    rows, state = after(workflow, 3)
    taken = 0
    for i, row in enumerate(rows):
        env_steps = 50 * (i + 1)  # four members and the agent
        due = int(np.floor(ratio * env_steps + 1e-9) - np.floor(ratio * start + 1e-9))
        assert (row["env_steps"], row["learner_steps"]) == (env_steps, due)
        assert row["updates"] == due - taken == row["gradient_steps"]
        taken = due


@pytest.mark.parametrize("inject", ["replace", "mean", "extra", "none"])
@pytest.mark.variants(1)
def test_the_actor_enters_the_population(inject):
    options = {**INJECTED, "inject": inject, "updates_per_step": 0.3, "learning_starts": 37}
    rows, state = after(workflow_of(**options))
    shares = [row["injected_share"] for row in rows]
    assert shares[0] == 0.0
    assert shares[1] in {"replace": (0.25,), "extra": (0.0, 0.25), "mean": (0.5,)}.get(
        inject, (0.0,)
    )
    assert rows[0]["episodes"] == (6 if inject == "extra" else 5)
    assert np.isfinite([rows[1][n] for n in ("fitness_mean", "agent_return", "critic/loss")]).all()


@pytest.mark.parametrize("options", [CEM_RL_OF_SAC, CEM_RL])
@pytest.mark.variants(1)
def test_half_of_the_offspring_are_trained(options):
    workflow = workflow_of(**options)
    _, state = after(workflow, 1)
    population, _ = workflow.optimizer.ask(state.opt_state.search)
    critics = struct.values(state.agent_state["default_policy"].params["critic"])
    steps = tf.constant(23, tf.int64)
    row, trained = workflow.train_offspring(state, population, seeding.key(0), steps)
    for before, now in zip(*map(tf.nest.flatten, (population, trained)), strict=True):
        assert np.all([np.any(now[i] != before[i]) for i in range(2)])
        np.testing.assert_array_equal(now[2:], before[2:])
    # 23 steps, and learning starts at 20: 3 updates of the critics, and 3 of each actor.
    assert (row["updates"], row["critic/gradient_steps"]) == (3, 3)
    assert (row["actor_updates"], row["actor/gradient_steps"]) == (6, 6)
    now = state.agent_state["default_policy"].params["critic"]
    pairs = zip(*map(tf.nest.flatten, (critics, now)), strict=True)
    assert any(np.any(a != b.numpy()) for a, b in pairs)


@pytest.mark.slow
def test_a_member_is_trained_as_an_actor_alone():
    """One member by hand: a fresh Adam that maximises the current first critic."""
    workflow = workflow_of(**CEM_RL)
    _, state = after(workflow, 1)
    population, _ = workflow.optimizer.ask(state.opt_state.search)
    key, agent = seeding.key(5), workflow.agent
    _, trained = workflow.train_offspring(state, population, key, tf.constant(21, tf.int64))
    own_key = seeding.fold_in(seeding.stream(seeding.fold_in(key, 0), "actor"), 0)
    keys = seeding.streams(own_key, ("sample", "update"))
    buffer = workflow.replay_buffer(state)
    batch = buffer.sample(seeding.stream(keys["sample"], "default_policy"), workflow.batch_size)
    own = struct.values(state.agent_state["default_policy"])
    first = tf.nest.map_structure(lambda x: x[0], population)
    batch = agent.prepare_minibatch(own, batch, lambda x: x)
    with tf.GradientTape() as tape:
        tape.watch(first)
        loss, _ = agent.actor_loss({**own.params, "actor": first}, own, batch, key)
    gradients = tape.gradient(loss, tf.nest.flatten(first))
    for x, g, now in zip(*map(tf.nest.flatten, (first, gradients, trained)), strict=True):
        step = 3e-4 * g / (tf.abs(g) + 1e-8)  # Adam's first step
        np.testing.assert_allclose(now[0], x - step, rtol=1e-4, atol=1e-7)


def test_a_generation_of_cem_rl_plays_the_trained_members():
    workflow = workflow_of(**CEM_RL, learner_config=ModuleConfig(lr=1e-2))
    _, state = after(workflow, 1)
    keys = seeding.streams(seeding.fold_in(state.key, 1), ("train", "play"))
    copy = workflow.snapshot(state)
    population, _ = workflow.optimizer.ask(copy.opt_state.search)
    steps = tf.constant(40, tf.int64)
    _, trained = workflow.train_offspring(copy, population, keys["train"], steps)
    by_hand, untrained = (
        in_one_column(workflow.play(copy, members, keys["play"]).trajectory).action
        for members in (trained, population)
    )
    row, state = workflow.step(state)
    assert row["updates"] == 20
    played = stored(workflow, state).action[40:]
    np.testing.assert_allclose(played, by_hand[:, 0], atol=1e-3)
    change = np.abs(played - untrained[:, 0]).reshape(4, 10).max(axis=1)
    assert np.all(change[:2] > 0.01) and np.all(change[2:] < 1e-3)  # half of them are trained


def test_the_agent_of_cem_rl_stands_for_the_centre():
    workflow = workflow_of(**CEM_RL)
    rows, state = after(workflow)
    assert rows[0]["updates"] == 0 and rows[1]["updates"] == 20
    assert rows[0]["episodes"] == 4 and "agent_return" not in rows[0]
    centre, actor = state.opt_state.search.params, workflow.agent_state(state).params["actor"]
    tf.nest.map_structure(np.testing.assert_array_equal, actor, centre)
    found, _ = workflow.evaluate(state)
    assert "eval_best_return_mean" in found and "eval_centre_return_mean" not in found


@pytest.mark.parametrize("options", [{}, CEM_RL])
def test_a_loss_that_is_not_finite_ends_the_run(options):
    workflow = workflow_of(**options)
    state = workflow.setup(0)
    for x in tf.nest.flatten(state.agent_state["default_policy"].params["critic"]):
        x.assign(x * 1e30)
    with pytest.raises(UserError, match=r"(?s)non-finite.*gradient steps"):
        for _ in range(2):
            _, state = workflow.step(state)


@pytest.mark.parametrize("options", [{}, CEM_RL_OF_SAC])
def test_a_run_goes_on_to_the_bit(options, tmp_path):
    workflow = workflow_of(**options)
    _, state = after(workflow)
    workflow.save(state, tmp_path)
    copy = workflow.snapshot(state)
    row, whole = workflow.step(state)
    whole = values_of(workflow, whole)
    other = workflow_of(**options)
    again, resumed = other.step(other.restore(tmp_path))
    assert_same(values_of(other, resumed), whole)
    assert again == row
    assert_same(values_of(workflow, workflow.step(copy)[1]), whole)
    three = workflow.advance(workflow.setup(0), 3).state  # in one call
    assert_same(values_of(workflow, three), whole)


def test_equal_workflows_share_their_traces():
    _, state = after(workflow_of(), 1)
    TRACED.clear()
    again = workflow_of()
    _, state = after(again, 1, seed=5)
    again.step(again.snapshot(state))
    assert TRACED == []


@pytest.mark.slow
def test_several_agents_share_the_buffer():
    agents = {"calm": TD3, "bold": functools.partial(TD3, exploration_noise=0.5)}
    workflow = workflow_of(agent=agents, inject="extra")
    rows, state = after(workflow)
    assert rows[0]["episodes"] == 4 + 2 + 2
    assert all(row["injected_share"] in (0.0, 0.25, 0.5) for row in rows)
    assert {"calm/agent_return", "bold/agent_return", "bold/critic/loss"} <= set(rows[1])
    params = [state.agent_state[m].params["critic"] for m in agents]
    pairs = zip(*map(tf.nest.flatten, params), strict=True)
    assert any(np.any(a.numpy() != b.numpy()) for a, b in pairs)
    found, _ = workflow.evaluate(state)
    assert {"eval_return_mean", "eval_best_return_mean", "eval_centre_return_mean"} <= set(found)


def test_statistics_of_observations_are_those_of_all_steps():
    rows, state = after(workflow_of())
    count = tf.nest.flatten(state.agent_state["default_policy"].normalizer.count)[0]
    assert float(count) == rows[1]["env_steps"]


@struct.logic_dataclass
class OneIsBroken(GA):
    """The fitness of the second candidate is NaN."""

    def sample(self, search, generation, key):
        population = super().sample(search, generation, key)
        return tf.concat([population[:1], population[1:2] * float("nan"), population[2:]], 0)


def test_a_member_that_is_no_number_is_lost():
    workflow = workflow_of(optimizer=OneIsBroken(pop_size=4))
    rows, state = after(workflow)
    assert [row["lost_members"] for row in rows] == [1, 1]
    assert [row["env_steps"] for row in rows] == [50, 100]
    assert int(workflow.replay_buffer(state).size()) == 80
    assert all(np.isfinite(x).all() for x in stored(workflow, state).obs)
    assert np.isfinite(rows[1]["fitness_mean"]) and np.isfinite(rows[1]["critic/loss"])


@struct.logic_dataclass
class AllAreBroken(GA):
    """No candidate has finite parameters."""

    def sample(self, search, generation, key):
        return super().sample(search, generation, key) * float("nan")


def test_no_learner_steps_without_experience():
    workflow = workflow_of(
        optimizer=AllAreBroken(pop_size=4), inject="none", learning_starts=0, batch_size=16
    )
    rows, state = after(workflow)
    assert [row["lost_members"] for row in rows] == [4, 4]
    # An agent's episode of 10 steps in each generation: a batch at the second.
    assert [row["updates"] for row in rows] == [0, 100]
    assert int(workflow.replay_buffer(state).size()) == 20


class Failing(gymnasium.Wrapper):
    """Raises at its fifth step, once per process."""

    steps = 0

    def step(self, action):
        Failing.steps += 1
        if Failing.steps == 5:
            raise RuntimeError("out of order")
        return self.env.step(action)


@pytest.mark.slow
def test_episodes_take_turns_on_the_host(tmp_path):
    task, options = "gymnasium:Pendulum-v1", {"num_envs": 2, "episodes_per_member": 2}
    workflow = workflow_of(task, **options)
    rows, state = after(workflow)
    assert (rows[1]["episodes"], rows[1]["env_steps"]) == (18, 180)
    assert rows[1]["learner_steps"] == 160
    assert int(workflow.replay_buffer(state).size()) == 180
    workflow.save(state, tmp_path)
    _, whole = workflow.step(state)
    whole = values_of(workflow, whole)
    workflow.close()
    other = workflow_of(task, **options)
    _, resumed = other.step(other.restore(tmp_path))
    assert_same(values_of(other, resumed), whole)
    other.close()


def test_cem_rl_on_the_host_with_an_environment_that_fails():
    Failing.steps = 0
    options = {"num_envs": 2, "wrappers": (Failing,), **CEM_RL}
    workflow = workflow_of("gymnasium:Pendulum-v1", **options)
    rows, state = after(workflow)
    assert [row["lost_members"] for row in rows] == [1, 0]
    assert int(workflow.replay_buffer(state).size()) == 70
    assert rows[1]["updates"] > 0 and np.isfinite(rows[1]["critic/loss"])
    workflow.close()


def test_a_lost_episode_of_the_agent_is_counted(monkeypatch):
    workflow = workflow_of(inject="none", episodes_per_agent=4)
    play = workflow.play

    def loses_the_last(*args):
        episodes = play(*args)
        count = episodes.lost.shape[0]
        return episodes.replace(lost=tf.range(count) == count - 1)

    monkeypatch.setattr(workflow, "play", loses_the_last)
    (row, _), state = after(workflow)
    assert (row["lost_members"], row["lost_agent_episodes"]) == (0, 1)
    assert np.isfinite(row["agent_return"]) and np.isfinite(row["episode_return"])
    assert "episodes of the agent lost at 80 env steps: 1." in workflow.warning_of(row)
    assert int(workflow.replay_buffer(state).size()) == 2 * 70


def test_environments_in_parts_play_as_one_batch():
    rows = []
    for settings in ({}, {"double_buffer": True}, {"max_wait_time": 0.01}):
        own = {"vectorization": "async", **settings} if settings else {}
        env = make_env("gymnasium:Pendulum-v1", num_envs=4, max_episode_steps=10, **own)
        options = {"replay": BUFFER, "batch_size": 4, "learning_starts": 20, "compile": "graph"}
        workflow = ERLWorkflow(env, TD3, GA(pop_size=4), **options)
        names = ("env_steps", "updates", "fitness_best", "fitness_mean", "agent_return")
        rows.append([[row[name] for name in names] for row in after(workflow)[0]])
        workflow.close()
        env.close()
    np.testing.assert_allclose(rows[1:], rows[:1] * 2, rtol=1e-3)


def test_the_progress_line_shows_best_mean_centre_and_spread(capsys):
    workflow = workflow_of(iterations_per_call=1)
    workflow.learn(workflow.setup(0), total_env_steps=150, eval_interval=100)
    line = capsys.readouterr().err.splitlines()[-1]  # of the third generation
    names = ("return", "eval", "fitness_best", "fitness_mean", "fitness_std")
    assert [f" {name}=" in line for name in (*names, "eval_centre_return_mean")] == [True] * 6


def test_a_run_folder(tmp_path):
    workflow = workflow_of()
    options = {"root_dir": tmp_path / "run", "progress": False, "eval_interval": 50}
    workflow.learn(workflow.setup(0), total_env_steps=100, **options)
    assert (tmp_path / "run" / "metrics.csv").read_text().count("fitness_best") == 1
    folder = workflow.export_policy(workflow.setup(1), tmp_path / "policy")
    action = tf.saved_model.load(str(folder)).signatures["action"](observation=tf.zeros([3, 3]))
    assert action["action"].shape == [3, 1]


@pytest.mark.parametrize("options", [{}, CEM_RL])
def test_the_page_explains_settings_and_metrics(options):
    page = (ROOT / "docs" / "erl.md").read_text()
    named = set(re.findall(r"`([a-z_/.]+)`", page))
    assert set(inspect.signature(ERLWorkflow).parameters) <= named
    rows, _ = after(workflow_of(**options), 1)
    counters = {"iterations", "env_steps", "episodes", "learner_steps"}
    assert {n for n in rows[0] if n.split("/")[0] not in ("critic", "actor")} - counters <= named


@pytest.mark.slow
def test_agents_of_two_algorithms_learn_from_the_population():
    """Only the first one's actor meets the search."""
    rows, _ = after(
        workflow_of(agent={"a": TD3, "b": SAC}, optimizer=OpenES(pop_size=4), inject="mean"), 2
    )
    assert np.isfinite(rows[-1]["a/critic/loss"]) and np.isfinite(rows[-1]["b/critic/loss"])


def test_a_state_that_was_consumed_is_refused():
    workflow = workflow_of()
    state = workflow.setup(0)
    workflow.step(state)
    with pytest.raises(UserError, match=r"(?s)newest state of its run.*snapshot"):
        workflow.step(state)


def test_a_state_of_tensors_goes_on_in_variables_of_its_own():
    workflow = workflow_of()
    _, state = workflow.step(workflow.setup(0))
    stacked = struct.stack([struct.values(workflow.setup(1)), struct.values(state)])
    taken = struct.take(stacked, 1)
    with pytest.raises(UserError, match="ERLWorkflow.iterate: expected a state of variables"):
        workflow.iterate(taken, seeding.key(0))
    (row, one), (expected, other) = workflow.step(taken), workflow.step(state)
    assert row == expected
    for path, x in struct.paths(struct.values(other)).items():
        np.testing.assert_array_equal(struct.paths(struct.values(one))[path], x, path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"agent": tfrl.PPO}, r"agent.*replayed transitions.*PPO"),
        ({**CEM_RL, "optimizer": GA(pop_size=5)}, r"GA.pop_size.*even.*6"),
        ({**CEM_RL, "agent": tfrl.TD3, "group": "critic"}, r"agent.*TD3 with critic, actor"),
        ({**CEM_RL, "inject": "extra"}, r"inject.*'none' with train_half"),
        ({**CEM_RL, "agent": {"a": TD3, "b": TD3}}, r"agent.*one agent with train_half.*a, b"),
        ({"agent": {"a": TD3, "b": SAC}}, r"group 'actor' of agent 'b'.*structure.*'a'"),
        ({"agent": {"a": TD3, "b": functools.partial(TD3, n_step=3)}}, r"n_step of agent 'b'"),
        ({"group": "policy"}, r"group.*actor"),
        ({"optimizer": None}, r"a search of tfrl.evolution"),
        ({"optimizer": NSGA2(pop_size=4, bounds=(-1.0, 1.0))}, r"single-objective"),
        ({"optimizer": MAPElites(**ARCHIVE)}, r"optimizer.*descriptors.*MAPElites"),
        ({"inject": "mean"}, r"inject.*'mean'.*GA.*'replace'"),
        ({"replay": functools.partial(BUFFER, kind="prioritized")}, r"replay.*uniform"),
        ({"replay": functools.partial(BUFFER, capacity=3)}, r"replay.capacity.*4"),
        ({"batch_size": 0}, r"batch_size"),
        ({"evaluator": "mine"}, r"evaluator.*Evaluator, or None, got 'mine'"),
        ({"updates_per_step": 0}, r"updates_per_step"),
    ],
)
def test_wrong_use(options, message):
    with pytest.raises(UserError, match=f"(?s){message}") as error:
        after(workflow_of(**options), 1)
    assert "\n\n" not in str(error.value)


def test_one_device(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with pytest.raises(UserError, match=r"(?s)one device.*2 replicas"):
        workflow_of().use_strategy(strategy)
