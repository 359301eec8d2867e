"""Environments of the library as Gymnasium's."""

import os
import pathlib
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import tfrl
from tfrl.envs import as_gymnasium
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


def test_mistakes():
    with pytest.raises(UserError, match="expected one environment, got 2 environments"):
        as_gymnasium(tfrl.make_env("tf:Catch", num_envs=2), vector=False)
    with pytest.raises(UserError, match="a bare CartPole"):
        as_gymnasium(tfrl.make_env("tf:CartPole-v1").unwrapped)
    relay = as_gymnasium(tfrl.make_env("tf:Relay-v0"))
    relay.reset(seed=0)
    with pytest.raises(UserError, match="one reward for each of several agents"):
        relay.step(relay.action_space.sample())
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
