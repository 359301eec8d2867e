"""What a user gets wrong with the suite `tf_agents`, and what he is told."""

import numpy as np
import pytest
from tf_agents.environments import suite_bsuite, suite_dm_control, suite_mujoco, tf_py_environment
from tf_agents.specs import array_spec

import tfrl
from tests.compat import tf_agents_fakes as fakes
from tfrl.envs.wrappers import ActionRepeat
from tfrl.errors import UserError

GYM = "tf_agents:suite_gym/CartPole-v1"
MODULE = "tests.compat.tf_agents_fakes"
FORMS = (
    "expected suite_gym/CartPole-v1 (a suite of tf_agents.environments), module:function, or any "
    "name with env=function"
)
LOAD = (
    "expected arguments of the task (discount, env_wrappers, gym_env_wrappers, gym_kwargs, "
    "render_kwargs, spec_dtype_map) or of make_env (action_mask, env), got"
)


def isolated():
    return tf_py_environment.TFPyEnvironment(fakes.Corridor(), isolation=True)


def changed(change=None, **specs):
    return dict(env=lambda: fakes.Changed(change, specs))


ERRORS = {
    "gym_id_alone": (
        ("tf_agents:CartPole-v1", {}),
        f"environment tf_agents:CartPole-v1: {FORMS}, got 'CartPole-v1'. Did you mean "
        "tf_agents:suite_gym/CartPole-v1?",
    ),
    "no_form": (
        ("tf_agents:thing", {}),
        f"environment tf_agents:thing: {FORMS}, got 'thing'. Use one of these forms.",
    ),
    "suite": (
        ("tf_agents:suite_gyms/CartPole-v1", {}),
        "environment tf_agents:suite_gyms/CartPole-v1: expected a suite of tf_agents.environments "
        "(suite_atari, suite_bsuite, suite_dm_control, suite_gym, suite_mujoco, suite_pybullet), "
        "got suite_gyms. Did you mean suite_gym?",
    ),
    "task_of_gym": (
        ("tf_agents:suite_gym/CartPol-v1", {}),
        "environment tf_agents:suite_gym/CartPol-v1: expected a task of gym 0.23.0, which "
        "suite_gym uses, got 'CartPol-v1'. Did you mean CartPole-v1?",
    ),
    "atari": (
        ("tf_agents:suite_atari/Pong-v0", {}),
        "tf_agents:suite_atari/Pong-v0: expected the packages that suite_atari requires, got no "
        "Pong-v0 in gym 0.23.0. Use the suite gymnasium, for example gymnasium:ALE/Pong-v5.",
    ),
    "module": (
        ("tf_agents:not_there.at_all:make", {}),
        "environment tf_agents:not_there.at_all:make: expected an installed module, got no module "
        "named not_there. Install it, or add its folder to PYTHONPATH.",
    ),
    "function": (
        (f"tf_agents:{MODULE}:coridor", {}),
        f"tf_agents:{MODULE}:coridor: expected a function of {MODULE} after the last colon, got "
        "coridor. Did you mean corridor?",
    ),
    "an_object_of_a_module": (
        (f"tf_agents:{MODULE}:OBS", {}),
        f"env of tf_agents:{MODULE}:OBS: expected a function that creates an environment, since "
        f"evaluations need their own, got {fakes.OBS!r}. Pass env=lambda: MyEnvironment().",
    ),
    "argument": (
        (GYM, dict(discont=0.9)),
        f"make_env({GYM!r}): {LOAD} discont. Did you mean discount?",
    ),
    "argument_of_the_suite": (
        (GYM, dict(action_masks="mask")),
        f"make_env({GYM!r}): {LOAD} action_masks. Did you mean action_mask?",
    ),
    "argument_of_a_function": (
        (f"tf_agents:{MODULE}:corridor", dict(lenght=3)),
        f"make_env('tf_agents:{MODULE}:corridor'): expected arguments of the task (length) or of "
        "make_env (action_mask, env), got lenght. Did you mean length?",
    ),
    "missing_argument": (
        ("tf_agents:x", dict(env=lambda size: fakes.Corridor(size))),
        "make_env('tf_agents:x'): expected the arguments that the task requires (size), got no "
        "size. Pass size=... to make_env.",
    ),
    "limit": (
        (GYM, dict(max_episode_steps=501)),
        f"max_episode_steps of {GYM}: expected at most 500, the environment's own limit, got 501. "
        "Leave it out, or create the environment without its time limit.",
    ),
    "no_limit": (
        (GYM, dict(max_episode_steps=-1)),
        f"max_episode_steps of {GYM}: expected at most 500, the environment's own limit, got -1. "
        "Leave it out, or create the environment without its time limit.",
    ),
    "cached": (
        (GYM, dict(autoreset="SAME_STEP_CACHED")),
        f"autoreset of {GYM}: expected NEXT_STEP, SAME_STEP or DISABLED, got SAME_STEP_CACHED, "
        "which restores a stored start state. Choose a different mode: a host environment cannot "
        "restore its state.",
    ),
    "same_step_of_a_batch": (
        ("tf_agents:x", dict(env=fakes.Together, num_envs=2)),
        "autoreset of tf_agents:x: expected NEXT_STEP or DISABLED, since it cannot reset single "
        "rows, got SAME_STEP. Pass autoreset='NEXT_STEP'.",
    ),
    "batch_size": (
        ("tf_agents:x", dict(env=fakes.Together, num_envs=3, autoreset="NEXT_STEP")),
        "batch size of tf_agents:x: expected a divisor of num_envs=3, since the batch consists of "
        "entire environments, got 2. Pass num_envs=2, also for evaluation, or a function with the "
        "argument num_envs.",
    ),
    "num_envs_of_a_function": (
        ("tf_agents:x", dict(env=lambda num_envs: fakes.Together(), num_envs=4)),
        "batch size of tf_agents:x: expected 4, since the batch consists of entire environments, "
        "got 2. Pass num_envs=2, also for evaluation, or a function with the argument num_envs.",
    ),
    "an_environment_instead_of_a_function": (
        ("tf_agents:x", dict(env=3)),
        "env of tf_agents:x: expected a function that creates an environment, since evaluations "
        "need their own, got 3. Pass env=lambda: MyEnvironment().",
    ),
    "no_environment": (
        ("tf_agents:x", dict(env=lambda: 3)),
        "tf_agents:x: expected a function that returns a PyEnvironment or TFEnvironment of "
        "TF-Agents, got a function that returns 3. Return such an environment, or use the suites "
        "gymnasium and envpool.",
    ),
    "isolation": (
        ("tf_agents:x", dict(env=isolated)),
        "tf_agents:x: expected a TFPyEnvironment without its own thread, got a TFPyEnvironment "
        "with isolation. Return its PyEnvironment, which runs in a single thread.",
    ),
    "wrapper": (
        (GYM, dict(wrappers=(ActionRepeat,))),
        f"wrappers of {GYM}: expected functions PyEnvironment -> PyEnvironment, got ActionRepeat, "
        "a wrapper of device environments. Use the equivalent wrapper of "
        "tf_agents.environments.wrappers, or pass RewardScale, RewardClip or RewardNormalize as "
        "outer_wrappers.",
    ),
    "outer_wrapper": (
        (GYM, dict(outer_wrappers=(lambda env: 3,))),
        f"outer_wrappers of {GYM}: expected RewardScale, RewardClip or RewardNormalize, got "
        "unsupported wrappers (1). Pass functions PyEnvironment -> PyEnvironment as wrappers.",
    ),
    "mask_argument": (
        (GYM, dict(action_mask=3)),
        f"action_mask of {GYM}: expected the path of the mask in the observation, or a function "
        "obs -> (rest, mask), got 3. Pass a path such as action_mask='mask'.",
    ),
    "mask_path": (
        ("tf_agents:x", dict(env=fakes.Masked, action_mask="rules/2")),
        "action_mask of tf_agents:x: expected a path in the observation (rules/0, rules/1, seen), "
        "got 'rules/2'. Pass the path of the mask, or a function obs -> (rest, mask).",
    ),
    "mask_shape": (
        ("tf_agents:x", dict(env=fakes.Masked, action_mask="rules/1")),
        "action_mask of tf_agents:x: expected shape [[3]], as in the action spec, got [[]]. "
        "Select the part of the observation with one number per action.",
    ),
    "reward_spec": (
        ("tf_agents:x", changed(reward=array_spec.ArraySpec([2], np.float32))),
        "reward spec of tf_agents:x: expected one number per step, a spec of shape (), got "
        "ArraySpec(shape=(2,), dtype=dtype('float32'), name=None). Wrap the environment to return "
        "a scalar reward, for example the sum.",
    ),
    "observation_spec": (
        ("tf_agents:x", changed(observation={"a": [array_spec.ArraySpec([2], np.str_)]})),
        "observation spec a/0 of tf_agents:x: expected a numeric ArraySpec or TensorSpec with a "
        "static shape, got ArraySpec(shape=(2,), dtype=dtype('<U'), name=None).",
    ),
    "first_in_the_middle": (
        ("tf_agents:x", changed(lambda step: step._replace(step_type=np.int32(0)))),
        "step_type of a step of tf_agents:x: expected ['MID or LAST'], got ['FIRST']. Return "
        "FIRST only after reset and in the step after LAST, as "
        "PyEnvironment(handle_auto_reset=True) does.",
    ),
    "reset_without_first": (
        ("tf_agents:x", changed(lambda step: step._replace(step_type=np.int32(1)))),
        "step_type of a reset of tf_agents:x: expected FIRST, got ['MID']. Return FIRST only "
        "after reset and in the step after LAST, as PyEnvironment(handle_auto_reset=True) does.",
    ),
    "reward": (
        ("tf_agents:x", changed(lambda step: step._replace(reward=np.zeros(2)))),
        "reward of tf_agents:x: expected one number per environment, got shape [2].",
    ),
    "list": (
        ("tf_agents:x", changed(lambda step: step._replace(observation=[0.0, 1.0, 2.0]))),
        "observation of tf_agents:x: expected 1 arrays, as in observation_spec, got 3. Return "
        "arrays instead of lists, in the structure of observation_spec.",
    ),
    "observation": (
        ("tf_agents:x", changed(lambda step: step._replace(observation=np.zeros(2)))),
        "observation of tf_agents:x: expected shape [1, 3], as in the space, got [1, 2].",
    ),
    "dtype": (
        ("tf_agents:x", changed(observation=array_spec.ArraySpec([3], np.int32))),
        "observation of tf_agents:x: expected int32, as in the space, got float32.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_message(case):
    (env_id, kwargs), expected = ERRORS[case]
    with pytest.raises(UserError) as told, tfrl.make_env(env_id, **kwargs) as env:
        state = env.reset(0)
        env.step(state, np.ones(env.num_envs, np.int32))
    assert str(told.value) == expected


def test_specs_that_differ_between_calls():
    kinds = iter([fakes.Corridor, fakes.Masked])
    with pytest.raises(UserError, match="the same specs from every call of the function"):
        tfrl.make_env("tf_agents:x", num_envs=2, env=lambda: next(kinds)())


def test_what_was_made_before_an_error_is_closed():
    made = []

    def corridor():
        made.append(fakes.Corridor())
        return made[-1] if len(made) < 3 else 3

    with pytest.raises(UserError, match="a function that returns 3"):
        tfrl.make_env("tf_agents:x", num_envs=3, env=corridor)
    assert [env.closed for env in made] == [1, 1, 0]


def test_a_batch_that_does_not_begin_anew():
    def batch():
        env = fakes.Together()
        for row in env.rows:
            row._handle_auto_reset = False
        return env

    env = tfrl.make_env("tf_agents:x", 2, "NEXT_STEP", env=batch)
    with env, pytest.raises(UserError, match=r"expected \['MID or LAST', 'FIRST'\], got \['LAST'"):
        state = env.reset(0)
        for _ in range(3):
            state = env.step(state, np.ones(2, np.int32))


def test_episodes_longer_than_told_in_a_batch():
    env = tfrl.make_env("tf_agents:x", 2, "NEXT_STEP", 2, env=fakes.Together)
    with env, pytest.raises(UserError) as told:
        state = env.reset(0)
        for _ in range(2):
            state = env.step(state, np.ones(2, np.int32))
    assert str(told.value) == (
        "max_episode_steps of tf_agents:x: expected episodes that end after at most 2 steps, "
        "since single rows cannot be reset, got longer episodes in rows [0]."
    )


@pytest.mark.parametrize(
    ("suite", "task", "remedy"),
    [
        (suite_mujoco, "HalfCheetah-v2", "for example gymnasium:HalfCheetah-v5"),
        (suite_bsuite, "cartpole/0", "Install them with -c constraints.txt"),
        (suite_dm_control, "cartpole/swingup", "Install them with -c constraints.txt"),
    ],
)
def test_packages_of_suites(suite, task, remedy):
    if suite.is_available():
        pytest.skip("its package is installed")
    name = suite.__name__.rpartition(".")[2]
    with pytest.raises(UserError, match=f"the packages that {name} requires.*{remedy}"):
        tfrl.make_env(f"tf_agents:{name}/{task}")


def test_tasks_of_two_names(monkeypatch):
    made = []
    monkeypatch.setattr(suite_dm_control, "is_available", lambda: True)
    monkeypatch.setattr(
        suite_dm_control,
        "load",
        lambda domain_name, task_name, discount=1.0: (
            made.append((domain_name, task_name, discount)) or fakes.Corridor()
        ),
    )
    tfrl.make_env("tf_agents:suite_dm_control/cartpole/swingup", discount=0.5).close()
    assert made == [("cartpole", "swingup", 0.5)]
    with pytest.raises(UserError, match="expected suite_dm_control/domain_name/task_name, got"):
        tfrl.make_env("tf_agents:suite_dm_control/cartpole")
