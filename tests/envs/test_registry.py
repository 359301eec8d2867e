"""make_env: what it makes, and the messages for what it cannot make."""

import pytest

import tfrl
from tfrl import seeding
from tfrl._version import __version__
from tfrl.envs import registry
from tfrl.envs.core import Autoreset
from tfrl.envs.testing import Chain
from tfrl.envs.wrappers import ActionRepeat, RewardScale, RewardSparse
from tfrl.errors import UserError


@pytest.fixture(autouse=True)
def _own_registries(monkeypatch):
    registry.env_ids()  # what ships is registered once in a process, not in the copies below
    monkeypatch.setattr(registry, "_SUITES", dict(registry._SUITES))
    monkeypatch.setattr(registry, "_TASKS", {s: dict(t) for s, t in registry._TASKS.items()})


def message(*args, **kwargs):
    with pytest.raises(UserError) as error:
        tfrl.make_env(*args, **kwargs)
    return str(error.value)


def test_what_it_makes():
    env = tfrl.make_env("tf:CartPole-v1")
    assert (env.num_envs, env.max_episode_steps, env.action_repeat) == (1, 500, 1)
    assert env.autoreset is Autoreset.SAME_STEP
    env = tfrl.make_env("tf:CartPole-v1", 3, "next_step", sutton_barto_reward=True)
    assert env.num_envs == 3 and env.autoreset is Autoreset.NEXT_STEP
    assert env.unwrapped.sutton_barto_reward
    assert env == tfrl.make_env("tf:CartPole-v1", 3, Autoreset.NEXT_STEP, sutton_barto_reward=True)


def test_the_time_limit():
    def limit(**kwargs):
        return tfrl.make_env("tf:Pendulum-v1", **kwargs).max_episode_steps

    assert limit() == 200
    assert limit(max_episode_steps=7) == 7
    assert limit(max_episode_steps=-1) is None
    # The task's own limit counts frames, a given one steps.
    repeat = (lambda env: ActionRepeat(env=env, repeat=4),)
    assert limit(wrappers=repeat) == 50
    assert limit(wrappers=repeat, max_episode_steps=200) == 200
    assert tfrl.make_env("testing:Identity").max_episode_steps is None


def test_a_repeat_that_does_not_divide_the_limit():
    assert "a wrapper of make_env returns: expected an environment, got NoneType" in message(
        "tf:Pendulum-v1", wrappers=[lambda env: None]
    )
    text = message("tf:Pendulum-v1", wrappers=(lambda env: ActionRepeat(env=env, repeat=3),))
    assert text == (
        "action repeat: expected a divisor of the task's limit of 200 frames, got 3. Use 2 or 4, "
        "or set max_episode_steps, which counts steps."
    )


def test_wrappers_go_to_their_sides_in_order():
    env = tfrl.make_env(
        "testing:Chain",
        wrappers=(lambda e: RewardScale(env=e, scale=2.0), lambda e: RewardScale(env=e, scale=5.0)),
        outer_wrappers=(lambda e: RewardSparse(env=e),),
    )
    assert isinstance(env, RewardSparse)
    assert env.env.env.scale == 5.0 and env.env.env.env.scale == 2.0


def test_unknown_task_suggests_the_nearest():
    assert message("tf:CartPol-v1") == (
        "environment tf:CartPol-v1: expected a task of the suite tf, got 'CartPol-v1'. "
        "Did you mean CartPole-v1?"
    )


SUITES = "envpool, gymnasium, jax/brax, jax/gymnax, jax/jumanji, pettingzoo, testing, tf, tf_agents"


def test_missing_suite_suggests_the_id():
    assert message("CartPole-v1") == (
        "env_id: expected suite:task, for example tf:CartPole-v1, got 'CartPole-v1'. "
        "Did you mean tf:CartPole-v1?"
    )
    assert f"has the suites {SUITES}." in message("qqqqqq")
    assert "got 3" in message(3)


def test_a_suite_that_this_version_does_not_have():
    assert message("warehouse:Zzz") == (
        f"environment suite 'warehouse': expected one of the suites of tfrl {__version__}: "
        f"{SUITES}, got warehouse:Zzz. Choose one of them."
    )


def test_a_suite_that_is_missing_but_has_its_task_elsewhere():
    assert message("warehouse:Pendulum-v1").endswith("Did you mean tf:Pendulum-v1?")
    assert message("testin:Chain").endswith("Did you mean testing:Chain?")


def test_unknown_arguments_name_the_known():
    text = message("tf:Pendulum-v1", num_env=3)
    assert text == (
        "make_env('tf:Pendulum-v1'): expected arguments of the task (g) or of make_env "
        "(autoreset, max_episode_steps, num_envs, outer_wrappers, wrappers), got num_env. Did you "
        "mean num_envs?"
    )
    assert "arguments of the task (length)" in message("testing:Chain", size=2)


def test_missing_arguments_are_named():
    assert message("testing:Scripted") == (
        "make_env('testing:Scripted'): expected the arguments that the task requires (rewards), "
        "got no rewards. Pass rewards=... to make_env."
    )
    assert tfrl.make_env("testing:Scripted", rewards=(1.0,)).num_envs == 1
    registry.register("mine:Any", lambda a, b, num_envs, c=1, **rest: Chain(num_envs=num_envs))
    assert "(a, b), got no b." in message("mine:Any", a=1, d=2)
    assert tfrl.make_env("mine:Any", a=1, b=2, d=3).num_envs == 1


@pytest.mark.parametrize("name", ["wrappers", "outer_wrappers"])
@pytest.mark.parametrize("value", [len, None, 3, "ab", [len, 3]], ids=repr)
def test_wrappers_that_are_no_sequence_of_functions(name, value):
    assert message("testing:Chain", **{name: value}) == (
        f"{name}: expected a sequence of functions Env -> Env, got {value!r}. Pass a tuple, also "
        f"for one function: {name}=(function,)."
    )


@pytest.mark.parametrize("num_envs", [0, -3, 2.0, "4", True, None])
def test_wrong_num_envs(num_envs):
    assert message("tf:CartPole-v1", num_envs) == (
        f"num_envs: expected a whole number of at least 1, got {num_envs!r}. Give 1 or more."
    )


@pytest.mark.parametrize("limit", [0, -2, 1.5, "3", False])
def test_wrong_limit(limit):
    text = message("tf:CartPole-v1", max_episode_steps=limit)
    assert text.startswith("max_episode_steps: expected a whole number of at least 1 or None")
    assert f"got {limit!r}." in text


def test_wrong_mode_suggests_the_nearest():
    text = message("tf:CartPole-v1", autoreset="samestep")
    assert text.startswith("autoreset: expected one of NEXT_STEP, SAME_STEP, SAME_STEP_CACHED, DIS")
    assert "Did you mean SAME_STEP" in text


def test_registering_a_task():
    registry.register("mine:Walk", Chain, max_episode_steps=12)
    env = tfrl.make_env("mine:Walk", 2, length=3)
    assert env.max_episode_steps == 12 and env.reset(seeding.key(0)).obs.shape == [2, 3]
    assert "mine:Walk" in registry.env_ids()
    with pytest.raises(UserError, match="expected an unregistered id"):
        registry.register("mine:Walk", Chain)


def test_registering_a_suite():
    made = []

    def maker(task, **kwargs):
        made.append((task, kwargs))
        return "env"

    registry.register_suite("host", maker)
    assert tfrl.make_env("host:a:b", 2, color=1) == "env"
    general = {"num_envs": 2, "autoreset": Autoreset.SAME_STEP, "max_episode_steps": None}
    assert made == [("a:b", {**general, "wrappers": (), "outer_wrappers": (), "color": 1})]
    with pytest.raises(UserError, match="suite host: expected an unregistered name"):
        registry.register_suite("host", maker)
    with pytest.raises(UserError, match="suite name: expected a name without a colon"):
        registry.register_suite("a:b", maker)
    with pytest.raises(UserError, match="in a suite of registered tasks, got suite host"):
        registry.register("host:c", Chain)
