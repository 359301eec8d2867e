"""One broken `HostEnv` for each message of check_env, and the check before training."""

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tests.envs.checker_fakes import NAN, agree, checked, message
from tests.envs.host_backends import Scripted
from tfrl import specs
from tfrl.envs import check_env
from tfrl.envs.checker_host import check_before_training
from tfrl.envs.host_env import HostEnv
from tfrl.errors import UserError

FINITE = "expected finite numbers, got "
DIVERGED = (
    "Look for a division by zero or a diverging simulation. A value above 3.4e38 becomes inf in "
    "float32; clip it in the environment or a wrapper."
)


class Unbounded(gymnasium.ActionWrapper):
    """Takes any action."""

    def __init__(self, env):
        super().__init__(env)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def action(self, action):
        return np.tanh(action)


class Drift(Scripted):
    """A backend with random starts that keep within bounds."""

    def reset(self, seeds):
        self.start = seeds % 1000 / 1000.0
        return super().reset(seeds)

    def _obs(self):
        obs = super()._obs()
        obs[:, 0] = self.start + self.episode
        return obs


def host(mode="SAME_STEP", native=None, lengths=(3, 2), **members):
    native = native or ("SAME_STEP" if mode == "DISABLED" else mode)
    return HostEnv(type("Broken", (Drift,), members)(lengths, native), mode)


def receiving(mode="SAME_STEP", outer=None, **fields):
    """A backend whose `receive` answers other fields; functions of its answer."""

    def receive(self):
        step = Drift.receive(self)
        for name, change in fields.items():
            setattr(step, name, change(step))
        return step

    return lambda: host(outer or mode, mode, receive=receive)


def again(self):
    """Observations in one array, written again and again."""
    self.one = getattr(self, "one", np.zeros((2, 3), np.float32))
    self.one[:] = Drift._obs(self)
    return self.one


HOST = {
    "spec": (
        lambda: _spec(host()),
        "obs_spec .: expected a TensorSpec with the static shape of a single environment, got "
        f"{tf.TensorSpec([None], tf.float32)!r}. Describe each leaf by a "
        "tfrl.specs.BoundedTensorSpec or tf.TensorSpec.",
    ),
    "shape": (
        receiving(obs=lambda step: step.obs[:, :2]),
        "step 1: obs: expected a NumPy array float32 [2, 3], got float32 [2, 2].",
    ),
    "dtype": (
        receiving(obs=lambda step: step.obs.astype(np.float16)),
        "step 1: obs: expected a NumPy array float32 [2, 3], got float16 [2, 3]. Cast it with "
        ".astype(np.float32), or change the dtype of the space.",
    ),
    "not_finite": (
        receiving(reward=lambda step: step.reward / np.array([1.0, 0.0])),
        f"reward of testing:ScriptedHost, environment 1, step 1: {FINITE}inf. {DIVERGED}",
    ),
    "final_obs_not_finite": (
        receiving(final_obs=lambda step: step.obs * np.array([[1], [NAN]], np.float32)),
        f"final observation of testing:ScriptedHost, environment 1, step 1: {FINITE}nan at index "
        f"[0]. {DIVERGED}",
    ),
    "reward_shape": (
        receiving(reward=lambda step: np.zeros(1)),
        "step 1 of testing:ScriptedHost under SAME_STEP: reward: expected an array [2], got "
        "float64 [1].",
    ),
    "no_final_obs": (
        receiving(final_obs=lambda step: None),
        "step 2 of testing:ScriptedHost under SAME_STEP: final_obs: expected the last "
        "observations in the step that ends an episode, got None, with rows [1] ended.",
    ),
    "final_obs_is_the_next_start": (
        receiving(final_obs=lambda step: step.obs),
        "info/final_obs: expected the last observation of the ended episode, got the first "
        "observation of the next episode (10 different starts). Copy it before the row is reset.",
    ),
    "pays_for_a_reset": (
        receiving("NEXT_STEP", reward=lambda step: np.full(2, 2.0)),
        "step 3 of testing:ScriptedHost under NEXT_STEP: expected reward 0 and both flags False "
        "in rows that ended in the previous step, got reward [2.0] and ends [False] in rows [1].",
    ),
    "pays_for_a_reset_unseen": (
        receiving("NEXT_STEP", "DISABLED", reward=lambda step: np.full(2, 2.0)),
        "step 3 of testing:ScriptedHost under NEXT_STEP: expected reward 0 and both flags False "
        "in rows that ended in the previous step, got reward [2.0] and ends [False] in rows [1].",
    ),
    "info": (
        receiving(info=lambda step: {}),
        "step 1: info: expected the items autoreset, episode_length, episode_return, final_obs, "
        "twice, got no twice.",
    ),
    "array_again": (
        lambda: host(lengths=(9, 9), _obs=again),
        "reset: obs: expected arrays that no later call changes, got 1.0 at [0, 2], 1.0 at [1, 2] "
        "instead of 0.0 at [0, 2], 0.0 at [1, 2] after step 1.",
    ),
    "limit": (
        lambda: _limit(host()),
        "step 1 under SAME_STEP: truncation: expected True at max_episode_steps = 1, got a "
        "mismatch in rows [0, 1]. Use tfrl.make_env for time limit, statistics and autoreset, or "
        "follow the mode's contract; for ends of agents see tfrl.envs.MultiAgentEnv.",
    ),
    "seed": (
        receiving(reward=lambda step: step.reward + np.random.random()),
        "step 1: reward: expected the same value from the same seed and actions, got ",
    ),
    "one_start": (
        lambda: host(reset=lambda self, seeds: Drift.reset(self, np.arange(2))),
        "reset: expected different starts from different seeds, got the same start from 33 seeds. "
        "Use the seeds passed to reset; for a task with a single start, call check_env(env, "
        "stochastic=False).",
    ),
    "one_row": (
        lambda: host(reset=lambda self, seeds: Drift.reset(self, np.full(2, seeds[0]))),
        "reset: expected different starts in the environments of a batch, got the same row 2 "
        "times, from 33 seeds. Give each environment its own seed, or draw rows from one "
        "generator.",
    ),
    "return": (
        lambda: Miscounting(Drift((3, 2)), "SAME_STEP"),
        "step 1 under SAME_STEP: info/episode_length: expected the number of steps in the episode "
        "so far, [1, 1], got a mismatch in rows [0, 1] ([2, 2]). Use tfrl.make_env for time "
        "limit, statistics and autoreset, or follow the mode's contract; for ends of agents see "
        "tfrl.envs.MultiAgentEnv.",
    ),
}


class Miscounting(HostEnv):
    """Counts every step twice."""

    def receive(self):
        state = super().receive()
        return state.replace(
            info={**state.info, "episode_length": 2 * state.info["episode_length"]}
        )


def _spec(env):
    env.backend.obs_spec = tf.TensorSpec([None], tf.float32)
    return env


def _limit(env):
    env.backend.max_episode_steps = 1
    return env


@pytest.mark.parametrize("name", HOST)
def test_broken_host_environments(name):
    make, expected = HOST[name]
    found = message(make(), steps=12)
    assert agree(found, expected), found


@pytest.mark.parametrize(
    "mode, native",
    [
        ("SAME_STEP", "SAME_STEP"),
        ("NEXT_STEP", "NEXT_STEP"),
        ("DISABLED", "SAME_STEP"),
        ("DISABLED", "NEXT_STEP"),
    ],
)
def test_right_host_environments_pass(mode, native):
    env = host(mode, native)
    backend = env.backend
    check_env(env, steps=20)
    assert env.backend is backend and not backend.closed


def test_wrapped_rewards_are_not_taken_for_wrong_returns():
    scaled = host().wrapped([lambda e: tfrl.envs.wrappers.RewardScale(env=e, scale=0.5)])
    normal = host().wrapped([lambda e: tfrl.envs.wrappers.RewardNormalize(env=e)])
    for env in (scaled, normal):
        assert checked(env, steps=9).sum(axis=0).tolist() == [3, 4]
        state = env.step(env.reset(0), np.zeros(2, np.int64))
        assert (state.reward != state.info["episode_return"]).all()


def test_a_failed_check_leaves_the_backend_as_it_was():
    env = host(_obs=lambda self: np.full((2, 3), NAN, np.float32))
    backend = env.backend
    assert message(env).startswith("observation of testing:ScriptedHost, environment 0, step 0: ")
    assert env.backend is backend


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Taxi-v4"])
def test_host_environments_pass(name, mode):
    with tfrl.make_env(f"gymnasium:{name}", 2, mode, max_episode_steps=9) as env:
        assert checked(env, steps=30).any(axis=0).all()


def test_mujoco_passes():
    pytest.importorskip("mujoco")
    with tfrl.make_env("gymnasium:HalfCheetah-v5", 2, max_episode_steps=20) as env:
        assert checked(env, steps=50).sum(axis=0).tolist() == [2, 2]


@pytest.mark.parametrize("clips", [False, True])
def test_actions_without_bounds_are_noted_unless_they_are_clipped(clips, caplog):
    wrappers = (gymnasium.wrappers.ClipAction,) if clips else (Unbounded,)
    with tfrl.make_env("gymnasium:Pendulum-v1", 2, wrappers=wrappers, max_episode_steps=9) as env:
        assert not np.isfinite(specs.bounds(env.action_spec)[1]).any()
        check_env(env, steps=10)
    assert ("expected finite bounds" in caplog.text) is not clips


def test_what_is_no_environment():
    assert message(object()) == (
        "check_env: expected a device environment (tfrl.envs.Env), got object. Derive it from "
        "Env, or create it with make_env; check_env also accepts a gymnasium.Env or a "
        "gymnasium.vector.VectorEnv."
    )


# --- before training


def test_before_training_a_copy_is_checked_and_closed():
    env = host(lengths=(3, 2, 4))
    check_before_training(env, 0)
    (copy,) = env.backend.copies
    assert (copy.num_envs, copy.closed, env.backend.closed) == (2, 1, 0)
    assert len(copy.taken) == 100 and not env.backend.taken


def test_before_training_a_slow_environment_takes_few_steps():
    env = host(lengths=(3, 2))
    check_before_training(env, 0, seconds=0.0)
    assert len(env.backend.copies[0].taken) == 2


def test_before_training_what_is_wrong_is_an_error_and_the_copy_is_closed():
    env = tfrl.make_env("gymnasium:CartPole-v1", 1, wrappers=(NotANumber,))
    with env, pytest.raises(UserError) as error:
        check_before_training(env, 0)
    assert str(error.value) == (
        "observation of gymnasium:CartPole-v1, environment 0, step 1: "
        f"{FINITE}nan at index [0]. {DIVERGED}"
    )


class NotANumber(gymnasium.Wrapper):
    def step(self, action):
        obs, *rest = self.env.step(action)
        return obs * np.float32(NAN), *rest


@pytest.mark.parametrize("name", ["testing:ConstantReward", "testing:Identity"])
def test_before_training_device_environments_are_checked_too(name):
    assert checked(tfrl.make_env(name, 2), check_before_training, seed=0).shape == (5, 2)


def test_before_training_a_broken_device_environment_is_an_error():
    class Broken(tfrl.envs.testing.ConstantReward):
        def reset(self, key):
            return super().reset(key).replace(reward=tf.ones([self.num_envs]))

    with pytest.raises(UserError, match="reset: reward: expected 0 or False"):
        check_before_training(Broken(), 0)


def test_before_training_environments_of_pettingzoo_are_left_as_they_are():
    pytest.importorskip("mpe2")
    env = tfrl.make_env("pettingzoo:mpe2.simple_spread_v3", 2)
    state = env.reset(tfrl.seeding.key(0))
    check_before_training(env, 0)
    action = tfrl.specs.sample(env.action_spec, tfrl.seeding.key(1), [2])
    length = env.step(state, action).info["episode_length"]  # an older state would be an error
    np.testing.assert_array_equal(length, [1, 1])
