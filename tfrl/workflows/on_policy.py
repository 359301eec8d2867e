"""The on-policy workflow: roll out, learn from it, throw it away."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfrl.agents.core import Agent
from tfrl.envs.core import Env
from tfrl.evaluation.evaluator import Evaluator
from tfrl.learners import CheckNumerics, ModuleConfig
from tfrl.learners.minibatches import Remainder
from tfrl.types import Nest, Trajectory
from tfrl.workflows import stages
from tfrl.workflows.checks import check_config, check_on_policy, check_whole, minibatch_sizes
from tfrl.workflows.learner_workflow import LearnerWorkflow
from tfrl.workflows.rollout_result import RolloutResult
from tfrl.workflows.run_state import State, keys_of


class OnPolicyWorkflow(LearnerWorkflow):
    """Trains an on-policy agent on a batch of environments.

    One iteration: `rollout_length` steps in each of the environments, then `num_epochs` passes
    over their rows in `num_minibatches` shuffled minibatches. On device environments several
    iterations run in one compiled call; how many never changes a result. An algorithm differs from
    this template by its agent and by the hooks `collect` (`collect_trajectory`, then
    `process_rollout` with `make_batch`) and `update`, which are traced.

    Environments on the host (`tfrl.envs.host_env.HostEnv`) are stepped in Python by
    `collect_trajectory`; what follows is compiled as well. A checkpoint does not hold them: a
    resumed run restores everything else exactly and begins new episodes. The workflow closes them
    in `close`.
    """

    def __init__(
        self,
        env: Env,
        agent: Agent | Callable[..., Agent],
        optimizer: Any = None,
        evaluator: Evaluator | None = None,
        *,
        eval_env: Env | None = None,
        rollout_length: int = 128,
        num_epochs: int | None = None,
        num_minibatches: int | None = None,
        remainder: Remainder = "error",
        learner_config: ModuleConfig | None = None,
        check_numerics: CheckNumerics = "raise",
        eval_episodes: int = 32,
        compile: str | Mapping[str, str] = "auto",
        iterations_per_call: int | None = None,
        strategy: tf.distribute.Strategy | None = None,
    ):
        """Assembles the static logic; `setup` makes the state.

        Args:
          env: The training environments, as `tfrl.make_env` gives them.
          agent: An agent, or a function (such as the class) that makes one from keyword arguments
            `obs_spec` and `action_spec`.
          optimizer: "adam", "adamw", "rmsprop", "sgd", "lion", one of `tfrl.learning.optimizers`,
            or a Keras optimizer, in the place of `learner_config.optimizer`; None to leave it. The
            learning rate is `learner_config.lr`; where that is None a Keras optimizer's own.
          evaluator: Plays the evaluations, in environments of its own; None for `eval_episodes`
            episodes in `eval_env`.
          eval_env: The environments to evaluate on; the training ones by default. Wrappers above
            the autoreset that change rewards are left out: an evaluation tells the task's returns.
          rollout_length: Steps per environment and iteration (T).
          num_epochs: Passes over the rows of an iteration; None for the agent's own number, see
            `Agent.epochs_and_minibatches`.
          num_minibatches: Gradient steps of a pass; must divide T x B unless `remainder` says how.
            None as for `num_epochs`.
          remainder: "error", "pad", "drop" or "wrap".
          learner_config: Learning rate and gradient clipping; by default 3e-4 and 0.5.
          check_numerics: "off", "skip" or "raise", see `Learner`.
          eval_episodes: Episodes of one evaluation.
          compile: "auto", "xla", "graph", "eager", or a dict of them by stage: rollout, update,
            evaluation, and loop (the loop over the iterations of a call; "xla" makes one program
            of it where rollout and update are XLA). In environments on the host the rollout's
            mode says how the policy is called, "numpy" among them; "auto" measures.
          iterations_per_call: Iterations of one compiled call; None for about half a second.
          strategy: A tf.distribute strategy; by default the one whose scope this is called in.
            All sizes are those of all replicas together, which divide them.

        Raises:
          UserError: For sizes that do not divide.
        """
        super().__init__(
            env=env,
            agent=agent,
            optimizer=optimizer,
            evaluator=evaluator,
            eval_env=eval_env,
            rollout_length=rollout_length,
            learner_config=learner_config,
            default_config=ModuleConfig(grad_clip=0.5),
            check_numerics=check_numerics,
            eval_episodes=eval_episodes,
            compile=compile,
            iterations_per_call=iterations_per_call,
            strategy=strategy,
        )
        epochs, minibatches = getattr(self.agent, "epochs_and_minibatches", (4, 4))
        num_epochs = epochs if num_epochs is None else num_epochs
        num_minibatches = minibatches if num_minibatches is None else num_minibatches
        check_whole(num_epochs=num_epochs, num_minibatches=num_minibatches)
        self.num_epochs = num_epochs
        self.minibatch_sizes = minibatch_sizes(
            self.modules,
            getattr(self.agent, "members", {}),
            rollout_length=rollout_length,
            num_envs=env.num_envs,
            num_minibatches=num_minibatches,
            num_epochs=num_epochs,
            remainder=remainder,
        )
        self.remainder = remainder
        self._complete()

    def _check_agent(self, learner_config: ModuleConfig | None) -> None:
        check_on_policy(self.agent)
        check_config(self.agent, learner_config)

    @property
    def changed_hooks(self) -> list[str]:
        """Names of the methods of an iteration that a subclass overrides."""
        return self._overridden(OnPolicyWorkflow)

    @property
    def divided_sizes(self) -> dict[str, int]:
        """Rows of a minibatch, by module."""
        return self.minibatch_sizes

    @tf.autograph.experimental.do_not_convert
    def iterate(self, state: State, key: tf.Tensor) -> tuple[dict[str, tf.Tensor], State]:
        """One iteration: rolls out, and trains on the rows of the rollout.

        Pure where the state's leaves are tensors; in place where they are variables.

        Args:
          state: Before the iteration.
          key: int32 [2], `state.iteration_key()` in a run.

        Returns:
          `{name: float32 scalar}` and the state after it.
        """
        self._check_direct_call(state)
        play_key, learn_key = keys_of(key)
        out = self.play(state, play_key)
        with stages.after(out):
            return self.learn_from(state, out, learn_key)

    def learn_from(
        self, state: State, out: RolloutResult, key: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], State]:
        """Trains on the rows of a rollout: epochs times minibatches of train steps."""
        metrics, after = self.fit(state, out.batch, key, state.metrics.env_steps)
        # Only now: the loss must see the statistics that acted.
        with tf.control_dependencies(stages.data(metrics)):
            after = self.with_normalizer(after, out.normalizer)
        return self.finished(after, out, metrics)

    # Hooks; they are traced.

    def make_batch(
        self, agent_state: Nest, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Returns the rows for the losses, and the agent's metrics of the rollout."""
        if not self.learns:  # there is no update
            return trajectory.reward, {}
        return self.agent.learner_batch(agent_state, trajectory)

    @property
    def update_options(self) -> dict[str, Any]:
        """Epochs and minibatches."""
        return {
            "num_epochs": self.num_epochs,
            "minibatch_size": self.minibatch_sizes,
            "remainder": self.remainder,
        }

    def describe_updates(self) -> str:
        """Returns a short description of the updates."""
        sizes = dict.fromkeys(self.minibatch_sizes.values())
        return f"minibatches of {', '.join(map(str, sizes))}"
