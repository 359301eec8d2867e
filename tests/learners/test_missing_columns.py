"""Columns that a loss asks for and that a batch does not have."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learners.learner_fakes import Dot, built, column
from tfrl import struct
from tfrl.agents.ppo import PPO
from tfrl.episodes import SingleAgentEpisode
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.learners.loss_checks import naming_missing_columns
from tfrl.specs import BoundedTensorSpec

REMEDY = (
    "Add it to the rows; for episodes, add it with a connector or pass it to add_env_step in "
    "extra_model_outputs."
)


def message(fn, *args, **kwargs):
    with pytest.raises(UserError) as error:
        fn(*args, **kwargs)
    return str(error.value)


def expected(module_id, name, there):
    return (
        f"the batch of module {module_id!r}: expected a column {name!r}, which the module's loss "
        f"or prepare_minibatch reads, got the columns {there}. {REMEDY}"
    )


def ppo():
    return PPO(
        obs_spec=tf.TensorSpec([2], tf.float32),
        action_spec=BoundedTensorSpec([], tf.int32, 0, 1),
        hidden=(4,),
    )


def episode_without_extras():
    found = SingleAgentEpisode()
    found.add_env_reset(np.zeros([2], np.float32))
    for t in range(4):
        found.add_env_step(np.ones([2], np.float32), 1, 1.0, truncated=t == 3)
    return found


def test_episodes_without_log_prob():
    found = message(built(ppo()).update_from_episodes, [episode_without_extras()])
    assert found.startswith(
        "the batch of module 'default_policy': expected a column 'log_prob', which the module's "
        "loss or prepare_minibatch reads, got the columns ['action', 'advantage', 'mask', "
    )
    assert found.endswith(REMEDY)


@pytest.mark.parametrize("compile", ["eager", "graph", "xla"])
def test_a_column_that_prepare_minibatch_asks_for(compile):
    rows = struct.TensorDict(obs=np.zeros([4, 2], np.float32), action=np.zeros([4], np.int32))
    learner = built({"a": ppo()})
    assert message(learner.update_from_batch, {"a": rows}, compile=compile) == expected(
        "a", "advantage", ["action", "obs"]
    )


@pytest.mark.parametrize("kind", [dict, struct.TensorDict])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_item_names_the_module_that_asked(kind, replicas):
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    learner = built({"a": Dot(), "b": Dot()}, strategy=strategy)
    good = column([1.0, 2.0], [3.0, 4.0])
    batch = {"a": kind(good), "b": kind(v=good["w"])}
    assert message(learner.update_from_batch, batch) == expected("b", "w", ["v"])


def test_a_plain_dict_whose_columns_are_asked_as_attributes():
    numbers = np.zeros([4], np.float32)
    names = ("log_prob", "advantage", "value_target", "value")
    rows = {"obs": np.zeros([4, 2], np.float32), "action": np.zeros([4], np.int32)}
    rows.update(dict.fromkeys(names, numbers))
    assert message(built(ppo()).update_from_batch, rows) == (
        "the batch of module 'default_policy': expected a record whose columns are attributes, "
        "since the module reads batch.advantage, got a plain dict. Pass the rows as "
        "tfrl.struct.TensorDict(rows)."
    )
    built(ppo()).update_from_batch(struct.TensorDict(rows))


class Reading(Learner):
    """Its loss reads the batch by the function `read`."""

    read = None

    def compute_loss_for_module(self, module_id, update, params, state, batch, key):
        type(self).read(batch)
        return tf.reduce_sum(params["w"])


def reading(fn):
    return built(Dot(), type("Reads", (Reading,), {"read": staticmethod(fn)}))


ROWS = struct.TensorDict(w=np.ones([2, 2], np.float32), obs={"x": np.ones([2, 1], np.float32)})


def test_in_a_nested_column_and_after_replace():
    found = message(reading(lambda batch: batch.obs.y).update_from_batch, ROWS)
    assert found.startswith("'obs' of the batch of module 'default_policy': expected a column 'y'")
    assert "got the columns ['x']" in found
    found = message(reading(lambda b: b.replace(v=b.w).u).update_from_batch, ROWS)
    assert found.startswith("the batch of module 'default_policy': expected a column 'u'")


def test_looking_whether_a_column_is_there():
    def read(batch):
        assert not hasattr(batch, "mask") and getattr(batch, "mask", None) is None
        assert batch.get("mask") is None and "mask" not in batch
        with pytest.raises(KeyError):
            batch["mask"]

    row = reading(read).update_from_batch(ROWS)["default_policy"]
    assert row["gradient_steps"] == 1


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda rows: {}["w2"], KeyError),
        (lambda rows: {"net": 1}[0], KeyError),
        (lambda rows: object().w2, AttributeError),
        (lambda rows: struct.TensorDict(other=1).w2, AttributeError),
    ],
)
def test_other_mistakes_stay_as_they_are(fn, error):
    with pytest.raises(error) as raised:
        with naming_missing_columns(rows := {"a": struct.TensorDict(w=1)}):
            fn(rows)
    assert not isinstance(raised.value, UserError)
