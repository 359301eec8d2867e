"""TF-Agents' `train` of an agent of this library: one update of a `Learner`."""

import abc
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfrl import seeding, struct
from tfrl.agents import Agent, ExternalUpdate, OffPolicy
from tfrl.agents.off_policy.agent import MaskedTransition
from tfrl.compat.tf_agents.replay import sequences, transitions
from tfrl.compat.tf_agents.trajectories import FIRST, LAST, from_trajectory
from tfrl.distribute.replicas import Replicas
from tfrl.distribute.statistics import merge_over_replicas
from tfrl.episodes import DEFAULT_MODULE_ID
from tfrl.errors import UserError
from tfrl.learners import Learner
from tfrl.learners.batches import valid_rows
from tfrl.types import AgentState, Nest, Trajectory

# The metric of an update beside the loss of each optimizer's step.
_LOSS = "loss"


class Training(abc.ABC):
    """Takes TF-Agents' experience and makes one update of the learner. Stateless: no tf.Module.

    Attributes:
      agent: The agent.
      learner: A built learner of the agent.
      extras: Converts policy info to the agent's extras.
      env_steps: Returns the env steps so far, for schedules; None for the subclass's count.
      observes: Whether `train` merges statistics.
      jit: Whether XLA compiles losses and gradients.
      counter: Counts the updates.
    """

    # Whether schedules count for the next actions, or for the trained experience.
    acts_next = True

    def __init__(
        self,
        agent: Agent,
        learner: Learner,
        counter: tf.Variable,
        *,
        extras: Callable[[Nest], Nest],
        env_steps: Callable[[], Any] | None,
        observes: bool,
        jit: bool,
    ):
        """Stores the arguments; see the attributes."""
        self.agent, self.learner, self.counter, self.extras = agent, learner, counter, extras
        self.env_steps, self.observes, self.jit = env_steps, observes, jit

    # For subclasses.

    @abc.abstractmethod
    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns the inputs of the losses and of `observe` from one replica's experience."""

    @abc.abstractmethod
    def options(self, rows: Nest) -> dict[str, Any]:
        """Returns the arguments of `Learner.update` beside batch, key and env steps."""

    @abc.abstractmethod
    def steps_in(self, rows: Nest) -> tf.Tensor:
        """Returns the number of env steps of a replica's rows, int64 scalar."""

    @abc.abstractmethod
    def observe(self, state: AgentState, observed_steps: Nest) -> AgentState:
        """Returns the state with a replica's experience merged into its statistics."""

    def takes(self, shape: tf.TensorShape) -> bool:
        """Whether `train` can be traced for step types of this shape."""
        return bool(shape.is_fully_defined())

    def preprocess(self, experience: Any) -> Any:
        """Returns the experience in the form for `train`."""
        return experience

    @property
    def row_spec(self) -> dict[str, tf.TensorSpec] | None:
        """The spec of the policy info from `preprocess`; None if it changes nothing."""
        return None

    # Traced.

    def state_values(self) -> AgentState:
        """Returns the values of the learner's variables."""
        return struct.values(self.learner.state)

    def update(self, experience: Any, weights: Any) -> dict[str, tf.Tensor]:
        """Takes one update, called in a replica context or in the cross-replica context.

        The learner's loops and conditions need the cross-replica context. So in a replica context
        the replicas merge, and one call updates for all.

        Returns:
          Metrics, float32 scalars; for several replicas each divided by R, since TF-Agents sums the
          replicas' results.
        """
        replicas = self.learner.replicas
        inside = replicas.several and not replicas.outside
        if not inside or isinstance(replicas.strategy, tf.distribute.TPUStrategy):
            return self._update(experience, weights)
        leaves = tf.nest.flatten((experience, weights))
        tensors = [i for i, x in enumerate(leaves) if x is not None]

        def together(strategy: Any, *values: Any) -> Any:
            result = list(leaves)
            for i, value in zip(tensors, values, strict=True):
                result[i] = value
            return self._update(*tf.nest.pack_sequence_as((experience, weights), result))

        context = tf.distribute.get_replica_context()
        metrics = context.merge_call(together, args=tuple(leaves[i] for i in tensors))
        # TensorFlow would not accept one tensor as the value of each replica.
        return {name: tf.identity(x) for name, x in metrics.items()}

    def _update(self, experience: Any, weights: Any) -> dict[str, tf.Tensor]:
        learner, replicas = self.learner, self.learner.replicas
        rows, observed_steps = replicas.run(self.rows, experience, weights)
        steps = replicas.run(lambda x: replicas.sum(self.steps_in(x)), rows)
        before = tf.convert_to_tensor(learner.env_steps)
        after = before + replicas.any_replica(steps)
        timesteps = after if self.acts_next else before
        if self.env_steps is not None:
            after = timesteps = tf.cast(tf.convert_to_tensor(self.env_steps()), tf.int64)
        key = seeding.stream(tf.convert_to_tensor(learner.key), "tf_agents/train")
        results = learner.update(
            rows,
            key=seeding.fold_in(key, tf.convert_to_tensor(learner.learner_steps)),
            timesteps=timesteps,
            jit=self.jit,
            **self.options(rows),
        )
        metrics = replicas.any_replica(results[DEFAULT_MODULE_ID])
        # After the update: the losses must use the statistics of acting.
        with tf.control_dependencies(list(metrics.values())):
            if self.observes:
                self.merge_statistics(observed_steps)
            learner.env_steps.assign(after)
            self.counter.assign_add(tf.ones([], self.counter.dtype))
        return _shared_out(metrics, replicas)

    def merge_statistics(self, observed_steps: Nest) -> None:
        """Merges new experience into the agent's statistics, in place."""
        learner, before = self.learner, self.state_values()
        if before.normalizer is None:
            return

        def merged(before: AgentState, observed_steps: Nest) -> Nest:
            after = self.observe(before, observed_steps).normalizer
            return merge_over_replicas(learner.replicas, before.normalizer, after)

        common = learner.replicas.any_replica(learner.replicas.run(merged, before, observed_steps))
        learner.assign(DEFAULT_MODULE_ID, before, before.replace(normalizer=common))

    def observe_frames(self, obs: Nest) -> None:
        """Merges observations `[B, T, ...]`, including boundary frames, into the statistics."""
        obs = tf.nest.pack_sequence_as(self.agent.obs_spec, tf.nest.flatten(obs))
        leaf = tf.nest.flatten(obs)[0]
        before = self.state_values()
        if before.normalizer is None:
            return
        blank = tf.zeros(tf.shape(leaf)[:2])
        none = tf.zeros_like(blank, tf.bool)
        steps = Trajectory(
            obs=obs,
            action=(),
            reward=blank,
            next_obs=obs,
            termination=none,
            truncation=none,
            valid=~none,
        )
        self.learner.assign(DEFAULT_MODULE_ID, before, self.agent.update_normalizer(before, steps))

    def losses(self, experience: Any, weights: Any) -> dict[str, tf.Tensor]:
        """Returns the losses of a replica's experience at the present parameters."""
        rows, _ = self.rows(experience, weights)
        replicas, state = self.learner.replicas, self.state_values()
        rows = self.agent.prepare_minibatch(state, rows, replicas.sum)
        key = seeding.stream(tf.convert_to_tensor(self.learner.key), "tf_agents/loss")
        result = {}
        for update in self.agent.updates:
            if isinstance(update, ExternalUpdate):
                continue  # it has no loss without a step
            loss, _ = update.loss(state.params, state, rows, seeding.stream(key, update.name))
            result[f"{update.name}/{_LOSS}"] = loss
        return _shared_out(result, replicas)

    def packed(self, experience: Any) -> Any:
        """Returns experience with plain nests packed into the agent's nests."""
        info = experience.policy_info
        return experience._replace(
            observation=pack(self.agent.obs_spec, experience.observation),
            action=pack(self.agent.action_spec, experience.action),
            policy_info=self.extras(info) if tf.nest.flatten(info) else (),
        )


def pack(structure: Nest, plain: Nest) -> Nest:
    """Packs the leaves of a plain nest into the structure of another."""
    return tf.nest.pack_sequence_as(structure, tf.nest.flatten(plain))


def total_loss(metrics: dict[str, tf.Tensor], updates: Any) -> tf.Tensor:
    """Returns the sum of the losses of all optimizers' steps.

    Args:
      metrics: The metrics of `Training`.
      updates: The agent's updates; a delayed update (TD3's actor) may have no loss in this step.
    """
    if _LOSS in metrics:
        return metrics[_LOSS]
    losses = {n: x for n, x in metrics.items() if n.endswith(f"/{_LOSS}") and n.count("/") == 1}
    for update in updates:
        name = f"{update.name}/{_LOSS}"
        if update.every > 1 and name in losses:
            failed = metrics.get(f"nonfinite/{name}", tf.zeros([]))
            waits = tf.math.is_nan(losses[name]) & tf.equal(failed, 0.0)
            losses[name] = tf.where(waits, 0.0, losses[name])
    return tf.add_n(list(losses.values()))


def refuse_dynamic(experience: Any) -> tf.Operation:
    """Returns an operation that fails: training needs experience of static sizes.

    TF-Agents traces `train` once with open sizes before any data.
    """
    message = UserError(
        "experience of train",
        expected="batch and time axes of static sizes",
        got=f"step_type of shape {experience.step_type.shape}",
        remedy="Batch with drop_remainder=True, sample with num_steps=, or pass "
        "as_tf_agent(..., max_sequence_length=N) for episodes of variable length.",
    )
    return tf.debugging.Assert(tf.constant(False), [str(message)])


def _shared_out(metrics: dict[str, tf.Tensor], replicas: Replicas) -> dict[str, tf.Tensor]:
    if not replicas.several:
        return metrics
    return {name: x / float(replicas.num_replicas) for name, x in metrics.items()}


def check_weights(weights: Any, rows: int) -> tf.Tensor:
    """Returns importance weights float32 [N] from a scalar or a vector."""
    weights = tf.cast(weights, tf.float32)
    return tf.broadcast_to(weights, [rows])


class OffPolicyTraining(Training):
    """One learner step on windows `[B, n_step + 1]` of frames."""

    agent: OffPolicy

    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns transitions, and the steps that they were made from."""
        experience = self.packed(experience)
        self._check_length(experience.step_type.shape)
        items = transitions(experience, self.agent.discount)
        fields = {name: getattr(items, name) for name in _FIELDS}
        if weights is not None:
            fields["weight"] = check_weights(weights, items.reward.shape[0])
        mask = tf.not_equal(experience.step_type[:, 0], LAST)
        counts = self.observes and self.learner.state.normalizer is not None
        observed_steps = sequences(experience).steps if counts else ()
        return MaskedTransition(**fields, mask=mask), observed_steps

    def _check_length(self, shape: tf.TensorShape) -> None:
        """Raises a UserError for windows of another number of steps."""
        wanted = self.agent.n_step + 1
        if shape.rank != 2 or shape[1] != wanted:
            raise UserError(
                f"the experience of {type(self.agent).__name__}",
                expected=f"windows [B, {wanted}] of frames, n_step + 1",
                got=f"step_type of shape {shape}",
                remedy="Sample with num_steps=agent.train_sequence_length.",
            )

    def options(self, rows: Nest) -> dict[str, Any]:
        """Returns options for all rows at once, in order."""
        return {"shuffle": False}

    def steps_in(self, rows: Nest) -> tf.Tensor:
        """Returns one env step per train step, over all replicas."""
        replicas = self.learner.replicas
        return tf.cast(replicas.index() == 0, tf.int64)

    def observe(self, state: AgentState, observed_steps: Nest) -> AgentState:
        """Merges the first step of every window, `[1, B, ...]`."""
        first = tf.nest.map_structure(lambda x: x[tf.newaxis, :, 0], observed_steps)
        return self.agent.update_normalizer(state, first)


_FIELDS = ("obs", "action", "reward", "next_obs", "discount", "extras", "weight", "index")


class OnPolicyTraining(Training):
    """Epochs of minibatches on sequences `[B, T + 1]` of frames, T steps each.

    Attributes:
      num_epochs: Passes over the rows.
      num_minibatches: Gradient steps per pass.
      remainder: See `tfrl.learners.MinibatchPlan`.
      max_sequence_length: The number of frames to pad sequences of open length to, or None.
    """

    acts_next = False

    def __init__(
        self,
        *args: Any,
        num_epochs: int,
        num_minibatches: int,
        remainder: Any,
        max_sequence_length: int | None,
        **kwargs: Any,
    ):
        """Stores the arguments; see the attributes, and `Training`."""
        super().__init__(*args, **kwargs)
        self.num_epochs, self.num_minibatches = num_epochs, num_minibatches
        self.remainder, self.max_sequence_length = remainder, max_sequence_length

    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns the rows that the agent learns from, with advantages, and the steps."""
        if weights is not None:
            raise UserError(
                "weights of train",
                expected="None, since on-policy experience has no importance weights",
                got=repr(weights),
                remedy="Leave them out.",
            )
        steps = self.steps(experience)
        batch, _ = self.agent.learner_batch(self.state_values(), steps)
        return batch, steps if self.observes else ()

    def takes(self, shape: tf.TensorShape) -> bool:
        """See `Training`; also takes sequences of open length if they are padded."""
        pads = self.max_sequence_length is not None
        return super().takes(shape[:1] if pads and shape.rank == 2 else shape)

    def steps(self, experience: Any) -> Trajectory:
        """Returns frames `[B, T + 1, ...]` as a rollout `[T, B, ...]`."""
        if experience.step_type.shape[1] is None:
            if self.max_sequence_length is None:
                raise UserError(
                    "max_sequence_length",
                    expected="a number of frames for sequences of variable length",
                    got="None",
                    remedy="Pass the maximum length to as_tf_agent, or sample with num_steps=.",
                )
            experience = padded(experience, self.max_sequence_length)
        return from_trajectory(self.packed(experience))

    def options(self, rows: Nest) -> dict[str, Any]:
        """Returns the options of epochs and minibatches."""
        replicas = self.learner.replicas
        local = replicas.per_replica(rows)[0] if replicas.outside else rows
        num_rows = next(iter(struct.paths(local).values())).shape[0]
        return {
            "num_epochs": self.num_epochs,
            "minibatch_size": math.ceil(num_rows / self.num_minibatches) * replicas.num_replicas,
            "remainder": self.remainder,
        }

    def steps_in(self, rows: Nest) -> tf.Tensor:
        """Returns the number of valid rows."""
        return tf.cast(valid_rows(rows), tf.int64)

    def observe(self, state: AgentState, observed_steps: Nest) -> AgentState:
        """Merges the observations of all steps."""
        return self.agent.update_normalizer(state, observed_steps)


class RowTraining(OnPolicyTraining):
    """One gradient step on frames `[B, T]` with the rows of `preprocess` as policy info."""

    def __init__(self, *args: Any, collect_spec: Any, **kwargs: Any):
        """Finds the specs of the rows that the agent makes from a rollout.

        Args:
          *args: See `OnPolicyTraining`.
          collect_spec: The spec of a collected frame.
          **kwargs: See `OnPolicyTraining`.

        Raises:
          UserError: For an agent with sequences as rows.
        """
        super().__init__(*args, **kwargs)
        if getattr(self.agent, "learns_sequences", False):
            raise UserError(
                "compute_value_and_advantage_in_train",
                expected=f"True for {type(self.agent).__name__}, which learns from sequences",
                got="False",
                remedy="Leave out this argument and PPOLearner's minibatch_size.",
            )
        self._record = self._rows_of(collect_spec)
        self._row_spec = {
            path: tf.TensorSpec(x.shape[1:], x.dtype, f"row/{path}")
            for path, x in struct.paths(self._record).items()
        }

    @property
    def row_spec(self) -> dict[str, tf.TensorSpec]:
        """The specs of the rows' leaves, by path."""
        return self._row_spec

    def _rows_of(self, collect_spec: Any) -> Nest:
        """Returns the specs of the rows of the shortest rollout."""
        length = 1 + (getattr(self.agent, "gae_horizon", None) or 1)
        frames = tf.nest.map_structure(
            lambda s: tf.TensorSpec([1, length, *s.shape], s.dtype), collect_spec
        )
        result: list[Nest] = []

        def make(experience: Any) -> tf.Tensor:
            batch, _ = self.agent.learner_batch(self.state_values(), self.steps(experience))
            result.append(tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batch))
            return tf.constant(0)

        tf.function(make, autograph=False).get_concrete_function(frames)
        return result[0]

    def preprocess(self, experience: Any) -> Any:
        """Returns frames `[T, ...]` or `[B, T, ...]` with rows to learn from as policy info.

        The last frame has no known successor and counts in no loss.
        """
        if experience.step_type.shape.rank == 1:
            one = self.preprocess(tf.nest.map_structure(lambda x: x[tf.newaxis], experience))
            return tf.nest.map_structure(lambda x: x[0], one)
        length = tf.shape(experience.step_type)[1]
        steps = self.steps(experience)
        batch, _ = self.agent.learner_batch(self.state_values(), steps)
        num_steps, batch_size = steps.valid.shape[0], tf.shape(steps.valid)[1]

        def frames(x: tf.Tensor) -> tf.Tensor:
            by_time = tf.reshape(x, tf.concat([[num_steps, batch_size], tf.shape(x)[1:]], 0))
            rows = tf.transpose(by_time, [1, 0, *range(2, by_time.shape.rank)])
            rows = tf.pad(rows, [[0, 0], [0, 1]] + [[0, 0]] * (rows.shape.rank - 2))[:, :length]
            return tf.ensure_shape(rows, [*experience.step_type.shape, *x.shape[1:]])

        info = {path: frames(x) for path, x in struct.paths(batch).items()}
        return experience._replace(policy_info=info)

    def takes(self, shape: tf.TensorShape) -> bool:
        """Whether the sizes are static: rows are not padded here."""
        return bool(shape.is_fully_defined())

    def rows(self, experience: Any, weights: Any) -> tuple[Nest, Nest]:
        """Returns the rows from `preprocess`."""
        if weights is not None:
            return super().rows(experience, weights)
        info = experience.policy_info

        def flat(x: tf.Tensor) -> tf.Tensor:
            return tf.reshape(x, [x.shape[0] * x.shape[1], *x.shape[2:]])

        leaves = [flat(info[path]) for path in self.row_spec]
        return tf.nest.pack_sequence_as(self._record, leaves), ()

    def options(self, rows: Nest) -> dict[str, Any]:
        """Returns options for all rows at once: TF-Agents' learner shuffles them."""
        return {"shuffle": False}


def padded(experience: Any, length: int) -> Any:
    """Pads frames to `[B, length, ...]`; the padding counts nowhere.

    The last given frame only shows an observation; its step does not count.
    """
    frames = tf.shape(experience.step_type)[1]
    with tf.control_dependencies(
        [
            tf.debugging.assert_less_equal(
                frames, length, f"sequences must have at most max_sequence_length frames, {length}"
            )
        ]
    ):
        missing = length - tf.identity(frames)

    def pad(x: tf.Tensor, value: Any = 0) -> tf.Tensor:
        paddings = [[0, 0], [0, missing]] + [[0, 0]] * (x.shape.rank - 2)
        full = tf.pad(x, paddings, constant_values=value)
        return tf.ensure_shape(full, [x.shape[0], length, *x.shape[2:]])

    out = tf.nest.map_structure(pad, experience)
    is_last = tf.range(length) >= frames - 1
    return out._replace(
        step_type=tf.where(is_last, LAST, pad(experience.step_type, LAST)),
        next_step_type=tf.where(is_last, FIRST, pad(experience.next_step_type, FIRST)),
    )
