"""Relay: agents pass on a hidden side by their positions."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfrl import checks, seeding, specs, struct
from tfrl.envs.core import initial_state
from tfrl.envs.multi_agent import MultiAgentEnv, agents_info, no_step
from tfrl.errors import UserError
from tfrl.types import EnvState

SQUARE = 32  # pixels
GAP = 2  # pixels between squares
FLOOR, TREASURE, TRAP, SEES, FOLLOWS = (
    np.array(color, np.uint8)
    for color in ((225,) * 3, (230, 190, 60), (190, 90, 80), (40, 90, 170), (90, 150, 210))
)


def draw(side: int, cells: Sequence[int], half_length: int) -> np.ndarray:
    """Draws every lane with its agent, and its ends in the colours of treasure and trap.

    Args:
      side: Side of the treasure, -1 for left or 1 for right.
      cells: The agents' cells, from -half_length to half_length.
      half_length: Steps to either end.

    Returns:
      uint8 RGB [H, W, 3].
    """
    columns = 2 * half_length + 1
    picture = np.full((len(cells) * SQUARE, columns * SQUARE, 3), 255, np.uint8)
    for row, cell in enumerate(cells):
        for column in range(columns):
            color = FLOOR
            if abs(column - half_length) == half_length:
                color = TREASURE if (column > half_length) == (side > 0) else TRAP
            _fill(picture, row, column, GAP, color)
        _fill(picture, row, cell + half_length, SQUARE // 4, SEES if row == 0 else FOLLOWS)
    return picture


def _fill(picture: np.ndarray, row: int, column: int, margin: int, color: np.ndarray) -> None:
    top, left = row * SQUARE, column * SQUARE
    picture[top + margin : top + SQUARE - margin, left + margin : left + SQUARE - margin] = color


MAX_EPISODE_STEPS = 24
LEFT, STAY, RIGHT = 0, 1, 2


@struct.logic_dataclass
class Relay(MultiAgentEnv):
    """Three walkers seek a treasure whose side only the first one sees; a bare task.

    Every agent has its own lane with the cells -n .. n (n is `half_length`) and starts at 0. The
    treasure is on one side of all lanes, left or right, drawn at each reset. An agent that
    reaches an end of its lane is done: it is paid 1 on the treasure's side and -1 on the other, and
    every step costs `step_cost`. The environment ends with the last agent.

    Observations are partial, float32 [2]: the agent's own cell / n, and a signal. The signal of
    agent 0 is the side, -1 or 1; that of agent k is the cell / n of agent k - 1. So agent 0 can go
    at once, and agent k learns the side k steps later, from the first step of the one before it.
    `info["state"]`, float32 [1 + 2 K], is the full state: the side, the cells / n and flags of
    active agents. From it a centralised critic knows whether a follower walks towards the treasure
    before the follower knows.

    The best policy of agent k walks straight once it knows the side, with the expected return

      J_k = 1 - step_cost (n + k),  J = sum_k J_k

    because before that its observations are independent of the side: its remaining way has an
    expected length of n under any actions (it reaches no end in less than K <= n steps), and
    waiting pays while step_cost k < 1. With three agents, n = 3 and step_cost 0.1: J = 1.8. A
    policy that ignores the signal gets at most the costs of the shortest way, -step_cost n each. A
    uniformly random walk ends on either side alike after n^2 3 / 2 steps: about -1.3 an agent.

    Attributes:
      num_envs: B.
      num_agents: K.
      half_length: n, steps to either end; at least K.
      step_cost: Cost of a step for an active agent; below 1 / K.
    """

    num_envs: int = 1
    num_agents: int = 3
    half_length: int = 3
    step_cost: float = 0.1

    def __post_init__(self) -> None:
        """Checks the assumptions of the optimum."""
        checks.at_least("Relay.num_agents", self.num_agents, 1)
        checks.at_least("Relay.half_length", self.half_length, self.num_agents)
        if not 0 <= self.step_cost * self.num_agents < 1:
            raise UserError(
                "Relay.step_cost",
                expected=f"a number from 0 to below 1 / num_agents = {1 / self.num_agents:g}",
                got=repr(self.step_cost),
                remedy="Lower it, so that waiting for the message pays off.",
            )

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """`agent_0` (who sees the side), `agent_1`, ..."""
        return tuple(f"agent_{k}" for k in range(self.num_agents))

    @property
    def obs_spec(self) -> dict[str, specs.BoundedTensorSpec]:
        """float32 [2] an agent: own cell / n and signal."""
        return {a: specs.BoundedTensorSpec([2], tf.float32, -1.0, 1.0) for a in self.agent_ids}

    @property
    def action_spec(self) -> dict[str, specs.DiscreteSpec]:
        """0 goes left, 1 stays, 2 goes right."""
        return {a: specs.DiscreteSpec(3) for a in self.agent_ids}

    @property
    def state_spec(self) -> specs.BoundedTensorSpec:
        """float32 [1 + 2 K]: side, cells / n, and 1 for active agents."""
        return specs.BoundedTensorSpec([1 + 2 * self.num_agents], tf.float32, -1.0, 1.0)

    def optimal_return(self) -> dict[str, float]:
        """Returns the best expected return of each agent, J_k; their sum is the team's."""
        return {
            a: 1.0 - self.step_cost * (self.half_length + k) for k, a in enumerate(self.agent_ids)
        }

    def reset(self, key: tf.Tensor) -> EnvState:
        """Draws the treasure's side; all agents start at 0."""
        side = 2 * seeding.randint(key, [self.num_envs], 0, 2) - 1  # [B]
        cell = tf.zeros([self.num_envs, self.num_agents], tf.int32)
        state = initial_state(
            self,
            env_state={"side": side, "cell": cell},
            obs=self._observe(side, cell),
            info={
                "agents": no_step(self.agent_ids, self.num_envs),
                "state": self._state(side, cell),
            },
        )
        return state.replace(reward={a: state.reward for a in self.agent_ids})

    def step(self, state: EnvState, action: dict[str, tf.Tensor]) -> EnvState:
        """Moves active agents by one cell."""
        side, before = state.env_state["side"], state.env_state["cell"]
        active = tf.abs(before) < self.half_length  # [B, K]
        move = tf.cast(tf.stack([action[a] for a in self.agent_ids], axis=-1), tf.int32) - 1
        cell = before + tf.where(active, move, 0)
        arrived = active & (tf.abs(cell) >= self.half_length)
        won = tf.cast(tf.where(arrived, tf.sign(cell) * side[:, tf.newaxis], 0), tf.float32)
        reward = won - self.step_cost * tf.cast(active, tf.float32)
        never = tf.zeros([self.num_envs], tf.bool)
        return EnvState(
            env_state={"side": side, "cell": cell},
            obs=self._observe(side, cell),
            reward=dict(zip(self.agent_ids, tf.unstack(reward, axis=-1), strict=True)),
            termination=tf.reduce_all(tf.abs(cell) >= self.half_length, axis=-1),
            truncation=never,
            info={
                "agents": agents_info(self.agent_ids, active, arrived, tf.zeros_like(arrived)),
                "state": self._state(side, cell),
            },
        )

    def _observe(self, side: tf.Tensor, cell: tf.Tensor) -> dict[str, tf.Tensor]:
        place = tf.cast(cell, tf.float32) / self.half_length  # [B, K]
        signal = tf.concat([tf.cast(side, tf.float32)[:, tf.newaxis], place[:, :-1]], axis=-1)
        obs = tf.unstack(tf.stack([place, signal], axis=-1), axis=1)
        return dict(zip(self.agent_ids, obs, strict=True))

    def _state(self, side: tf.Tensor, cell: tf.Tensor) -> tf.Tensor:
        parts = [
            tf.cast(side, tf.float32)[:, tf.newaxis],
            tf.cast(cell, tf.float32) / self.half_length,
            tf.cast(tf.abs(cell) < self.half_length, tf.float32),
        ]
        return tf.concat(parts, axis=-1)

    def render(self, state: EnvState, index: int = 0) -> np.ndarray:
        """Draws the lanes of environment `index` as uint8 RGB."""
        return draw(
            side=int(state.env_state["side"][index]),
            cells=[int(c) for c in state.env_state["cell"][index]],
            half_length=self.half_length,
        )
