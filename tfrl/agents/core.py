"""The agent protocol: pure functions over an `AgentState`, and a plan of updates."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import tensorflow as tf

from tfrl import struct
from tfrl.errors import UserError
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory

# loss(params, state, batch, key) -> (scalar loss, dict of scalar metrics)
LossFn = Callable[
    [dict[str, Any], AgentState, Nest, tf.Tensor], tuple[tf.Tensor, dict[str, tf.Tensor]]
]


# Under this name a loss may add to its metrics `{group: nest like params[group]}`: after the step
# the leaves that no gradient trains (`networks.split_leaves`) become what they are there.
PARAM_UPDATES = "param_updates"


@struct.logic_dataclass
class Update(struct.Struct):
    """One gradient update of a learner step.

    Attributes:
      name: Names the update's optimizer and metrics.
      groups: The parameter groups that it trains; gradients flow to no other.
      loss: `loss(params, state, batch, key) -> (loss, metrics)`; `params` holds all groups. An item
        `PARAM_UPDATES` of the metrics holds new values of leaves that no gradient trains.
      every: Runs in every `every`-th learner step (TD3's delayed actor has 2).
    """

    name: str
    groups: tuple[str, ...]
    loss: LossFn
    every: int = 1


# step(state of tf.Variables, batch, key) -> dict of scalar metrics
ExternalStep = Callable[[AgentState, Nest, tf.Tensor], dict[str, tf.Tensor]]


@struct.logic_dataclass
class ExternalUpdate(struct.Struct):
    """An update that changes a module's state by itself: another library's training step.

    The Learner has no gradient, no optimizer and no clipping for it, and one replica only. It runs
    at its place in the list of updates, counts as a learner step, and its changes are undone where
    its loss or a parameter is not finite and the Learner checks that.

    Attributes:
      name: Names the update's metrics.
      step: `step(state, batch, key) -> metrics`; the leaves of `state` are variables, which it
        changes in place. Metrics are float scalars, `loss` among them. A leaf `mask` of the batch
        marks the valid rows: the step uses it, or refuses it.
    """

    name: str
    step: ExternalStep

    # As of `Update`: no parameters for an optimizer, and in every learner step.
    groups: ClassVar[tuple[str, ...]] = ()
    every: ClassVar[int] = 1


# The name of version 0.1.
OwnUpdate = ExternalUpdate


class Agent(abc.ABC):
    """Static logic of an agent. Subclasses are `struct.logic_dataclass`es.

    Attributes:
      obs_spec: The nest of specs of one observation that it takes.
      action_spec: The nest of specs of one action that it gives.
    """

    obs_spec: Nest
    action_spec: Nest

    def __new__(cls, *args: Any, **kwargs: Any) -> "Agent":
        """Explains the equivalent of another library's `PPO("MlpPolicy", env)`."""
        if args:
            workflow = "OffPolicyWorkflow" if cls.learns_from_replay else "OnPolicyWorkflow"
            raise UserError(
                f"{cls.__name__}({', '.join(map(repr, args))})",
                expected="arguments by name: an agent holds no environment and no loop",
                got=f"{len(args)} by position",
                remedy="Write env = tfrl.make_env('gymnasium:CartPole-v1', num_envs=8), workflow = "
                f"{workflow}(env=env, agent={cls.__name__}), and workflow.learn(workflow.setup(0), "
                "total_env_steps=100_000).",
            )
        return super().__new__(cls)

    @abc.abstractmethod
    def init(self, key: tf.Tensor) -> AgentState:
        """Makes a fresh state from a key."""

    @abc.abstractmethod
    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Explores: actions to collect experience with.

        Args:
          state: The agent's state.
          obs: A nest `[B, ...]` that matches `obs_spec`.
          key: int32 [2].
          carry: Recurrent state, or None.
        """

    @abc.abstractmethod
    def evaluate_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Does not explore: the actions to judge the policy by. Arguments as `compute_actions`."""

    # Whether it learns from replayed transitions; see `tfrl.agents.OffPolicy`.
    learns_from_replay = False
    # Passes over a rollout and gradient steps of a pass, the defaults of a workflow.
    epochs_and_minibatches = (4, 4)

    @property
    def updates(self) -> tuple[Update | ExternalUpdate, ...]:
        """The updates of one learner step, in order; empty for an agent that does not learn."""
        return ()

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Turns experience `[T, B, ...]` into the batch of the losses, rows flat `[T * B, ...]`.

        Args:
          state: The state that acted; its normaliser is the one of the behaviour log-probs.
          trajectory: Experience of one rollout; `valid` may be None when all rows are.

        Returns:
          The batch, and metrics of the full rollout, `{name: scalar}`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not learn from rollouts")

    def num_rows(self, rollout_length: int, num_envs: int) -> int:
        """Returns how many rows `learner_batch` makes of a rollout `[T, B]`; T * B by default."""
        return rollout_length * num_envs

    def observe(self, state: AgentState, trajectory: Trajectory) -> AgentState:
        """Returns the state with the statistics of new experience merged in, after the update."""
        return state

    def count_outliers(self, state: AgentState, trajectory: Trajectory) -> tf.Tensor | None:
        """Returns how many values `observe` takes as others than they are, int64; None without."""
        return None

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Runs inside the compiled call before the gradient steps of one learner update.

        Args:
          state: Values; `params` must be returned as they are.
          timesteps: int64 scalar, `env_steps` so far; schedules are driven by it.
        """
        return state

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """As `before_update`, after the gradient steps; target networks live here."""
        return state

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> tf.Tensor | None:
        """Returns whether `after_update` is called in this update, a bool; None for always.

        Where it is not, nothing is read or written for it. Arguments as `before_update`; `adapt`
        has run.
        """
        return None

    def adapt(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """As `before_update`, after the gradient steps and before `after_update`.

        Args:
          state: Values.
          metrics: Those of the losses, the means over the minibatches of this update, named as
            in the results of the Learner.
        """
        return state

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Returns a minibatch as the losses take it; no gradient flows through this.

        Functions of all rows of a minibatch, such as normalised advantages, belong here: under
        several replicas each holds a part of the rows only, and a loss cannot reduce over them.

        Args:
          state: Values.
          batch: The rows of this replica, `[n, ...]`.
          all_reduce_sum: Sums a nest of tensors over the replicas; the identity on one device.
        """
        return batch

    @property
    def may_stop(self) -> bool:
        """Whether `should_stop` may ever stop; where it may not, an update carries no flag."""
        return type(self).should_stop is not Agent.should_stop

    def should_stop(self, metrics: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Says by the metrics of a minibatch whether to take no more gradient steps on this batch.

        Args:
          metrics: Those of the loss; the step of this minibatch is not taken either.

        Returns:
          A bool scalar tensor, or None when the agent never stops early.
        """
        return None
