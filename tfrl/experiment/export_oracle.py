"""The library's own answers, with which those of an exported policy are compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfrl import seeding
from tfrl.experiment.export_distribution import has_distribution, policy_parameters
from tfrl.experiment.export_functions import initial_carry, leaf_name, leaf_names

# {<signature>/<output>: [T, B, ...]}
Answers = dict[str, np.ndarray]


class AgentOracle:
    """The library's own answers: an agent's methods, called as a rollout calls them."""

    def __init__(self, agent: Any, agent_state: Any):
        self._agent, self._state = agent, agent_state
        self._names = leaf_names(agent.action_spec, "action")
        carry = initial_carry(agent, 1)
        self._carry_names = () if carry is None else tuple(leaf_names(carry, "state").values())

    def answers(self, observations: Sequence[Any], signatures: Sequence[str]) -> Answers:
        """Acts over the observations of an episode.

        Args:
          observations: Nests `[B, ...]`, one a step.
          signatures: Which of action, explore and distribution.

        Returns:
          `{<signature>/<output>: [T, B, ...]}`, as the client names them.
        """
        agent, state = self._agent, self._state
        carry = initial_carry(agent, len(tf.nest.flatten(observations[0])[0]))
        found: dict[str, list[np.ndarray]] = {}

        def add(signature: str, nest: Any, names: Sequence[str]) -> None:
            for name, x in zip(names, tf.nest.flatten(nest), strict=True):
                found.setdefault(f"{signature}/{name}", []).append(np.asarray(x))

        for t, obs in enumerate(observations):
            greedy = agent.evaluate_actions(state, obs, seeding.key(0), carry)
            add("action", greedy.action, tuple(self._names.values()))
            if self._carry_names:
                add("action", greedy.carry, self._carry_names)
            if "explore" in signatures:
                drawn = agent.compute_actions(state, obs, seeding.key(t), carry)
                add("explore", drawn.action, tuple(self._names.values()))
            if has_distribution(agent):
                each, _ = policy_parameters(agent, state, obs, carry)
                for path, (_, parameters) in each.items():
                    for name, x in parameters.items():
                        add("distribution", [x], [leaf_name(path, name)])
            carry = greedy.carry
        return {name: np.stack(each) for name, each in found.items()}
