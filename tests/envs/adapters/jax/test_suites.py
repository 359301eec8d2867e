"""Brax, gymnax and jumanji by their ids."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding, specs
from tfrl.distributions.factory import make_distribution
from tfrl.errors import UserError

pytest.importorskip("jax", reason="the extra 'jax' is not installed")
pytest.importorskip("brax", reason="the extra 'jax' is not installed")
pytest.importorskip("gymnax", reason="the extra 'jax' is not installed")
pytest.importorskip("jumanji", reason="the extra 'jax' is not installed")
from tests.envs.adapters.jax import references  # noqa: E402
from tfrl.envs.adapters.jax import BraxAdapter, create_wrapped_brax_env  # noqa: E402

SPRING = {"backend": "spring"}


@pytest.mark.parametrize(
    "env_id, kwargs",
    [
        ("jax/gymnax:CartPole-v1", {}),
        pytest.param("jax/gymnax:Breakout-MinAtar", {}, marks=pytest.mark.slow),
        pytest.param("jax/jumanji:Snake-v1", {}, marks=pytest.mark.slow),
        pytest.param("jax/brax:ant", SPRING, marks=pytest.mark.slow),
        pytest.param("jax/brax:halfcheetah", SPRING, marks=pytest.mark.slow),
    ],
)
def test_it_is_jax_to_the_bit_over_a_thousand_steps(env_id, kwargs):
    env = tfrl.make_env(env_id, 4, "SAME_STEP_CACHED", max_episode_steps=100, **kwargs)
    references.check_equal(env, 1000)


def test_gymnax_truncates_where_only_its_time_is_over():
    """What gymnax calls done at 3 steps is a truncation; the observation is the third one."""
    env = tfrl.make_env("jax/gymnax:CartPole-v1", 2, "SAME_STEP", max_steps_in_episode=3)
    assert env.max_episode_steps == 3
    state = env.reset(seeding.key(0))
    for _ in range(3):
        state = env.step(state, tf.zeros([2], tf.int32))
    assert state.truncation.numpy().all() and not state.termination.numpy().any()
    # Three pushes to the left: -10 N on about 1.1 kg over 0.02 s, three times.
    np.testing.assert_allclose(state.info["final_obs"][:, 1], [-0.58] * 2, atol=0.06)
    np.testing.assert_array_equal(np.abs(state.obs) <= 0.05, True)


def test_a_length_that_belongs_to_the_task_is_a_termination():
    env = tfrl.make_env("jax/gymnax:BernoulliBandit-misc", 2, max_steps_in_episode=3)
    assert env.max_episode_steps is None
    state = env.reset(seeding.key(0))
    for ended in (False, False, True):
        state = env.step(state, tf.zeros([2], tf.int32))
        np.testing.assert_array_equal(state.termination, [ended] * 2)
    assert not state.truncation.numpy().any()


@pytest.mark.slow
def test_parameters_of_gymnax_follow_the_arguments():
    env = tfrl.make_env("jax/gymnax:DeepSea-bsuite", 2, size=12)
    assert env.obs_spec.shape == [12, 12]
    state = env.reset(seeding.key(0))
    for _ in range(12):
        assert not state.termination.numpy().any()
        state = env.step(state, tf.zeros([2], tf.int32))
    assert state.termination.numpy().all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, limit, action",
    [
        ("Pendulum-v1", 200, specs.BoundedTensorSpec),
        ("Catch-bsuite", None, specs.DiscreteSpec),
        ("MemoryChain-bsuite", None, specs.DiscreteSpec),
        ("FourRooms-misc", 500, specs.DiscreteSpec),
        ("MetaMaze-misc", 200, specs.DiscreteSpec),
        ("BernoulliBandit-misc", None, specs.DiscreteSpec),
        ("PointRobot-misc", 100, specs.BoundedTensorSpec),
        ("SpaceInvaders-MinAtar", 1000, specs.DiscreteSpec),
    ],
)
def test_tasks_of_gymnax(task, limit, action):
    env = tfrl.make_env(f"jax/gymnax:{task}", 2)
    assert env.max_episode_steps == limit
    assert isinstance(env.action_spec, action)
    tfrl.envs.check_env(env)


@pytest.mark.parametrize(
    "task, action, mask",
    [
        ("Snake-v1", specs.DiscreteSpec(4, dtype=tf.int32), [4]),
        # Over all combinations: one Discrete of 10 x 10.
        ("Minesweeper-v0", specs.DiscreteSpec(100, dtype=tf.int32), [100]),
        # One mask for each of three agents, of 4 values each.
        ("Cleaner-v0", specs.MultiDiscreteSpec([4, 4, 4], dtype=tf.int32), [3, 4]),
    ],
)
def test_masks_of_jumanji(task, action, mask):
    env = tfrl.make_env(f"jax/jumanji:{task}", 2)
    assert env.action_spec == action
    assert env.obs_spec["action_mask"] == tf.TensorSpec(mask, tf.bool)
    make_distribution(env.action_spec).check_mask(env.obs_spec["action_mask"])


def test_a_field_of_minesweeper_is_the_action_of_its_number():
    env = tfrl.make_env("jax/jumanji:Minesweeper-v0", 1)
    state = env.reset(seeding.key(0))
    after = env.step(state, tf.constant([37]))
    board = after.info["final_obs"]["board"][0].numpy()
    assert np.argwhere(board != -1).tolist() == [[3, 7]]


def test_brax():
    """Actions within the actuators' range, metrics as info, limit of 1,000 steps."""
    env = tfrl.make_env("jax/brax:inverted_pendulum", 2, backend="spring")
    assert env.max_episode_steps == 1000
    assert env.action_spec == specs.BoundedTensorSpec([1], tf.float32, -3.0, 3.0)
    state = env.step(env.reset(seeding.key(0)), tf.zeros([2, 1]))
    assert state.obs.shape == [2, 4]
    np.testing.assert_array_equal(state.reward, [1, 1])


def test_other_names_of_brax():
    import brax.envs

    env = create_wrapped_brax_env(
        "inverted_pendulum", parallel=3, autoreset_mode="DISABLED", episode_length=7, **SPRING
    )
    assert (env.num_envs, env.autoreset.name, env.max_episode_steps) == (3, "DISABLED", 7)
    own = BraxAdapter(brax.envs.get_environment("inverted_pendulum", **SPRING), 3)
    assert (own.num_envs, own.action_spec) == (3, env.action_spec)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["generalized", "mjx", "positional"])
def test_backends_of_brax(backend):
    """JAX runs their linear algebra in LAPACK, so floats differ in their last bits."""
    env = tfrl.make_env(
        "jax/brax:inverted_pendulum", 2, "SAME_STEP_CACHED", max_episode_steps=5, backend=backend
    )
    references.check_equal(env, 10, tolerance=1e-4)


@pytest.mark.parametrize(
    "env_id, kwargs, message",
    [
        ("jax/brax:ants", {}, "expected a task of the suite jax/brax, got 'ants'. Did you mean"),
        ("jax/gymnax:Breakout", {}, "Did you mean Breakout-MinAtar?"),
        ("jax/jumanji:Snake-v7", {}, "Did you mean Snake-v1?"),
        ("jax/gymnax:CartPole-v1", {"gravity_": 1.0}, "got gravity_."),
        ("jax/jumanji:Snake-v1", {"rows": 3}, "got rows."),
        ("jax/brax:swimmer", {"back": "spring"}, "got back."),
        ("jax/brax:swimmer", {"backend": "spring"}, "Unsupported backend: spring."),
    ],
)
def test_errors(env_id, kwargs, message):
    with pytest.raises(UserError) as error:
        tfrl.make_env(env_id, **kwargs)
    assert message in str(error.value)
