"""A policy's predictions in NumPy, beside the agent's own answers."""

import numpy as np
import pytest
import tensorflow as tf

from tfrl import seeding, specs
from tfrl.agents import PPO
from tfrl.errors import UserError
from tfrl.rollout.policy import ObsReader, Policy

OBS = {"b": tf.TensorSpec([2], tf.float32), "a": specs.DiscreteSpec(3)}


@pytest.fixture(name="recurrent", scope="module")
def fixture_recurrent():
    agent = PPO(
        obs_spec=OBS,
        action_spec=specs.BoundedTensorSpec([1], tf.float32, -0.01, 0.01),
        hidden=(8,),
        memory="gru",
        memory_size=4,
    )
    return agent, agent.init(seeding.key(0))


def rows(seed, size):
    generator = np.random.default_rng(seed)
    return {
        "b": generator.normal(size=[size, 2]).astype(np.float32),
        "a": generator.integers(3, size=size),
    }


def test_memory_dict_observations_batches_and_clipped_actions(recurrent):
    agent, state = recurrent
    policy, size = Policy(agent, state), 3
    carry, ours = agent.initial_carry(size), None
    starts = [None, np.array([False, True, False]), None]
    for t, start in enumerate(starts):
        obs = rows(t, size)
        if start is not None:
            fresh = agent.initial_carry(size)
            carry = tf.nest.map_structure(lambda n, o, s=start: tf.where(s[:, None], n, o),
                                          fresh, carry)  # fmt: skip
        output = agent.evaluate_actions(state, obs, seeding.key(0), carry)
        action, ours = policy.predict(obs, state=ours, episode_start=start)
        np.testing.assert_allclose(action, np.clip(output.action, -0.01, 0.01), atol=1e-6)
        assert action.dtype == np.float32 and action.shape == (size, 1)
        carry = output.carry
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, carry)


def test_a_single_observation_is_a_row_of_a_batch(recurrent):
    policy = Policy(*recurrent)
    batch = rows(0, 2)
    both, after = policy.predict(batch)
    one = {"b": batch["b"][1].astype(np.float64), "a": int(batch["a"][1])}
    action, state = policy.predict(one)
    assert action.shape == (1,)
    np.testing.assert_allclose(action, both[1], atol=1e-6)
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a[0], b[1], atol=1e-6), state, after
    )


def test_drawn_actions_differ_and_repeat_by_seed(recurrent):
    first, second = (Policy(*recurrent, seed=7) for _ in range(2))
    obs = rows(0, 2)
    drawn = [first.predict(obs, deterministic=False)[0] for _ in range(3)]
    again = [second.predict(obs, deterministic=False)[0] for _ in range(3)]
    np.testing.assert_array_equal(drawn, again)
    assert len(np.unique(drawn)) > 1


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(2), "obs: expected a dict of a, b|obs: expected a dict of b, a"),
        ({"b": np.zeros(2)}, "got b"),
        ({"b": np.zeros(3), "a": 0}, "obs/b: expected float32 of shape .2."),
        ({"b": np.zeros(2), "a": 0.5}, "obs/a: expected int64, got float64"),
        ({"b": np.zeros([4, 2]), "a": np.zeros(3, int)}, "same batch size.*got 3, 4"),
        (
            {"b": np.zeros([0, 2]), "a": np.zeros(0, int)},
            "obs/a: expected at least one observation",
        ),
        ({"b": [[0.0, 0.0], [0.0]], "a": [0, 1]}, "obs/b: expected numbers, in lists of equal le"),
        ({"b": np.zeros(2), "a": 7}, "obs/a: expected whole numbers from 0 to 2, got 7"),
        ({"b": np.zeros([2, 2]), "a": [-1, 2]}, "obs/a: .* numbers from 0 to 2, got -1 to 2"),
    ],
)
def test_mistakes(recurrent, obs, message):
    with pytest.raises(UserError, match=message):
        Policy(*recurrent).predict(obs)


STATE = {name: {"hidden": np.zeros([3, 4], np.float32)} for name in ("policy", "value")}


def rows_of_state(size):
    return tf.nest.map_structure(lambda x: np.resize(x, [size, 4]), STATE)


@pytest.mark.parametrize(
    ("size", "state", "start", "message"),
    [
        (
            3,
            rows_of_state(1),
            None,
            r"state/policy/hidden: expected float32 of shape \[3, 4\], got",
        ),
        (None, rows_of_state(5), None, r"of shape \[1, 4\], got float32 of shape \[5, 4\]"),
        (3, np.zeros(3), None, "state: expected a dict of policy, value, got ndarray"),
        (3, (), None, "state: expected a dict of policy, value, got tuple"),
        (3, STATE, [True], r"episode_start: expected a bool, or bool of shape \[3\], got bool"),
        (3, None, [False] * 4, r"episode_start: .* got bool of shape \[4\]"),
    ],
)
def test_mistakes_of_states(recurrent, size, state, start, message):
    obs = rows(0, size) if size else {"a": 1, "b": [0.0, 1.0]}
    with pytest.raises(UserError, match=message):
        Policy(*recurrent).predict(obs, state=state, episode_start=start)


def test_a_state_may_be_lists(recurrent):
    policy, lists = Policy(*recurrent), tf.nest.map_structure(np.ndarray.tolist, STATE)
    ours, theirs = (policy.predict(rows(0, 3), state=s)[0] for s in (STATE, lists))
    np.testing.assert_array_equal(ours, theirs)


def test_states_without_memory():
    agent = PPO(obs_spec=tf.TensorSpec([2]), action_spec=specs.DiscreteSpec(2), hidden=(8,))
    policy = Policy(agent, agent.init(seeding.key(0)))
    assert policy.predict(np.zeros([2, 2]), episode_start=[True, False])[1] is None
    with pytest.raises(UserError, match=r"episode_start: expected a bool, or bool of shape .2."):
        policy.predict(np.zeros([2, 2]), episode_start=[True])
    with pytest.raises(UserError, match="state: expected None for a policy without memory, got li"):
        policy.predict(np.zeros(2), state=[0.0])


def test_ranges_of_integers():
    spec = {
        "image": specs.BoundedTensorSpec([2, 2], tf.uint8, 0, 255),
        "level": specs.DiscreteSpec(2, start=5),
        "parts": specs.MultiDiscreteSpec([2, 3]),
    }
    reader = ObsReader(spec)
    obs = {"image": np.full([2, 2], 255, np.uint8), "level": 6, "parts": [1, 2]}
    assert reader.read(obs)[1:] == (1, True)
    for change, message in (
        ({"level": np.int32(4)}, "obs/level: expected whole numbers from 5 to 6, got 4"),
        ({"parts": [2, 0]}, r"obs/parts: expected whole numbers from 0 to \[1, 2\], got 0 to 2"),
        ({"parts": [1, 0, 0]}, r"obs/parts: expected int64 of shape \[2\]"),
    ):
        with pytest.raises(UserError, match=message):
            reader.read({**obs, **change})
