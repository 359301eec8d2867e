"""Masked: few of many actions are valid, different ones at each step, and one is right."""

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import Env, initial_state
from tfrl.envs.tf import grid_picture
from tfrl.types import EnvState

MAX_EPISODE_STEPS = 1000  # no episode is longer: it ends after `length` steps


@struct.logic_dataclass
class Masked(Env):
    """Rewards the first or last of the valid actions, depending on a sign; a bare task.

    At every state exactly `num_valid` of the `num_actions` actions are valid, drawn uniformly and
    independently each time: by default 2 of 20, so that 9 of 10 are invalid. `info["action_mask"]`,
    bool [B, num_actions], has the mask after resets and steps. The observation, float32 [B, 2],
    lacks it: it has a random sign and the elapsed fraction of the episode. The right action is the
    valid one with the lowest number if the sign is -1, and with the highest if it is 1.

    The reward is 1 for the right action and 0 for another valid one. An invalid action has reward
    -1 and terminates the episode; `info["invalid_action"]`, bool [B], reports it. Otherwise an
    episode terminates after `length` steps, so that the best return is `length`.

    A policy needs both parts. With the mask alone it is right with probability 1 / 2 at best. With
    the sign alone it takes an invalid action with probability 1 - num_valid / num_actions at each
    step. With masked logits a policy only has to learn logits that rise with the action's number if
    the sign is 1, and fall if it is -1.

    The task is tfrl's own.

    Attributes:
      num_envs: B.
      num_actions: Number of actions; most are invalid.
      num_valid: Number of valid actions in a state; at least 2, for a choice.
      length: Steps of an episode.
    """

    num_envs: int = 1
    num_actions: int = 20
    num_valid: int = 2
    length: int = 10

    def __post_init__(self) -> None:
        """Checks the numbers."""
        checks.at_least("Masked.num_actions", self.num_actions, 2)
        checks.at_least("Masked.num_valid", self.num_valid, 2, maximum=self.num_actions)
        checks.at_least("Masked.length", self.length, 1, maximum=MAX_EPISODE_STEPS)

    @property
    def obs_spec(self) -> specs.BoundedTensorSpec:
        """float32 [2]: the sign, -1 or 1, and the elapsed fraction of the episode, 0 to 1."""
        return specs.BoundedTensorSpec([2], tf.float32, np.array([-1.0, 0.0], np.float32), 1.0)

    @property
    def action_spec(self) -> specs.DiscreteSpec:
        """One of num_actions, of which num_valid are valid."""
        return specs.DiscreteSpec(self.num_actions)

    def reset(self, key: tf.Tensor) -> EnvState:
        """Starts an episode in every environment."""
        keys = seeding.split(key, self.num_envs + 1)
        game = {"t": tf.zeros([self.num_envs], tf.int32), "key": keys[1:], **self._draw(keys[0])}
        info = {"action_mask": game["mask"], "invalid_action": tf.zeros([self.num_envs], tf.bool)}
        return initial_state(self, env_state=game, obs=self._observe(game), info=info)

    def step(self, state: EnvState, action: tf.Tensor) -> EnvState:
        """Judges an action, and draws the next valid ones; `action` is an integer [B]."""
        game, action = state.env_state, tf.cast(action, tf.int32)
        invalid = ~tf.reduce_any(game["mask"] & self._one_hot(action), axis=-1)
        won = tf.cast(tf.equal(action, game["right"]), tf.float32)
        drawn = self._draw(game["key"])
        # After the end, steps do not count and the time stays.
        t = tf.minimum(game["t"] + 1, self.length)
        new = {"t": t, "key": seeding.next_keys(game["key"]), **drawn}
        return EnvState(
            env_state=new,
            obs=self._observe(new),
            reward=won - tf.cast(invalid, tf.float32),
            termination=invalid | (t >= self.length),
            truncation=tf.zeros([self.num_envs], tf.bool),
            info={"action_mask": new["mask"], "invalid_action": invalid},
        )

    def _draw(self, key: tf.Tensor) -> dict[str, tf.Tensor]:
        """Draws mask (bool [B, A]), sign (int32 [B], -1 or 1) and right action (int32 [B]).

        Args:
          key: int32 [2], or [B, 2] by row.
        """
        bits = seeding.uniform_bits(key, [self.num_envs, self.num_valid + 1], tf.int32)
        up = bits[:, 0] >= 0
        # Floyd's sampling: draw j of k is one of the first A - k + j + 1 actions, or the last of
        # these if the draw is taken already. All subsets are equally likely.
        least = self.num_actions - self.num_valid
        mask = tf.zeros([self.num_envs, self.num_actions], tf.bool)
        valid = []
        for j in range(self.num_valid):
            drawn = tf.math.floormod(bits[:, j + 1], least + j + 1)
            taken = tf.reduce_any(mask & self._one_hot(drawn), axis=-1)
            valid.append(tf.where(taken, least + j, drawn))
            mask |= self._one_hot(valid[-1])
        right = tf.where(up, tf.reduce_max(valid, axis=0), tf.reduce_min(valid, axis=0))
        return {"mask": mask, "sign": 2 * tf.cast(up, tf.int32) - 1, "right": right}

    def _one_hot(self, action: tf.Tensor) -> tf.Tensor:
        return tf.equal(action[:, tf.newaxis], tf.range(self.num_actions))  # bool [B, A]

    def _observe(self, game: dict[str, tf.Tensor]) -> tf.Tensor:
        sign, t = tf.cast(game["sign"], tf.float32), tf.cast(game["t"], tf.float32)
        return tf.stack([sign, t * (1.0 / self.length)], axis=-1)

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws the actions of environment `index`: invalid, valid, and the right one in gold.

        The row below shows the elapsed fraction of the episode.
        """
        game = state.env_state
        colors = grid_picture.floor(2, self.num_actions)
        colors[0, ~np.asarray(game["mask"][index])] = grid_picture.WALL
        colors[0, np.asarray(game["mask"][index])] = grid_picture.AGENT
        colors[0, int(game["right"][index])] = grid_picture.GOAL
        colors[1, : int(game["t"][index]) * self.num_actions // self.length] = grid_picture.ITEM
        return grid_picture.draw(colors)
