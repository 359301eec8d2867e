"""Editing pipelines, what pieces say when they stand in the wrong place, and the default one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learners.connectors import connector_fakes as fakes
from tfrl import seeding, struct
from tfrl.agents.actor_critic import PolicyBatch
from tfrl.agents.ppo import PPO
from tfrl.episodes import SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import connectors
from tfrl.specs import BoundedTensorSpec


class Mark(connectors.Connector):
    """Notes its letter."""

    def __init__(self, letter):
        self.letter = letter

    @property
    def name(self):
        return self.letter

    def __call__(self, *, modules, states, batch, episodes, shared_data):
        return {**batch, "order": batch.get("order", "") + self.letter}


class Other(Mark):
    """Another class."""


def run(pipeline, modules=None, states=None, episodes=(), batch=None, shared_data=None):
    return pipeline(
        modules=modules or {},
        states=states or {},
        batch={} if batch is None else batch,
        episodes=list(episodes),
        shared_data={} if shared_data is None else shared_data,
    )


def test_pieces_run_in_order_and_pipelines_nest():
    inner = connectors.ConnectorPipeline([Mark("b"), Mark("c")])
    pipeline = connectors.ConnectorPipeline([Mark("a"), inner, Mark("d")])
    assert run(pipeline)["order"] == "abcd"


def test_editing():
    pipeline = connectors.ConnectorPipeline([Mark("b"), Other("d")])
    pipeline.insert_before("d", Mark("c")).prepend(Mark("a")).append(Mark("f"))
    pipeline.insert_after(Other, Mark("e"))
    assert pipeline.names == list("abcdef")
    assert run(pipeline)["order"] == "abcdef"
    assert pipeline["c"].letter == "c" and pipeline[Other].letter == "d"
    pipeline.remove("a").remove(Other)
    assert run(pipeline)["order"] == "bcef" and len(pipeline) == 4
    assert repr(pipeline) == "ConnectorPipeline(b > c > e > f)"


@pytest.mark.parametrize(
    "edit",
    [
        lambda p: p.insert_before("Bach", Mark("x")),
        lambda p: p.insert_after("Bach", Mark("x")),
        lambda p: p.remove("Bach"),
        lambda p: p["Bach"],
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_pieces(edit):
    pipeline = connectors.ConnectorPipeline([connectors.Batch(), connectors.ToTensors()])
    with pytest.raises(UserError) as error:
        edit(pipeline)
    assert str(error.value) == (
        "the connector 'Bach': expected one of the pipeline's pieces: Batch, ToTensors, got no "
        "such piece. Did you mean Batch?"
    )


def test_an_unknown_class_and_an_empty_pipeline():
    with pytest.raises(UserError, match="the connector 'AddStates'.*no piece.*Append it first"):
        connectors.ConnectorPipeline().remove(connectors.AddStates)


@pytest.mark.parametrize(
    "piece, got", [(connectors.Batch, "the class Batch"), (3, "int"), (len, "builtin")]
)
def test_only_connectors_are_pieces(piece, got):
    with pytest.raises(UserError, match=f"expected an instance of a subclass.*got {got}"):
        connectors.ConnectorPipeline().append(piece)


# Stages.

STAGES = {
    "values before the mapping": (
        [
            connectors.AddObservationsFromEpisodes(),
            connectors.GeneralAdvantageEstimation(0.9, 0.9),
        ],
        "GeneralAdvantageEstimation: expected rows of episodes grouped by module.*after "
        "AgentToModule",
    ),
    "columns after the mapping": (
        [connectors.AgentToModule(), connectors.AddColumnsFromEpisodes()],
        "AddColumnsFromEpisodes: expected rows grouped by episode.*Put it before AgentToModule",
    ),
    "tensors before the batch": (
        [connectors.AgentToModule(), connectors.ToTensors()],
        "ToTensors: expected columns grouped by module.*Put it after Batch",
    ),
    "values without observations": (
        [connectors.AgentToModule(), connectors.GeneralAdvantageEstimation(0.9, 0.9)],
        "GeneralAdvantageEstimation: expected a column 'obs', got columns \\[\\]",
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_piece_in_the_wrong_place_says_where_it_belongs(name):
    pieces, message = STAGES[name]
    with pytest.raises(UserError, match=message):
        run(
            connectors.ConnectorPipeline(pieces),
            {"m": fakes.LinearValue()},
            {"m": fakes.linear()},
            [fakes.episode(2)],
        )


NO_STEPS = {
    "an empty list": [],
    "1 without a step": [SingleAgentEpisode(obs=[0.0])],
}


@pytest.mark.parametrize("got", NO_STEPS)
def test_no_step_is_an_error(got):
    pipeline = connectors.default_learner_pipeline({"m": fakes.LinearValue()})
    with pytest.raises(UserError, match=f"at least one episode with a step, got {got}"):
        run(pipeline, {"m": fakes.LinearValue()}, {"m": fakes.linear()}, NO_STEPS[got])


def test_something_else_than_an_episode():
    with pytest.raises(UserError, match="expected SingleAgentEpisodes.*got dict"):
        run(connectors.AgentToModule(), {"m": None}, episodes=[{}])


# Columns.


def test_columns_have_no_row_too_many():
    episodes = [fakes.episode(3, end="terminated"), fakes.episode(2, lookback=2), fakes.episode(0)]
    modules, states = {"m": fakes.LinearValue()}, {"m": fakes.linear()}
    pipeline = connectors.default_learner_pipeline(modules)
    pipeline.insert_after(
        connectors.AddObservationsFromEpisodes, connectors.AddNextObservationsFromEpisodes()
    )
    rows = run(pipeline, modules, states, episodes)["m"]
    assert isinstance(rows, struct.TensorDict)
    assert set(rows) == {
        *("obs", "next_obs", "action", "reward", "termination", "truncation", "log_prob"),
        *("value", "value_target", "advantage", "mask"),
    }
    assert {x.shape[0] for x in rows.values()} == {5}
    assert rows.mask.numpy().all()
    for name, getter in (("action", "action"), ("reward", "reward")):
        joined = np.concatenate([getattr(e, getter) for e in episodes[:2]])
        np.testing.assert_array_equal(rows[name], joined)
    np.testing.assert_array_equal(rows.obs, np.concatenate([e.obs[:-1] for e in episodes[:2]]))
    np.testing.assert_array_equal(rows.next_obs, np.concatenate([e.obs[1:] for e in episodes[:2]]))
    assert rows.termination.numpy().tolist() == [False, False, True, False, False]
    assert not rows.truncation.numpy().any()  # a chunk that goes on is not truncated
    assert rows.action.dtype == tf.int32  # the spec's; the episodes have int64


def test_chosen_extras():
    episodes = [fakes.episode(2, extras={"noise": np.zeros([2])})]
    both = [connectors.AddColumnsFromEpisodes(["noise"]), connectors.AgentToModule()]
    modules = {"m": fakes.LinearValue()}
    rows = run(connectors.ConnectorPipeline(both), modules, episodes=episodes)["m"][0]
    assert "noise" in rows.columns and "log_prob" not in rows.columns
    with pytest.raises(UserError, match="\\['log_prob', 'noise'\\], without \\['q'\\]"):
        run(connectors.AddColumnsFromEpisodes(["q"]), episodes=episodes)


def test_episodes_of_different_kinds_name_the_column():
    modules = {"m": fakes.LinearValue()}
    episodes = [fakes.episode(2), fakes.episode(2, extras={"noise": np.zeros([2])})]
    pipeline = connectors.ConnectorPipeline(
        [connectors.AddColumnsFromEpisodes(), connectors.AgentToModule(), connectors.Batch()]
    )
    with pytest.raises(UserError, match="the column 'noise' of module 'm'.*no such column in"):
        run(pipeline, modules, episodes=episodes)
    episodes[0] = fakes.episode(2, extras={"noise": np.zeros([2, 3])})
    with pytest.raises(UserError, match="as in the first episode, in all 2 episodes"):
        run(pipeline, modules, episodes=episodes)


def test_unknown_modules_are_named_on_both_sides():
    modules = {"m": fakes.LinearValue(), "n": fakes.LinearValue()}
    episodes = [fakes.episode(2, module_id="m"), fakes.episode(2, module_id="x")]
    with pytest.raises(UserError) as error:
        run(connectors.AgentToModule(), modules, episodes=episodes)
    assert "expected modules of the learner, ['m', 'n'], got ['m', 'x'], of which ['x']" in str(
        error.value
    )
    # Without a name, an episode is of the only module or of the default one.
    assert list(run(connectors.AgentToModule(), {"m": 0}, episodes=[fakes.episode(1)])) == ["m"]
    with pytest.raises(UserError, match="default_policy"):
        run(connectors.AgentToModule(), modules, episodes=[fakes.episode(1)])


def test_a_piece_of_ones_own():
    class ScaleReward(connectors.Connector):
        def __call__(self, *, modules, states, batch, episodes, shared_data):
            for parts in batch.values():
                for rows in parts:
                    rows.columns["reward"] = rows.columns["reward"] * 10
            return batch

    modules, states = {"m": fakes.LinearValue()}, {"m": fakes.constant(0)}
    pipeline = connectors.default_learner_pipeline(modules, discount=1.0, lambda_=1.0)
    pipeline.insert_before(connectors.GeneralAdvantageEstimation, ScaleReward())
    rows = run(pipeline, modules, states, [fakes.episode(3, reward=1.0)])["m"]
    assert rows.value_target.numpy().tolist() == [30, 20, 10]


# Normalised observations.


def test_observations_are_normalised_by_the_state_that_acted():
    modules = {"m": fakes.LinearValue()}
    states = {"m": fakes.linear(mean=[1.0, -1.0])}
    episodes = [fakes.episode(3), fakes.episode(4)]
    rows = run(connectors.default_learner_pipeline(modules), modules, states, episodes)["m"]
    raw = np.concatenate([e.obs[:-1] for e in episodes])
    np.testing.assert_allclose(rows.obs, (raw - [1.0, -1.0]) / 2, rtol=1e-6)
    # compute_values takes raw observations
    np.testing.assert_allclose(rows.value, 0.5 * raw.sum(-1) + 1, rtol=1e-5)


def test_the_batch_of_ppo_is_that_of_its_own_learner_batch():
    """Columns and metrics equal `PPO.learner_batch` on the same experience, normaliser included."""
    rng = np.random.default_rng(1)
    spec = tf.TensorSpec([3], tf.float32)
    agent = PPO(
        obs_spec=spec,
        action_spec=BoundedTensorSpec([], tf.int32, 0, 3),
        hidden=(8,),
        normalize_obs=True,
    )
    state = agent.init(seeding.key(0))
    episodes = []
    for end in ("termination", "truncation", None):
        obs = rng.normal(size=[5, 3]).astype(np.float32) * 3
        out = agent.compute_actions(state, tf.constant(obs[:4]), seeding.key(1))
        episodes.append(
            SingleAgentEpisode(
                obs=obs,
                action=out.action.numpy(),
                reward=rng.normal(size=[4]),
                policy_extras={"log_prob": out.extras["log_prob"].numpy()},
                **({end: True} if end else {}),
            )
        )
    columns = [e.to_trajectory() for e in episodes]
    trajectory = tf.nest.map_structure(lambda *x: tf.concat(x, 1), *columns)  # [4, 3, ...]
    state = agent.update_normalizer(state, trajectory)
    wanted, metrics = agent.learner_batch(state, trajectory)
    shared = {}
    modules = {"default_policy": agent}
    got = run(
        connectors.default_learner_pipeline(modules),
        modules,
        {"default_policy": state},
        episodes,
        shared_data=shared,
    )["default_policy"]
    of_memory = {"state_in", "starts"}
    for name in PolicyBatch.__dataclass_fields__.keys() - of_memory:
        ours = got[name].numpy()
        # [T * B, ...] in order of time to episodes one after the other
        theirs = getattr(wanted, name).numpy()
        theirs = theirs.reshape([4, 3, *theirs.shape[1:]]).swapaxes(0, 1).reshape(ours.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, value in shared["metrics"]["default_policy"].items():
        np.testing.assert_allclose(value, metrics[name], rtol=1e-3, err_msg=name)
    loss, _ = agent.loss(state.params, state, got, seeding.key(2))
    assert np.isfinite(loss.numpy())
