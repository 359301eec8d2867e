"""Actions that a caller steps environments on the host with."""

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import specs
from tfrl.envs.backend import check_action
from tfrl.errors import UserError

TWO = specs.DiscreteSpec(2, start=1)
BOX = specs.BoundedTensorSpec([1], tf.float32, -1.0, 1.0)


@pytest.mark.parametrize(
    ("spec", "action"),
    [
        (TWO, np.array([1, 2], np.int32)),
        (TWO, tf.constant([1, 2])),
        (specs.BinarySpec([2]), np.ones((2, 2), bool)),
        (BOX, np.array([[9.0], [-9.0]])),  # bounds are the environment's to clip
        (BOX, np.array([[1], [0]])),
        ({"a": TWO, "b": BOX}, {"a": np.array([1, 1]), "b": np.zeros((2, 1), np.float32)}),
    ],
)
def test_actions_of_the_spec_pass(spec, action):
    check_action("x", spec, action, 2)
    with pytest.raises(UserError, match=r"action for x(/a)?: expected \w+ \[3[],]"):
        check_action("x", spec, action, 3)


@pytest.mark.parametrize(
    ("spec", "action", "said"),
    [
        (TWO, [0, 1], "action for x: expected whole numbers from 1 to 2, got 0 at [0]. Pass "
         "actions that match env.action_spec."),
        (TWO, [1.0, 1.0], "action for x: expected int64 [2], got float64 [2]."),
        (TWO, [1], "action for x: expected int64 [2], got int64 [1]."),
        (specs.MultiDiscreteSpec([2, 3]), [[1, 2], [1, 3]], "from 0 to [1, 2], got 3 at [1, 1]."),
        (BOX, [[0.0], [np.nan]], "action for x: expected finite numbers, got nan at [1, 0]."),
        ({"a": TWO}, {"b": [1, 1]}, "action for x: expected the items a, got b. Pass actions that "
         "match env.action_spec and its nest."),
        ({"a": TWO}, {"a": [1, 3]}, "action for x/a: expected whole numbers from 1 to 2, got 3 at "
         "[1]."),
    ],
)  # fmt: skip
def test_others_are_one_paragraph(spec, action, said):
    with pytest.raises(UserError) as error:
        check_action("x", spec, {k: np.array(v) for k, v in action.items()}
                     if isinstance(action, dict) else np.array(action), 2)  # fmt: skip
    assert said in str(error.value)


def test_closed_environments_say_so():
    env = tfrl.make_env("gymnasium:CartPole-v1", 2)
    state = env.reset(0)
    env.close()
    env.close()
    for use in (lambda: env.reset(0), lambda: env.step(state, np.zeros(2, np.int64))):
        with pytest.raises(UserError, match="expected open environments"):
            use()
