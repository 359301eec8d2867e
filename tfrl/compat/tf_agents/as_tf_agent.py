"""An agent of this library as TF-Agents' `TFAgent`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.agents.tf_agent import LossInfo, TFAgent

from tfrl import checks, seeding
from tfrl.agents.core import Agent
from tfrl.agents.off_policy import OffPolicy
from tfrl.compat.tf_agents.as_tf_agent_training import (
    OffPolicyTraining,
    OnPolicyTraining,
    RowTraining,
    Training,
    refuse_dynamic,
    total_loss,
)
from tfrl.compat.tf_agents.as_tf_policy import ActingPolicy, as_tf_policy
from tfrl.errors import UserError
from tfrl.learners import CheckNumerics, Learner, ModuleConfig
from tfrl.learners.minibatches import Remainder
from tfrl.types import Nest


def check_agent(agent: Any) -> bool:
    """Returns whether an agent learns from replayed windows; else it learns from rollouts.

    Raises:
      UserError: For an agent that learns from neither.
    """
    rolls = isinstance(agent, Agent) and type(agent).learner_batch is not Agent.learner_batch
    if not rolls and not isinstance(agent, OffPolicy):
        raise UserError(
            "as_tf_agent",
            expected="a learning agent: a subclass of tfrl.agents.OffPolicy, or an agent with "
            "learner_batch",
            got=f"the class {agent.__name__}" if isinstance(agent, type) else type(agent).__name__,
            remedy="Use as_tf_policy for agents without training.",
        )
    return isinstance(agent, OffPolicy)


def as_tf_agent(
    agent: Agent,
    *,
    learner_config: ModuleConfig | None = None,
    optimizer_fn: Callable[[ModuleConfig], Any] | None = None,
    seed: int = 0,
    train_step_counter: tf.Variable | None = None,
    env_steps: Callable[[], Any] | None = None,
    num_epochs: int | None = None,
    num_minibatches: int | None = None,
    remainder: Remainder = "pad",
    max_sequence_length: int | None = None,
    compute_value_and_advantage_in_train: bool = True,
    update_normalizers_in_train: bool = True,
    check_numerics: CheckNumerics = "skip",
    compile: str = "graph",
) -> "LearnerAgent":
    """Makes a TF-Agents agent that a `tfrl.learners.Learner` trains.

    Call it in the scope of its strategy, like all of TF-Agents' agents. `train` of an off-policy
    agent takes windows of n_step + 1 frames and is one learner step. `train` of an on-policy agent
    takes sequences `[B, T + 1]` of T steps each and runs all epochs of minibatches on them. Ends of
    episodes follow from boundary frames, so experience must include them, as TF-Agents' drivers and
    buffers do: values at a truncation use the terminal observation.

    Args:
      agent: A tfrl agent.
      learner_config: Learning rate and gradient clipping; None for the workflows' defaults.
      optimizer_fn: Makes the optimizer of one update; None for `ModuleConfig.optimizer`.
      seed: The seed of the parameters and of random draws in losses.
      train_step_counter: The step, which every `train` increments; None for TensorFlow's global
        step.
      env_steps: Returns the env steps so far for schedules, for example the `result` of a metric;
        None to count the trained steps, for an off-policy agent one per `train`.
      num_epochs: On-policy: passes over the experience of one `train`; None for the agent's
        default.
      num_minibatches: On-policy: gradient steps per pass; None for the agent's default.
      remainder: On-policy: "pad", "drop", "wrap" or "error", if the minibatches do not divide the
        rows.
      max_sequence_length: On-policy: the number of frames to pad sequences of open length (whole
        episodes) to, at least the longest.
      compute_value_and_advantage_in_train: On-policy: False for agents under `PPOLearner` with
        minibatches. Then `preprocess_sequence` computes advantages, and each `train` is one
        gradient step on its result.
      update_normalizers_in_train: Whether `train` merges observations into the agent's statistics,
        after its gradient steps; of windows only the first steps. False for `PPOLearner`, which
        does it before.
      check_numerics: "skip" leaves out non-finite gradient steps; "off" applies them.
      compile: "graph"; "xla" compiles losses and gradients by XLA.

    Returns:
      The agent. `loss` of its LossInfo is the sum of all optimizers' losses, and `extra` is a dict
      of metrics, means over the gradient steps.

    Raises:
      UserError: For an agent that does not learn, and for unknown choices.
    """
    off_policy = check_agent(agent)
    settings: dict[str, Any] = {
        "num_epochs": num_epochs,
        "num_minibatches": num_minibatches,
        "max_sequence_length": max_sequence_length,
    }
    for argument, count in settings.items():
        if count is not None:
            checks.at_least(argument, count, 1, remedy="Leave it out for the default.")
    # Errors cannot be raised during TF-Agents' training.
    remedy = "Use skip to count skipped steps in the extra of LossInfo."
    checks.one_of("check_numerics", check_numerics, ("skip", "off"), remedy=remedy)
    remedy = "Use graph for large networks on CPUs."
    checks.one_of("compile", compile, ("graph", "xla"), remedy=remedy)
    if learner_config is None:
        usual: dict[str, Any] = {"grad_clip": 0.5}
        learner_config = ModuleConfig(**({"adam_epsilon": 1e-8} if off_policy else usual))
    learner = Learner(
        agent, config=learner_config, optimizer_fn=optimizer_fn, check_numerics=check_numerics
    )
    learner.build(seeding.key(seed))
    policy = as_tf_policy(agent, learner.state, name="policy")
    collect_policy = as_tf_policy(agent, learner.state, explore=True, name="collect_policy")
    if train_step_counter is None:
        train_step_counter = tf.compat.v1.train.get_or_create_global_step()
    common: dict[str, Any] = {
        "extras": collect_policy.extras_of,
        "env_steps": env_steps,
        "observes": update_normalizers_in_train,
        "jit": compile == "xla",
    }
    parts = (agent, learner, train_step_counter)
    if off_policy:
        return LearnerAgent(OffPolicyTraining(*parts, **common), policy, collect_policy)
    epochs, minibatches = agent.epochs_and_minibatches
    common |= {
        "num_epochs": epochs if num_epochs is None else num_epochs,
        "num_minibatches": minibatches if num_minibatches is None else num_minibatches,
        "remainder": remainder,
        "max_sequence_length": max_sequence_length,
    }
    training = OnPolicyTraining(*parts, **common)
    if not compute_value_and_advantage_in_train:
        training = RowTraining(*parts, collect_spec=collect_policy.trajectory_spec, **common)
    return LearnerAgent(training, policy, collect_policy)


class LearnerAgent(TFAgent):
    """See `as_tf_agent`.

    Attributes:
      learner: The learner inside.
    """

    def __init__(
        self,
        training: Training,
        policy: ActingPolicy,
        collect_policy: ActingPolicy,
    ):
        """Assembles the parts from `as_tf_agent`.

        Args:
          training: The implementation of `train`.
          policy: The greedy policy over the learner's variables.
          collect_policy: The exploring policy over the learner's variables.
        """
        agent = training.agent
        data_spec = collect_policy.trajectory_spec
        if training.row_spec is not None:
            data_spec = data_spec._replace(policy_info=training.row_spec)
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy,
            collect_policy,
            train_sequence_length=agent.n_step + 1 if isinstance(agent, OffPolicy) else None,
            training_data_spec=data_spec,
            train_step_counter=training.counter,
        )
        self._training = training
        # Checkpoints track neither a learner (no module) nor states (dataclasses).
        self._saved_variables = dict(training.learner.variables())
        # Attributes that PPOLearner reads.
        self._compute_value_and_advantage_in_train = training.row_spec is None
        self.update_normalizers_in_train = training.observes
        self._actor_net = self._value_net = _NetworkOf(policy.policy_state_spec)

    @property
    def learner(self) -> Learner:
        """The learner inside, with its modules, optimizers and variables."""
        return self._training.learner

    def _train(self, experience: Any, weights: Any = None) -> LossInfo:
        if experience.step_type.shape.rank not in (None, 2):
            raise UserError(
                "experience of train",
                expected="frames [B, T], batch and time",
                got=f"step_type of shape {experience.step_type.shape}",
                remedy="Pass experience from a TF-Agents replay buffer or driver.",
            )
        if not self._training.takes(experience.step_type.shape):
            with tf.control_dependencies([refuse_dynamic(experience)]):
                return LossInfo(tf.zeros([]), ())
        metrics = self._training.update(experience, weights)
        self._summarize(metrics)
        return LossInfo(total_loss(metrics, self._training.agent.updates), metrics)

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> LossInfo:
        losses = self._training.losses(experience, weights)
        return LossInfo(total_loss(losses, ()), losses)

    def _preprocess_sequence(self, experience: Any) -> Any:
        return self._training.preprocess(experience)

    def _summarize(self, metrics: dict[str, tf.Tensor]) -> None:
        if self.summaries_enabled:
            for name in (n for n in metrics if not n.startswith("nonfinite/")):
                tf.summary.scalar(f"Losses/{name}", metrics[name], self.train_step_counter)

    # PPOLearner calls these with all experience of an iteration before training.

    def update_observation_normalizer(self, observation: Nest) -> None:
        """Merges observations `[B, T, ...]` into the agent's statistics.

        Args:
          observation: The observations of frames, including boundary frames.
        """
        self._training.observe_frames(observation)

    def update_reward_normalizer(self, reward: tf.Tensor) -> None:
        """Does nothing: this library normalises rewards by environment wrappers."""


class _NetworkOf:
    """The part of a network that `PPOLearner` reads: whether it has state."""

    def __init__(self, state_spec: Nest):
        self.state_spec = state_spec
