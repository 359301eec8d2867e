"""Round trips between this library's records and TF-Agents', whatever the episodes and specs."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from gymnasium import spaces
from hypothesis import strategies as st
from tf_agents.specs import array_spec
from tf_agents.trajectories import PolicyStep, StepType, TimeStep, trajectory
from tf_agents.trajectories import time_step as time_step_lib
from tf_agents.utils import nest_utils

from tfrl import specs
from tfrl.compat import tf_agents as compat
from tfrl.types import Trajectory

FIRST, LAST = np.int32(StepType.FIRST), np.int32(StepType.LAST)

LEAVES = [
    tf.TensorSpec([], tf.float32),
    tf.TensorSpec([2], tf.float64),
    tf.TensorSpec([2], tf.bool),
    specs.BoundedTensorSpec([2, 1], tf.uint8, 0, 255),
    specs.BoundedTensorSpec([2], tf.float32, -1000.0, 1000.0),
    specs.DiscreteSpec(256, start=0, dtype=tf.int32),
    specs.DiscreteSpec(256, start=0, dtype=tf.int64),
]
LEAF = st.sampled_from(LEAVES)
NEST = st.recursive(
    LEAF,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
        | st.tuples(inner, inner)
    ),
    max_leaves=4,
)
SIZES = st.tuples(st.integers(1, 9), st.integers(1, 3))  # T, B
SEEDS = st.integers(0, 2**31)
ENDS = st.sampled_from([0.0, 0.3, 0.7, 1.0])  # how likely a step ends its episode
KIND = st.sampled_from([lambda nest: nest, lambda nest: tf.nest.map_structure(tf.constant, nest)])
SETTINGS = hypothesis.settings(
    deadline=None, max_examples=80, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)


def values(spec, number):
    """A nest in which every leaf shows a number."""
    return tf.nest.map_structure(
        lambda s: np.full(s.shape, number % 200).astype(s.dtype.as_numpy_dtype), spec
    )


def stacked(rows, axis=0):
    return tf.nest.map_structure(lambda *x: np.stack(x, axis), *rows)


def assert_equal(a, b):
    tf.nest.assert_same_structure(a, b, check_types=False)
    for x, y in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype, (x.dtype, y.dtype)
        np.testing.assert_array_equal(x, y)


def our_rows(rng, length, ends, obs, action, info):
    """The rows of one environment under NEXT_STEP, from anywhere in an episode."""
    number, over = int(rng.integers(100)), rng.random() < 0.5
    for _ in range(length):
        end = "" if over or rng.random() >= ends else rng.choice(["term", "trunc", "both"])
        yield Trajectory(
            obs=values(obs, number),
            action=values(action, number),
            reward=np.float32(0.0 if over else number + 0.5),
            next_obs=values(obs, number + 1),
            termination=np.bool_(end in ("term", "both")),
            truncation=np.bool_(end in ("trunc", "both")),
            valid=np.bool_(not over),
            policy_extras=values(info, number) if info else None,
        )
        number, over = number + 1, bool(end)


def their_frames(rng, length, ends, obs, action, info, discount):
    """The frames of one environment as a driver makes them of time steps."""
    number, now = int(rng.integers(100)), None
    for _ in range(length + 1 + int(rng.integers(2))):
        seen, reward = values(obs, number), np.float32(number + 0.5)
        if now is None or now.step_type == LAST:
            then = time_step_lib.restart(seen)
        elif rng.random() >= ends:
            then = time_step_lib.transition(seen, reward, discount)
        elif rng.random() < 0.5:
            then = time_step_lib.termination(seen, reward)
        else:
            then = time_step_lib.truncation(seen, reward, discount)
        if now is not None:
            taken = PolicyStep(values(action, number), (), values(info, number) if info else ())
            yield trajectory.from_transition(now, taken, then)
        number, now = number + 1, then


@hypothesis.given(
    sizes=SIZES, seed=SEEDS, ends=ENDS, obs=NEST, action=NEST, info=st.just(()) | NEST, kind=KIND
)
@SETTINGS
def test_ours_to_theirs_and_back(sizes, seed, ends, obs, action, info, kind):
    length, num_envs = sizes
    rng = np.random.default_rng(seed)
    envs = [stacked(our_rows(rng, length, ends, obs, action, info)) for _ in range(num_envs)]
    ours = kind(stacked(envs, 1))
    theirs = compat.to_trajectory(ours, first=rng.random(num_envs) < 0.5)

    spec = compat.trajectory_spec(obs, action)._replace(policy_info=info)
    frames = tf.nest.map_structure(tf.convert_to_tensor, theirs)
    assert nest_utils.is_batched_nested_tensors(frames, spec, num_outer_dims=2)
    assert_equal(theirs.next_step_type[:, :-1], theirs.step_type[:, 1:])

    back = compat.from_trajectory(theirs)
    # A discount of 0 says that it terminated, and then not whether it was cut too.
    wanted = ours.replace(truncation=ours.truncation & ~ours.termination)
    assert_equal(back, wanted)


@hypothesis.given(
    sizes=SIZES,
    seed=SEEDS,
    ends=ENDS,
    obs=NEST,
    action=NEST,
    info=st.just(()) | NEST,
    discount=st.sampled_from([1.0, 0.5]),
    kind=KIND,
)
@SETTINGS
@pytest.mark.slow
def test_theirs_to_ours_and_back(sizes, seed, ends, obs, action, info, discount, kind):
    length, num_envs = sizes
    rng = np.random.default_rng(seed)

    def one():
        found = list(their_frames(rng, length + 2, ends, obs, action, info, discount))
        return stacked(found[: length + 1])

    theirs = kind(stacked([one() for _ in range(num_envs)]))
    ours = compat.from_trajectory(theirs)
    back = compat.to_trajectory(ours, discount=discount, first=theirs.step_type[:, 0] == FIRST)

    # Of the last frame they know more than what its row shows; none of it is ever read.
    def head(frames):
        return tf.nest.map_structure(lambda x: x[:, :-1], frames)

    assert_equal(head(back), head(theirs))
    assert_equal(back.observation, theirs.observation)
    assert_equal(back.step_type, theirs.step_type)

    if tf.is_tensor(theirs.reward):
        pair = trajectory.to_transition(theirs)
        swap = tf.nest.map_structure(
            lambda x: np.swapaxes(x, 0, 1), (ours.next_obs, ours.reward, ours.obs)
        )
        after = pair.next_time_step
        assert_equal((after.observation, after.reward, pair.time_step.observation), swap)


@hypothesis.given(
    seed=SEEDS, obs=NEST, batch=st.none() | st.integers(1, 4), discount=st.sampled_from([1.0, 0.9])
)
@SETTINGS
def test_time_steps(seed, obs, batch, discount):
    rng = np.random.default_rng(seed)
    makers = [
        time_step_lib.restart,
        lambda o: time_step_lib.transition(o, np.float32(2.0), discount),
        lambda o: time_step_lib.truncation(o, np.float32(3.0), discount),
        lambda o: time_step_lib.termination(o, np.float32(4.0)),
    ]
    made = [makers[rng.integers(4)](values(obs, i)) for i in range(batch or 1)]
    theirs = TimeStep(*stacked(made)) if batch else made[0]
    seen = compat.from_time_step(theirs)
    ends = seen.termination | seen.truncation
    assert_equal(ends, theirs.is_last())
    assert_equal(seen.termination, theirs.is_last() & (theirs.discount == 0))
    assert_equal(seen.first, theirs.is_first())
    assert_equal(compat.time_step(seen, obs, discount), theirs)


def test_frames_made_one_by_one():
    """Their constructors: first, mid, last, boundary, single_step."""
    make = {
        name: lambda number, discount, name=name: getattr(trajectory, name)(
            np.array([number], np.float32),
            np.array([number], np.int64),
            (),
            np.array([0.0 if name == "boundary" else number], np.float32),
            np.array([discount], np.float32),
        )
        for name in ("first", "mid", "last", "boundary", "single_step")
    }
    frames = stacked(
        [
            make["first"](0, 1.0),
            make["mid"](1, 1.0),
            make["last"](2, 0.0),
            make["boundary"](3, 1.0),
            make["single_step"](4, 1.0),
            make["boundary"](5, 1.0),
            make["first"](6, 1.0),
        ],
        1,
    )
    ours = compat.from_trajectory(frames)
    assert ours.valid[:, 0].tolist() == [True, True, True, False, True, False]
    assert ours.termination[:, 0].tolist() == [False, False, True, False, False, False]
    assert ours.truncation[:, 0].tolist() == [False, False, False, False, True, False]
    assert ours.next_obs[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    back = compat.to_trajectory(ours, first=True)
    for name in ("step_type", "next_step_type", "discount", "reward", "action"):
        assert_equal(getattr(back, name)[:, :-1], getattr(frames, name)[:, :-1])


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int32]))
    if dtype == np.uint8:
        return spaces.Box(0, 255, shape, dtype)
    low = draw(st.integers(-5, 0))
    if draw(st.booleans()) and dtype != np.int32:
        return spaces.Box(-np.inf, np.inf, shape, dtype)
    return spaces.Box(low, low + 3, shape or (1,), dtype)


SPACES = st.recursive(
    boxes()
    | st.builds(
        lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-3, 3)
    )
    | st.builds(spaces.MultiDiscrete, st.lists(st.integers(2, 5), min_size=1, max_size=3))
    | st.builds(spaces.MultiBinary, st.integers(1, 4)),
    lambda inner: (
        st.builds(
            spaces.Dict,
            st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2),
        )
        | st.builds(lambda x, y: spaces.Tuple([x, y]), inner, inner)
    ),
    max_leaves=4,
)


@hypothesis.given(space=SPACES)
@SETTINGS
def test_spaces(space):
    """gymnasium's space to our spec to their spec, and back to the same spec."""
    spec = specs.to_spec(space)
    theirs = compat.array_spec(spec, "x")
    back = compat.from_tf_agents_spec(theirs, "action")
    leaves = zip(tf.nest.flatten(back), tf.nest.flatten(spec), strict=True)
    for again, first in leaves:
        if isinstance(first, specs.BoundedTensorSpec) and first.dtype == tf.int32:
            # As an action, a box of whole numbers is a choice.
            assert np.all(again.minimum == first.minimum)
            assert np.all(again.maximum == first.maximum)
        else:
            assert again == first
    tf.nest.assert_same_structure(back, spec)
    sample = tf.nest.map_structure(np.asarray, _plain(space.sample()))
    assert array_spec.check_arrays_nest(sample, theirs)
    tensors = tf.nest.map_structure(lambda x: tf.constant(x)[None], sample)
    assert nest_utils.is_batched_nested_tensors(tensors, compat.tensor_spec(spec, "x"))


def _plain(sample):
    if isinstance(sample, dict):
        return {name: _plain(x) for name, x in sample.items()}
    return tuple(map(_plain, sample)) if isinstance(sample, tuple) else sample
