"""A scripted environment with two agents, by which every rule of the protocol can be broken."""

import numpy as np
import tensorflow as tf

from tfrl import seeding, specs, struct
from tfrl.envs.core import initial_state
from tfrl.envs.multi_agent import MultiAgentEnv, agents_info, no_step
from tfrl.types import EnvState

IDS = ("a", "b")


@struct.logic_dataclass
class Two(MultiAgentEnv):
    """Agent i ends at step `ends[i]` of an episode ("T" terminates, "U" truncates) and is paid 1.

    The observation of an agent is [start, age], the same start for both; agent b has an image-like
    integer besides. Subclasses break one thing each.
    """

    num_envs: int = 3
    ends: tuple = ((2, "T"), (4, "U"))
    apart: bool = True  # whether info["agents"] is given
    paid_after: float = 0.0  # what an inactive agent is paid

    @property
    def agent_ids(self):
        return IDS

    @property
    def obs_spec(self):
        vector = specs.BoundedTensorSpec([2], tf.float32, 0.0, 50.0)
        return {"a": vector, "b": {"kind": specs.DiscreteSpec(3), "vector": vector}}

    @property
    def action_spec(self):
        return {a: specs.DiscreteSpec(2) for a in IDS}

    def observe(self, start, age):
        vector = tf.stack([start, tf.cast(age, tf.float32)], axis=-1)
        return {"a": vector, "b": {"kind": tf.cast(age % 3, tf.int64), "vector": vector}}

    def reset(self, key):
        start = seeding.uniform(key, [self.num_envs])
        age = tf.zeros([self.num_envs], tf.int32)
        info = {"agents": no_step(IDS, self.num_envs)} if self.apart else {}
        state = initial_state(
            self,
            env_state={"start": start, "age": age},
            obs=self.observe(start, age),
            info=info,
        )
        return state.replace(reward=dict.fromkeys(IDS, state.reward))

    def step(self, state, action):
        start, age = state.env_state["start"], state.env_state["age"] + 1
        ages = np.array([e for e, _ in self.ends])
        active = age[:, tf.newaxis] <= ages  # [B, 2]
        ended = age[:, tf.newaxis] == ages
        terminates = np.array([kind == "T" for _, kind in self.ends])
        pays = tf.where(active, 1.0, self.paid_after)
        last = ages.argmax()
        over = age >= ages[last]
        info = {"agents": agents_info(IDS, active, ended & terminates, ended & ~terminates)}
        return EnvState(
            env_state={"start": start, "age": age},
            obs=self.observe(start, age),
            reward=dict(zip(IDS, tf.unstack(pays, axis=-1), strict=True)),
            termination=over & bool(terminates[last]),
            truncation=over & bool(not terminates[last]),
            info=info if self.apart else {},
        )
