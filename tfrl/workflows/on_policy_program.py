"""The compiled part of an on-policy run: an iteration is a rollout and the update on it."""

import tensorflow as tf

from tfrl.rollout.host import blank_trajectory
from tfrl.types import Nest
from tfrl.workflows.learner_program import LearnerProgram
from tfrl.workflows.run_state import Progress


class OnPolicyProgram(LearnerProgram):
    """Runs iterations of an `OnPolicyWorkflow`."""

    def _update(
        self, batch: Nest, key: tf.Tensor, timesteps: tf.Tensor, jit: bool = False
    ) -> dict[str, tf.Tensor]:
        return self._workflow.update(self.learner, batch, key, timesteps, jit=jit)

    def _metric_names(self, progress: Progress) -> list[str]:
        out = self._workflow.play(self.state_of(progress), progress.key)
        return list(self.update(out.batch, progress.key, progress.env_steps))

    def _trial_batch(self, progress: Progress) -> Nest:
        if not self._in_python:
            return self._workflow.play(self.state_of(progress), progress.key).batch
        # Steps on the host cannot be taken on trial.
        workflow, env_state = self._workflow, progress.env_state
        trajectory = blank_trajectory(
            workflow.env,
            workflow.agent,
            env_state,
            self.acting_state(),
            workflow.rollout_length,
            workflow.rollout_fields(env_state),
        )
        return self._digest(self.acting_state(), trajectory).batch
