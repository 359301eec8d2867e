"""Evaluates the agent of a learner during a run."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.distribute.tracing import counted_apart
from tfrl.envs.host import on_host
from tfrl.envs.host_env import HostEnv
from tfrl.evaluation.evaluator import compiled
from tfrl.evaluation.result import EvaluationResult
from tfrl.learners import Learner
from tfrl.types import Nest
from tfrl.workflows.stages import auto_needs_timing


class Evaluations:
    """Plays greedy episodes, divided among the replicas; compiled once for a number of episodes."""

    def __init__(self, workflow: Any, learner: Learner):
        """Prepares; nothing is traced yet.

        Args:
          workflow: The `LearnerWorkflow` whose environments are played.
          learner: A built learner.
        """
        self._workflow = workflow
        self._learner = learner
        self._made: dict[int, Callable[[tf.Tensor], EvaluationResult]] = {}

    @property
    def mode(self) -> str:
        """Graph on a CPU, where an episode's loop ends early, unless told otherwise."""
        asked: str = self._workflow.compile["evaluation"]
        if asked != "auto":
            return asked
        if on_host(self._workflow.eval_env):
            return "auto" if isinstance(self._workflow.env, HostEnv) else "graph"
        return "graph" if auto_needs_timing() else "xla"

    def forget(self) -> None:
        """Traces anew at the next call."""
        self._made = {}

    def evaluate(self, num_episodes: int, key: tf.Tensor) -> EvaluationResult:
        """Plays episodes that follow from a key, int32 [2]."""
        if num_episodes not in self._made:
            self._made[num_episodes] = self._make(num_episodes)
        return self._made[num_episodes](key)

    def _acting_state(self) -> Any:
        return struct.values(self._workflow.acting_state(self._learner))

    def _make(self, n: int) -> Callable[[tf.Tensor], EvaluationResult]:
        """Returns a function of a key that plays n episodes."""
        replicas, mode = self._learner.replicas, self.mode
        if not replicas.several:
            evaluator = self._workflow.make_evaluator(n, mode)
            return lambda key: evaluator.evaluate(self._acting_state(), key)
        evaluator = self._workflow.make_evaluator(-(-n // replicas.num_replicas), mode)
        play = evaluator.run if mode == "eager" else compiled(evaluator.run, mode)

        def own(key: tf.Tensor) -> Nest:
            found = play(self._acting_state(), seeding.fold_in(key, replicas.index()))
            return replicas.gather(found)  # [R, episodes]

        def everywhere(key: tf.Tensor) -> Nest:
            found = replicas.any_replica(replicas.run(own, key))
            return tf.nest.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]])[:n], found)

        if mode != "eager":
            everywhere = tf.function(counted_apart(everywhere), autograph=False)
        return lambda key: evaluator.result(everywhere(key))
