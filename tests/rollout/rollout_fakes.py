"""A scripted environment, agents that show what they were given, and a plain simulator."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding, struct
from tfrl.envs.core import Autoreset, Env
from tfrl.types import ActionOutput, EnvState


@struct.logic_dataclass
class Scripted(Env):
    """Episode e of row b takes lengths[b][e] steps; kinds[b][e] says how it ends.

    The observation is {"place": [row, episode, age], "age": age}, the reward
    step_reward[b] + age / 4 + action / 8 with the age after the step.
    """

    lengths: tuple
    kinds: tuple | None = None  # "T" terminates, "U" truncates, "B" both
    step_reward: tuple | None = None
    slope: float = 0.25
    action_slope: float = 0.125
    mode: str | None = "SAME_STEP"
    limit: int | None = None
    garbage: bool = False  # NaN rewards in all episodes but the first

    @property
    def obs_spec(self):
        return {"age": tf.TensorSpec([], tf.float32), "place": tf.TensorSpec([3], tf.int32)}

    @property
    def action_spec(self):
        return tf.TensorSpec([], tf.int32)

    @property
    def num_envs(self):
        return len(self.lengths)

    @property
    def max_episode_steps(self):
        return self.limit

    @property
    def autoreset(self):
        return None if self.mode is None else Autoreset.parse(self.mode)

    def _kind(self, letters, episode):
        kinds = self.kinds or tuple(tuple("T" for _ in row) for row in self.lengths)
        table = np.array([[k in letters for k in row] for row in kinds])
        return tf.gather(tf.constant(table), episode, batch_dims=1)

    def _obs(self, episode, age):
        row = tf.range(self.num_envs)
        return {"age": tf.cast(age, tf.float32), "place": tf.stack([row, episode, age], axis=1)}

    def _state(self, episode, age, final, reward, termination, truncation, autoreset, total):
        obs = self._obs(episode, age)
        info = {"total": total}
        if self.mode is not None:
            info |= {"final_obs": final, "autoreset": autoreset}
        return EnvState(
            env_state={"episode": episode, "age": age, "total": total},
            obs=obs,
            reward=reward,
            termination=termination,
            truncation=truncation,
            info=info,
        )

    def reset(self, key):
        zero = tf.zeros([self.num_envs], tf.int32)
        no = tf.zeros([self.num_envs], tf.bool)
        reward = tf.zeros([self.num_envs])
        return self._state(zero, zero, self._obs(zero, zero), reward, no, no, no, zero)

    def step(self, state, action):
        episode, age = state.env_state["episode"], state.env_state["age"]
        total = state.env_state["total"] + 1
        length = tf.gather(tf.constant(self.lengths), episode, batch_dims=1)
        over = age >= length
        base = tf.constant(self.step_reward or (0.0,) * self.num_envs)
        reward = base + self.slope * tf.cast(age + 1, tf.float32)
        reward += self.action_slope * tf.cast(action, tf.float32)
        if self.garbage:
            reward = tf.where(episode > 0, np.nan, reward)
        if self.mode == "DISABLED":
            age = tf.where(over, age, age + 1)
            skipped = over
            reward = tf.where(over, 0.0, reward)
            ended = age >= length
        elif self.mode == "NEXT_STEP":
            skipped = over
            ended = ~over & (age + 1 >= length)
            reward = tf.where(over, 0.0, reward)
            last = len(self.lengths[0]) - 1
            age = tf.where(over, 0, age + 1)
            new_episode = tf.where(over, tf.minimum(episode + 1, last), episode)
        else:
            skipped = tf.zeros_like(over)
            age += 1
            ended = age >= length
        termination = ended & self._kind("TB", episode)
        truncation = ended & self._kind("UB", episode)
        if self.mode == "NEXT_STEP":
            episode = new_episode
        final = self._obs(episode, age)
        if self.mode in ("SAME_STEP", "SAME_STEP_CACHED"):
            last = len(self.lengths[0]) - 1
            following = tf.minimum(episode + 1, last) if self.mode == "SAME_STEP" else 0
            episode = tf.where(ended, following, episode)
            age = tf.where(ended, 0, age)
        return self._state(episode, age, final, reward, termination, truncation, skipped, total)


@struct.logic_dataclass
class Rendered(Scripted):
    """Draws row and age into the pixels; an odd size on purpose."""

    size: tuple = (41, 63)
    render_fps: int = 10

    def render(self, state, index=0):
        frame = np.zeros((*self.size, 3), np.uint8)
        frame[..., 0] = 20 * int(state.env_state["age"][index])
        frame[..., 1] = 100 * (int(state.env_state["episode"][index]) + 1)
        return frame


class CountingAgent:
    """Recurrent: the carry counts steps from 5; the action is carry mod 3 (0 when evaluating)."""

    def initial_carry(self, batch_size):
        return {"count": tf.fill([batch_size], 5)}

    def compute_actions(self, state, obs, key, carry=None):
        count = carry["count"]
        return ActionOutput(
            action=count % 3,
            carry={"count": count + 1},
            extras={"count": count, "scaled": obs["age"] * state["weight"]},
        )

    def evaluate_actions(self, state, obs, key, carry=None):
        output = self.compute_actions(state, obs, key, carry)
        return output.replace(action=tf.zeros_like(output.action))


class NoisyAgent:
    """Memoryless; its action and extras come from the key."""

    def compute_actions(self, state, obs, key, carry=None):
        batch = obs["age"].shape[0]
        noise = seeding.randint(key, [batch], 0, 2**30)
        return ActionOutput(action=noise % 8, extras={"noise": noise})

    evaluate_actions = compute_actions


class PlainAgent:
    """Gives zeros, and nothing else."""

    def compute_actions(self, state, obs, key, carry=None):
        return ActionOutput(action=tf.zeros_like(obs["place"][:, 0]))

    evaluate_actions = compute_actions


def simulate(env: Scripted, length: int) -> dict[str, Any]:
    """What `CountingAgent.compute_actions` meets in `env`, one row and one step at a time."""
    columns = [_simulate_row(env, row, length) for row in range(env.num_envs)]
    return {name: np.stack([c[name] for c in columns], axis=1) for name in columns[0]}


def _simulate_row(env, row, length):
    lengths, last = env.lengths[row], len(env.lengths[row]) - 1
    kinds = env.kinds[row] if env.kinds else "T" * len(lengths)
    base = env.step_reward[row] if env.step_reward else 0.0
    names = "place age reward next_place next_age termination truncation valid count action total"
    out = {name: [] for name in names.split()}
    episode, age, count = 0, 0, 5
    for t in range(length):
        action, over = count % 3, age == lengths[episode]
        out["place"].append([row, episode, age])
        out["age"].append(float(age))
        out["count"].append(count)
        out["action"].append(action)
        out["total"].append(t + 1)
        out["valid"].append(not over)
        ended, kind, reward, starts = False, kinds[episode], 0.0, False
        if over and env.mode == "NEXT_STEP":
            episode, age, starts = min(episode + 1, last), 0, True
        elif over:  # DISABLED
            ended = True
        else:
            age += 1
            ended = age == lengths[episode]
            reward = base + env.slope * age + env.action_slope * action
        out["reward"].append(reward)
        out["termination"].append(ended and kind in "TB")
        out["truncation"].append(ended and kind in "UB")
        out["next_place"].append([row, episode, age])
        out["next_age"].append(float(age))
        if ended and env.mode.startswith("SAME_STEP"):
            episode = 0 if env.mode == "SAME_STEP_CACHED" else min(episode + 1, last)
            age, starts = 0, True
        count = 5 if starts else count + 1
    return {name: np.array(rows) for name, rows in out.items()}


def compile_as(mode, fn):
    """Returns `fn` as it is, as a graph, or compiled by XLA."""
    if mode == "eager":
        return fn
    return tf.function(fn, jit_compile=mode == "xla", autograph=False)
