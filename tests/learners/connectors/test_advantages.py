"""Advantages and targets of episodes: worked numbers, a loop, one call, few traces."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learners.connectors import connector_fakes as fakes
from tfrl import ops
from tfrl.episodes import MultiAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import connectors

GAE = connectors.GeneralAdvantageEstimation
# One for all tests, so that functions are traced once.
PIPELINE = connectors.default_learner_pipeline({"m": fakes.LinearValue()})


def run(pipeline, modules, states, episodes, shared_data=None):
    return pipeline(
        modules=modules,
        states=states,
        batch={},
        episodes=episodes,
        shared_data={} if shared_data is None else shared_data,
    )


@pytest.mark.parametrize(
    "end, targets",
    # gamma = lambda = 1: the rewards to come, 3 2 1, plus V = 10 where the episode goes on
    [("truncated", [13, 12, 11]), ("terminated", [3, 2, 1]), ("", [13, 12, 11])],
)
def test_the_end_decides_what_is_bootstrapped(end, targets):
    modules = {"m": fakes.LinearValue()}
    pipeline = connectors.default_learner_pipeline(modules, discount=1.0, lambda_=1.0)
    # A second episode around it: nothing leaks from one to the other.
    episodes = [fakes.episode(2), fakes.episode(3, end=end, reward=1.0), fakes.episode(4)]
    shared = {}
    rows = run(pipeline, modules, {"m": fakes.constant(10)}, episodes, shared)["m"]
    np.testing.assert_allclose(rows.value_target[2:5], targets)
    np.testing.assert_allclose(rows.advantage[2:5], np.array(targets) - 10)
    np.testing.assert_allclose(rows.value, [10.0] * 9)
    assert shared["metrics"]["m"]["value_mean"] == 10.0


@settings(deadline=None, max_examples=20)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 1000),
)
def test_equals_the_loop_and_ops_gae_episode_by_episode(lengths, seed):
    rng = np.random.default_rng(seed)
    ends = rng.choice(["", "terminated", "truncated"], len(lengths))
    episodes = [fakes.episode(n, rng, end=e) for n, e in zip(lengths, ends, strict=True)]
    modules, state = {"m": fakes.LinearValue()}, fakes.linear()
    rows = run(PIPELINE, modules, {"m": state}, episodes)["m"]
    advantages, targets = [], []
    for e in episodes:
        if not len(e):
            continue
        values = 0.5 * e.obs.sum(-1) + 1.0
        advantage, target = fakes.gae_loop(e.reward, values, e.is_terminated, 0.9, 0.8)
        advantages.append(advantage)
        targets.append(target)
        trajectory = e.to_trajectory()
        by_ops, _ = ops.gae(
            reward=trajectory.reward,
            value=modules["m"].compute_values(state, trajectory.obs),
            next_value=modules["m"].compute_values(state, trajectory.next_obs),
            termination=trajectory.termination,
            truncation=trajectory.truncation,
            discount=0.9,
            lambda_=0.8,
        )
        np.testing.assert_allclose(by_ops[:, 0], advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rows.advantage, np.concatenate(advantages), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rows.value_target, np.concatenate(targets), rtol=1e-4, atol=1e-5)


def test_several_agents_with_unequal_ends():
    """Agents of two modules; b ends at step 2, a and c at 4, c is truncated."""
    rng = np.random.default_rng(3)
    episode = MultiAgentEpisode(
        agent_to_module_mapping_fn=lambda agent, episode: "odd" if agent == "b" else "even"
    )
    episode.add_env_reset({a: rng.normal(size=[2]).astype(np.float32) for a in "abc"})
    alive = {"a", "b", "c"}
    for t in range(4):
        ended = {"b": True} if t == 1 else {}
        finished = {"__all__": True} if t == 3 else {}
        episode.add_env_step(
            {a: rng.normal(size=[2]).astype(np.float32) for a in sorted(alive)},
            {a: t for a in sorted(alive)},
            {a: rng.normal() for a in sorted(alive)},
            terminated=ended,
            truncated=finished,
            extra_model_outputs={a: {"log_prob": -1.0} for a in sorted(alive)},
        )
        alive -= set(ended)
    modules = {"even": fakes.LinearValue(), "odd": fakes.LinearValue(discount=0.5)}
    states = {"even": fakes.linear(), "odd": fakes.linear(slope=-1.0)}
    batch = run(connectors.default_learner_pipeline(modules), modules, states, [episode])
    assert {m: len(rows.obs) for m, rows in batch.items()} == {"even": 8, "odd": 2}
    agents = episode.agent_episodes
    for module_id, names, slope, discount in (("even", "ac", 0.5, 0.9), ("odd", "b", -1.0, 0.5)):
        wanted = [
            fakes.gae_loop(
                agents[a].reward,
                slope * agents[a].obs.sum(-1) + 1,
                agents[a].is_terminated,
                discount,
                0.8,
            )[0]
            for a in names
        ]
        got = batch[module_id].advantage
        np.testing.assert_allclose(got, np.concatenate(wanted), rtol=1e-4, atol=1e-5)


def test_one_forward_pass_and_few_traces():
    """100 calls with 1 to 100 steps: a trace for 8, 16, ..., 128 rows, and none for new values."""
    sizes = []

    class Counting:
        discount, gae_lambda = 0.9, 0.8

        def compute_values(self, state, obs):
            sizes.append(obs.shape[0])
            return tf.reduce_sum(obs, -1)

    modules = {"m": Counting()}
    pipeline = connectors.default_learner_pipeline(modules)
    for n in range(1, 101):
        state = fakes.constant(n)
        batch = run(pipeline, modules, {"m": state}, [fakes.episode(n), fakes.episode(3)])
        assert len(batch["m"].obs) == n + 3
    assert sizes == [8, 16, 32, 64, 128]
    piece = pipeline[GAE]
    assert piece._gae.traces == 5


def test_a_new_module_under_the_same_name_is_used():
    modules, states = {"m": fakes.LinearValue()}, {"m": fakes.constant(1)}
    pipeline = connectors.default_learner_pipeline(modules)
    run(pipeline, modules, states, [fakes.episode(2)])

    class Seven(fakes.NoValue):
        discount, gae_lambda = 0.9, 0.8

        def compute_values(self, state, obs):
            return tf.fill([tf.shape(obs)[0]], 7.0)

    rows = run(pipeline, {"m": Seven()}, states, [fakes.episode(2)])["m"]
    np.testing.assert_array_equal(rows.value, [7, 7])


def test_float64_observations_are_cast_to_the_spec():
    modules = {"m": fakes.LinearValue()}
    built = fakes.episode(2)
    wide = type(built)(obs=built.obs.astype(np.float64), action=built.action, reward=built.reward)
    rows = run(PIPELINE, modules, {"m": fakes.linear()}, [wide])["m"]
    assert rows.obs.dtype == tf.float32
    np.testing.assert_allclose(rows.value, 0.5 * built.obs[:2].sum(-1) + 1, rtol=1e-5)


# Errors.


def test_what_modules_lack_is_named_all_at_once():
    class NoLambda:
        updates = ("one",)

        def compute_values(self, state, obs):
            return tf.zeros([1])

    class NoValue(fakes.NoValue):
        gae_lambda = 0.9

    modules = {"a": NoValue(), "b": fakes.LinearValue(), "c": NoLambda(), "d": fakes.NoValue()}
    with pytest.raises(UserError) as error:
        connectors.default_learner_pipeline(modules, discount=0.9)
    assert str(error.value) == (
        "GeneralAdvantageEstimation: expected modules with a value function compute_values(state, "
        "obs), and with discount and gae_lambda unless the pipeline sets them, got 'a' has no "
        "compute_values(state, obs) -> [N]; 'c' has no gae_lambda. Implement ValueFunctionAPI, "
        "exclude modules with module_ids=, or remove this piece from the pipeline."
    )


def test_a_module_without_values_has_no_advantages_unless_asked():
    class Frozen:
        updates = ()

    modules = {"m": fakes.LinearValue(), "frozen": Frozen()}
    states = {"m": fakes.linear(), "frozen": None}
    pipeline = connectors.default_learner_pipeline(modules)
    assert list(run(pipeline, modules, states, [fakes.episode(2, module_id="m")])) == ["m"]
    both = [fakes.episode(2, module_id="m"), fakes.episode(2, module_id="frozen")]
    batch = run(pipeline, modules, states, both)
    assert "advantage" not in batch["frozen"] and "advantage" in batch["m"]
    pipeline[GAE].module_ids = {"m", "frozen"}
    with pytest.raises(UserError, match="'frozen' has no compute_values"):
        run(pipeline, modules, states, both)


def test_values_of_another_shape():
    class Column:
        discount, gae_lambda = 0.9, 0.8

        def compute_values(self, state, obs):
            return tf.reduce_sum(obs, -1, keepdims=True)

    modules = {"m": Column()}
    with pytest.raises(UserError) as error:
        run(
            connectors.default_learner_pipeline(modules),
            modules,
            {"m": fakes.linear()},
            [fakes.episode(2)],
        )
    assert "compute_values of module 'm': expected float32 [3]" in str(error.value)
    assert "got float32 [3, 1]. Squeeze the last axis" in str(error.value)


@pytest.mark.parametrize("numbers", [{"discount": 1.1}, {"lambda_": -0.1}])
def test_numbers_out_of_range(numbers):
    with pytest.raises(UserError, match="expected a number from 0 to 1"):
        GAE(**numbers)
