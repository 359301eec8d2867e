"""Memory: the agent must recall a cue long after its display."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.envs.tf import grid_picture
from tfrl.types import EnvState

MAX_EPISODE_STEPS = 1000  # no episode is longer: it ends after delay + 2 steps


@struct.logic_dataclass
class Memory(Env):
    """Shows a cue, waits for `delay` steps, and asks for it; a bare task.

    The observation is float32 [B, num_cues + 2], one place for each cue and two flags. The first
    one, o_0, is the one-hot cue with the first flag up; o_1 .. o_delay are empty, or with
    `distractors` show a cue drawn at random, without a flag; o_{delay + 1} has nothing but the
    second flag up. The action there is the answer: the reward is 1 if it names the cue, else 0, and
    the episode terminates. Earlier actions have no effect and no reward.

    So the mean return is the rate of recall. The best is 1; a policy that only sees the last
    observation gets 1 / num_cues in expectation, because the question is the same for all cues.

    Source: the memory length task of Osband et al. (2020), "Behaviour Suite for Reinforcement
    Learning", https://arxiv.org/abs/1908.03568, from which it differs: bsuite's cues are vectors of
    bits of which one is asked for, it shows the time left at every step, a wrong answer is paid -1,
    and it has no distractors.

    Attributes:
      num_envs: B.
      num_cues: Number of cues, and of actions.
      delay: Steps between the cue and the question.
      distractors: Show random cues meanwhile.
    """

    num_envs: int = 1
    num_cues: int = 2
    delay: int = 20
    distractors: bool = False

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.at_least(
            "Memory.num_cues",
            self.num_cues,
            2,
            remedy="Use at least 2 cues: one cue requires no memory.",
        )
        most, delay = MAX_EPISODE_STEPS - 2, self.delay
        checks.at_least("Memory.delay", delay, 0, maximum=most)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [num_cues + 2]: one-hot cue, "this is the cue", "which was it?"."""
        return specs.BoundedTensorSpec([self.num_cues + 2], tf.float32, 0.0, 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """The cue to name."""
        return specs.DiscreteSpec(self.num_cues)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Shows the cue of an episode in every environment."""
        keys = seeding.split(key, self.num_envs + 1)
        cue = seeding.randint(keys[0], [self.num_envs], 0, self.num_cues)
        t = tf.zeros([self.num_envs], tf.int32)
        game: dict[str, Any] = {"cue": cue, "t": t}
        if self.distractors:
            game["key"] = keys[1:]
        show = tf.fill([self.num_envs], self.num_cues)
        obs = tf.one_hot(cue, self.num_cues + 2) + tf.one_hot(show, self.num_cues + 2)
        return initial_state(self, env_state=game, obs=obs)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Waits, or judges the answer; `action` is an integer [B]."""
        game = state.env_state
        asked = game["t"] > self.delay
        right = tf.equal(tf.cast(action, tf.int32), game["cue"])
        new: dict[str, Any] = {"cue": game["cue"], "t": game["t"] + 1}
        shown = tf.fill([self.num_envs], -1)  # one_hot of -1 is zeros
        if self.distractors:
            shown = seeding.randint(game["key"], [self.num_envs], 0, self.num_cues)
            new["key"] = seeding.next_keys(game["key"])
        shown = tf.where(new["t"] > self.delay, self.num_cues + 1, shown)
        return EnvState(
            env_state=new,
            obs=tf.one_hot(shown, self.num_cues + 2),
            reward=tf.cast(asked & right, tf.float32),
            termination=asked,
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={},
        )

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws the cue of environment `index` and the progress of the delay.

        A square for each cue, the right one in the goal's colour; below, the elapsed fraction of
        the episode in the agent's colour, red at the question.
        """
        cue, t = (int(state.env_state[n][index]) for n in ("cue", "t"))
        colors = grid_picture.floor(2, self.num_cues)
        colors[0, cue] = grid_picture.GOAL
        over = min(t, self.delay + 1) * self.num_cues // (self.delay + 1)
        colors[1, :over] = grid_picture.ITEM if t > self.delay else grid_picture.AGENT
        return grid_picture.draw(colors)
