"""Tests of single-agent episodes: adding, reading, chunks, other forms."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl.episodes import SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.types import Trajectory

COLUMNS = ("obs", "action", "reward")


def episode(steps, *, end="", numpy=False, id_="e", nested=False):
    """o_t = t, a_t = 100 + t, r_t = t / 2, log_prob = -t."""
    built = SingleAgentEpisode(id_)

    def obs(t):
        value = np.asarray(t, np.float32)
        return {"x": np.full([2], t, np.float32), "y": value} if nested else value

    built.add_env_reset(obs(0), {"t": 0})
    for t in range(steps):
        last = t == steps - 1
        built.add_env_step(
            obs(t + 1),
            100 + t,
            t / 2,
            {"t": t + 1},
            terminated=last and end == "terminated",
            truncated=last and end == "truncated",
            extra_model_outputs={"log_prob": np.float32(-t)},
        )
    return built.to_numpy() if numpy else built


def check_steps(got, first, stop):
    """Whether an episode has exactly the steps first to stop of `episode`."""
    assert len(got) == stop - first
    assert got.obs.tolist() == list(range(first, stop + 1))
    assert got.action.tolist() == [100 + t for t in range(first, stop)]
    assert got.reward.tolist() == [t / 2 for t in range(first, stop)]
    assert [info["t"] for info in got.infos] == list(range(first, stop + 1))
    if stop > first:
        assert got.policy_extras["log_prob"].tolist() == [-t for t in range(first, stop)]
    assert (got.t_started, got.t) == (first, stop)
    got.validate()


def test_adding_and_reading():
    built = episode(3, end="terminated")
    check_steps(built, 0, 3)
    assert built.is_done and built.is_terminated and not built.is_truncated
    assert built.termination.tolist() == [False, False, True]
    assert built.truncation.tolist() == [False, False, False]
    assert built.get_return() == 0.0 + 0.5 + 1.0
    assert built.reward.dtype == np.float32
    assert built.get_actions(-1) == 102
    assert built.get_extra_model_outputs("log_prob", slice(1, None)).tolist() == [-1, -2]
    assert built.get_infos(5, fill={}) == {}


def test_memory_that_the_environment_writes_into_again_is_copied():
    built, buffer = SingleAgentEpisode(), np.zeros([2], np.float32)
    built.add_env_reset(buffer)
    buffer[:] = 1
    built.add_env_step(buffer, 0, 0.0)
    buffer[:] = 2
    assert built.obs.tolist() == [[0, 0], [1, 1]]


@settings(deadline=None, max_examples=100)
@given(
    steps=st.integers(0, 6),
    start=st.one_of(st.none(), st.integers(-8, 8)),
    stop=st.one_of(st.none(), st.integers(-8, 8)),
    numpy=st.booleans(),
    end=st.sampled_from(["", "terminated", "truncated"]),
    lookback=st.integers(0, 4),
)
def test_slices_are_exact(steps, start, stop, numpy, end, lookback):
    built = episode(steps, end=end, numpy=numpy)
    taken = list(range(steps))[start:stop]
    part = built.slice(slice(start, stop), len_lookback_buffer=lookback)
    first = slice(start, stop).indices(steps)[0]
    last = taken[-1] + 1 if taken else first
    check_steps(part, first, last)
    has = min(lookback, first)
    assert part.len_lookback_buffer == has
    for column in COLUMNS:
        getter = {"obs": "observations", "action": "actions", "reward": "rewards"}[column]
        before = getattr(part, f"get_{getter}")(slice(-has, 0), neg_index_as_lookback=True)
        assert before.tolist() == getattr(built, column)[first - has : first].tolist()
    complete = last == steps
    assert part.is_terminated == (complete and built.is_terminated)
    assert part.is_truncated == (complete and built.is_truncated)


@settings(deadline=None, max_examples=50)
@given(steps=st.integers(1, 7), cuts=st.sets(st.integers(0, 7)), numpy=st.booleans())
def test_slices_concatenate_to_the_whole(steps, cuts, numpy):
    built = episode(steps, end="truncated", numpy=numpy)
    bounds = sorted({0, steps, *(c for c in cuts if c < steps)})
    parts = [built[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    whole = parts[0]
    for part in parts[1:]:
        whole.concat_episode(part)
    check_steps(whole, 0, steps)
    assert whole.is_truncated


def test_slices_of_a_slice_keep_their_lookback():
    part = episode(6).slice(slice(2, 6), len_lookback_buffer=2)
    again = part[1:3]  # as much lookback as the part has
    check_steps(again, 3, 5)
    assert again.get_actions(-1, neg_index_as_lookback=True) == 102
    assert again.len_lookback_buffer == 2


def test_cut_goes_on_and_the_first_chunk_stays():
    first = episode(3)
    second = first.cut(len_lookback_buffer=2)
    assert len(second) == 0 and second.t_started == 3
    assert second.get_observations(0) == 3
    second.add_env_step(
        4.0, 103, 1.5, {"t": 4}, truncated=True, extra_model_outputs={"log_prob": -3.0}
    )
    check_steps(first, 0, 3)
    check_steps(second, 3, 4)
    assert second.get_return() == 1.5  # the lookback's rewards do not count
    first.concat_episode(second)
    check_steps(first, 0, 4)
    assert first.is_truncated


def test_views_share_memory():
    built = episode(6, numpy=True)
    assert np.shares_memory(built[2:4].obs, built.obs)
    assert np.shares_memory(built[2:5][1:2].reward, built.reward)


def test_steps_can_follow_to_numpy():
    built = episode(3, numpy=True)
    built.add_env_step(4.0, 103, 1.5, {"t": 4}, extra_model_outputs={"log_prob": -3.0})
    assert not built.is_numpy
    check_steps(built, 0, 4)
    check_steps(built.to_numpy(), 0, 4)


ERRORS = {
    "second reset": (
        lambda: episode(2).add_env_reset(0.0),
        "episode e: expected a single reset, before the first step, got a second reset after 2 "
        "steps. Create a new SingleAgentEpisode for the next episode.",
    ),
    "step without a reset": (
        lambda: SingleAgentEpisode("e").add_env_step(0.0, 0, 0.0),
        "got a step while the episode has no reset",
    ),
    "step after the end": (
        lambda: episode(2, end="terminated").add_env_step(0.0, 0, 0.0),
        "got a step while the episode has ended",
    ),
    "cut at the end": (
        lambda: episode(2, end="terminated").cut(),
        "expected an ongoing episode, got an ended episode",
    ),
    "lengths": (
        lambda: SingleAgentEpisode("e", obs=[0, 1], action=[1, 2], reward=[1.0]),
        "got obs 2, action 2, reward 1, policy_extras 2, infos 2, lookback 0",
    ),
    "a slice with a step": (lambda: episode(4)[::2], "expected a slice of consecutive steps"),
    "an index": (lambda: episode(4)[1], "Read single items with get_observations(i)"),
    "a name of extras": (
        lambda: episode(2).get_extra_model_outputs("value"),
        "policy_extras['value']: expected one of ['log_prob'], got an unknown key",
    ),
    "changing extras": (
        lambda: episode(2).add_env_step(0.0, 0, 0.0),
        "policy_extras: expected log_prob: float32 [], got no log_prob",
    ),
    "an object": (
        lambda: SingleAgentEpisode().add_env_reset({"a": None}),
        "obs/a: expected an array, or a dict or tuple of arrays, got NoneType",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)


def test_concat_names_all_that_does_not_fit():
    with pytest.raises(UserError) as error:
        episode(3, end="terminated").concat_episode(episode(2, id_="f"))
    message = str(error.value)
    assert "id f after e" in message
    assert "an episode that has ended" in message
    assert "a chunk that starts at step 0 after step 3" in message
    assert "a different observation at the boundary" in message


def test_a_failed_step_leaves_nothing_behind():
    built = episode(2)
    with pytest.raises(UserError):
        built.add_env_step(2.0, 102, np.zeros([2]), extra_model_outputs={"log_prob": -2.0})
    check_steps(built, 0, 2)


def test_nested_observations_actions_and_rewards():
    built = SingleAgentEpisode()
    built.add_env_reset({"b": (1.0, [1, 2]), "a": 0})
    built.add_env_step(
        {"b": (2.0, [3, 4]), "a": 1}, {"move": 1, "aim": [0.5]}, {"win": 1.0, "time": -1}
    )
    built.to_numpy()
    assert built.obs["b"][1].tolist() == [[1, 2], [3, 4]]
    assert built.action["aim"].shape == (1, 1)
    assert built.get_return() == {"win": 1.0, "time": -1.0}
    assert built[:1].reward["time"].dtype == np.float32


# Trajectories.


def test_to_trajectory_has_true_successors():
    built = episode(3, end="truncated")
    rows = built.to_trajectory(["t"])
    assert isinstance(rows, Trajectory)
    assert rows.obs[:, 0].tolist() == [0, 1, 2]
    assert rows.next_obs[:, 0].tolist() == [1, 2, 3]
    assert rows.truncation[:, 0].tolist() == [False, False, True]
    assert not rows.termination.any() and rows.valid.all()
    assert rows.env_extras["t"][:, 0].tolist() == [1, 2, 3]
    assert rows.policy_extras["log_prob"].shape == (3, 1)


def test_a_chunk_without_steps_has_no_trajectory():
    with pytest.raises(UserError, match="expected at least one step"):
        episode(0).to_trajectory()
    with pytest.raises(UserError, match="env_extra_fields 'u'.*no item at steps \\[0, 1\\]"):
        episode(2).to_trajectory(["u"])


def trajectory():
    """Two columns of five rows; row 2 of column 0 is an autoreset's, column 1 ends at the end.

    The successor is obs + 1, but 99 at the end of an episode.
    """
    obs = np.arange(10, dtype=np.float32).reshape([5, 2])
    termination = np.zeros([5, 2], bool)
    truncation = np.zeros([5, 2], bool)
    termination[1, 0] = truncation[2, 1] = truncation[4, 1] = True
    valid = np.ones([5, 2], bool)
    valid[2, 0] = False
    ends = termination | truncation
    following = np.concatenate([obs[1:], obs[-1:] + 2])
    return Trajectory(
        obs={"o": obs},
        action=obs.astype(np.int32),
        reward=obs / 2,
        next_obs={"o": np.where(ends, np.float32(99), following)},
        termination=termination,
        truncation=truncation,
        valid=valid,
        policy_extras={"log_prob": -obs},
        env_extras={"k": obs + 0.5},
    )


def test_from_trajectory_drops_autoreset_rows_and_keeps_true_successors():
    rows = trajectory()
    found = SingleAgentEpisode.from_trajectory(
        tf.nest.map_structure(tf.constant, rows), t_started=[4, 0]
    )
    assert [e.obs["o"].tolist() for e in found] == [
        [0, 2, 99],  # column 0, rows 0 and 1
        [6, 8, 10],  # column 0, rows 3 and 4: unfinished
        [1, 3, 5, 99],  # column 1, rows 0 to 2
        [7, 9, 99],
    ]
    ends = [(e.is_terminated, e.is_truncated) for e in found]
    assert ends == [(True, False), (False, False), (False, True), (False, True)]
    assert [e.t_started for e in found] == [4, 0, 0, 0]
    assert found[1].policy_extras["log_prob"].tolist() == [-6, -8]
    assert found[2].infos[1]["k"] == 1.5
    assert len({e.id_ for e in found}) == 4


def test_trajectories_and_back():
    for original in SingleAgentEpisode.from_trajectory(trajectory()):
        rows = original.to_trajectory(["k"])
        (again,) = SingleAgentEpisode.from_trajectory(rows)
        for a, b in zip(
            tf.nest.flatten(rows), tf.nest.flatten(again.to_trajectory(["k"])), strict=True
        ):
            np.testing.assert_array_equal(a, b)


def test_an_invalid_row_without_an_end_before_splits():
    rows = trajectory()
    valid = np.ones([5, 2], bool)
    valid[1, 0] = False
    found = SingleAgentEpisode.from_trajectory(rows.replace(valid=valid))
    assert [len(e) for e in found] == [1, 3, 3, 2]
    assert not found[0].is_done
    everything = SingleAgentEpisode.from_trajectory(rows.replace(valid=None))
    assert sum(map(len, everything)) == 10


def test_t_started_must_fit():
    with pytest.raises(UserError, match="2 numbers, one per column, got 3 numbers"):
        SingleAgentEpisode.from_trajectory(trajectory(), t_started=[0, 0, 0])


# State.


@pytest.mark.parametrize("numpy", [False, True])
def test_state_round_trip(numpy):
    built = episode(5, end="truncated", numpy=numpy, nested=True)
    built.module_id = "m"
    part = built.slice(slice(2, 5), len_lookback_buffer=1)
    state = part.get_state()
    again = SingleAgentEpisode.from_state(state)
    assert again.id_ == "e" and again.module_id == "m" and again.agent_id is None
    assert again.obs["y"].tolist() == [2, 3, 4, 5]
    assert again.get_actions(-1, neg_index_as_lookback=True) == 101
    assert (again.t_started, again.len_lookback_buffer, again.is_truncated) == (2, 1, True)
    assert [int(i["t"]) for i in again.infos] == [2, 3, 4, 5]
    for leaf in tf.nest.flatten(state):
        assert isinstance(leaf, np.ndarray | str | int | bool), type(leaf)


@pytest.mark.parametrize("steps", [None, 0])
def test_state_of_an_empty_episode(steps):
    empty = SingleAgentEpisode("e") if steps is None else episode(0)
    again = SingleAgentEpisode.from_state(empty.get_state())
    assert len(again) == 0
    if steps is None:
        again.add_env_reset(0.0)
    again.add_env_step(1.0, 100, 0.0, extra_model_outputs={"log_prob": 0.0})
    assert len(again) == 1
