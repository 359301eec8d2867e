import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.learners import train_steps
from tfrl import make_env, seeding
from tfrl.agents.ppo import PPO
from tfrl.distribute import assert_compilable, check_compilable
from tfrl.errors import UserError
from tfrl.rollout import rollout

X = tf.constant([1.0, -2.0, 3.0])
pytestmark = pytest.mark.usefixtures("op_stack_traces")


def asserts(x):
    tf.debugging.assert_positive(x, message="not positive")
    return x


def prints(x):
    tf.print("x is", x)
    return x


def summary(x):
    writer = tf.raw_ops.SummaryWriter()
    tf.raw_ops.WriteScalarSummary(writer=writer, step=0, tag="a", value=x[0])
    return x


def in_a_loop(x):
    def body(i, total):
        part = tf.numpy_function(np.sum, [x], tf.float32)
        return i + 1, total + tf.ensure_shape(part, [])

    return tf.while_loop(lambda i, _: i < 3, body, (0, 0.0))


def in_a_branch(x):
    return tf.cond(x[0] > 0, lambda: tf.reduce_sum(tf.boolean_mask(x, x > 0)), lambda: 0.0)


def grows(x):
    def body(i, y):
        return i + 1, tf.concat([y, y], 0)

    shapes = (tf.TensorShape([]), tf.TensorShape([None]))
    return tf.while_loop(lambda i, _: i < 2, body, (0, x), shape_invariants=shapes)[1]


def endless_gradient(x):
    # The backward pass needs a list as long as the loop, and nothing limits the loop.
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.while_loop(lambda y: tf.reduce_sum(y) < 100.0, lambda y: (y * y,), (x,))[0]
    return tape.gradient(y, x)


BROKEN = {
    "boolean_mask": (lambda x: tf.boolean_mask(x, x > 0), "dynamic shape", "Where"),
    "where": (lambda x: tf.where(x > 0), "dynamic shape", "Where"),
    "unique": (lambda x: tf.unique(x).y, "dynamic shape", "Unique"),
    "slice": (lambda x: x[: tf.cast(x[0], tf.int32)], "dynamic shape", "StridedSlice"),
    "range": (lambda x: tf.range(x[0]), "dynamic shape", "Range"),
    "growing loop": (grows, "dynamic shape", "StatelessWhile"),
    "array": (
        lambda x: tf.TensorArray(tf.float32, 0, dynamic_size=True).write(0, x).stack(),
        "dynamic shape",
        "TensorListStack",
    ),
    "in a branch": (in_a_branch, "dynamic shape", "Where"),
    "numpy": (lambda x: tf.numpy_function(np.abs, [x], tf.float32), "host callback", "PyFunc"),
    "python": (lambda x: tf.py_function(abs, [x], tf.float32), "host callback", "EagerPyFunc"),
    "in a loop": (in_a_loop, "host callback", "PyFunc"),
    "print": (prints, "host callback", "PrintV2"),
    "clock": (lambda x: tf.timestamp(), "host callback", "Timestamp"),
    "summary": (summary, "host callback", "SummaryWriter"),
    "string": (lambda x: tf.strings.as_string(x), "string", "AsString"),
    "assert": (asserts, "assert", "Assert"),
    "numerics": (lambda x: tf.debugging.check_numerics(x, "bad"), "assert", "CheckNumerics"),
    "shuffle": (lambda x: tf.random.shuffle(x), "stateful random", "RandomShuffle"),
    "normal": (lambda x: tf.random.normal([3]), "stateful random", "RandomStandardNormal"),
    "stateless shuffle": (
        lambda x: tf.random.experimental.stateless_shuffle(x, [1, 2]),
        "unsupported op",
        "StatelessShuffle",
    ),
    "histogram": (
        lambda x: tf.histogram_fixed_width(x, [0.0, 1.0]),
        "unsupported op",
        "HistogramFixedWidth",
    ),
    "endless gradient": (endless_gradient, "compilation", ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name):
    fn, kind, op_type = BROKEN[name]
    found = check_compilable(fn, X)
    assert {(p.kind, p.op_type) for p in found} >= {(kind, op_type)}, found
    problem = next(p for p in found if (p.kind, p.op_type) == (kind, op_type))
    if kind != "compilation":
        # The line is one of this file, not one of TensorFlow's.
        assert re.fullmatch(re.escape(__file__) + r":\d+", problem.where), problem
    assert {p.kind for p in found} <= {kind, "host callback"}, found


def test_names_the_line_and_the_way_to_the_op():
    (problem,) = check_compilable(in_a_loop, X)
    line = Path(__file__).read_text().splitlines()[int(problem.where.rpartition(":")[2]) - 1]
    assert "tf.numpy_function" in line
    assert problem.op_name == "while/while/PyFunc"
    assert str(problem) == (
        f"host callback: PyFunc 'while/while/PyFunc' at {problem.where}: runs on the host, outside "
        "of the compiled program"
    )


def test_inside_nested_functions():
    inner = tf.function(lambda x: tf.unique(x).y, jit_compile=True)
    (problem,) = check_compilable(tf.function(lambda x: tf.reduce_sum(inner(x))), X)
    assert problem.op_type == "Unique"
    assert problem.op_name.endswith("/Unique")


def test_unknown_arguments_are_to_blame_themselves():
    (problem,) = check_compilable(lambda x: x + 1.0, tf.TensorSpec([None, 2]))
    assert (problem.kind, problem.op_type) == ("dynamic shape", "Placeholder")
    assert problem.detail == "its result has shape (None, 2)"


def test_static_leaves_variables_and_nests():
    variable = tf.Variable([1.0, 2.0])

    def fn(nest, scale, weights):
        variable.assign_add(weights)
        return {"y": nest["x"] * scale + variable, "none": None}

    args = ({"x": np.ones(2, np.float32)}, 3, tf.TensorSpec([2], tf.float32))
    assert check_compilable(fn, *args) == []
    np.testing.assert_array_equal(variable, [1.0, 2.0])  # nothing ran


def test_without_compiling():
    shuffle = BROKEN["stateless shuffle"][0]
    assert check_compilable(shuffle, X, compile=False) == []


def test_assert_lists_all_problems():
    def bad(x):
        return tf.unique(asserts(x)).y

    with pytest.raises(UserError) as error:
        assert_compilable(bad, X)
    text = str(error.value)
    assert text.startswith("Function test_assert_lists_all_problems.<locals>.bad: expected static ")
    assert "got 2 problems: assert: Assert '" in text
    assert "; dynamic shape: Unique 'Unique' at " in text
    with pytest.raises(UserError, match="got 1 problem: dynamic shape: Unique"):
        assert_compilable(bad, X, allow=("assert",))
    assert_compilable(bad, X, allow=("assert", "dynamic shape"))


@pytest.fixture(name="ppo", scope="module")
def fixture_ppo():
    env = make_env("tf:CartPole-v1", num_envs=4)
    agent = PPO(obs_spec=env.obs_spec, action_spec=env.action_spec, hidden=(8,))
    key = seeding.key(0)
    return env, agent, env.reset(key), agent.init(key), key


def test_rollout_of_ppo(ppo):
    env, agent, env_state, agent_state, key = ppo
    assert_compilable(lambda e, a, k: rollout(env, agent, e, a, k, 4), env_state, agent_state, key)


@pytest.mark.slow
def test_batch_and_gradient_of_ppo(ppo):
    env, agent, env_state, agent_state, key = ppo
    learner = train_steps.recording(agent)

    def update(trajectory, state, key):
        batch, _ = agent.learner_batch(state, trajectory)
        return train_steps.computed(learner, state, batch, key)

    trajectory, _, _ = rollout(env, agent, env_state, agent_state, key, 4)
    assert_compilable(update, trajectory, agent_state, key)
