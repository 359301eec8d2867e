"""The library's own answers, with which those of an exported policy are compared."""

from collections.abc import Callable, Mapping, Sequence
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

    def answers(
        self,
        observations: Sequence[Any],
        signatures: Sequence[str],
        keys: Callable[[int], tf.Tensor] = seeding.key,
    ) -> Answers:
        """Acts over the observations of an episode.

        Args:
          observations: Nests `[B, ...]`, one a step.
          signatures: Which of action, explore and distribution.
          keys: The key that `explore` draws by in each step.

        Returns:
          `{<signature>/<output>: [T, B, ...]}`, as the client names them; the memory after each
          step is among the outputs of each signature.
        """
        agent, state = self._agent, self._state
        # Exploring goes on from its own memory, the rest from that of the greedy policy.
        carry = explored = initial_carry(agent, len(tf.nest.flatten(observations[0])[0]))
        found: dict[str, list[np.ndarray]] = {}

        def add(signature: str, leaves: Mapping[str, Any], after: Any) -> None:
            if self._carry_names:
                after = zip(self._carry_names, tf.nest.flatten(after), strict=True)
                leaves = {**leaves, **dict(after)}
            for name, x in leaves.items():
                found.setdefault(f"{signature}/{name}", []).append(np.asarray(x))

        def actions(nest: Any) -> dict[str, Any]:
            return dict(zip(self._names.values(), tf.nest.flatten(nest), strict=True))

        for t, obs in enumerate(observations):
            greedy = agent.evaluate_actions(state, obs, seeding.key(0), carry)
            add("action", actions(greedy.action), greedy.carry)
            if "explore" in signatures:
                drawn = agent.compute_actions(state, obs, keys(t), explored)
                add("explore", actions(drawn.action), drawn.carry)
                explored = drawn.carry
            if has_distribution(agent):
                each, after = policy_parameters(agent, state, obs, carry)
                parameters = {
                    leaf_name(path, name): x
                    for path, (_, values) in each.items()
                    for name, x in values.items()
                }
                add("distribution", parameters, after)
            carry = greedy.carry
        return {name: np.stack(each) for name, each in found.items()}
