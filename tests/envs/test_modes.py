"""The device tasks are the same eagerly, in a graph and compiled by XLA."""

import pytest

import tfrl
from tests.envs.device_checks import check_ways_agree
from tfrl.envs import env_ids

pytestmark = pytest.mark.usefixtures("grappler")

LIMITED = {"max_episode_steps": 4}
TASKS = {
    "tf:Acrobot-v1": ("SAME_STEP", {"torque_noise_max": 0.5, **LIMITED}),
    "tf:CartPole-v1": ("NEXT_STEP", {"max_episode_steps": 3}),
    "tf:Catch": ("SAME_STEP", {"rows": 4}),
    "tf:DeepSea": ("SAME_STEP", {"size": 3, "deterministic": False}),
    "tf:FourRooms": ("NEXT_STEP", {"goal": None, **LIMITED}),
    "tf:Masked": ("SAME_STEP", {"num_actions": 4, "length": 3}),
    "tf:Memory": ("SAME_STEP", {"num_cues": 3, "delay": 2, "distractors": True}),
    "tf:MountainCar-v0": ("SAME_STEP_CACHED", LIMITED),
    "tf:MountainCarContinuous-v0": ("DISABLED", LIMITED),
    "tf:Pendulum-v1": ("SAME_STEP", LIMITED),
    "tf:Relay-v0": ("NEXT_STEP", LIMITED),
    "tf:Breakout-MinAtar": ("SAME_STEP", LIMITED),
}
# Under XLA these are compared with the package, frame by frame.
BESIDE_THE_PACKAGE = {f"tf:{game}-MinAtar" for game in ("Asterix", "Freeway", "Seaquest")} | {
    "tf:SpaceInvaders-MinAtar"
}


def test_it_is_every_task():
    assert {i for i in env_ids() if i.startswith("tf:")} == {*TASKS, *BESIDE_THE_PACKAGE}


@pytest.mark.parametrize("env_id", TASKS)
def test_eager_graph_and_xla_agree(env_id):
    mode, options = TASKS[env_id]
    check_ways_agree(tfrl.make_env(env_id, 3, mode, **options), 7, atol=2e-5, rtol=2e-6)
