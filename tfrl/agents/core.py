"""The agent protocol: pure functions over an `AgentState`, and a plan of updates."""

import abc
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import tensorflow as tf

from tfrl import checks, struct
from tfrl.envs.action_masks import MASK, split_mask
from tfrl.errors import UserError
from tfrl.loading import loadable
from tfrl.ops import statistics
from tfrl.types import ActionOutput, AgentState, Nest, Trajectory, obs_of

# loss(params, state, batch, key) -> (scalar loss, dict of scalar metrics)
LossFn = Callable[
    [dict[str, Any], AgentState, Nest, tf.Tensor], tuple[tf.Tensor, dict[str, tf.Tensor]]
]


# `{path of an action's leaf: (kind, {parameter: tensor [B, ...]})}`, path "." for the only leaf, or
# for one distribution over all leaves as a vector.
PolicyParameters = dict[str, tuple[str, dict[str, tf.Tensor]]]

# A loss may add `{group: nest like params[group]}` to its metrics under this name: after the step
# the untrained leaves (`networks.split_leaves`) get these values.
PARAM_UPDATES = "param_updates"


@struct.logic_dataclass
class Update(struct.Struct):
    """One gradient update of a learner step.

    Attributes:
      name: Names the update's optimizer and metrics.
      groups: The trained parameter groups; gradients flow to no others.
      loss: `loss(params, state, batch, key) -> (loss, metrics)`; `params` holds all groups. The
        metric `PARAM_UPDATES` holds new values of untrained leaves.
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
    """An update by another library's training step, which changes a module's state itself.

    The Learner computes no gradients for it and has no optimizer or clipping; it supports one
    replica. It runs at its place in the list of updates and counts as a learner step. With the
    Learner's numeric check, a non-finite loss or parameter undoes its changes.

    Attributes:
      name: Names the update's metrics.
      step: `step(state, batch, key) -> metrics`; it changes the variables in `state` in place.
        Metrics are float scalars, including `loss`. A leaf `mask` of the batch marks the valid
        rows: the step must use it or raise an error.
    """

    name: str
    step: ExternalStep

    # Like an `Update` without parameters for an optimizer, in every learner step.
    groups: ClassVar[tuple[str, ...]] = ()
    every: ClassVar[int] = 1


# The name of version 0.1.
OwnUpdate = ExternalUpdate


# Old names of hooks (version 0.1), kept for one release.
OLD_HOOKS = {"observe": "update_normalizer", "adapt": "on_update_metrics"}


def alias_old_hooks(cls: type) -> None:
    """Gives each hook that a class defines both its old and its new name."""
    for old, new in OLD_HOOKS.items():
        if new in vars(cls):
            setattr(cls, old, vars(cls)[new])
        elif old in vars(cls):
            setattr(cls, new, vars(cls)[old])


class Agent(abc.ABC):
    """Static logic of an agent. Subclasses are `struct.logic_dataclass`es.

    `init` takes a key, or specs and a key: `init(obs_spec, action_spec, key)`. `compute_actions`
    and `evaluate_actions` take observations, or a `Trajectory` for its `obs`.

    Attributes:
      obs_spec: The nest of specs of one observation.
      action_spec: The nest of specs of one action.
      screen_metrics: The two or three metrics of the progress line, the first to show problems of
        the algorithm.
    """

    obs_spec: Nest
    action_spec: Nest
    screen_metrics: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wraps a subclass' methods so that they take the arguments described above."""
        super().__init_subclass__(**kwargs)
        wrappers = {
            "init": _taking_specs,
            "compute_actions": _taking_records,
            "evaluate_actions": _taking_records,
        }
        for name, wrapper in wrappers.items():
            if name in vars(cls):
                setattr(cls, name, wrapper(vars(cls)[name]))
        alias_old_hooks(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> "Agent":
        """Explains the equivalent of another library's `PPO("MlpPolicy", env)`."""
        if args:
            workflow = "OffPolicyWorkflow" if cls.learns_from_replay else "OnPolicyWorkflow"
            raise UserError(
                f"{cls.__name__}({', '.join(map(repr, args))})",
                expected="keyword arguments, since an agent holds no environment and no training "
                "loop",
                got=f"{len(args)} positional",
                remedy="Write env = tfrl.make_env('gymnasium:CartPole-v1', num_envs=8), workflow = "
                f"{workflow}(env=env, agent={cls.__name__}), and workflow.learn(workflow.setup(0), "
                "total_env_steps=100_000).",
            )
        return super().__new__(cls)

    @abc.abstractmethod
    def init(self, key: tf.Tensor) -> AgentState:
        """Makes a fresh state from a key, int32 [2]."""

    def init_of(
        self, init: Callable[..., Any], obs_spec: Nest, action_spec: Nest, key: tf.Tensor
    ) -> Any:
        """Returns the state for specs passed with the key; `init` is the agent's own."""
        for name, spec in (("obs_spec", obs_spec), ("action_spec", action_spec)):
            if spec != getattr(self, name):
                raise UserError(
                    f"{name} of {type(self).__name__}.init",
                    expected=f"the {name} of its constructor: {getattr(self, name)}",
                    got=repr(spec),
                    remedy="Pass the specs to the constructor, which builds the networks from "
                    "them.",
                )
        return init(self, key)

    @abc.abstractmethod
    def compute_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Returns exploring actions for collecting experience.

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
        """Returns greedy actions for evaluation. Arguments as `compute_actions`."""

    @property
    def has_distribution(self) -> bool:
        """Whether the agent has `policy_parameters`."""
        return type(self).policy_parameters is not Agent.policy_parameters

    def policy_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> tuple[PolicyParameters, Nest]:
        """Returns the distribution parameters of the greedy policy, for exports.

        Args:
          state: The agent's state.
          obs: A nest `[B, ...]` that matches `obs_spec`.
          carry: Recurrent state, or None.

        Returns:
          The parameters, of the kinds of `Distribution.parameters`, "q_values" or "deterministic";
          and the carry after the step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no distribution")

    def exploration_parameters(
        self, state: AgentState, obs: Nest, carry: Nest = None
    ) -> PolicyParameters | None:
        """Returns the parameters of `compute_actions`' distribution, by default the policy's.

        Arguments as `policy_parameters`; None if the actions have no density.
        """
        return self.policy_parameters(state, obs, carry)[0]

    # Whether it learns from replayed transitions; see `tfrl.agents.OffPolicy`.
    learns_from_replay = False
    # Whether acting needs more than the observation: a `Trajectory` of `obs`, and of `reward`,
    # `termination`, `truncation` and `env_extras` (the `info`) of the previous step.
    takes_records = False
    # Default epochs and minibatches per epoch of a workflow.
    epochs_and_minibatches = (4, 4)

    def random_actions(
        self, state: AgentState, obs: Nest, key: tf.Tensor, carry: Nest = None
    ) -> ActionOutput:
        """Draws actions uniformly, to fill a replay buffer. Arguments as `compute_actions`."""
        raise NotImplementedError(f"{type(self).__name__} defines no random_actions")

    def td_errors(self, state: AgentState, batch: Nest, key: tf.Tensor) -> tf.Tensor:
        """Returns |target - Q(o, a)| of sampled rows, float32 [N], for their priorities."""
        raise NotImplementedError(f"{type(self).__name__} defines no td_errors")

    @property
    def updates(self) -> tuple[Update | ExternalUpdate, ...]:
        """The updates of one learner step, in order; empty for an agent that does not learn."""
        return ()

    def learner_batch(
        self, state: AgentState, trajectory: Trajectory
    ) -> tuple[Nest, dict[str, tf.Tensor]]:
        """Turns experience `[T, B, ...]` into the losses' batch, with rows `[T * B, ...]`.

        Args:
          state: The behaviour state; the behaviour log-probs used its normaliser.
          trajectory: Experience of one rollout; `valid` may be None if all rows are valid.

        Returns:
          The batch, and metrics of the full rollout, `{name: scalar}`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not learn from rollouts")

    def num_rows(self, rollout_length: int, num_envs: int) -> int:
        """Returns the number of rows `learner_batch` makes of `[T, B]`; by default T * B."""
        return rollout_length * num_envs

    def update_normalizer(self, state: AgentState, trajectory: Trajectory) -> AgentState:
        """Returns the state with statistics of the new experience; called after the update."""
        return state

    def count_outliers(self, state: AgentState, trajectory: Trajectory) -> tf.Tensor | None:
        """Returns the number of values that `update_normalizer` clips, int64; None without it."""
        return None

    def before_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """Runs inside the compiled call before the gradient steps of one learner update.

        Args:
          state: Values; `params` must be returned unchanged.
          timesteps: int64 scalar, `env_steps` so far; drives schedules.
        """
        return state

    def after_update(self, state: AgentState, timesteps: tf.Tensor) -> AgentState:
        """As `before_update`, but after the gradient steps; updates target networks."""
        return state

    def after_update_due(self, state: AgentState, timesteps: tf.Tensor) -> tf.Tensor | None:
        """Returns whether `after_update` is called in this update, a bool; None for always.

        Otherwise nothing is read or written for it. Arguments as `before_update`; it runs after
        `on_update_metrics`.
        """
        return None

    def on_update_metrics(self, state: AgentState, metrics: dict[str, tf.Tensor]) -> AgentState:
        """As `before_update`, but after the gradient steps and before `after_update`.

        Args:
          state: Values.
          metrics: The losses' metrics, means over this update's minibatches, with the names in the
            Learner's results.
        """
        return state

    def prepare_minibatch(
        self, state: AgentState, batch: Nest, all_reduce_sum: Callable[[Nest], Nest]
    ) -> Nest:
        """Returns a minibatch in the losses' form; no gradient flows through this method.

        Functions of all rows of a minibatch, such as normalised advantages, belong here: with
        several replicas each has only a part of the rows, and a loss cannot reduce over replicas.

        Args:
          state: Values.
          batch: The rows of this replica, `[n, ...]`.
          all_reduce_sum: Sums a nest of tensors over the replicas; the identity on one device.
        """
        return batch

    @property
    def may_stop(self) -> bool:
        """Whether `should_stop` may ever stop; if not, an update carries no flag."""
        return type(self).should_stop is not Agent.should_stop

    def should_stop(self, metrics: dict[str, tf.Tensor]) -> tf.Tensor | None:
        """Decides from a minibatch's metrics whether to stop the gradient steps on this batch.

        Args:
          metrics: The loss's metrics; this minibatch's step is not taken either.

        Returns:
          A bool scalar tensor, or None if the agent never stops early.
        """
        return None


alias_old_hooks(Agent)


def _taking_specs(init: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `init` that also takes specs before the key; they must equal the agent's."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) == 1:
            return init(self, *args, **kwargs)
        arguments = dict(zip(("obs_spec", "action_spec", "key"), args, strict=False), **kwargs)
        return self.init_of(init, **arguments)

    return _named_like(init, wrapped)


def _taking_records(act: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an acting method that also accepts a `Trajectory` as observations."""

    def wrapped(self: Any, state: Any, obs: Nest, *args: Any, **kwargs: Any) -> Any:
        return act(self, state, obs if self.takes_records else obs_of(obs), *args, **kwargs)

    return _named_like(act, wrapped)


def _named_like(method: Callable[..., Any], wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a wrapper the name and the signature of a method.

    Without `__wrapped__`: for a bound method as an argument of a tf.function, TensorFlow would use
    the wrapped method, unbound.
    """
    functools.update_wrapper(wrapped, method)
    wrapped.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    del wrapped.__wrapped__  # type: ignore[attr-defined]
    return wrapped


class NormalizingAgent(Agent):
    """An agent whose networks optionally see observations normalised by running statistics.

    Attributes:
      normalize_obs: Whether observations are normalised.
      obs_clip: Clipping bound of normalised observations.
      hyperparameters: Names of settings, among `in_state`, that become leaves of the state
        (`extra`), so that members of a population may differ in them.
    """

    normalize_obs: bool
    obs_clip: float
    hyperparameters: tuple[str, ...]

    # Settings that `hyperparameters` may name.
    in_state: ClassVar[tuple[str, ...]] = ()

    def check_hyperparameters(self) -> None:
        """Raises a UserError for names that are not among `in_state`."""
        checks.known(
            f"{type(self).__name__}.hyperparameters",
            self.hyperparameters,
            self.in_state,
            remedy="Train one population per value of a setting that changes shapes or the traced "
            "graph.",
        )

    def setting(self, state: AgentState | None, name: str) -> Any:
        """Returns a setting, from the state's leaf if `hyperparameters` names it."""
        own = state is not None and name in self.hyperparameters
        return state.extra[name] if own else getattr(self, name)  # type: ignore[union-attr]

    def normalized(self, state: AgentState, obs: Nest) -> Nest:
        """Returns normalised observations, with action masks unchanged."""
        if not self.normalize_obs:
            return obs
        normalized = statistics.normalize(state.normalizer, obs, clip=self.obs_clip)
        # A float mask must not be normalised.
        return normalized if split_mask(obs)[1] is None else {**normalized, MASK: obs[MASK]}

    def update_normalizer(self, state: AgentState, trajectory: Trajectory) -> AgentState:
        """Merges the observations of new experience into the statistics."""
        if not self.normalize_obs:
            return state
        merged = statistics.update(state.normalizer, trajectory.obs, mask=trajectory.valid)
        return state.replace(normalizer=merged)

    def count_outliers(self, state: AgentState, trajectory: Trajectory) -> tf.Tensor | None:
        """Returns the number of values that `update_normalizer` clips."""
        if not self.normalize_obs:
            return None
        return statistics.count_outliers(state.normalizer, trajectory.obs, mask=trajectory.valid)


A = TypeVar("A", bound=type)

# `{class name: agent class}` in the order of registration.
ALGORITHMS: dict[str, Any] = {}
_listeners: list[Callable[[Any], None]] = []


def algorithm(cls: A) -> A:
    """Registers an agent class under its name; a decorator above `struct.logic_dataclass`.

    Gin files can then name it (`OnPolicyWorkflow.agent = @MyAgent`), `tfrl.MyAgent` is the class,
    error messages list it, and checkpoints may name it (see `tfrl.loadable`).

    Args:
      cls: A subclass of `Agent` whose constructor takes `obs_spec` and `action_spec`.

    Raises:
      UserError: For no such class, and for the name of an algorithm of the library.
    """
    if not (isinstance(cls, type) and hasattr(cls, "compute_actions")):
        raise UserError(
            "tfrl.algorithm",
            expected="the class of an agent",
            got=repr(cls),
            remedy="Use it as a decorator above a subclass of tfrl.agents.Agent.",
        )
    other = ALGORITHMS.get(cls.__name__, cls)
    if other.__module__.startswith("tfrl.") and other.__module__ != cls.__module__:
        raise UserError(
            f"the algorithm {cls.__name__}",
            expected="a name of its own",
            got=f"the name of {other.__module__}.{other.__name__}",
            remedy="Rename the class.",
        )
    ALGORITHMS[cls.__name__] = cls
    if "<locals>" not in cls.__qualname__:
        loadable(cls)
    for listener in _listeners:
        listener(cls)
    return cls


def on_algorithm(listener: Callable[[Any], None]) -> None:
    """Calls a function with every algorithm, also with ones registered later."""
    _listeners.append(listener)
    for cls in list(ALGORITHMS.values()):
        listener(cls)


def algorithm_names(*, from_replay: bool) -> str:
    """Returns the names of the algorithms that learn from replay, or of all others."""
    return ", ".join(n for n, cls in ALGORITHMS.items() if cls.learns_from_replay == from_replay)
