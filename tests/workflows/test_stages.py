"""Compiled stages: one trace per mode, the faster mode, and messages."""

import functools
from unittest import mock

import pytest
import tensorflow as tf

from tfrl.errors import UserError
from tfrl.workflows import autotune
from tfrl.workflows.autotune import CompileModeTuner, Trials, choose_by_time
from tfrl.workflows.fast_call import bound_call
from tfrl.workflows.stages import CompiledStage, RunPhase, Stages, check_compile

STAGES = ("rollout", "update")


def test_a_stage_traces_once_per_mode():
    stage = CompiledStage("rollout", lambda x: x + 1.0)
    for mode in ("graph", "xla", "graph"):
        stage.mode = mode
        for value in range(5):
            assert float(stage(tf.constant(float(value)))) == value + 1.0
    assert all(stage.compiled(m).experimental_get_tracing_count() == 1 for m in ("graph", "xla"))


def test_eager_runs_the_function_itself():
    calls = []
    stage = CompiledStage("rollout", lambda x: calls.append(1) or x)
    stage.mode = "eager"
    stage(1.0)
    stage(1.0)
    assert len(calls) == 2


def test_the_clearly_faster_mode_is_kept():
    def many_small_ops(x):
        return tf.while_loop(
            lambda i, x: i < 300, lambda i, x: (i + 1, tf.sin(x) + tf.cos(x)), (0, x)
        )[1]

    stage = CompiledStage("rollout", many_small_ops)
    assert choose_by_time(stage, tf.ones([4])) == "xla"
    assert stage.mode == "xla"
    assert stage.seconds["xla"] < stage.seconds["graph"]


def test_near_the_tie_it_is_the_graph_unless_more_is_won():
    stage = CompiledStage("update", lambda x: x)
    times = {"graph": 1.0, "xla": 0.95}
    stage.compiled = lambda mode: lambda: tf.constant(0)
    with mock.patch.object(autotune, "best_seconds", lambda fns, *_: {m: times[m] for m in fns}):
        assert choose_by_time(stage) == "graph"
        assert choose_by_time(stage, wins=0.0) == choose_by_time(stage, wins=0.3) == "xla"
        times["xla"] = 1.1
        assert choose_by_time(stage, wins=0.05) == "graph"
        assert choose_by_time(stage, wins=0.3) == "xla"
        times["xla"] = 1.2
        assert choose_by_time(stage, wins=0.3) == "graph"


def test_timing_leaves_out_what_python_does_with_arguments():
    given = {"x": [tf.ones([2]), None], "n": tf.constant(3)}
    traces = []

    def fn(nest):
        traces.append(1)
        return nest["x"][0] * tf.cast(nest["n"], tf.float32)

    compiled = tf.function(fn, autograph=False)
    compiled(given)
    assert bound_call(compiled, (given,))().numpy().tolist() == [3.0, 3.0]
    assert bound_call(fn, (given,))().numpy().tolist() == [3.0, 3.0]
    variable = tf.function(lambda v: v + 1.0, autograph=False)
    assert float(bound_call(variable, (tf.Variable(1.0),))()) == 2.0
    assert len(traces) == 2


def test_an_op_that_xla_lacks_keeps_the_graph():
    def unique(x):
        return tf.strings.as_string(x)

    stage = CompiledStage("update", unique)
    assert choose_by_time(stage, tf.ones([2])) == "graph"


def test_a_stage_without_a_mode_says_so():
    with pytest.raises(RuntimeError, match="stage 'rollout' was not chosen"):
        CompiledStage("rollout", lambda x: x)(1)


def test_a_name_has_one_function():
    class Trainer:
        def update(self, scale, x):
            return scale * x

    made = Stages(RunPhase(), {}, {}, None)
    first = made.stage("update", functools.partial(Trainer().update, 2.0))
    assert made.stage("update", functools.partial(Trainer().update, 3.0)) is first
    for other in (lambda x: x, functools.partial(tf.nest.map_structure, tf.identity), None):
        with pytest.raises(UserError, match="got .* after .*Trainer.update"):
            made.stage("update", other)
    with pytest.raises(UserError, match="'update/mine' has the same mode"):
        made.stage("update", lambda x: x)


def test_compile_argument():
    assert check_compile("xla", STAGES) == {"rollout": "xla", "update": "xla"}
    assert check_compile({"update": "graph"}, STAGES) == {"rollout": "auto", "update": "graph"}
    with pytest.raises(UserError, match="compile: expected one of xla, graph, eager, auto"):
        check_compile("jit", STAGES)
    with pytest.raises(UserError, match="got {'learner': 'xla'}"):
        check_compile({"learner": "xla"}, STAGES)


@pytest.mark.parametrize(
    "prefetches, rollout, update, chosen",
    [
        (True, {"graph": 5e-4, "xla": 2e-4}, "graph", "graph"),  # XLA's thread wakes late
        (True, {"graph": 9e-4, "xla": 2e-4}, "graph", "xla"),
        (True, {"graph": 5e-4, "xla": 2e-4}, "xla", "xla"),  # one program with the update
        (False, {"graph": 5e-4, "xla": 2e-4}, "graph", "xla"),  # not at the same time
    ],
)
def test_a_short_rollout_is_not_xlas_beside_an_update_in_a_graph(
    prefetches, rollout, update, chosen
):
    made = Stages(RunPhase(), {}, {}, None)
    stages_of = {name: made.stage(name, None) for name in STAGES}
    times = {"rollout": rollout, "update": {}}
    found = {"rollout": min(rollout, key=rollout.get), "update": update}

    def timed(stage, **options):
        stage.seconds.update(times[stage.name])
        return found[stage.name]

    trials = Trials(
        **stages_of,
        rollout_args=tuple,
        update_args=tuple,
        keep=lambda: lambda: None,
        prefetches=prefetches,
        several_workers=False,
    )
    asked = {"rollout": "auto", "update": "auto", "loop": "graph"}
    with (
        mock.patch.object(autotune, "choose_by_time", timed),
        mock.patch.object(autotune, "time_as_chosen"),
    ):
        CompileModeTuner(asked, trials, made).settle()
    assert made.modes["rollout"] == made.stage("rollout", None).mode == chosen


@pytest.mark.parametrize(("in_xla", "wins"), [(True, float("inf")), (False, None)])
def test_a_tie_is_xlas_where_the_environment_is(in_xla, wins):
    made = Stages(RunPhase(), {}, {}, None)
    stages_of = {name: made.stage(name, None) for name in STAGES}
    trials = Trials(
        **stages_of,
        rollout_args=tuple,
        update_args=tuple,
        keep=lambda: lambda: None,
        steps_in_xla=in_xla,
    )
    asked = {"rollout": "auto", "update": "graph", "loop": "graph"}
    with (
        mock.patch.object(autotune, "time_as_chosen"),
        mock.patch.object(autotune, "choose_by_time", return_value="xla") as chosen,
    ):
        CompileModeTuner(asked, trials, made).settle()
    chosen.assert_called_once_with(made.stage("rollout", None), wins=wins)
