import dataclasses
import math

import pytest

from tfrl.errors import UserError
from tfrl.experiment import callbacks


class Recording(callbacks.Callback):
    def __init__(self, answer=None):
        self.seen, self.answer = [], answer

    def on_step(self, event):
        self.seen.append(("step", event.env_steps))
        return self.answer

    def on_checkpoint(self, event):
        self.seen.append(("checkpoint", event.path))


def test_base_does_nothing():
    event = callbacks.Event(1, {})
    base = callbacks.Callback()
    assert base.on_step(event) is base.on_evaluate(event) is base.on_checkpoint(event) is None


def test_event_is_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        callbacks.Event(1, {}).env_steps = 2


def test_list_calls_all_and_one_stop_is_enough():
    first, second, third = Recording(), Recording(callbacks.STOP), Recording()
    together = callbacks.CallbackList([first, second, third])
    event = callbacks.Event(7, {}, path="p")
    assert together.on_step(event) is callbacks.STOP
    assert together.on_evaluate(event) is None
    assert together.on_checkpoint(event) is None
    assert first.seen == second.seen == third.seen == [("step", 7), ("checkpoint", "p")]
    assert callbacks.CallbackList().on_step(event) is None
    assert repr(callbacks.STOP) == "callbacks.STOP"


def test_any_of_the_methods_is_enough():
    class OnlyEvaluates:
        def on_evaluate(self, event):
            return callbacks.STOP

    together = callbacks.CallbackList([OnlyEvaluates()])
    event = callbacks.Event(1, {})
    assert together.on_step(event) is together.on_checkpoint(event) is None
    assert together.on_evaluate(event) is callbacks.STOP


def test_none_of_the_methods_is_refused():
    with pytest.raises(UserError) as error:
        callbacks.CallbackList([Recording(), 7])
    assert str(error.value) == (
        "callbacks: expected objects with at least one of the methods on_step, on_evaluate, "
        "on_checkpoint, got 7. Pass an object of a subclass of tfrl.experiment.callbacks.Callback."
    )


def test_other_answers_are_refused():
    with pytest.raises(UserError) as error:
        callbacks.CallbackList([Recording(True)]).on_step(callbacks.Event(1, {}))
    assert str(error.value) == (
        "Recording.on_step: expected None or callbacks.STOP as its return value, got True. "
        "Return tfrl.experiment.callbacks.STOP to end the run."
    )


@pytest.mark.parametrize(
    "value,expected",
    [(474.9, None), (475.0, callbacks.STOP), (500, callbacks.STOP), (math.nan, None)],
)
def test_stop_at_return(value, expected):
    stop = callbacks.StopAtReturn(475)
    assert stop.on_evaluate(callbacks.Event(1, {"eval_return_mean": value})) is expected
    assert stop.on_step(callbacks.Event(1, {"eval_return_mean": value})) is None


def test_stop_at_return_of_an_unknown_metric():
    with pytest.raises(UserError) as error:
        callbacks.StopAtReturn(1, metric="eval_return").on_evaluate(
            callbacks.Event(1, {"eval_return_mean": 1.0, "seconds": 3})
        )
    assert str(error.value) == (
        "StopAtReturn.metric: expected a metric of the evaluation, got eval_return. "
        "Did you mean eval_return_mean?"
    )
