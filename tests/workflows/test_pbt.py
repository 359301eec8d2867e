"""PBTWorkflow: members as separate runs, exploitation, lineage, resumed runs, errors."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import make_env, seeding, struct, traces
from tfrl.agents import DQN, PPO, SAC, TD3
from tfrl.errors import UserError
from tfrl.evolution import OpenES
from tfrl.evolution.pbt import Hyperparameter, Perturb, Truncation
from tfrl.learners import ModuleConfig
from tfrl.ops.schedules import LinearSchedule
from tfrl.replay import InGraphReplay
from tfrl.workflows import EvolutionWorkflow, OffPolicyWorkflow, OnPolicyWorkflow, PBTWorkflow

TRACED = []
LR = Hyperparameter(path="learning_rate", low=1e-4, high=1e-1)
CLIP = Hyperparameter(path="extra/clip", low=0.05, high=0.5, scale="linear")
DISCOUNT = Hyperparameter(path="extra/discount", low=0.9, high=0.999, scale="one_minus")
ENTROPY = Hyperparameter(path="extra/entropy_coef", low=1e-3, high=1.0)


@struct.logic_dataclass
class TracedPPO(PPO):
    """Records each Python call of a traced function."""

    def loss(self, *args, **kwargs):
        TRACED.append("loss")
        return super().loss(*args, **kwargs)


def member(agent=TracedPPO, task="tf:CartPole-v1", lr=1e-3, names=("clip", "discount")):
    settings = {"hidden": (4,), "hyperparameters": names}
    return OnPolicyWorkflow(
        env=make_env(task, num_envs=4),
        agent=functools.partial(agent, normalize_obs=True, **settings),
        learner_config=ModuleConfig(lr=lr, grad_clip=0.5),
        **{"rollout_length": 8, "num_epochs": 1, "num_minibatches": 2, "eval_episodes": 2},
        compile="graph",
    )


def stays(fitness, key):
    return tf.range(fitness.shape[0])


def all_follow_the_last(fitness, key):
    return tf.fill([fitness.shape[0]], fitness.shape[0] - 1)


def pbt(hyperparameters=(LR, CLIP, DISCOUNT), num_members=3, workflow=None, **options):
    options = {"compile": "graph", "iterations_per_round": 2, **options}
    return PBTWorkflow(workflow or member(), hyperparameters, num_members, **options)


def assert_same(a, b):
    tf.nest.map_structure(np.testing.assert_array_equal, struct.values(a), struct.values(b))


def test_members_are_runs_of_their_own():
    workflow = pbt(exploit=stays)
    state = workflow.setup(0)
    before = state.opt_state.members
    state = workflow.advance(state, 2).state
    single = workflow.workflow
    for i in range(3):
        own = struct.take(before, i)
        after = single.advance(own, 4).state
        for name in ("agent_state", "opt_state", "env_state", "metrics"):
            assert_same(
                getattr(struct.take(state.opt_state.members, i), name), getattr(after, name)
            )
    row, state = workflow.step(state)
    steps = state.opt_state.members.metrics.learner["learner_steps"]
    assert row["learner_steps"] == int(tf.reduce_sum(steps)) > 0
    rates = workflow._values(before)[0].numpy()
    assert len(set(rates)) == 3 and rates.min() >= 1e-4 and rates.max() <= 1e-1


def test_who_takes_over_has_all_but_environments_keys_and_counters():
    workflow = pbt(exploit=all_follow_the_last, explore=Perturb(factor=1.5))
    state = workflow.setup(0)
    members = workflow.train(state.opt_state.members, 1)
    parents = tf.constant([2, 2, 2])
    after, _ = workflow.take_over(members, tf.zeros([3, 3]), parents, seeding.key(0))
    old, new = struct.paths(members), struct.paths(after)
    for path, leaf in new.items():
        taken = path.startswith(("agent_state", "opt_state")) and not path.endswith("/key")
        if path.endswith(("learning_rate", "extra/clip", "extra/discount")):
            continue
        taken |= path in ("metrics/episode_return", "metrics/episode_length")
        expected = np.stack([old[path][2]] * 3) if taken else old[path]
        np.testing.assert_array_equal(leaf, expected, err_msg=path)
    before, found = workflow._values(members), workflow._values(after)
    for h, x, y in zip(workflow.hyperparameters, before, found, strict=True):
        np.testing.assert_array_equal(y[2], x[2])  # a surviving member keeps its values
        moves = np.abs(h.coordinate(y[:2]) - h.coordinate(x[2]))
        at_end = np.isin(y[:2], [np.float32(h.low), np.float32(h.high)])
        step = 0.5 * (h.high - h.low) if h.scale == "linear" else np.log(1.5)
        assert np.all(at_end | (np.abs(moves - step) < 1e-3))


@pytest.mark.slow
def test_a_copy_has_its_parents_fitness_until_an_episode_of_its_own_has_ended():
    """Else the fitness of the weights that it has lost would have it replaced again and again."""
    # Episodes of 200 steps, of which a round has 48.
    workflow = pbt(workflow=member(task="tf:Pendulum-v1"), num_members=4, iterations_per_round=6)
    done = workflow.advance(workflow.setup(0), 8)
    assert not any(row["nonfinite_members"] for row in done.rows)  # only no fitness yet
    lineage = struct.slice(done.state.opt_state.lineage, 0, 8)
    fitness, parents = lineage.fitness.numpy(), lineage.parents.numpy()
    assert np.isfinite(fitness).all(axis=1).tolist() == [False] * 4 + [True] * 4
    assert (parents[4:7] != np.arange(4)).any()
    for t in range(4, 7):  # until the next episodes end
        np.testing.assert_array_equal(fitness[t + 1], fitness[t][parents[t]])


def test_a_coefficient_in_place_of_its_schedule_is_searched():
    single = member(names=("entropy_coef",))
    workflow = pbt(
        (ENTROPY,), workflow=single, exploit=all_follow_the_last, explore=Perturb(factor=1.5)
    )
    state = workflow.setup(0)
    (drawn,) = workflow._values(state.opt_state.members)
    assert len(set(drawn.numpy())) == 3
    equal = struct.stack([struct.take(state.opt_state.members, 0)] * 3)  # but for the coefficient
    trained = workflow.train(workflow._with_values(equal, [drawn]), 1)
    np.testing.assert_array_equal(workflow._values(trained)[0], drawn)
    kernels = tf.nest.flatten(trained.agent_state.params)[0].numpy()
    assert all(np.any(kernels[i] != kernels[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    _, state = workflow.step(state)
    (explored,) = workflow._values(state.opt_state.members)
    moves = np.abs(np.log(explored / drawn[2]))
    np.testing.assert_allclose(moves, [np.log(1.5), np.log(1.5), 0.0], atol=1e-4)


def test_it_is_traced_once():
    traces.forget_all()
    TRACED.clear()
    small, large = pbt(num_members=2), pbt(num_members=3)
    small.advance(small.setup(0), 2)
    once = len(TRACED)
    large.advance(large.setup(0), 2)
    assert len(TRACED) == 2 * once  # for any number of members
    TRACED.clear()
    again = pbt(num_members=3)
    again.advance(again.setup(5), 2)
    assert TRACED == []


def test_a_run_goes_on_to_the_bit(tmp_path):
    workflow = pbt(fitness="evaluation")
    state = workflow.advance(workflow.setup(3), 2).state
    workflow.save(state, tmp_path)
    whole = workflow.advance(state, 2).state
    other = pbt(fitness="evaluation")
    assert_same(other.advance(other.restore(tmp_path), 2).state, whole)


def test_the_lineage_is_recorded_and_drawn(tmp_path):
    workflow = pbt(exploit=all_follow_the_last, max_rounds_recorded=3)
    state = workflow.setup(0)
    assert workflow.write_pictures(state, tmp_path) == {}  # no round yet
    values = [struct.stack(workflow._values(state.opt_state.members))]
    for _ in range(4):
        row, state = workflow.step(state)
        values.append(struct.stack(workflow._values(state.opt_state.members)))
    lineage = state.opt_state.lineage
    assert lineage.parents.shape == [3, 3]
    np.testing.assert_array_equal(lineage.parents, 2)
    np.testing.assert_array_equal(lineage.values, struct.stack(values)[:3])
    assert row["taken_over"] == 2
    assert row["fitness_best"] >= row["fitness_mean"]
    assert row["env_steps"] == 4 * 3 * 2 * 32
    found = workflow.write_pictures(state, tmp_path)
    assert found["Lineage"].stat().st_size > 10_000


@pytest.mark.parametrize("fitness", ["training", "evaluation"])
def test_the_best_member_is_what_the_run_shows(fitness):
    workflow = pbt(fitness=fitness)
    state = workflow.setup(0)
    row, state = workflow.step(state)
    best = int(np.nanargmax(state.opt_state.lineage.fitness[0]))
    assert_same(state.agent_state, struct.take(state.opt_state.members.agent_state, best))
    assert row["fitness_best"] == np.nanmax(state.opt_state.lineage.fitness[0])
    assert row["best/learning_rate"] == workflow._values(state.opt_state.members)[0][best]
    assert workflow.evaluate(state)[0]["eval_episodes"] == 2


def search():
    settings = {"pop_size": 4, "hyperparameters": ("learning_rate", "noise_std")}
    return EvolutionWorkflow(
        make_env("tf:CartPole-v1", num_envs=2),
        optimizer=OpenES(**settings),
        max_episode_steps=20,
        eval_episodes=2,
        compile="graph",
    )


def test_searches_are_members_too():
    single = search()
    noise = Hyperparameter(path="settings/noise_std", low=1e-2, high=1.0)
    workflow = pbt((LR, noise), workflow=single, exploit=all_follow_the_last)
    state = workflow.advance(workflow.setup(0), 2).state
    searches = state.opt_state.members.opt_state.search
    assert len({tuple(key) for key in searches.key.numpy()}) == 3  # no two draw the same
    population, _ = single.optimizer.ask(struct.take(searches, 0))
    assert np.isfinite(tf.nest.flatten(population)[0]).all()


class OneIsKnownLater(PBTWorkflow):
    """The first round has no fitness; later all members but the second have one."""

    def fitness(self, members, key):
        known = members.metrics.iterations > 1
        return tf.where(known, tf.constant([1.0, np.nan, 3.0]), np.nan)


def test_who_takes_over_whom_where_fitness_is_not_known():
    workflow = OneIsKnownLater(member(), (LR,), 3, compile="graph", iterations_per_round=1)
    row, state = workflow.step(workflow.setup(0))
    assert row["taken_over"] == 0 and row["lost_members"] == 3
    row, state = workflow.step(state)
    assert row["lost_members"] == 1 and row["fitness_best"] == 3.0 and row["fitness_mean"] == 2.0
    np.testing.assert_array_equal(state.opt_state.lineage.parents[:2], [[0, 1, 2], [0, 2, 2]])


class OneBreaks(PBTWorkflow):
    """The returns of the second member are not finite."""

    def fitness(self, members, key):
        broken = tf.range(self.num_members) == 1
        return tf.where(broken, np.nan, super().fitness(members, key))


def test_a_member_whose_returns_are_not_finite_is_counted_and_warned_of(capsys):
    workflow = OneBreaks(member(), (LR,), 3, compile="graph", iterations_per_round=8)
    row, state = workflow.step(workflow.setup(0))
    assert row["lost_members"] == row["nonfinite_members"] == 1
    workflow.learn(state, total_env_steps=3_000, progress=False)
    said = capsys.readouterr().out
    assert said.count("Warning") == 1  # one warning for three rounds
    assert said.startswith("Warning: members with non-finite fitness at 1,536 env steps: 1 of 3.")


PRIORITIZED = functools.partial(InGraphReplay, capacity=64, kind="prioritized")


def off_policy(env_id="tf:Pendulum-v1", **options):
    settings = {"hidden": (4,), "normalize_obs": True, "hyperparameters": SAC.in_state}
    options = {
        "agent": functools.partial(SAC, **settings),
        "replay": functools.partial(InGraphReplay, capacity=64),
        **{"batch_size": 8, "random_steps": 16, "eval_episodes": 2, "compile": "graph"},
        **options,
    }
    return OffPolicyWorkflow(make_env(env_id, num_envs=1), **options)


OF_DQN = {"env_id": "tf:CartPole-v1", "agent": functools.partial(DQN, hidden=(4,))}


def linear(path, low):
    return Hyperparameter(path=path, low=low, high=1.0, scale="linear")


@pytest.mark.slow
def test_members_may_learn_from_replay(tmp_path):
    entropy = Hyperparameter(path="extra/target_entropy", low=-2.0, high=0.0, scale="linear")
    single = off_policy(rollout_length=4, updates_per_step=0.4)  # 1 or 2 learner steps
    options = {"workflow": single, "iterations_per_round": 10, "exploit": stays}
    workflow = pbt((LR, DISCOUNT, entropy), 2, **options)
    state = workflow.setup(0)
    before = state.opt_state.members
    assert state.metrics.env_steps == 2 * 16  # the random env steps
    state = workflow.advance(state, 2).state
    after = state.opt_state.members
    for i in range(2):  # 80 steps: the buffer of 64 has wrapped around
        alone = single.advance(struct.take(before, i), 20).state
        assert alone.metrics.learner["learner_steps"] == 32
        for name in ("agent_state", "opt_state", "env_state", "replay_buffer_state"):
            assert_same(getattr(struct.take(after, i), name), getattr(alone, name))
    taken, _ = workflow.take_over(after, tf.zeros([3, 2]), tf.constant([1, 1]), seeding.key(0))
    assert_same(taken.replay_buffer_state, after.replay_buffer_state)
    assert_same(struct.take(taken.agent_state.params, 0), struct.take(after.agent_state.params, 1))

    workflow.save(state, tmp_path)
    whole = workflow.advance(state, 1).state
    assert_same(workflow.advance(workflow.restore(tmp_path), 1).state, whole)


@pytest.mark.slow
def test_members_may_learn_from_each_step():
    workflow = pbt((LR,), 2, workflow=off_policy(), iterations_per_round=20, exploit=stays)
    state = workflow.setup(1)
    before = state.opt_state.members
    after = workflow.advance(state, 1).state.opt_state.members
    alone = workflow.workflow.advance(struct.take(before, 0), 20).state
    assert_same(struct.take(after, 0).agent_state, alone.agent_state)


@pytest.mark.slow
@pytest.mark.parametrize("agent, env_id", [(DQN, "tf:CartPole-v1"), (TD3, "tf:Pendulum-v1")])
def test_members_of_other_algorithms(agent, env_id):
    """Target networks, exploration schedules and delayed actors equal a separate run's."""
    make = functools.partial(agent, hidden=(4,), hyperparameters=agent.in_state)
    single = off_policy(env_id=env_id, agent=make)
    workflow = pbt((LR, DISCOUNT), 2, workflow=single, iterations_per_round=20, exploit=stays)
    state = workflow.setup(1)
    before = state.opt_state.members
    after = workflow.advance(state, 2).state.opt_state.members
    for i in range(2):
        alone = single.advance(struct.take(before, i), 40).state
        assert alone.metrics.learner["learner_steps"] > 10
        assert_same(struct.take(after, i).agent_state, alone.agent_state)
        assert_same(struct.take(after, i).opt_state, alone.opt_state)
    workflow.take_over(after, tf.zeros([3, 2]), tf.constant([1, 1]), seeding.key(0))


@pytest.mark.slow
def test_members_are_compiled_as_one_program_that_several_cores_run():
    workflow = pbt((LR,), 2, compile="xla", iterations_per_round=1)
    state = workflow.advance(workflow.setup(0), 1).state
    modes = workflow.runner(state).modes
    assert (modes["members"], modes["loop"]) == ("xla", "graph")
    assert state.metrics.env_steps == 64


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: pbt(workflow=off_policy(replay=PRIORITIZED)), "state stacks.*priorities"),
        (lambda: sac(hyperparameters=("discount",), n_step=3), "n_step=1.*n-step rewards"),
        (lambda: pbt(workflow=member(task="gymnasium:CartPole-v1")), "state stacks.*host"),
        (lambda: pbt(workflow=pbt()), "state stacks"),
        (lambda: pbt(workflow="ppo"), "workflow"),
        (lambda: pbt(exploit=Truncation), r"exploit.*Truncation\(\)"),
        (lambda: pbt(explore="perturb"), "explore.*'perturb'"),
        (lambda: pbt(fitness="return"), "fitness.*training"),
        (
            lambda: pbt((Hyperparameter(path="gae_lambda", low=0.1, high=1.0),)).setup(0),
            "extra/clip",
        ),
        (lambda: pbt((Hyperparameter(path="kernel", low=0.1, high=1.0),)).setup(0), "a float32"),
        (lambda: pbt((Hyperparameter(path="count", low=0.1, high=1.0),)).setup(0), "a float32"),
        (lambda: pbt(LR), "sequence of Hyperparameter"),
        (lambda: pbt((LR, LR)), "own path"),
        (
            lambda: pbt((CLIP, Hyperparameter(path="clip", low=0.1, high=0.2))).setup(0),
            "/clip, which 'extra/clip' sets too",
        ),
        (
            lambda: pbt((LR,), workflow=member(lr=LinearSchedule(1e-2, 0.0, 100))).setup(0),
            "learning_rate.*a number, got LinearSchedule.*ModuleConfig.lr",
        ),
        (
            lambda: pbt((Hyperparameter(path="extra/discount", low=0.9, high=3.0),)).setup(0),
            "extra/discount.*high.*at most 1",
        ),
        (
            lambda: pbt((linear("settings/noise_std", 0.0),), workflow=search()).setup(0),
            "settings/noise_std': low: expected a number above 0, got 0.0",
        ),
        (
            lambda: pbt((linear("learning_rate", -0.1),)).setup(0),
            "'learning_rate': low: expected a number above 0, got -0.1",
        ),
        (
            lambda: pbt((ENTROPY,)).setup(0),
            r"entropy_coef, which TracedPPO sets.*TracedPPO\(hyperparameters=\('entropy_coef',\)\)",
        ),
        (
            lambda: pbt((linear("extra/epsilon", 0.1),), workflow=off_policy(**OF_DQN)).setup(0),
            "extra/epsilon, which DQN sets.*one of DQN.hyperparameters: discount, tau",
        ),
        (
            lambda: pbt((Hyperparameter(path="batch_size", low=8.0, high=64.0),)).setup(0),
            "no such leaf.*changes shapes.*one population per",
        ),
        (lambda: PPO(hyperparameters=("hidden",), **specs()), "hyperparameters.*clip.*shapes"),
    ],
)
def test_wrong_use(make, message):
    with pytest.raises(UserError, match=f"(?s){message}"):
        make()


def specs(task="tf:CartPole-v1"):
    env = make_env(task, num_envs=1)
    return {"obs_spec": env.obs_spec, "action_spec": env.action_spec}


def sac(**settings):
    return SAC(hidden=(4,), **specs("tf:Pendulum-v1"), **settings)


@pytest.mark.slow
def test_settings_of_sac_in_the_state_train_as_those_of_the_agent():
    one = sac(discount=0.9, tau=0.1, target_entropy=-0.5)
    flows = [off_policy(agent=agent) for agent in (one, one.replace(hyperparameters=SAC.in_state))]
    params = [flow.advance(flow.setup(0), 20).state.agent_state for flow in flows]
    params = [(x.params, x.target_params) for x in params]
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), *params
    )


def test_settings_in_the_state_train_as_those_of_the_agent():
    one = tfrl.PPO(hidden=(4,), **specs(), discount=0.9, clip=0.1, gae_lambda=0.8)
    other = one.replace(hyperparameters=("discount", "clip", "gae_lambda", "value_coef"))
    flows = [
        OnPolicyWorkflow(
            make_env("tf:CartPole-v1", num_envs=4), agent, rollout_length=8, compile="graph"
        )
        for agent in (one, other)
    ]
    params = [flow.advance(flow.setup(0), 3).state.agent_state.params for flow in flows]
    tf.nest.map_structure(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), *params
    )
