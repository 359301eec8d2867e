"""The train step as a function of the state: tensors in, tensors out."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfrl import networks, seeding, specs, struct
from tfrl.agents import DQN, PPO, SAC, TD3
from tfrl.errors import UserError
from tfrl.keras import api as tf_keras
from tfrl.learners import Learner, ModuleConfig
from tfrl.types import Transition

KEY = seeding.key(5)
OBS = tf.TensorSpec([3])
DISCRETE = specs.DiscreteSpec(4)
BOX = specs.BoundedTensorSpec([2], tf.float32, -1, 1)
SMALL = networks.MLP(hidden=(8,))
SCHEDULE = [[0, 1e-2], [100, 1e-3]]


def _ppo(**options):
    return PPO(obs_spec=OBS, action_spec=DISCRETE, torso=SMALL, **options)


def _off_policy(kind, **options):
    action_spec = DISCRETE if kind is DQN else BOX
    return kind(obs_spec=OBS, action_spec=action_spec, hidden=(8,), **options)


def _rows(agent, count=24, seed=0):
    """Random rows for a loss."""
    keys = [seeding.fold_in(KEY, 100 * seed + i) for i in range(6)]
    obs = specs.sample(agent.obs_spec, keys[0], [count])
    action = specs.sample(agent.action_spec, keys[1], [count])
    floats = [seeding.normal(key, [count]) for key in keys[2:]]
    if isinstance(agent, PPO):
        columns = {"log_prob": floats[0] - 1.5, "advantage": floats[1], "value_target": floats[2]}
        return struct.TensorDict({"obs": obs, "action": action, "value": floats[3], **columns})
    next_obs = specs.sample(agent.obs_spec, keys[3], [count])
    discount = tf.where(floats[1] > 0, 0.9, 0.0)
    return Transition(
        obs=obs, action=action, reward=floats[0], next_obs=next_obs, discount=discount
    )


def _learner(modules, config=None, **options):
    learner = Learner(modules, config=config or ModuleConfig(lr=SCHEDULE), **options)
    learner.build(KEY)
    return learner


def _fit(learner, **options):
    """An update of a state, as a function of it."""

    def fit(state, batch):
        steps = state.counters["env_steps"] + 24
        key = seeding.fold_in(KEY, steps)
        return learner.fit(state, batch, key=key, timesteps=steps, **options)

    return fit


def test_rows_may_be_numpy_arrays_and_env_steps_a_number():
    learner, rows = _learner(_ppo()), _rows(_ppo())
    state, results = struct.values(learner.learner_state), []
    for batch, steps in (
        (rows, tf.constant(5, tf.int64)),
        (tf.nest.map_structure(np.asarray, rows), 5),
    ):
        after, _ = learner.fit(state, batch, key=KEY, timesteps=steps, minibatch_size=8)
        assert after.counters["env_steps"].dtype == tf.int64
        results.append(after)
    tf.nest.map_structure(np.testing.assert_array_equal, *results)


@functools.cache
def _case(name):
    """The learner of a case, its rows, an update, and the same compiled."""
    agent, options = CASES[name]
    learner = _learner(agent)
    fit = _fit(learner, **options)
    return learner, _rows(agent), fit, tf.function(fit, autograph=False)


@pytest.fixture(autouse=True, scope="module")
def _forget_cases():
    yield
    _case.cache_clear()


def _twice(fit, state, batch):
    """The state after two updates in a row, and what each reports."""
    state, first = fit(state, batch)
    state, second = fit(state, batch)
    return state, [first, second]


CASES = {
    "minibatches": (_ppo(), {"num_epochs": 2, "minibatch_size": 8}),
    "one_step": (_ppo(), {}),
    "stops_early": (_ppo(target_kl=0.34), {"num_epochs": 4, "minibatch_size": 8}),
    "adapts": (_ppo(clip=None, kl_coef=0.2, kl_target=0.01), {"minibatch_size": 12}),
    "target_network": (_off_policy(DQN, target_every=2), {"shuffle": False}),
    "several_updates": (_off_policy(SAC), {"shuffle": False}),
    "delayed_actor": (_off_policy(TD3), {"shuffle": False}),
    "delayed_in_minibatches": (_off_policy(TD3), {"minibatch_size": 8}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.variants(3)
def test_tensors_change_as_variables_do(name):
    learner, batch, fit, pure = _case(name)
    start = struct.values(learner.learner_state)
    after, rows = _twice(pure, start, batch)
    _assert_same(struct.values(learner.learner_state), start)
    in_place = tf.function(lambda batch: fit(learner.learner_state, batch)[1], autograph=False)
    _assert_same([in_place(batch), in_place(batch)], rows)
    _assert_same(struct.values(learner.learner_state), after)
    changed = [np.any(x != y) for x, y in zip(*map(tf.nest.flatten, (start, after)), strict=True)]
    assert np.mean(changed) > 0.5
    assert after.counters["weights_seq_no"] == 2
    if name == "stops_early":
        assert 1 < sum(row["default_policy"]["gradient_steps"] for row in rows) < 24


@pytest.mark.parametrize(
    "name", ["minibatches", pytest.param("delayed_actor", marks=pytest.mark.slow)]
)
def test_eager_graph_and_xla_agree(name):
    learner, batch, fit, pure = _case(name)
    start = struct.values(learner.learner_state)
    graph, _ = _twice(pure, start, batch)
    eagerly, _ = _twice(fit, start, batch)
    _assert_same(eagerly, graph, atol=1e-5)
    xla, _ = _twice(tf.function(fit, jit_compile=True, autograph=False), start, batch)
    _assert_same(xla, graph, atol=1e-5)


def _assert_same(a, b, atol=0.0):
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=atol), a, b)


def test_a_step_that_is_not_finite_is_left_out():
    learner, batch, fit, _ = _case("one_step")
    batch = batch.replace(advantage=batch["advantage"] * np.nan)
    start = struct.values(learner.learner_state)
    after, rows = _twice(fit, start, batch)
    _assert_same(after.agent_state, start.agent_state)
    assert after.counters["skipped_steps"] == 2
    assert rows[0]["default_policy"]["skipped_steps"] == 1


def test_members_of_a_population_differ_in_state_only():
    """Two learners with other parameters and rates, stacked, in one call: each as it is apart."""
    agent = _ppo()
    batch = _rows(agent)
    learner = _learner(agent, ModuleConfig(lr=1e-2))
    fit = _fit(learner, minibatch_size=12)
    members = []
    for seed, rate in enumerate((1e-2, 3e-4)):
        other = Learner(agent, config=ModuleConfig(lr=rate))
        other.build(seed)
        members.append(struct.values(other.learner_state))
    stacked = struct.stack(members)
    traces = []

    @functools.partial(tf.function, autograph=False)
    def population(states):
        traces.append(1)
        return tf.map_fn(lambda state: fit(state, batch)[0], states)

    after = population(stacked)
    assert len(traces) == 1
    apart = tf.function(lambda state: fit(state, batch)[0], autograph=False)
    for i, member in enumerate(members):
        _assert_same(struct.take(after, i), apart(member))
    rates = after.opt_state["default_policy"]
    ((_, slots),) = rates.items()
    np.testing.assert_allclose(slots["learning_rate"], [1e-2, 3e-4])


@pytest.mark.slow
def test_shared_groups_stay_shared():
    agent = _off_policy(DQN)
    modules = {"a": agent, "b": agent}
    group = next(iter(agent.init(KEY).params))
    learner = _learner(modules, shared={f"a/{group}": [f"b/{group}"]})
    batch = {m: _rows(agent, seed=i) for i, m in enumerate(modules)}
    start = struct.values(learner.learner_state)
    fit = _fit(learner, num_epochs=2, minibatch_size=12)
    after, _ = tf.function(fit, autograph=False)(start, batch)
    tf.function(lambda: fit(learner.learner_state, batch)[1], autograph=False)()
    _assert_same(struct.values(learner.learner_state), after)
    a, b = (after.agent_state[m].params[group] for m in "ab")
    _assert_same(a, b)


def test_what_changes_variables_is_refused():
    agent = _ppo()
    start = struct.values(_learner(agent).learner_state)

    class Hooked(Learner):
        def apply_gradients(self, gradients_dict):
            super().apply_gradients(gradients_dict)

    learner = Hooked(agent)
    learner.build(KEY)
    call = {"batch": _rows(agent), "key": KEY, "timesteps": tf.constant(0, tf.int64)}
    with pytest.raises(UserError, match="apply_gradients, which changes variables"):
        learner.fit(start, **call)
    keras = _learner(agent, ModuleConfig(optimizer=tf_keras.optimizers.Adamax()))
    with pytest.raises(UserError, match="got Adamax"):
        keras.fit(struct.values(keras.learner_state), **call)
