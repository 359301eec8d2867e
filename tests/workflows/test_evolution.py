"""EvolutionWorkflow: members' episodes, replicas, host environments, resumed runs, errors."""

import functools

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import make_env, seeding, struct, traces
from tfrl.envs.wrappers import RewardAndEnergy, RewardNormalize, RewardScale
from tfrl.errors import UserError
from tfrl.evolution import NSGA2, RVEA, MAPElites, OpenES, PolicyAgent, population
from tfrl.evolution.population import bare, start_states
from tfrl.rollout import fast_eval_rollout_episode
from tfrl.rollout.episode import EpisodeTotals
from tfrl.workflows import EvolutionWorkflow, evolution

NORMALIZING = functools.partial(PolicyAgent, normalize_obs=True)
KEY = seeding.key(3)
PLAIN = {"agent": PolicyAgent}
NORMALIZED = {"agent": NORMALIZING, "obs_statistics": "running"}
# Most steps go astray by chance; the goal is beside the start.
WALK = {"start": (3, 9), "goal": (3, 10), "success_prob": 0.4}
CHANCE = {"task": "tf:FourRooms", "settings": WALK, "limit": 40}

TRACED = []


@struct.logic_dataclass
class TracedAgent(PolicyAgent):
    """Records each Python call of a traced function."""

    def evaluate_actions(self, *args, **kwargs):
        TRACED.append("evaluate")
        return super().evaluate_actions(*args, **kwargs)


def workflow_of(
    task="tf:CartPole-v1", agent=PolicyAgent, pop_size=8, limit=20, settings=None, **options
):
    options = {"compile": "graph", "eval_episodes": 4, "max_episode_steps": limit, **options}
    env = make_env(task, num_envs=4, **(settings or {}))
    return EvolutionWorkflow(env, agent, OpenES(pop_size=pop_size), **options)


def after(workflow, generations=2, seed=0):
    metrics, state = {}, workflow.setup(seed)
    for _ in range(generations):
        metrics, state = workflow.step(state)
    return metrics, state


def mirrored(parts):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(parts)])


def assert_same(a, b, **tolerance):
    def same(x, y):
        np.testing.assert_allclose(x, y, **{"rtol": 0, "atol": 0, **tolerance})

    tf.nest.map_structure(same, a, b)


@pytest.mark.parametrize(
    "agent, group",
    [(PolicyAgent, "policy"), (tfrl.PPO, "policy"), (tfrl.TD3, "actor")],
)
@pytest.mark.parametrize("common", [True, False])
def test_each_member_plays_by_its_own_parameters(agent, group, common):
    task = "tf:Pendulum-v1"
    options = {"common_random_numbers": common, "episodes_per_member": 2, "group": group}
    workflow = workflow_of(task, agent, pop_size=4, **options)
    state = workflow.setup(0)
    population, _ = workflow.optimizer.ask(state.opt_state.search)
    played = workflow.play(state.agent_state, population, KEY)
    start = start_states(bare(workflow.env), seeding.split(KEY, 2)[0], 4, common=common)
    one = make_env(task, num_envs=2)
    for member in range(4):
        params = tf.nest.map_structure(lambda x, i=member: x[i], population)
        own = tf.nest.map_structure(lambda x, i=member: x[2 * i : 2 * i + 2], start)
        agent_state = state.agent_state.replace(params={**state.agent_state.params, group: params})
        totals, _ = fast_eval_rollout_episode(one.env, workflow.agent, own, agent_state, KEY, 20)
        np.testing.assert_allclose(
            played.totals.episode_returns[member], totals.episode_returns, rtol=1e-5
        )


@pytest.mark.parametrize("common", [True, False])
def test_each_member_plays_by_its_own_parameters_on_the_host(common):
    task, options = "gymnasium:Pendulum-v1", {"common_random_numbers": common}
    env = make_env(task, num_envs=3)  # the eight episodes take three rounds
    search = OpenES(pop_size=4, noise_std_schedule=1.0)
    options = {"episodes_per_member": 2, "max_episode_steps": 20, **options}
    workflow = EvolutionWorkflow(env, optimizer=search, **options)
    state = workflow.setup(0)
    population, _ = search.ask(state.opt_state.search)
    played = workflow.play(state.agent_state, population, KEY).totals.episode_returns
    seeds = workflow._seeds(seeding.split(KEY, 2)[0])
    with make_env(task, num_envs=2) as one:
        for member in range(4):
            params = {"policy": struct.take(population, member)}
            agent_state = state.agent_state.replace(params=params)
            start = one.begin(seeds[member])
            totals, _ = fast_eval_rollout_episode(one, workflow.agent, start, agent_state, KEY, 20)
            np.testing.assert_allclose(played[member], totals.episode_returns, rtol=1e-4)
    assert len(np.unique(np.round(played, 2))) == 8
    workflow.close()
    env.close()


@pytest.mark.parametrize("pop_size, episodes", [(4, 2), (2, 1)])
def test_two_copies_below_a_wrapper_start_alike(pop_size, episodes):
    """The key of the autoreset layer has two numbers, as many as there are environments."""
    workflow = workflow_of(
        pop_size=pop_size,
        episodes_per_member=episodes,
        common_random_numbers=True,
        settings={"outer_wrappers": [lambda env: RewardScale(env=env, scale=2.0)]},
        limit=5,
    )
    metrics, _ = after(workflow, 1)
    assert metrics["fitness_mean"] == 10.0


@pytest.mark.parametrize("options", [PLAIN, CHANCE])
def test_members_play_the_same_episodes_where_asked(options):
    options = {**options, "episodes_per_member": 3}
    workflow = workflow_of(**options, common_random_numbers=True)
    state = workflow.setup(0)
    centre = state.agent_state.params["policy"]
    same = tf.nest.map_structure(lambda x: tf.stack([x] * 8), centre)
    lengths = workflow.play(state.agent_state, same, KEY).totals.episode_lengths
    assert_same(lengths, tf.stack([lengths[0]] * 8))
    assert len(np.unique(lengths[0])) > 1  # the episodes of a member differ
    apart = workflow_of(**options).play(state.agent_state, same, KEY)
    assert np.ptp(apart.totals.episode_lengths.numpy()[:, 0]) > 0


@pytest.mark.parametrize("parts, pop_size", [(2, 8), (2, 16), (4, 8)])
@pytest.mark.parametrize("options", [PLAIN, NORMALIZED, CHANCE])
@pytest.mark.variants(3)
def test_any_split_of_the_population_gives_the_same_bits(options, parts, pop_size):
    options = {**options, "common_random_numbers": parts == 4, "pop_size": pop_size}
    strategy = mirrored(parts)
    metrics, state = after(workflow_of(**options))
    split_metrics, split = after(workflow_of(**options, strategy=strategy))
    assert_same(split_metrics, metrics)
    assert_same(split, state)


@pytest.mark.parametrize("options", [CHANCE, NORMALIZED, PLAIN])
@pytest.mark.variants(1)
def test_blocks_of_members_change_no_bit(options, monkeypatch):
    options = {"limit": 10, **options, "pop_size": 48, "episodes_per_member": 2}
    metrics, state = after(workflow_of(**options), 2)
    traces.forget_all()
    monkeypatch.setattr(evolution, "_BLOCK", 16)
    block_metrics, blocks = after(workflow_of(**options), 2)
    assert_same(block_metrics, metrics)
    assert_same(blocks, state)


def test_a_split_run_keeps_its_compile_mode(tmp_path):
    """XLA evaluates members within a graph loop; a resumed run does the same."""
    workflow = workflow_of(compile="auto", strategy=mirrored(2))
    _, state = after(workflow, 1)
    workflow.save(state, tmp_path)
    _, whole = workflow.step(state)
    other = workflow_of(compile="auto", strategy=mirrored(2))
    restored = other.restore(tmp_path)
    assert other.compile_choices(restored) == {"iterations": "xla"}
    assert_same(other.step(restored)[1], whole)


def test_graph_and_xla_agree():
    metrics, state = after(workflow_of("tf:Pendulum-v1"))
    compiled_metrics, compiled = after(workflow_of("tf:Pendulum-v1", compile="xla"))
    assert_same(compiled_metrics, metrics, rtol=1e-4, atol=1e-3)
    assert_same(compiled.agent_state, state.agent_state, rtol=1e-3, atol=1e-3)


def test_equal_workflows_share_their_traces():
    workflow = workflow_of(agent=TracedAgent)
    _, state = after(workflow, 1)
    workflow.evaluate(state)
    TRACED.clear()
    again = workflow_of(agent=TracedAgent)
    _, state = again.step(again.setup(5))
    again.evaluate(state)
    workflow.advance(workflow.snapshot(state), 3)
    assert TRACED == []


def test_a_run_goes_on_to_the_bit(tmp_path):
    workflow = workflow_of(agent=NORMALIZING, obs_statistics="running")
    _, state = after(workflow, 2)
    workflow.save(state, tmp_path)
    _, whole = workflow.step(state)
    other = workflow_of(agent=NORMALIZING, obs_statistics="running")
    _, resumed = other.step(other.restore(tmp_path))
    assert_same(resumed, whole)


def test_the_centre_and_the_best_are_evaluated():
    workflow = workflow_of()
    metrics, state = after(workflow)
    found, later = workflow.evaluate(state)
    assert {"eval_return_mean", "eval_best_return_mean"} <= set(found)
    assert int(later.metrics.evaluations) == 1
    assert metrics["fitness_best"] >= metrics["fitness_mean"] >= 0
    assert_same(state.agent_state.params["policy"], state.opt_state.search.params)


def test_the_progress_line_shows_best_mean_centre_and_spread(capsys):
    workflow = workflow_of(limit=5, iterations_per_call=1)
    workflow.learn(workflow.setup(0), total_env_steps=120, eval_interval=80)
    line = capsys.readouterr().err.splitlines()[-1]  # of the third generation
    assert "return=5 " in line and "eval=5 " in line  # mean and centre
    assert "fitness_best=5 fitness_std=0" in line


def test_statistics_of_observations():
    fixed = workflow_of(agent=NORMALIZING, obs_statistics="fixed")
    state = fixed.setup(0)
    count = float(tf.nest.flatten(state.agent_state.normalizer.count)[0])
    assert count >= 10_000
    _, later = fixed.step(state)
    assert_same(later.agent_state.normalizer, state.agent_state.normalizer)
    running = workflow_of(agent=NORMALIZING, obs_statistics="running")
    metrics, state = after(running, 1)
    # Exactly the observations that a member acted on.
    assert float(state.agent_state.normalizer.count) == metrics["env_steps"]


def test_statistics_leave_lost_members_out():
    played = population.Played(
        totals=EpisodeTotals(
            episode_returns=tf.constant([[1.0, np.nan], [2.0, 3.0]]),
            episode_lengths=tf.ones([2, 2], tf.int32),
        ),
        valid=tf.constant([[True, False]] * 4),
    )
    known = evolution._known(played)
    np.testing.assert_array_equal(known, [[True, False], [False] * 2, [True, False], [True, False]])


def test_a_fitness_of_the_wrong_shape_is_named():
    class Mean(EvolutionWorkflow):
        def fitness(self, played):
            return tf.reduce_mean(played.totals.episode_returns)

    env = make_env("tf:CartPole-v1", num_envs=2)
    workflow = Mean(env, PolicyAgent, OpenES(pop_size=4), compile="graph", max_episode_steps=5)
    with pytest.raises(UserError, match=r"fitness of OpenES.tell: expected float32 \[4\]"):
        workflow.step(workflow.setup(0))


def test_discounted_returns_and_objectives():
    plain, _ = after(workflow_of(limit=5), 1)
    assert plain["fitness_mean"] == 5.0
    discounted, _ = after(workflow_of(limit=5, discount=0.5), 1)
    assert discounted["fitness_mean"] == 1.9375  # 1 + 1/2 + ... + 1/16
    assert discounted["episode_return"] == plain["episode_return"] == 5.0

    class Both(EvolutionWorkflow):
        def fitness(self, played):
            returns = played.totals.episode_returns
            return tf.reduce_mean(returns["reward"] + 10.0 * returns["energy"], axis=-1)

    task = "tf:Pendulum-v1"
    env = make_env(task, num_envs=2, wrappers=(lambda env: RewardAndEnergy(env=env),))
    options = {"compile": "graph", "max_episode_steps": 5, "eval_env": make_env(task, num_envs=2)}
    metrics, state = Both(env, PolicyAgent, OpenES(pop_size=4), **options).step(
        (workflow := Both(env, PolicyAgent, OpenES(pop_size=4), **options)).setup(0)
    )
    assert metrics["fitness_mean"] < -10.0
    assert metrics["fitness_mean"] < metrics["episode_return"] < 0.0
    assert "eval_return_mean" in workflow.evaluate(state)[0]


def test_a_hook_names_its_own_objectives():
    class ReturnAndLength(EvolutionWorkflow):
        def fitness(self, played):
            returns, lengths = played.totals.episode_returns, played.totals.episode_lengths
            both = tf.stack([returns, -tf.cast(lengths, tf.float32)], axis=-1)
            return tf.reduce_mean(both, axis=1)

    options = {"compile": "graph", "max_episode_steps": 5, "objectives": ("return", "brevity")}
    search = NSGA2(pop_size=4, bounds=(-1.0, 1.0))
    workflow = ReturnAndLength(make_env("tf:CartPole-v1", num_envs=2), optimizer=search, **options)
    metrics, _ = after(workflow, 1)
    assert metrics["fitness_best"] == metrics["episode_return"] == 5.0
    with pytest.raises(
        UserError, match=r"2 for NSGA2, got 1.*Pass objectives=\('reward', 'energy'"
    ):
        EvolutionWorkflow(make_env("tf:CartPole-v1"), optimizer=search)


class Wrong(EvolutionWorkflow):
    """The third member's fitness is NaN."""

    def fitness(self, played):
        lost = tf.range(self.optimizer.pop_size) == 2
        return tf.where(lost, float("nan"), super().fitness(played))


def test_a_fitness_that_is_not_finite_is_lost_counted_and_warned_of(capsys):
    env = make_env("tf:CartPole-v1", num_envs=2)
    options = {"compile": "graph", "max_episode_steps": 5, "eval_episodes": 2}
    workflow = Wrong(env, PolicyAgent, OpenES(pop_size=4), **options)
    metrics, state = workflow.step(workflow.setup(0))
    assert (metrics["lost_members"], metrics["fitness_mean"]) == (1, 5.0)
    workflow.learn(state, total_env_steps=60, progress=False)
    said = capsys.readouterr().out
    assert said.count("Warning") == 1  # one warning for two generations
    assert said.startswith("Warning: members lost at 40 env steps: 1. Their fitness is not")


class WrongEnergy(EvolutionWorkflow):
    """The third member's second objective is NaN."""

    def fitness(self, played):
        fitness = super().fitness(played)
        lost = tf.range(self.optimizer.pop_size) == 2
        energy = tf.where(lost, float("nan"), fitness[:, 1])
        return tf.stack([fitness[:, 0] + 100.0 * tf.cast(lost, tf.float32), energy], axis=1)


def test_a_member_of_which_one_objective_is_not_finite_is_lost(tmp_path):
    env = make_env("tf:Pendulum-v1", wrappers=(lambda env: RewardAndEnergy(env=env),))
    workflow = WrongEnergy(
        env,
        optimizer=NSGA2(pop_size=4, bounds=(-1.0, 1.0)),
        objectives=("reward", "energy"),
        eval_env=make_env("tf:Pendulum-v1"),
        compile="graph",
        max_episode_steps=5,
    )
    metrics, state = workflow.step(workflow.setup(0))
    assert metrics["lost_members"] == 1 and metrics["fitness_best"] < 50.0
    assert list(workflow.write_pictures(state, tmp_path)) == ["Front"]


def test_one_of_several_rewards_is_a_fitness():
    env = make_env("tf:Pendulum-v1", wrappers=(lambda env: RewardAndEnergy(env=env),))
    options = {"compile": "graph", "max_episode_steps": 5, "eval_env": make_env("tf:Pendulum-v1")}
    search = OpenES(pop_size=4)
    workflow = EvolutionWorkflow(env, optimizer=search, objectives=("energy",), **options)
    metrics, state = workflow.step(workflow.setup(0))
    assert -10.0 < metrics["fitness_mean"] <= 0.0
    assert workflow.write_pictures(state, None) == {}
    with pytest.raises(UserError, match="objectives.*energy, reward"):
        EvolutionWorkflow(env, optimizer=search, objectives=("speed",), **options).setup(0)


def test_objectives_on_the_host_are_the_reward_and_fields_of_info():
    class Distance(gymnasium.Wrapper):
        def step(self, action):
            obs, reward, *ends, info = self.env.step(action)
            return obs, reward, *ends, {**info, "distance": abs(float(obs[0]))}

    env = make_env(
        "gymnasium:CartPole-v1", num_envs=2, wrappers=(Distance,), info_fields=("distance",)
    )
    search = NSGA2(pop_size=4, bounds=(-1.0, 1.0))
    options = {"optimizer": search, "max_episode_steps": 10, "eval_episodes": 2}
    workflow = EvolutionWorkflow(env, objectives=("reward", "distance"), **options)
    metrics, state = workflow.step(workflow.setup(0))
    fitness = state.opt_state.search.search.parent_fitness.numpy()
    assert fitness.shape == (4, 2) and metrics["fitness_best"] == fitness[:, 0].max()
    assert (fitness[:, 1] > 0.0).all() and (fitness[:, 1] < fitness[:, 0]).all()
    assert "eval_distance_mean" in workflow.evaluate(state)[0]
    workflow.close()
    with pytest.raises(UserError, match="objectives.*reward, distance"):
        EvolutionWorkflow(env, objectives=("reward", "speed"), **options)
    env.close()


class ByPosition(EvolutionWorkflow):
    """Describes a member by mean position and speed, and counts no return."""

    def descriptors(self, played):
        return tf.reduce_mean(played.obs[..., :2], axis=1)


def test_behaviour_may_be_described_by_observations(tmp_path):
    search = MAPElites(pop_size=8, grid=(5, 5))
    options = {"optimizer": search, "compile": "graph", "max_episode_steps": 5}
    workflow = ByPosition(make_env("tf:CartPole-v1"), record_obs=True, **options)
    metrics, state = workflow.step(workflow.setup(0))
    assert 0.0 < metrics["coverage"] < 1.0
    assert metrics["qd_score"] == 5.0 * round(25 * float(metrics["coverage"]))
    assert list(workflow.write_pictures(state, tmp_path)) == ["Archive"]


def test_a_fitness_of_the_wrong_shape():
    class Doubled(EvolutionWorkflow):
        def fitness(self, played):
            return tf.stack([super().fitness(played)] * 2, axis=1)

    env = make_env("tf:CartPole-v1", num_envs=2)
    workflow = Doubled(env, PolicyAgent, OpenES(pop_size=4), compile="graph", max_episode_steps=5)
    with pytest.raises(UserError, match=r"(?s)fitness of OpenES.tell.*\[4, 2\].*NSGA2 or RVEA"):
        workflow.step(workflow.setup(0))


class Failing(gymnasium.Wrapper):
    """Raises at its fifth step, once per process."""

    steps = 0

    def step(self, action):
        Failing.steps += 1
        if Failing.steps == 5:
            raise RuntimeError("out of order")
        return self.env.step(action)


@pytest.mark.parametrize("statistics", ["none", "running"])
def test_members_take_turns_on_the_host(statistics):
    agent = PolicyAgent if statistics == "none" else NORMALIZING
    options = {"obs_statistics": statistics, "agent": agent, "episodes_per_member": 2}
    workflow = workflow_of("gymnasium:CartPole-v1", **options)
    metrics, state = after(workflow)
    assert metrics["episodes"] == 32 and metrics["lost_members"] == 0
    workflow.close()


@pytest.mark.parametrize("settings", [{"double_buffer": True}, {"max_wait_time": 0.01}])
def test_environments_in_parts_play_as_one_batch(settings):
    task, rows = "gymnasium:CartPole-v1", []
    for own in ({}, {"vectorization": "async", **settings}):
        workflow = workflow_of(task, pop_size=4, settings=own)
        row, state = after(workflow)
        rows.append((row, workflow.evaluate(state)[0]["eval_return_mean"]))
        workflow.close()
    assert_same(*rows)


def test_on_the_host_a_run_goes_on_to_the_bit(tmp_path):
    workflow = workflow_of("gymnasium:CartPole-v1", pop_size=4)
    _, state = after(workflow, 2)
    workflow.save(state, tmp_path)
    _, whole = workflow.step(state)
    other = workflow_of("gymnasium:CartPole-v1", pop_size=4)
    restored = other.restore(tmp_path)
    assert other.compile_choices(restored) == workflow.compile_choices(state)
    assert other.compile_choices(restored)["acting"] in ("numpy", "graph", "xla")
    _, resumed = other.step(restored)
    assert_same(resumed, whole)
    workflow.close()
    other.close()


def test_a_member_whose_environment_fails_is_lost(caplog):
    Failing.steps = 0
    env = make_env("gymnasium:CartPole-v1", num_envs=2, wrappers=(Failing,), vectorization="sync")
    workflow = EvolutionWorkflow(env, PolicyAgent, OpenES(pop_size=4), max_episode_steps=20)
    state = workflow.setup(0)
    metrics, state = workflow.step(state)
    assert metrics["lost_members"] == 1
    assert np.isfinite(metrics["fitness_mean"])
    assert "out of order" in caplog.text
    metrics, state = workflow.step(state)
    assert metrics["lost_members"] == 0
    assert all(np.isfinite(x).all() for x in tf.nest.flatten(state.agent_state.params))
    workflow.close()


class NotFinite(gymnasium.Wrapper):
    """Its fifth step of an episode returns a number that is not finite."""

    def __init__(self, env, value):
        super().__init__(env)
        self.value, self.steps = value, 0

    def reset(self, **options):
        self.steps = 0
        return self.env.reset(**options)

    def step(self, action):
        self.steps += 1
        obs, reward, *rest = self.env.step(action)
        if self.steps == 5 and self.value == "reward":
            reward = float("nan")
        elif self.steps == 5:
            obs = np.full_like(obs, np.inf)
        return obs, reward, *rest


@pytest.mark.parametrize("value", ["reward", "observation"])
def test_numbers_of_the_host_that_are_not_finite_lose_the_episode(value, caplog):
    wrap = functools.partial(NotFinite, value=value)
    env = make_env("gymnasium:CartPole-v1", num_envs=2, wrappers=(wrap,))
    options = {"optimizer": OpenES(pop_size=4), "max_episode_steps": 20, "eval_episodes": 3}
    workflow = EvolutionWorkflow(env, **options)
    state = workflow.setup(0)
    before = state.agent_state.params
    metrics, state = workflow.step(state)
    assert metrics["lost_members"] == 4
    # Once for each episode, however many steps the others take.
    assert caplog.text.count("Lost an episode: step() of gymnasium:CartPole-v1, environment") == 4
    assert_same(state.agent_state.params, before)  # nothing is known of any member
    found, _ = workflow.evaluate(state)
    assert (found["eval_episodes"], found["eval_lost_episodes"]) == (0, 3)
    assert np.isnan(found["eval_return_mean"])
    workflow.close()
    env.close()


def test_a_member_whose_process_is_killed_is_lost(monkeypatch):
    env = make_env("gymnasium:CartPole-v1", num_envs=2, vectorization="async")
    workflow = EvolutionWorkflow(env, PolicyAgent, OpenES(pop_size=4), max_episode_steps=20)
    env.close()
    state, pool = workflow.setup(0), workflow.env.backend._vector
    steps, step_async = [], pool.step_async

    def killing(actions):
        steps.append(actions)
        if len(steps) == 5:
            pool.processes[1].kill()
        step_async(actions)

    monkeypatch.setattr(pool, "step_async", killing)
    metrics, state = workflow.step(state)
    assert metrics["lost_members"] == 1 and metrics["episodes"] == 4
    assert np.isfinite(metrics["fitness_mean"])
    metrics, state = workflow.step(state)
    assert metrics["lost_members"] == 0
    workflow.close()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pop_size": 6, "strategy": 4}, r"OpenES.pop_size.*4 replicas.*8"),
        ({"pop_size": 4, "strategy": 3}, r"OpenES.pop_size.*3 replicas.*Use 6,"),
        ({"objectives": ("reward", "energy")}, r"objectives.*1 for OpenES.*NSGA2"),
        ({"objectives": ("energy",)}, r"objectives.*\(\) for one reward"),
        ({"obs_statistics": "running"}, r"obs_statistics.*normalize_obs=False"),
        ({"agent": NORMALIZING}, r"obs_statistics.*normalize_obs=True"),
        ({"group": "actor"}, r"group.*policy"),
        ({"episodes_per_member": 0}, r"episodes_per_member"),
        ({"discount": 2.0}, r"discount.*at most 1"),
        ({"common_random_numbers": "no"}, r"common_random_numbers"),
        ({"max_episode_steps": 0}, r"max_episode_steps.*at least 1"),
        (
            {"limit": None, "task": "tf:Pendulum-v1", "settings": {"max_episode_steps": -1}},
            r"max_episode_steps: .*Pass max_episode_steps",
        ),
        ({"objectives": "return"}, r"objectives.*sequence of names"),
        ({"evaluator": "mine"}, r"evaluator.*Evaluator, or None, got 'mine'"),
        ({"eval_env": "tf:CartPole-v1"}, r"eval_env.*from tfrl.make_env"),
        (
            {"settings": {"outer_wrappers": [lambda env: RewardNormalize(env=env)]}},
            r"outer_wrappers.*moments",
        ),
    ],
)
def test_wrong_use(options, message):
    parts = options.pop("strategy", None)
    if parts:
        options = {**options, "strategy": mirrored(parts)}
    with pytest.raises(UserError, match=f"(?s){message}"):
        after(workflow_of(**options), 1)


def test_the_size_that_a_message_names_is_one_of_the_search():
    search = RVEA(pop_size=91, num_objectives=3, bounds=(-1.0, 1.0))
    options = {"objectives": ("a", "b", "c"), "strategy": mirrored(2)}
    with pytest.raises(UserError, match=r"RVEA.pop_size.*got 91. Use 120,"):
        EvolutionWorkflow(make_env("tf:CartPole-v1", num_envs=2), optimizer=search, **options)
    search.replace(pop_size=120)


def test_no_optimizer():
    with pytest.raises(UserError, match=r"a search of tfrl.evolution.*OpenES\(pop_size=128\)"):
        EvolutionWorkflow(make_env("tf:CartPole-v1", num_envs=2))
    with pytest.raises(UserError, match=r"got the class OpenES. Pass for example OpenES\("):
        EvolutionWorkflow(make_env("tf:CartPole-v1", num_envs=2), optimizer=OpenES)


def test_no_environment():
    with pytest.raises(UserError, match="^env: expected environments from tfrl.make_env, got str"):
        EvolutionWorkflow("tf:CartPole-v1", optimizer=OpenES(pop_size=4))
