"""Sequences of recurrent modules: padding, masks, states, values."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.learners.connectors import connector_fakes as fakes
from tfrl.episodes import SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import connectors
from tfrl.types import AgentState

MODULES = {"m": fakes.RunningSum()}
STATES = {"m": AgentState(params={})}


def recurrent(steps, *, end="", store="state_out"):
    """o_t = t + 1; the state starts at 100 and is the sum of all observations so far."""
    obs = np.arange(1, steps + 2, dtype=np.float32)
    after = 100 + np.cumsum(obs)[:-1]  # after o_t
    before = after - obs[:-1]
    state = {"state_out": after, "state_in": before}[store] if store else None
    return SingleAgentEpisode(
        obs=obs,
        action=np.arange(steps),
        reward=np.ones([steps]),
        policy_extras={store: {"sum": state.astype(np.float32)}} if store else None,
        termination=end == "terminated",
    )


def run(episodes, max_seq_len, modules=MODULES):
    pipeline = connectors.default_learner_pipeline(modules, max_seq_len=max_seq_len)
    states = {m: AgentState(params={}) for m in modules}
    return pipeline(modules=modules, states=states, batch={}, episodes=episodes, shared_data={})


def test_sequences_by_hand():
    rows = run([recurrent(3), recurrent(2)], 2)["m"]
    assert rows.obs.numpy().tolist() == [[1, 2], [3, 0], [1, 2]]
    assert rows.mask.numpy().tolist() == [[True, True], [True, False], [True, True]]
    assert rows.action.numpy().tolist() == [[0, 1], [2, 0], [0, 1]]
    # at the start 100; before step 2 the first two observations have been added
    assert rows.state_in["sum"].numpy().tolist() == [100, 103, 100]
    assert "state_out" not in rows


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    max_seq_len=st.integers(1, 5),
    store=st.sampled_from(["state_out", "state_in"]),
)
def test_masked_steps_are_the_steps_and_states_fit(lengths, max_seq_len, store):
    episodes = [recurrent(n, store=store) for n in lengths]
    rows = run(episodes, max_seq_len)["m"]
    count = sum(-(-n // max_seq_len) for n in lengths)
    for name in ("obs", "action", "reward", "advantage", "value_target", "mask", "termination"):
        assert rows[name].shape[:2] == [count, max_seq_len]
    mask = rows.mask.numpy()
    assert mask.sum() == sum(lengths)
    assert (np.diff(mask.astype(int), axis=1) <= 0).all()  # padding only at the end
    np.testing.assert_array_equal(
        rows.obs.numpy()[mask], np.concatenate([e.obs[:-1] for e in episodes])
    )
    for name in ("obs", "reward", "advantage", "action", "value"):
        assert not rows[name].numpy()[~mask].any()
    # a sequence that starts with o_t = t + 1 has the state 100 + 1 + ... + t
    first = rows.obs.numpy()[:, 0] - 1
    np.testing.assert_array_equal(rows.state_in["sum"], 100 + first * (first + 1) / 2)


def test_values_run_over_whole_episodes_from_their_states():
    """V(o_t) is the state after o_t, whatever the length of sequences and of other episodes."""
    episodes = [recurrent(5, end="terminated"), recurrent(2)]
    rows = run(episodes, 3)["m"]
    mask = rows.mask.numpy()
    values = [100 + np.cumsum(e.obs) for e in episodes]
    np.testing.assert_allclose(rows.value.numpy()[mask], np.concatenate([v[:-1] for v in values]))
    wanted = [
        fakes.gae_loop(e.reward, v, e.is_terminated, 0.9, 0.8)[0]
        for e, v in zip(episodes, values, strict=True)
    ]
    np.testing.assert_allclose(rows.advantage.numpy()[mask], np.concatenate(wanted), rtol=1e-4)


def test_a_chunk_starts_with_the_state_of_its_lookback():
    whole = recurrent(6)
    chunk = whole.slice(slice(4, 6), len_lookback_buffer=1)
    rows = run([chunk], 4)["m"]
    assert rows.state_in["sum"].numpy().tolist() == [100 + 1 + 2 + 3 + 4]
    np.testing.assert_allclose(rows.value[0, :2], (100 + np.cumsum(whole.obs))[4:6])


@pytest.mark.parametrize(
    "chunk, step",
    [
        (recurrent(6)[4:6], 4),  # no lookback
        (recurrent(3, store=None), 2),  # no states: the second sequence cannot start
    ],
)
def test_a_state_that_is_not_there_is_an_error(chunk, step):
    with pytest.raises(UserError, match=f"the recurrent state before step {step}, got extras"):
        run([chunk], 2)


def test_other_modules_keep_rows():
    modules = {"m": fakes.RunningSum(), "flat": fakes.LinearValue()}
    flat = fakes.episode(5, module_id="flat")
    sequences = recurrent(3)
    sequences.module_id = "m"
    pipeline = connectors.default_learner_pipeline(modules, max_seq_len=2)
    batch = pipeline(
        modules=modules,
        states={"m": STATES["m"], "flat": fakes.linear()},
        batch={},
        episodes=[flat, sequences],
        shared_data={},
    )
    assert batch["flat"].obs.shape == [5, 2] and batch["flat"].mask.shape == [5]
    assert batch["m"].obs.shape == [2, 2] and "state_in" not in batch["flat"]


def test_states_need_sequences():
    pieces = [connectors.AgentToModule(), connectors.AddStates()]
    with pytest.raises(UserError, match="Put AddTimeDimAndMask before it"):
        connectors.ConnectorPipeline(pieces)(
            modules=MODULES, states=STATES, batch={}, episodes=[recurrent(2)], shared_data={}
        )


@pytest.mark.parametrize("length", [0, 2.5, True, None])
def test_max_seq_len_is_checked(length):
    with pytest.raises(UserError, match="max_seq_len: expected a whole number of at least 1"):
        connectors.AddTimeDimAndMask(length)


def test_a_none_carry_means_not_recurrent():
    @fakes.struct.logic_dataclass
    class NotRecurrent(fakes.LinearValue):
        def initial_carry(self, batch_size):
            return None

    modules = {"m": NotRecurrent()}
    pipeline = connectors.default_learner_pipeline(modules)
    batch = pipeline(
        modules=modules,
        states={"m": fakes.linear()},
        batch={},
        episodes=[fakes.episode(3)],
        shared_data={},
    )
    assert batch["m"].obs.shape == [3, 2]
    assert isinstance(batch["m"].obs, tf.Tensor)
