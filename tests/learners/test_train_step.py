"""The train step by itself: one gradient step of each module on a batch."""

import numpy as np
import pytest
import tensorflow as tf

from tests.learners import train_steps
from tests.learners.learner_fakes import RegressionAgent, SumAgent
from tfrl import seeding, struct
from tfrl.agents.core import Update
from tfrl.errors import UserError
from tfrl.learners import Learner, ModuleConfig, train_step

KEY = seeding.key(1)
ROWS = {"x": tf.ones([2, 2]), "y": tf.ones([2])}


class HalfAgent(SumAgent):
    @property
    def updates(self):
        return (Update(name="half", groups=("b",), loss=self.loss),)


def built(modules, **config):
    learner = Learner(modules, config=ModuleConfig(**{"lr": 0.1, "optimizer": "sgd", **config}))
    learner.build(KEY)
    return learner


def test_gradients_of_a_sum_are_ones_for_the_named_groups_only():
    agent = HalfAgent()
    found = train_steps.computed(train_steps.recording(agent), agent.init(KEY), ROWS, KEY)["half"]
    assert list(found.gradients) == ["b"]
    np.testing.assert_array_equal(found.gradients["b"], np.ones(4))
    assert float(found.metrics["mean_x"]) == 1.0


@pytest.mark.parametrize("of_another", [Learner.clone, Learner.form], ids=["clone", "form"])
def test_the_variables_of_the_given_state_change(of_another):
    learner = built({"a": SumAgent()})
    state = learner.learner_state
    before, other = struct.values(state), learner.clone()
    kept = struct.values(other.learner_state)
    trainer = of_another(learner) if of_another is Learner.form else other
    trainer.fit(state, {"a": ROWS}, key=KEY, timesteps=tf.constant(0, tf.int64))
    train_step(trainer, state, {"a": ROWS}, KEY)
    assert int(state.counters["learner_steps"]) == 2
    moved = struct.paths(state.agent_state)
    assert any(np.any(x != moved[p]) for p, x in struct.paths(before.agent_state).items())
    for path, value in struct.paths(struct.values(other.learner_state)).items():
        np.testing.assert_array_equal(value, struct.paths(kept)[path], err_msg=path)


def test_a_state_of_tensors_and_variables_is_an_error():
    learner = built({"a": SumAgent()})
    state = learner.learner_state
    mixed = state.replace(agent_state=struct.values(state.agent_state))
    with pytest.raises(UserError, match="a learner's state: expected tensors or tf.Variables, got"):
        train_step(learner, mixed, {"a": ROWS}, KEY)


@pytest.mark.parametrize("jit", [None, False, True])
def test_a_state_of_tensors_is_returned_anew_and_variables_change(jit):
    learner = built({"a": SumAgent(), "b": RegressionAgent()}, grad_clip=None)
    batch = {"a": ROWS, "b": ROWS}

    def pure(state):
        return train_step(learner, state, batch, KEY)[0]

    def in_place():
        state, metrics = train_step(learner, learner.learner_state, batch, KEY)
        assert struct.paths(state).keys() == struct.paths(learner.learner_state).keys()
        return metrics.values

    if jit is not None:
        pure, in_place = (
            tf.function(f, jit_compile=jit, autograph=False) for f in (pure, in_place)
        )
    start = struct.values(learner.learner_state)
    after = pure(start)
    values = in_place()
    now = struct.paths(struct.values(learner.learner_state))
    for path, value in struct.paths(after).items():
        np.testing.assert_allclose(now[path], value, rtol=1e-6, err_msg=path)
    assert (int(start.counters["learner_steps"]), int(learner.learner_steps)) == (0, 1)
    np.testing.assert_allclose(after.agent_state["a"].params["b"], np.full(4, 0.9))
    assert set(values["b"]) >= {"critic/loss", "actor/loss", "critic/grad_norm"}


def test_delayed_updates_wait_and_stopped_modules_take_no_step():
    learner = built({"a": SumAgent(stop_above=2.0), "b": RegressionAgent(delay=2)})
    state, first = train_step(learner, struct.values(learner.learner_state), {"b": ROWS}, KEY)
    after, second = train_step(
        learner, state, {"a": ROWS, "b": ROWS}, KEY, stopped={"a": tf.constant(True)}
    )
    assert bool(first.computed["b"]["actor/loss"]) and not second.computed["b"]["actor/loss"]
    assert "critic/loss" not in second.computed["b"] and set(second.stopped) == {"a"}
    old, new = (struct.paths(x.agent_state) for x in (state, after))
    changed = {path for path in new if np.any(new[path] != old[path])}
    assert changed == {"b/params/critic"}


def test_a_step_that_is_not_finite_is_left_out_and_counted():
    learner = built(SumAgent())
    start = struct.values(learner.learner_state)
    rows = {"default_policy": {"x": tf.fill([2, 2], np.nan)}}
    after, metrics = train_step(learner, start, rows, KEY)
    assert not metrics.finite["default_policy"]
    assert [int(after.counters[n]) for n in ("learner_steps", "skipped_steps")] == [1, 1]
    for x, y in zip(*(tf.nest.flatten(s.agent_state) for s in (start, after)), strict=True):
        np.testing.assert_array_equal(x, y)


def test_hooks_that_change_variables_do_not_fit_a_state_of_tensors():
    class Own(Learner):
        def apply_gradients(self, gradients_dict):
            super().apply_gradients(gradients_dict)

    learner = Own(SumAgent())
    learner.build(KEY)
    start = struct.values(learner.learner_state)
    with pytest.raises(UserError, match="a train step of a state of tensors.* got apply_gradients"):
        train_step(learner, start, {"default_policy": ROWS}, KEY)
