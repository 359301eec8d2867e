"""Environments of the library as Gymnasium's."""

import os
import pathlib
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import tfrl
from tfrl import specs
from tfrl.envs import Autoreset, as_gymnasium
from tfrl.envs.testing import ConstantReward
from tfrl.envs.wrappers import Episode
from tfrl.errors import UserError

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / ".venv-peers" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"


@pytest.mark.parametrize(
    "env_id", ["tf:CartPole-v1", "tf:Pendulum-v1", "tf:Masked", "gymnasium:MountainCar-v0"]
)
def test_one_passes_gymnasiums_checker_and_ours(env_id):
    env = as_gymnasium(tfrl.make_env(env_id), render_mode="rgb_array")
    assert isinstance(env, gymnasium.Env)
    with warnings.catch_warnings(record=True) as found:
        check_env(env, skip_render_check=env_id == "tf:Masked")
    said = [str(w.message) for w in found if w.category is UserWarning]
    # It recommends bounds, and normalised actions.
    assert [x for x in said if not any(y in x for y in ("Box", "symmetric", "spec"))] == []
    tfrl.envs.check_env(env, steps=30)
    env.close()


def test_one_steps_as_gymnasiums_cartpole_does():
    ours, theirs = as_gymnasium(tfrl.make_env("tf:CartPole-v1")), gymnasium.make("CartPole-v1")
    obs, _ = ours.reset(seed=3)
    theirs.reset(seed=3)
    theirs.unwrapped.state = obs.astype(np.float64)
    for t in range(200):
        action = t % 3 % 2
        got, want = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(got[0], want[0], atol=1e-4)
        assert got[1:4] == want[1:4]
        if got[2]:
            break
    assert got[2] and got[4]["episode_length"] == t + 1
    assert not np.array_equal(ours.reset()[0], ours.reset()[0])


@pytest.mark.parametrize("mode", ["SAME_STEP", "NEXT_STEP", "DISABLED"])
def test_several_pass_our_checker(mode):
    made = tfrl.make_env("tf:CartPole-v1", num_envs=3, autoreset=mode)
    env = as_gymnasium(made, render_mode="rgb_array")
    assert isinstance(env, gymnasium.vector.VectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode[mode]
    tfrl.envs.check_env(env, steps=60)
    assert [picture.shape[-1] for picture in env.render()] == [3, 3, 3]


def test_actions_in_lists_and_tuples():
    vector = as_gymnasium(tfrl.make_env("tf:CartPole-v1", num_envs=2))
    vector.reset(seed=0)
    first = vector.step([0, 1])[0]
    vector.reset(seed=0)
    np.testing.assert_array_equal(vector.step((0, 1))[0], first)
    for env_id in ("tf:Pendulum-v1", "gymnasium:Pendulum-v1"):
        one = as_gymnasium(tfrl.make_env(env_id))
        one.reset(seed=0)
        obs = one.step([0.1])[0]
        one.reset(seed=0)
        np.testing.assert_array_equal(one.step(np.float32([0.1]))[0], obs)
        one.close()


@pytest.mark.parametrize(
    ("env_id", "action", "message"),
    [
        ("tf:CartPole-v1", 5, "action for CartPole: expected whole numbers from 0 to 1, got 5"),
        ("tf:CartPole-v1", -3, "expected whole numbers from 0 to 1, got -3"),
        ("tf:CartPole-v1", np.float32(0.7), r"expected int64 \[1\], got float32 \[1\]"),
        ("tf:CartPole-v1", None, "expected numbers, in lists of equal length, got None"),
        ("tf:CartPole-v1", {"a": 1}, "expected numbers, in lists of equal length, got {'a': 1}"),
        ("gymnasium:CartPole-v1", 0.7, r"CartPole-v1: expected int64 \[1\], got float64 \[1\]"),
        ("tf:Pendulum-v1", np.zeros(3), r"Pendulum: expected float32 \[1, 1\], got float32 \[1, 3"),
        ("tf:Pendulum-v1", [np.nan], "Pendulum: expected finite numbers, got nan"),
        ("tf:Pendulum-v1", [[0.0], [1.0, 2.0]], "expected numbers, in lists of equal length"),
    ],
)
def test_actions_out_of_the_space(env_id, action, message):
    env = as_gymnasium(tfrl.make_env(env_id))
    env.reset(seed=0)
    with pytest.raises(UserError, match=message):
        env.step(action)
    env.close()


class Nested(ConstantReward):
    @property
    def action_spec(self):
        pair = specs.BinarySpec(2), tf.TensorSpec([1], tf.float32)
        return {"a": specs.MultiDiscreteSpec([2, 3]), "pair": pair}


def test_nested_actions():
    env = as_gymnasium(Episode(env=Nested(), mode=Autoreset.SAME_STEP))
    env.reset(seed=0)
    for action in (
        env.action_space.sample(),
        {"a": [1, 2], "pair": [[True, False], [0]]},
        {"a": (1, 2), "pair": (np.array([0, 1]), np.zeros(1))},
    ):
        assert env.step(action)[1] == 1.0
    for action, message in (
        ({"a": [1, 3], "pair": [[0, 1], [0]]}, "Nested/a: expected whole numbers from 0 to .1, 2."),
        ({"a": [1, 2], "pair": [[0, 1]]}, "action for Nested/pair: expected a tuple of 2 parts"),
        ([1, 2], "action for Nested: expected a dict of a, pair, got list"),
    ):
        with pytest.raises(UserError, match=message):
            env.step(action)


def test_mistakes():
    with pytest.raises(UserError, match="as_gymnasium: expected an env.*, got 'tf:CartPole-v1'. C"):
        as_gymnasium("tf:CartPole-v1")
    with pytest.raises(UserError, match="expected one environment, got 2 environments"):
        as_gymnasium(tfrl.make_env("tf:Catch", num_envs=2), vector=False)
    with pytest.raises(UserError, match="a bare CartPole"):
        as_gymnasium(tfrl.make_env("tf:CartPole-v1").unwrapped)
    with pytest.raises(UserError, match="got several rewards per step"):
        as_gymnasium(tfrl.make_env("tf:Relay-v0"))
    three = as_gymnasium(tfrl.make_env("tf:Catch", num_envs=3, autoreset="DISABLED"))
    three.reset()
    with pytest.raises(
        UserError, match=r"reset_mask.*bool of shape \[3\], got bool of shape \[2\]"
    ):
        three.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(gymnasium.error.ResetNeeded):
        as_gymnasium(tfrl.make_env("tf:Catch")).step(0)


# PyTorch needs the newer typing_extensions of its own environment.
TRAIN = """
import sys
sys.path.insert(0, sys.argv[1])
import typing_extensions
del sys.path[0]
import tfrl
env = tfrl.envs.as_gymnasium(tfrl.make_env("tf:CartPole-v1"))
sys.path.append(sys.argv[1])
import stable_baselines3
import torch
torch.set_num_threads(1)
from stable_baselines3.common import env_checker, evaluation
env_checker.check_env(env)
model = stable_baselines3.PPO("MlpPolicy", env, n_steps=256, seed=0, device="cpu")
model.learn(4_096)
print(evaluation.evaluate_policy(model, env, 5, warn=False)[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(not PEERS.is_dir(), reason="needs make bench-peers' environment")
def test_stable_baselines3_trains_on_it():
    """With PyTorch of the peers' environment behind TensorFlow's of this one."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(PEERS)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) > 40
