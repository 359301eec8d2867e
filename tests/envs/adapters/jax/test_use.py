"""Training, evaluation, export and drawing of JAX environments."""

import base64
import os
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tfrl
from tfrl import seeding
from tfrl.agents import PPO, RandomAgent
from tfrl.evaluation import Evaluator
from tfrl.evaluation.video import record_video
from tfrl.workflows import OnPolicyWorkflow

pytest.importorskip("jax", reason="the extra 'jax' is not installed")
pytest.importorskip("gymnax", reason="the extra 'jax' is not installed")
pytest.importorskip("brax", reason="the extra 'jax' is not installed")


def test_evaluation_counts_its_episodes():
    """Catch's ball falls 9 rows, so every episode has 9 steps and one reward of 1 or -1."""
    env = tfrl.make_env("jax/gymnax:Catch-bsuite", 3, "DISABLED", max_episode_steps=20)
    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    result = Evaluator(env=env, agent=agent, num_episodes=7).evaluate(
        agent.init(seeding.key(0)), seeding.key(1)
    )
    assert len(result.episode_returns) == 7
    np.testing.assert_array_equal(np.abs(result.episode_returns), 1)
    np.testing.assert_array_equal(result.episode_lengths, 9)


ACTS_WITHOUT_JAX = """
import sys
sys.modules["jax"] = sys.modules["gymnax"] = None  # an import of them fails
import tensorflow as tf
policy = tf.saved_model.load(sys.argv[1])
print(tf.nest.flatten(policy.action(tf.zeros([2, 4])))[0].shape)
"""


@pytest.mark.slow
def test_a_policy_trained_there_exports_and_acts_without_jax(tmp_path):
    workflow = OnPolicyWorkflow(
        env=tfrl.make_env("jax/gymnax:CartPole-v1", 4),
        agent=PPO,
        rollout_length=8,
        num_epochs=1,
        num_minibatches=1,
    )
    state = workflow.advance(workflow.setup(seed=0), 2).state
    assert workflow.env_steps(state) == 64
    workflow.export_policy(state, tmp_path / "policy")
    words = [sys.executable, "-c", ACTS_WITHOUT_JAX, str(tmp_path / "policy")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "(2,)"


def shown(path):
    """What a page says of the system and its states; Brax 0.14 packs it."""
    page = path.read_text()
    packed = re.search('system = "([^"]{100,})"', page)
    return zlib.decompress(base64.b64decode(packed[1])).decode() if packed else page


# In one process with TensorFlow 2.21, Mesa's EGL crashes.
DRAWS = "MUJOCO_GL" in os.environ and tf.__version__.startswith("2.15.")


@pytest.mark.slow
@pytest.mark.skipif(not DRAWS, reason="MuJoCo draws with MUJOCO_GL=egl, beside TensorFlow 2.15")
def test_brax_is_drawn_and_makes_a_page(tmp_path):
    env = tfrl.make_env(
        "jax/brax:inverted_pendulum", 1, "DISABLED", max_episode_steps=4, backend="spring"
    )
    agent = RandomAgent(obs_spec=env.obs_spec, action_spec=env.action_spec)
    state = agent.init(seeding.key(0))
    video = record_video(env, agent, state, seeding.key(1), tmp_path / "it.mp4")
    assert video.path.stat().st_size > 0 and video.frames == video.episode_lengths[0] + 1
    assert video.scene == tmp_path / "it.html"
    assert "<html>" in video.scene.read_text() and '"pos"' in shown(video.scene)


@pytest.mark.slow
def test_a_page_of_brax_needs_no_screen(tmp_path):
    env = tfrl.make_env("jax/brax:inverted_pendulum", 1, backend="spring").unwrapped
    state = env.reset(seeding.key(0))
    states = [state, env.step(state, tf.zeros([1, 1]))]
    env.write_scene(states, tmp_path / "it.html")
    told = shown(tmp_path / "it.html")
    assert '"pos"' in told and re.search('"(dt|timestep)": 0.02[,}]', told)  # of a step here


def test_it_goes_on_from_a_copy_of_its_state():
    """A state is a nest of tensors: what goes on from a copy of it is the same."""
    env = tfrl.make_env("jax/gymnax:CartPole-v1", 2)
    step = tf.function(env.step, autograph=False)
    state = env.reset(seeding.key(0))
    copy = tf.nest.map_structure(lambda x: tf.constant(x.numpy()), state)
    for _ in range(15):
        state, copy = (step(s, tf.zeros([2], tf.int32)) for s in (state, copy))
    for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(copy), strict=True):
        np.testing.assert_array_equal(a, b)
