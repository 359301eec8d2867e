"""Tests of multi-agent episodes against a plain simulation, agent by agent."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfrl.episodes import MultiAgentEpisode
from tfrl.errors import UserError

AGENTS = ("a", "b", "c")


@dataclasses.dataclass
class Step:
    """What one step of a script gives."""

    action: dict
    obs: dict
    reward: dict
    terminated: dict
    truncated: dict


def script(seed, length):
    """A reset and random steps in which agents act, pause, come late and end on their own."""
    rng = np.random.default_rng(seed)
    reset = {"a": 0.0} | ({"b": 0.25} if rng.random() < 0.5 else {})
    asked, waiting, gone, steps = set(reset), set(), set(), []
    for k in range(length):
        acts = {g for g in sorted(asked) if rng.random() < 0.7}
        asked, waiting = asked - acts, waiting | acts
        fresh = set(AGENTS) - asked - waiting - gone
        term = {g: True for g in sorted(asked | waiting) if rng.random() < 0.08}
        term["__all__"] = False  # so that the last agent's end leaves the episode open
        trunc = {g: True for g in sorted(asked | waiting) if rng.random() < 0.08}
        if k == length - 1 and rng.random() < 0.7:
            (term if rng.random() < 0.5 else trunc)["__all__"] = True
        every = term["__all__"] or "__all__" in trunc
        ends = (asked | waiting) if every else ({*term, *trunc} - {"__all__"})
        given = {g for g in sorted(waiting | fresh | ends) if rng.random() < 0.6}
        reward = {g: float(rng.integers(1, 9)) for g in AGENTS if g not in gone}
        reward = {g: r for g, r in reward.items() if rng.random() < 0.6}
        place = {g: i / 4 for i, g in enumerate(AGENTS)}
        obs = {g: k + 1 + place[g] for g in sorted(given)}
        action = {g: 100 * k + i for i, g in enumerate(AGENTS) if g in acts}
        steps.append(Step(action, obs, reward, term, trunc))
        gone |= ends | (given if every else set())
        asked = (asked | given) - gone
        waiting = waiting - given - gone
    return reset, steps


def play(reset, steps, episode=None):
    if episode is None:
        episode = MultiAgentEpisode("e", agent_to_module_mapping_fn=lambda a, e: f"module_{a}")
        episode.add_env_reset(reset, {"a": {"t": 0}, "common": {"x": 1}})
    for s in steps:
        episode.add_env_step(
            s.obs,
            s.action,
            s.reward,
            {g: {"t": episode.t + 1} for g in s.obs},
            terminated=s.terminated,
            truncated=s.truncated,
            extra_model_outputs={g: {"log_prob": np.float32(-x)} for g, x in s.action.items()},
        )
    return episode


def simulate(reset, steps, start):
    """Of every agent: its transitions completed after `start`, where it is, and how it ended."""
    agents = {}
    for agent in AGENTS:
        now, action, total = reset.get(agent), None, 0.0
        done, rows, end = [], [], ""  # rows: [obs, action, reward, next_obs, completed at]
        end_t = None
        for k, s in enumerate(steps):
            action = s.action.get(agent, action)
            total += s.reward.get(agent, 0.0)
            obs = s.obs.get(agent)
            term, trunc = s.terminated.get(agent), s.truncated.get(agent)
            if not (term or trunc):
                term, trunc = s.terminated.get("__all__"), s.truncated.get("__all__")
            if now is None:
                now, total = obs, (0.0 if obs is not None else total)
                obs = None
            if now is None or end_t is not None:
                continue
            if action is not None and (obs is not None or term):
                following = now if obs is None else obs
                rows.append([now, action, total, following, k + 1])
                now, action, total = following, None, 0.0
            elif action is None and (term or trunc) and rows and rows[-1][4] > start:
                rows[-1][2] += total
                rows[-1][3] = now = now if obs is None else obs
            if term or trunc:
                end, end_t = f"{bool(term)}{bool(trunc)}", k + 1
        done = [r for r in rows if r[4] > start]
        if now is not None and not (end_t is not None and end_t <= start):
            agents[agent] = (done, len(rows) - len(done), now, end)
    return agents


def check(episode, reset, steps, start):
    """Whether an episode, a chunk from `start` on, has what the simulation has."""
    wanted = simulate(reset, steps, start)
    assert episode.agent_ids == set(wanted)
    for agent, (rows, before, now, end) in wanted.items():
        got = episode.agent_episodes[agent]
        got.validate()
        assert got.action.tolist() == [r[1] for r in rows]
        assert got.reward.tolist() == [r[2] for r in rows]
        if rows:
            assert got.obs.tolist() == [r[0] for r in rows] + [rows[-1][3]]
            assert got.policy_extras["log_prob"].tolist() == [-r[1] for r in rows]
        else:
            assert len(got.obs) == 1
            if not end:
                assert got.obs.tolist() == [now]
        assert f"{got.is_terminated}{got.is_truncated}" == (end or "FalseFalse")
        assert got.t_started == before
        assert got.module_id == f"module_{agent}" and got.agent_id == agent


SCRIPTS = dict(seed=st.integers(0, 10_000), length=st.integers(0, 9))


@settings(deadline=None, max_examples=150)
@given(**SCRIPTS)
def test_agents_have_their_own_steps(seed, length):
    reset, steps = script(seed, length)
    check(play(reset, steps), reset, steps, 0)


@settings(deadline=None, max_examples=150)
@given(**SCRIPTS, numpy=st.booleans(), data=st.data())
def test_slices_are_exact(seed, length, numpy, data):
    reset, steps = script(seed, length)
    episode = play(reset, steps)
    if numpy:
        episode.to_numpy()
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    lookback = data.draw(st.integers(0, 3))
    part = episode.slice(slice(start, stop), len_lookback_buffer=lookback)
    assert (part.t_started, part.t, len(part)) == (start, stop, stop - start)
    assert part.len_lookback_buffer == min(lookback, start)
    assert part.is_done == (stop == length and episode.is_done)
    check(part, reset, steps[:stop], start)


@settings(deadline=None, max_examples=100)
@given(**SCRIPTS, data=st.data())
def test_a_cut_chunk_goes_on_as_the_slice_says(seed, length, data):
    reset, steps = script(seed, length)
    at = data.draw(st.integers(0, max(length - 1, 0)))
    first = play(reset, steps[:at])
    if first.is_done:
        return
    second = play(None, steps[at:], first.cut(len_lookback_buffer=data.draw(st.integers(0, 2))))
    check(first, reset, steps[:at], 0)
    check(second, reset, steps, at)
    if first.agent_ids or at < length:
        first.concat_episode(second)
        check(first, reset, steps, 0)
        whole = play(reset, steps)
        assert first.hanging_rewards() == whole.hanging_rewards()
        assert first.is_done == whole.is_done


@settings(deadline=None, max_examples=100)
@given(**SCRIPTS)
def test_no_reward_is_lost(seed, length):
    reset, steps = script(seed, length)
    episode = play(reset, steps)
    given = sum(r for s in steps for r in s.reward.values())
    assert episode.get_return(include_hanging_rewards=True) == pytest.approx(given)
    parts = [episode[k : k + 1] for k in range(length)]
    assert sum(p.agent_steps() for p in parts) == sum(
        len(rows) for rows, *_ in simulate(reset, steps, 0).values()
    )


@settings(deadline=None, max_examples=50)
@given(**SCRIPTS, data=st.data())
def test_state_round_trip(seed, length, data):
    reset, steps = script(seed, length)
    start = data.draw(st.integers(0, length))
    part = play(reset, steps).slice(slice(start, length), len_lookback_buffer=1)
    state = part.get_state()
    for leaf in tf.nest.flatten(state):
        assert isinstance(leaf, np.ndarray | str | int | float | bool), type(leaf)
    again = MultiAgentEpisode.from_state(state)
    check(again, reset, steps, start)
    tf.nest.map_structure(np.testing.assert_array_equal, again.get_state(), state)


def test_steps_mappings_and_rewards_by_hand():
    """A plays at steps 0 and 2, b at step 1 only; the rewards in between belong to both."""
    episode = MultiAgentEpisode("game")
    episode.add_env_reset({"a": 0.0}, {"a": {"turn": 1}, "board": {"empty": True}})
    assert episode.get_agents_to_act() == {"a"}
    episode.add_env_step({"b": 0.5}, {"a": 10}, {"a": 1.0, "b": 5.0})
    assert episode.get_agents_to_act() == {"b"}
    assert episode.get_agents_that_stepped() == {"a"}
    assert episode.agent_episodes["a"].is_done is False
    assert len(episode.agent_episodes["a"]) == 0  # no successor yet: the step hangs
    assert episode.hanging_rewards() == {"a": 1.0, "b": 5.0}
    episode.add_env_step({"a": 2.0}, {"b": 11}, {"a": 0.5})
    assert len(episode.agent_episodes["a"]) == 1
    episode.add_env_step({}, {"a": 12}, {"a": 2.0, "b": -1.0}, terminated=True)
    a, b = episode.agent_episodes["a"], episode.agent_episodes["b"]
    assert a.reward.tolist() == [1.5, 2.0] and a.action.tolist() == [10, 12]
    # b: the reward of step 1 came with its first observation, before anything that it did; its
    # terminal observation was not given, and nobody reads its value.
    assert b.reward.tolist() == [-1.0] and b.obs.tolist() == [0.5, 0.5]
    assert a.is_terminated and b.is_terminated and episode.is_terminated
    assert episode.get_return() == 2.5
    assert episode.get_return(include_hanging_rewards=True) == 7.5
    assert episode.env_to_agent_step("a", 2) == 1
    assert episode.env_to_agent_step("a", 1) is None
    assert episode.agent_to_env_step("b", 0) == 1
    assert a.infos[0] == {"turn": 1}
    assert episode.get_infos(0)["board"] == {"empty": True}
    assert len(episode) == 3 and episode.agent_steps() == 3


def test_a_truncated_agent_without_its_successor_keeps_its_last_complete_step():
    episode = MultiAgentEpisode()
    episode.add_env_reset({"a": 0.0, "b": 0.0})
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0})
    episode.add_env_step({"a": 2.0}, {"a": 1, "b": 1}, {"a": 1.0, "b": 9.0}, truncated=True)
    a, b = episode.agent_episodes["a"], episode.agent_episodes["b"]
    assert a.obs.tolist() == [0, 1, 2] and a.is_truncated
    # A step to nowhere would bootstrap from the wrong observation.
    assert b.obs.tolist() == [0, 1] and b.reward.tolist() == [1.0] and b.is_truncated
    assert episode.hanging_rewards()["b"] == 9.0


def test_an_agent_that_ends_before_it_acts_again_gets_the_reward_since():
    episode = MultiAgentEpisode()
    episode.add_env_reset({"a": 0.0, "b": 0.0})
    episode.add_env_step({"a": 1.0, "b": 1.0}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0})
    before = episode[:1]
    episode.add_env_step(
        {"a": 2.0, "b": 7.0}, {"a": 1}, {"a": 1.0, "b": -3.0}, truncated={"b": True}
    )
    b = episode.agent_episodes["b"]
    assert b.obs.tolist() == [0, 7] and b.reward.tolist() == [-2.0] and b.is_truncated
    assert episode.get_observations(-1) == {"a": 2.0, "b": 7.0}
    for early in (before, episode[:1]):  # a slice before knows nothing of it
        b = early.agent_episodes["b"]
        assert b.obs.tolist() == [0, 1] and b.reward.tolist() == [1.0] and not b.is_done
    assert not episode.is_done


def test_the_episode_is_done_when_all_agents_are():
    episode = MultiAgentEpisode()
    episode.add_env_reset({"a": 0.0, "b": 0.0})
    episode.add_env_step({"a": 1.0}, {"a": 0, "b": 0}, {}, terminated={"b": True})
    assert not episode.is_done and episode.get_agents_to_act() == {"a"}
    open_end = MultiAgentEpisode.from_state(episode.get_state())
    open_end.add_env_step({"a": 2.0}, {"a": 0}, {}, truncated={"a": True, "__all__": False})
    assert not open_end.is_done  # the environment says that others may come
    episode.add_env_step({"a": 2.0}, {"a": 0}, {}, truncated={"a": True})
    assert episode.is_truncated and not episode.is_terminated


def test_reading_by_environment_steps():
    episode = MultiAgentEpisode()
    episode.add_env_reset({"a": 0.0, "b": 0.5})
    for t in range(3):
        obs = {"a": t + 1.0} | ({"b": t + 1.5} if t == 1 else {})
        action = {"a": t} | ({"b": 10 + t} if t in (0, 2) else {})
        extras = {g: {"log_prob": -float(x)} for g, x in action.items()}
        episode.add_env_step(obs, action, {"a": float(t)}, extra_model_outputs=extras)
    assert episode.get_observations(0) == {"a": 0.0, "b": 0.5}
    assert episode.get_observations() == {"a": 3.0}
    every = episode.get_observations(None)
    assert every["a"].tolist() == [0, 1, 2, 3] and every["b"].tolist() == [0.5, 2.5]
    assert episode.get_observations(None, ["b"]).keys() == {"b"}
    assert episode.get_actions(slice(1, None))["b"].tolist() == [12]
    assert episode.get_extra_model_outputs("log_prob", 0) == {"a": 0.0, "b": -10.0}
    assert episode.get_rewards(slice(-2, None))["a"].tolist() == [1, 2]
    part = episode.slice(slice(2, 3), len_lookback_buffer=1)
    assert part.get_observations(-1, neg_index_as_lookback=True) == {"a": 1.0}
    assert part.get_rewards(-1, neg_index_as_lookback=True) == {"a": 1.0}
    with pytest.raises(UserError, match="obs: expected indices of 2 items with a lookback of 1"):
        part.get_observations(2)


def test_module_for_is_asked_once_and_kept():
    asked = []

    def mapping(agent_id, episode):
        asked.append(agent_id)
        return f"{agent_id}_{len(asked)}"

    episode = MultiAgentEpisode(agent_to_module_mapping_fn=mapping)
    episode.add_env_reset({"a": 0.0})
    episode.add_env_step({"a": 1.0}, {"a": 0}, {})
    assert episode.module_for("a") == "a_1"
    rest = episode.cut()
    rest.add_env_step({"a": 2.0, "b": 0.0}, {"a": 0}, {})
    assert rest.agent_episodes["a"].module_id == "a_1"
    assert rest.module_for("b") == "b_2"
    assert episode[:1].module_for("a") == "a_1"
    assert MultiAgentEpisode().module_for("x") == "default_policy"


def _two():
    episode = MultiAgentEpisode("e")
    episode.add_env_reset({"a": 0.0, "b": 0.0})
    return episode


def test_a_step_names_all_that_does_not_fit():
    episode = _two()
    episode.add_env_step({"a": 1.0}, {"a": 0, "b": 0}, {}, terminated={"b": True})
    with pytest.raises(UserError) as error:
        episode.add_env_step(
            {"a": 2.0, "b": 2.0}, {"c": 1}, {}, extra_model_outputs={"a": {"x": 1.0}}
        )
    assert str(error.value) == (
        "step 1 of episode e: expected actions of agents out of ['a'], and observations of agents "
        "that act next, got actions of agents without a new observation ['c']; data of ended "
        "agents ['b']; observations of agents that did not act on their last observation ['a']; "
        "policy extras without an action, of agents ['a']. Pass an action for each agent with a "
        "new observation, until the agent ends."
    )
    assert len(episode) == 1


ERRORS = {
    "second reset": (lambda: _two().add_env_reset({}), "expected a single reset"),
    "no reset": (
        lambda: MultiAgentEpisode("e").add_env_step({}, {}, {}),
        "got a step while the episode has no reset",
    ),
    "unknown agent": (
        lambda: _two().env_to_agent_step("z", 0),
        "agent 'z': expected one of ['a', 'b'], got an agent without an observation",
    ),
    "kind": (
        lambda: _two().add_env_step({"a": [1.0, 2.0]}, {"a": 0}, {}),
        "obs: expected float32 [], got float64 [2]",
    ),
    "slice": (lambda: _two()[0], "expected a slice of consecutive steps"),
    "cut": (lambda: MultiAgentEpisode("e").cut(), "got an episode without a reset"),
    "agent step": (lambda: _two().agent_to_env_step("a", 1), "expected indices of 1 items"),
    "concat": (lambda: _two().concat_episode(MultiAgentEpisode("f")), "id f after e"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)


def test_concat_refuses_another_state():
    first, other = _two(), _two()
    other.add_env_step({"a": 3.0}, {"a": 0}, {})
    first.add_env_step({"a": 1.0}, {"a": 0}, {})
    with pytest.raises(UserError, match="a different state of agents \\['a'\\] at the boundary"):
        first.concat_episode(other.cut())
